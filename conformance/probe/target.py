"""The target of a probe: resolves a name to a callable, without calling it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.probe.experiment import Experiment
from attnspec.conformance.probe.packed import default_profile
from attnspec.conformance.probe.probe import experiments
from attnspec.conformance.runner.claims import DTYPES, Claims
from attnspec.conformance.runner.declare import TargetError
from attnspec.conformance.runner.targets import demand_device, resolve
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import Feature


@dataclass(frozen=True, kw_only=True)
class Target:
    """An attention function to probe.

    Attributes:
        name: the target, as on the command line.
        attention: the function.
        import_code: code that defines the name `attention`.
    """

    name: str
    attention: Callable[..., Any]
    import_code: str


def target_of(name: str, device: str, operator: str | None = None) -> Target:
    """Resolve the name of a target.

    Args:
        name: the target, as on the command line.
        device: where it runs.
        operator: `packed` or `paged`; `None` for a padded attention.

    Raises:
        TargetError: if the target cannot be found, or is no attention.
    """
    demand_device(device)
    if operator is not None:
        return _operator_of(name, device, operator)
    # with explicit storage types, resolving a bare callable does not call it
    claims = Claims(dtypes=tuple(DTYPES.values())) if ":" in name else Claims()
    for judged in resolve(name, claims=claims, device=device):
        if judged.kind is SubjectKind.ATTENTION:
            reason = judged.subject.implementation.unavailable()
            if reason is not None:
                raise TargetError(f"{name}: not available: {reason}")
            return Target(
                name=name,
                attention=judged.subject.implementation.attention,
                import_code=judged.subject.import_code,
            )
    raise TargetError(f"{name}: no attention; the probe knows no other kind")


def _operator_of(name: str, device: str, operator: str) -> Target:
    """Resolve the name of a packed or paged attention; its declaration is not consulted."""
    profile = default_profile(operator)
    # with explicit claims, resolving a bare callable makes few calls
    claims = Claims(
        operator=operator,
        features=frozenset(),
        dtypes=tuple(DTYPES.values()),
        profile=tuple((key, getattr(profile, key)) for key in profile.QUESTIONS),
    )
    for judged in resolve(name, claims=claims, device=device):
        if judged.kind == operator:
            implementation = judged.subject.implementation
            reason = implementation.unavailable()
            if reason is not None:
                raise TargetError(f"{name}: not available: {reason}")
            return Target(
                name=name,
                attention=implementation.function,
                import_code=judged.subject.import_code,
            )
    raise TargetError(f"{name}: no {operator} attention")


def select_experiments(features: str | None) -> list[Experiment]:
    """Return the experiments that concern some features.

    Args:
        features: as on the command line: names separated by commas; `None` selects all.

    Raises:
        ValueError: if a word names no feature of attention.
    """
    if features is None:
        return experiments()
    names = Claims.read(features=features).features or frozenset()
    known = {str(feature) for feature in Feature}
    for name in sorted(names - known):
        raise ValueError(f"no feature of attention {name!r}; there are {', '.join(sorted(known))}")
    return experiments(Feature(name) for name in names)
