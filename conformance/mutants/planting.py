"""Two short ways to plant an attention that gets one step wrong: an instance, or a class."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from attnspec.conformance.mutants.dense import dense
from attnspec.conformance.mutants.registry import plant
from attnspec.spec import Feature

Wrong = TypeVar("Wrong", bound=Callable[..., Any])


def plant_dense(
    id: str,
    title: str,
    attention: Any,
    *kills: str,
    source: str = "",
    features: Iterable[Feature] = (),
    **profile: Any,
) -> None:
    """Plant a mutant that claims what the correct base claims.

    Args:
        id: of the public report it repeats, or a name of its own.
        title: the mistake in words.
        attention: the callable.
        kills: the names of laws that fail on it.
        source: the public thread that reported it, where there is one.
        features: what it claims beyond mask, causal, gqa and backward.
        profile: answers that differ from those of the base.
    """
    base = dense(f"mutant_{id.lower().replace('-', '_')}", attention)
    subject = replace(
        base,
        features=base.features | frozenset(features),
        profile=replace(base.profile, **profile),
    )
    plant(id=id, title=title, subject=subject, kills=kills, source=source)


def mistake(
    id: str,
    title: str,
    *,
    kills: tuple[str, ...],
    source: str = "",
    features: Iterable[Feature] = (),
    **profile: Any,
) -> Callable[[Wrong], Wrong]:
    """Plant the decorated class, which overrides the step that it gets wrong, or function.

    The arguments are those of `plant_dense`.

    Returns:
        A decorator that returns what it is given.
    """

    def register(wrong: Wrong) -> Wrong:
        attention = wrong() if isinstance(wrong, type) else wrong
        plant_dense(id, title, attention, *kills, source=source, features=features, **profile)
        return wrong

    return register


def read_memory(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Read the memory of a tensor with other strides; past its end, from the start again."""
    if strides == tensor.stride():
        return tensor  # which keeps its gradient
    storage = tensor.new_empty(0).set_(tensor.untyped_storage())
    index = torch.tensor(tensor.storage_offset(), device=tensor.device)
    for axis, stride in enumerate(strides):
        steps = torch.arange(tensor.shape[axis], device=tensor.device) * stride
        index = index + steps.view(-1, *[1] * (tensor.dim() - 1 - axis))
    read: torch.Tensor = storage[index % max(storage.numel(), 1)]
    return read
