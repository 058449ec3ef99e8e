"""Targets: from a name on the command line to the subjects that it stands for."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from attnspec.conformance.law import Judged
from attnspec.conformance.oracle import expect_numpy
from attnspec.conformance.subject import Subject
from attnspec.spec import Feature, Implementation, ModelImplementation

ENTRY_POINTS = "attnspec.implementations"
"""The entry-point group in which other packages register implementations."""

_BY_PARAMETER = {
    "attn_mask": Feature.MASK,
    "is_causal": Feature.CAUSAL,
    "enable_gqa": Feature.GQA,
    "window": Feature.WINDOW,
    "softcap": Feature.SOFTCAP,
    "sinks": Feature.SINKS,
    "alibi_slopes": Feature.ALIBI,
    "return_lse": Feature.LSE,
}


class TargetError(Exception):
    """A target that cannot be found or is not what it should be; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Judgeable:
    """A subject and the kind of laws that judge it."""

    kind: Judged
    subject: Any


def every_name() -> tuple[str, ...]:
    """The names of all registered subjects, the reference first."""
    from attnspec import implementations

    names = ["reference", *implementations.names(), *implementations.model_names()]
    names += [*implementations.tokenizer_names(), *implementations.sampler_names()]
    names += [each.name for each in entry_points(group=ENTRY_POINTS)]
    return tuple(dict.fromkeys(names))


def resolve(
    target: str,
    *,
    features: Iterable[Feature] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    device: str = "cpu",
) -> list[Judgeable]:
    """Find what a target names.

    Args:
        target: a registered name, `module:attribute` or `path/to/file.py:attribute`.
        features: what a bare callable claims; read from its parameters where not given.
        dtypes: the storage types that it claims; found by calling it where not given.
        device: where cases are drawn.

    Returns:
        One subject, or one for each kind of thing that a registered name stands for.

    Raises:
        TargetError: naming the target and what is wrong with it.
    """
    if ":" not in target:
        return _registered(target, device)
    module_name, _, attribute = target.rpartition(":")
    module, importing = _module(module_name, target)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise TargetError(f"{target}: {module_name} has no attribute {attribute!r}") from None
    if isinstance(found, ModelImplementation):
        return [Judgeable(kind=Judged.MODEL, subject=found)]
    spelled = f"{importing}; attention = {module.__name__}.{attribute}"
    if isinstance(found, Implementation):
        subject = _subject(found, device, f"{spelled}.attention")
    elif callable(found):
        claimed = declare(target, found, features=features, dtypes=dtypes, device=device)
        subject = _subject(claimed, device, spelled)
    else:
        raise TargetError(f"{target}: neither a callable nor an Implementation, but {found!r}")
    return [Judgeable(kind=Judged.ATTENTION, subject=subject)]


def declare(
    name: str,
    attention: Callable[..., Any],
    *,
    features: Iterable[Feature] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    device: str = "cpu",
) -> Implementation:
    """Make the declaration of a bare callable from its parameters and a few calls.

    Raises:
        TargetError: where it accepts no storage type at all.
    """
    claimed = _features(attention) if features is None else frozenset(features)
    every = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    accepted = tuple(dtypes) if dtypes is not None else ()
    error: Exception | None = None
    for dtype in every if dtypes is None else ():
        try:
            attention(*(torch.ones(1, 1, 2, 4, dtype=dtype, device=device) for _ in range(3)))
        except Exception as raised:
            error = error or raised
        else:
            accepted = (*accepted, dtype)
    if not accepted:
        raise TargetError(f"{name}: refuses ones of shape (1, 1, 2, 4) in every dtype: {error}")
    return Implementation(
        name=name,
        attention=attention,
        features=claimed,
        dtypes=accepted,
        devices=(torch.device(device).type,),
    )


def _features(attention: Callable[..., Any]) -> frozenset[Feature]:
    try:
        parameters = inspect.signature(attention).parameters
    except (TypeError, ValueError):
        # No readable signature, as of torch's own function: assume that function's parameters.
        return frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA})
    return frozenset(_BY_PARAMETER[name] for name in parameters if name in _BY_PARAMETER)


def _registered(name: str, device: str) -> list[Judgeable]:
    from attnspec import implementations

    found: list[Judgeable] = []
    if name == "reference":
        found += _reference(device)
    if name in implementations.names():
        subject = _subject(implementations.load(name), device, "")
        found.append(Judgeable(kind=Judged.ATTENTION, subject=subject))
    for kind, names, load in (
        (Judged.MODEL, implementations.model_names, implementations.load_model),
        (Judged.TOKENIZER, implementations.tokenizer_names, implementations.load_tokenizer),
        (Judged.SAMPLER, implementations.sampler_names, implementations.load_sampler),
    ):
        if name in names():
            found.append(Judgeable(kind=kind, subject=load(name)))
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        found += resolve(entry.value, device=device)
    if not found:
        raise TargetError(
            f"{name}: no implementation of this name; give module:attribute, file.py:attribute, "
            f"or one of {', '.join(every_name())}"
        )
    return found


def _reference(device: str) -> list[Judgeable]:
    from attnspec.reference.implementation import REFERENCE
    from attnspec.reference.model import MODEL
    from attnspec.reference.text_implementations import SAMPLER, TOKENIZER

    # Scalar loops judge the reference, which cannot judge itself: only as far as they are fast.
    importing = "from attnspec.reference import scaled_dot_product_attention as attention"
    subject = Subject(
        REFERENCE, oracle=expect_numpy, largest=400_000, device=device, importing=importing
    )
    return [
        Judgeable(kind=Judged.ATTENTION, subject=subject),
        Judgeable(kind=Judged.MODEL, subject=MODEL),
        Judgeable(kind=Judged.TOKENIZER, subject=TOKENIZER),
        Judgeable(kind=Judged.SAMPLER, subject=SAMPLER),
    ]


def _subject(implementation: Implementation, device: str, importing: str) -> Subject:
    only = implementation.devices
    # An implementation of one kind of device says by itself where it is to be run.
    chosen = device if torch.device(device).type in only or len(only) > 1 else only[0]
    return Subject(implementation, device=chosen, importing=importing)


def _module(name: str, target: str) -> tuple[ModuleType, str]:
    """Import a module by name or by path; also the code that imports it."""
    try:
        if not name.endswith(".py"):
            _here_first()
            return importlib.import_module(name), f"import {name}"
        path = Path(name).resolve()
        if not path.is_file():
            raise TargetError(f"{target}: there is no file {name}")
        _first(str(path.parent))
        return importlib.import_module(path.stem), f"import {path.stem}"
    except TargetError:
        raise
    except ModuleNotFoundError as error:
        raise TargetError(f"{target}: cannot import it: {error}") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TargetError(
            f"{target}: importing it failed: {type(error).__name__}: {error}"
        ) from error


def _here_first() -> None:
    _first(str(Path.cwd()))


def _first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
