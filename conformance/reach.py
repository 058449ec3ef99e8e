"""Reach: which steps of an attention a law takes, so that it is not tried on mistakes in others.

Planted bugs share correct bases, and most override a step or two of theirs. A law that passes and
takes none of the steps that a bug overrides has tried nothing but the base: on any other bug that
overrides none of those steps, with the same claims, it meets the same cases and runs the same code.

Source:
    Coles, Laurent, Henard, Papadakis, Ventresque 2016, PIT: a practical mutation testing tool for
    Java: a mutation meets the tests that reach it
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from attnspec.spec import Implementation


@dataclass(frozen=True)
class _Passed:
    """A law that passed: on which class, by which steps, and in how many seconds."""

    by: type
    steps: frozenset[str]
    seconds: float


@dataclass
class Reach:
    """What laws that passed have taken of the steps of attentions."""

    _passed: dict[Any, list[_Passed]] = field(default_factory=dict)

    def learn(self, law: str, subject: Implementation, steps: set[str], seconds: float) -> None:
        """Remember a law that passed on all its cases.

        Args:
            law: its name.
            subject: on which it passed, as `noting` was given it.
            steps: which it took, by the set that `noting` filled.
            seconds: how long it took.
        """
        if has_steps(subject):
            passed = _Passed(type(subject.attention), frozenset(steps), seconds)
            self._passed.setdefault((law, _claims(subject)), []).append(passed)

    def seconds(self, law: str, subject: Implementation) -> float | None:
        """How long a law took that passed on the same code; `None` where it has to be tried."""
        if not has_steps(subject):
            return None
        for passed in self._passed.get((law, _claims(subject)), []):
            base = _base(passed.by, type(subject.attention))
            if base is None:
                continue
            overridden = _overridden(passed.by, base) | _overridden(type(subject.attention), base)
            if not overridden & passed.steps:
                return passed.seconds
        return None


def has_steps(subject: Any) -> bool:
    """True for an attention whose steps are methods, and which has no state of its own."""
    return (
        isinstance(subject, Implementation)
        and _is_step(type(subject.attention), "__call__")
        and not getattr(subject.attention, "__dict__", True)
        and not subject.extras
    )


def noting(subject: Implementation, steps: set[str]) -> Implementation:
    """The same attention, which adds the name of each step that it takes to a set."""
    kind = type(subject.attention)
    names = [name for name in _known(kind) if _is_step(kind, name)]
    noted = {name: _noted(getattr(kind, name), name, steps) for name in names}
    # without `__init__`, which has left nothing in it
    return replace(subject, attention=object.__new__(type(kind.__name__, (kind,), noted)))


def _noted(step: Callable[..., Any], name: str, steps: set[str]) -> Callable[..., Any]:
    @functools.wraps(step)
    def take(*arguments: Any, **options: Any) -> Any:
        steps.add(name)
        return step(*arguments, **options)

    return take


def _nothing(*_: Any, **__: Any) -> Any:
    """Stands for any attention, where claims are compared."""


def _claims(subject: Implementation) -> Implementation:
    return replace(subject, name="any", attention=_nothing)


@functools.cache
def _base(one: type, two: type) -> type | None:
    """The nearest class that both derive from, if it is an attention."""
    shared = next(each for each in one.__mro__ if each in two.__mro__)
    return shared if _is_step(shared, "__call__") else None


@functools.cache
def _overridden(kind: type, base: type) -> frozenset[str]:
    """The steps of a base that a class overrides; the call itself where it changes anything else.

    Names that the base does not have are known to none of its steps.
    """
    above = kind.__mro__[: kind.__mro__.index(base)]
    own = {name for each in above for name in vars(each)} - _UNTOLD
    changed = own & _known(base) | {name for name in own if name.startswith("__")}
    return frozenset(changed if all(_is_step(base, name) for name in changed) else {"__call__"})


def _is_step(kind: type, name: str) -> bool:
    """True for a method; what is static, a property or no code at all cannot note that it ran."""
    return isinstance(inspect.getattr_static(kind, name, None), FunctionType)


def _known(kind: type) -> set[str]:
    return set(dir(kind)) - set(dir(object))


_UNTOLD = {"__annotations__", "__init__", *vars(type("", (), {}))}
"""What each class has of its own that is no step of it."""
