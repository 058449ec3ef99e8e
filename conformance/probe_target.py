"""What is probed: a target's callable, found without calling it, and what it declares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.claims import DTYPES, Claims
from attnspec.conformance.law import Judged
from attnspec.conformance.probe import Experiment, experiments
from attnspec.conformance.targets import TargetError, demand_device, resolve
from attnspec.spec import Feature


@dataclass(frozen=True, kw_only=True)
class Target:
    """A callable under probe.

    Attributes:
        name: as it was given.
        attention: the callable.
        importing: code that makes the name `attention` known.
    """

    name: str
    attention: Callable[..., Any]
    importing: str


def target_of(name: str, device: str) -> Target:
    """Find what a target names.

    Raises:
        TargetError: where it cannot be found, or is no attention.
    """
    demand_device(device)
    # with storage types given, a bare callable is not called to find them out
    claims = Claims(dtypes=tuple(DTYPES.values())) if ":" in name else Claims()
    for judged in resolve(name, claims=claims, device=device):
        if judged.kind is Judged.ATTENTION:
            reason = judged.subject.implementation.unavailable()
            if reason is not None:
                raise TargetError(f"{name}: not available: {reason}")
            return Target(
                name=name,
                attention=judged.subject.implementation.attention,
                importing=judged.subject.importing,
            )
    raise TargetError(f"{name}: no attention; the probe knows no other kind")


def chosen(features: str | None) -> list[Experiment]:
    """The experiments that concern some features, given as words.

    Raises:
        ValueError: for a word that names no feature of attention.
    """
    if features is None:
        return experiments()
    words = Claims.read(features=features).features or frozenset()
    known = {str(each) for each in Feature}
    for each in sorted(words - known):
        raise ValueError(f"no feature of attention {each!r}; there are {', '.join(sorted(known))}")
    return experiments(Feature(each) for each in words)
