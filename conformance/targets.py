"""Targets: from a name on the command line to the subjects that it stands for."""

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from attnspec.conformance.claims import DTYPES, Claims
from attnspec.conformance.law import Judged
from attnspec.conformance.model_claims import BuildError, declare_model, is_build
from attnspec.conformance.oracle import expect_numpy
from attnspec.conformance.subject import Subject
from attnspec.spec import (
    Case,
    Feature,
    Implementation,
    ModelImplementation,
    SamplerImplementation,
    TokenizerImplementation,
)
from attnspec.spec.contract import everything

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


class BrokenTarget(TargetError):
    """A target that is there, and does not let itself be imported or called at all."""


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


NOTHING_SAID = Claims()


def resolve(target: str, *, claims: Claims = NOTHING_SAID, device: str = "cpu") -> list[Judgeable]:
    """Find what a target names.

    A callable that needs two arguments, a configuration and weights, builds a GPT-2; any other is
    an attention.

    Args:
        target: a registered name, `module:attribute` or `path/to/file.py:attribute`.
        claims: what is said of it in place of what it declares, or a bare callable suggests.
        device: where cases are drawn.

    Returns:
        One subject, or one for each kind of thing that a registered name stands for.

    Raises:
        TargetError: naming the target and what is wrong with it.
    """
    if ":" not in target:
        return [_overridden(each, claims) for each in _registered(target, device)]
    module_name, _, attribute = target.rpartition(":")
    module, importing = _module(module_name, target)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        near = alike(attribute, vars(module))
        told = f"{target}: {module_name} has no attribute {attribute!r}{near}"
        raise TargetError(told) from None
    if isinstance(found, ModelImplementation) or (callable(found) and is_build(found)):
        return [_model(target, found, claims)]
    if isinstance(found, TokenizerImplementation):
        return [Judgeable(kind=Judged.TOKENIZER, subject=found)]
    if isinstance(found, SamplerImplementation):
        return [Judgeable(kind=Judged.SAMPLER, subject=found)]
    spelled = f"{importing}; attention = {module.__name__}.{attribute}"
    try:
        if isinstance(found, Implementation):
            subject = _subject(claims.override(found), device, f"{spelled}.attention")
        elif callable(found):
            subject = _subject(declare(target, found, claims, device), device, spelled)
            subject.is_bare = claims.features is None
        else:
            raise TargetError(f"{target}: neither a callable nor an Implementation, but {found!r}")
    except ValueError as error:
        raise TargetError(f"{target}: {error}") from None
    return [Judgeable(kind=Judged.ATTENTION, subject=subject)]


def _model(target: str, found: Any, claims: Claims) -> Judgeable:
    """A GPT-2, declared or built by a bare function of a configuration and weights."""
    try:
        if not isinstance(found, ModelImplementation):
            found = declare_model(target, found)
        return Judgeable(kind=Judged.MODEL, subject=claims.override_model(found))
    except BuildError as error:
        raise TargetError(str(error)) from None
    except ValueError as error:
        raise TargetError(f"{target}: {error}") from None


def declare(
    name: str,
    attention: Callable[..., Any],
    claims: Claims = NOTHING_SAID,
    device: str = "cpu",
) -> Implementation:
    """Make the declaration of a bare callable: what is said of it, its parameters, a few calls.

    Raises:
        TargetError: where it accepts no storage type at all.
    """
    accepted = claims.dtypes or _accepted(name, attention, device)
    suggested = Implementation(
        name=name,
        attention=attention,
        features=_features(attention),
        dtypes=accepted,
        devices=(torch.device(device).type,),
        supports=everything if _takes_scale(attention) else _default_scale_only,
    )
    return claims.override(suggested)


def demand_device(device: str) -> None:
    """Go on where there is such a device.

    Raises:
        TargetError: where there is none here, or nowhere.
    """
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise TargetError(f"no device {device!r}; give cpu, cuda or cuda:1") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise TargetError(f"{device}: there is no CUDA device here")


def _takes_scale(attention: Callable[..., Any]) -> bool:
    parameters = _parameters(attention)
    if parameters is None or "scale" in parameters:
        return True
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def _default_scale_only(case: Case) -> str | None:
    return None if case.scale is None else "it has no parameter scale"


def _accepted(name: str, attention: Callable[..., Any], device: str) -> tuple[torch.dtype, ...]:
    accepted, errors = [], []
    for dtype in DTYPES.values():
        try:
            attention(*(torch.ones(1, 1, 2, 4, dtype=dtype, device=device) for _ in range(3)))
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        else:
            accepted.append(dtype)
    if not accepted:
        raise BrokenTarget(
            f"{name}: refuses ones of shape (1, 1, 2, 4) in every dtype: {errors[0]}"
        )
    return tuple(accepted)


def _parameters(attention: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters by name; `None` where they cannot be read, as of torch's own function."""
    try:
        return inspect.signature(attention).parameters
    except (TypeError, ValueError):
        return None


def _features(attention: Callable[..., Any]) -> frozenset[Feature]:
    parameters = _parameters(attention)
    if parameters is None:
        return frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA})
    return frozenset(_BY_PARAMETER[name] for name in parameters if name in _BY_PARAMETER)


def _overridden(judged: Judgeable, claims: Claims) -> Judgeable:
    if judged.kind is not Judged.ATTENTION or claims == NOTHING_SAID:
        return judged
    changed = claims.override(judged.subject.implementation)
    return replace(judged, subject=replace(judged.subject, implementation=changed))


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
        if name.endswith(".py"):
            raise TargetError(f"{name}: which function of it? Give {name}:attribute")
        raise TargetError(
            f"{name}: no implementation of this name{alike(name, every_name())}; "
            f"give module:attribute, file.py:attribute, or one of {', '.join(every_name())}"
        )
    return found


def alike(word: str, words: Iterable[str]) -> str:
    """A question after a word that was not found, or nothing."""
    near = difflib.get_close_matches(word, [each for each in words if not each.startswith("_")], 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


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
        raise BrokenTarget(
            f"{target}: importing it failed: {type(error).__name__}: {error}"
        ) from error


def _here_first() -> None:
    _first(str(Path.cwd()))


def _first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
