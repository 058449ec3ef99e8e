"""Register an attention with one wrong step as a mutant: by a call, or by a decorator."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from attnspec.conformance.mutants.bases.dense import dense
from attnspec.conformance.mutants.registry import plant
from attnspec.spec import Extra, Feature

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def plant_dense(
    id: str,
    title: str,
    attention: Any,
    *,
    killed_by: str,
    source: str = "",
    features: Iterable[Feature] = (),
    extras: Iterable[Extra] = (),
    **profile: Any,
) -> None:
    """Register an attention as a mutant that claims what the correct base claims.

    Args:
        id: of the public report that it repeats, or a name of its own.
        title: the mistake in words.
        attention: the callable.
        killed_by: the name of a law that fails on it, the one that states what it gets wrong.
        source: the address of the public report; empty if there is none.
        features: claimed in addition to mask, causal, gqa and backward.
        extras: claimed; the base claims none.
        profile: fields of the profile that differ from those of the base.
    """
    base = dense(f"mutant_{id.lower().replace('-', '_')}", attention)
    subject = replace(
        base,
        features=base.features | frozenset(features),
        extras=frozenset(extras),
        profile=replace(base.profile, **profile),
    )
    plant(id=id, title=title, subject=subject, killed_by=killed_by, source=source)


def mistake(
    id: str,
    title: str,
    *,
    killed_by: str,
    source: str = "",
    features: Iterable[Feature] = (),
    extras: Iterable[Extra] = (),
    **profile: Any,
) -> Callable[[Decorated], Decorated]:
    """Register the decorated function, or an instance of the decorated class, as a mutant.

    A class overrides the one step that it gets wrong.

    Args:
        id: of the public report that it repeats, or a name of its own.
        title: the mistake in words.
        killed_by: the name of a law that fails on it, the one that states what it gets wrong.
        source: the address of the public report; empty if there is none.
        features: claimed in addition to mask, causal, gqa and backward.
        extras: claimed; the base claims none.
        profile: fields of the profile that differ from those of the base.

    Returns:
        A decorator that returns the class or function unchanged.
    """

    def register(mutant: Decorated) -> Decorated:
        attention = mutant() if isinstance(mutant, type) else mutant
        plant_dense(
            id,
            title,
            attention,
            killed_by=killed_by,
            source=source,
            features=features,
            extras=extras,
            **profile,
        )
        return mutant

    return register


def read_memory(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Read a tensor's memory with the given strides; wrap around at the end of the memory."""
    if strides == tensor.stride():
        return tensor  # a copy would have no gradient
    storage = tensor.new_empty(0).set_(tensor.untyped_storage())
    index = torch.tensor(tensor.storage_offset(), device=tensor.device)
    for axis, stride in enumerate(strides):
        steps = torch.arange(tensor.shape[axis], device=tensor.device) * stride
        index = index + steps.view(-1, *[1] * (tensor.dim() - 1 - axis))
    read: torch.Tensor = storage[index % max(storage.numel(), 1)]
    return read
