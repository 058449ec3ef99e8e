"""Reach: which steps of an attention were taken, so that mistakes in others need no new trial.

Planted bugs share correct bases, and most override a step or two of theirs. Whatever takes none of
the steps that a bug overrides has tried nothing but the base, and need not be tried again on any
other bug in the same base that overrides none of these steps: it runs the same code.

Source:
    Coles, Laurent, Henard, Papadakis, Ventresque 2016, PIT: a practical mutation testing tool for
    Java: a mutation meets the tests that reach it
"""

import functools
import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Generic, TypeVar

Attention = Callable[..., Any]

Found = TypeVar("Found")
"""What is found out about an attention."""


@dataclass
class Reach(Generic[Found]):
    """What was found out about correct bases, each time by some of their steps."""

    _found: dict[Hashable, tuple[frozenset[str], Found]] = field(default_factory=dict)

    def find(
        self, about: Hashable, attention: Attention, ask: Callable[[Attention], Found]
    ) -> Found:
        """Ask an attention, or take what was found out by the same code.

        Args:
            about: all that it depends on beside the attention.
            attention: of any kind; one without steps is always asked.
            ask: finds it out, by the attention that it is handed.
        """
        found = self.known(about, attention)
        if found is None:
            noted, steps = noting(attention)
            found = ask(noted)
            self.learn(about, attention, steps, found)
        return found

    def learn(self, about: Hashable, attention: Attention, steps: set[str], found: Found) -> None:
        """Remember what was found out, for whatever shares the code of a base.

        Args:
            about: all that it depends on beside the attention.
            attention: of which it was found.
            steps: which were taken to find it, by the set that `noting` gives.
            found: what is remembered.
        """
        # its own class is hardly ever a base, and may have found out much to be kept
        for base in _bases(attention)[1:]:
            if not steps & _overridden(_kind(attention), base):
                self._found.setdefault((about, base), (frozenset(steps), found))

    def known(self, about: Hashable, attention: Attention) -> Found | None:
        """What was found out by the same code; `None` where it has to be tried."""
        for base in _bases(attention):
            steps, found = self._found.get((about, base), (frozenset(), None))
            if found is not None and not steps & _overridden(_kind(attention), base):
                return found
        return None


def _bases(attention: Attention) -> tuple[type, ...]:
    """The attentions that one with steps derives from, its own class first."""
    return _calling(_kind(attention)) if has_steps(attention) else ()


def has_steps(attention: Attention) -> bool:
    """True for an attention whose steps are methods, and which has no state of its own."""
    return _is_step(_kind(attention), "__call__") and not getattr(attention, "__dict__", True)


def noting(attention: Attention) -> tuple[Attention, set[str]]:
    """The same attention, and an empty set to which it adds the name of each step that it takes.

    What has no steps is given back as it is, with a set that stays empty. Attentions of one class
    share one set, which is emptied whenever it is given.
    """
    if not has_steps(attention):
        return attention, set()
    noted, steps = _noting(_kind(attention))
    steps.clear()
    return noted, steps


def _kind(attention: Attention) -> type:
    kind: type = type(attention)  # which type checkers do not take for hashable otherwise
    return kind


@functools.cache
def _noting(kind: type) -> tuple[Attention, set[str]]:
    steps: set[str] = set()
    names = [name for name in _known(kind) if _is_step(kind, name)]
    noted = {name: _noted(getattr(kind, name), name, steps) for name in names}
    # without `__init__`, which has left nothing in it
    return object.__new__(type(kind.__name__, (kind,), noted)), steps


def _noted(step: Callable[..., Any], name: str, steps: set[str]) -> Callable[..., Any]:
    @functools.wraps(step)
    def take(*arguments: Any, **options: Any) -> Any:
        steps.add(name)
        return step(*arguments, **options)

    return take


@functools.cache
def _calling(kind: type) -> tuple[type, ...]:
    return tuple(each for each in kind.__mro__ if _is_step(each, "__call__"))


@functools.cache
def _overridden(kind: type, base: type) -> frozenset[str]:
    """The steps of a base that a class overrides, by steps; the call itself where it changes more.

    Names that the base does not have are known to none of its steps.
    """
    above = kind.__mro__[: kind.__mro__.index(base)]
    own = {name for each in above for name in vars(each)} - _UNTOLD
    changed = own & _known(base) | {name for name in own if name.startswith("__")}
    are_steps = all(_is_step(each, name) for each in (base, kind) for name in changed)
    return frozenset(changed if are_steps else {"__call__"})


@functools.cache
def _is_step(kind: type, name: str) -> bool:
    """True for a method; what is static, a property or no code at all cannot note that it ran."""
    return isinstance(inspect.getattr_static(kind, name, None), FunctionType)


@functools.cache
def _known(kind: type) -> frozenset[str]:
    return frozenset(dir(kind)) - frozenset(dir(object))


_UNTOLD = {"__annotations__", "__init__", *vars(type("", (), {}))}
"""What each class has of its own that is no step of it."""
