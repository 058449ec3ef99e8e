"""A law: a property that any implementation must have, citing the clauses it enforces."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.strategies import SearchStrategy

Machine = Callable[[Callable[[Any], None]], RuleBasedStateMachine]
"""`machine(attempt)`: a state machine whose rules write a case, which it hands to `attempt`."""

Source = SearchStrategy[Any] | Machine
"""Where further cases come from: a strategy that draws each whole, or a machine that grows it."""

Explore = Callable[[Any], Source | None]


class Judged(StrEnum):
    """What kind of thing a law judges."""

    ATTENTION = "attention"
    MODEL = "model"
    TOKENIZER = "tokenizer"
    SAMPLER = "sampler"


@dataclass(frozen=True, kw_only=True)
class Law:
    """A named property with the cases on which it is tried.

    Attributes:
        name: the function's name without `law_`, words joined by hyphens.
        clauses: the ids of the clauses it enforces, the first being the one that a failure names.
        judges: what kind of subject `check` takes.
        check: `check(subject, case)` returns where the law holds and raises `Violation` where not.
        pinned: cases tried first, in this order, smallest first, without shrinking.
        design: `design(subject)` gives cases that are chosen for what the subject claims, tried
            after the pinned ones and like them.
        wide: cases that no known bug needs to be seen, most of them larger: tried from effort
            standard on, after the pinned ones and like them.
        large: likewise, at effort thorough alone.
        explore: `explore(subject)` gives the strategy from which further cases are drawn, or the
            state machine that grows them, or `None` where the pinned cases are all there is to try.
        needs: features without which the law says nothing about a subject.
        cost: how many times as expensive a case is as one plain call; exploration tries
            proportionally fewer.
        fresh: drawn cases differ from run to run at every effort; the seed is printed.
    """

    name: str
    clauses: tuple[str, ...]
    judges: Judged
    check: Callable[[Any, Any], None]
    pinned: Sequence[Any] = ()
    explore: Explore | None = None
    design: Callable[[Any], Sequence[Any]] | None = None
    needs: frozenset[str] = frozenset()
    cost: float = 1.0
    wide: Sequence[Any] = ()
    large: Sequence[Any] = ()
    fresh: bool = False

    @property
    def sentence(self) -> str:
        """The first line of the law's docstring."""
        return (self.check.__doc__ or "").strip().splitlines()[0]


_LAWS: dict[str, Law] = {}


def law(
    *clauses: str,
    judges: Judged,
    pinned: Sequence[Any] = (),
    explore: Explore | None = None,
    design: Callable[[Any], Sequence[Any]] | None = None,
    needs: Iterable[str] = (),
    cost: float = 1.0,
    wide: Sequence[Any] = (),
    large: Sequence[Any] = (),
    fresh: bool = False,
) -> Callable[[Callable[[Any, Any], None]], Callable[[Any, Any], None]]:
    """Register a function `law_<name>(subject, case)` as a law; the function itself stays plain.

    Raises:
        ValueError: for a name that does not start with `law_` or is taken, for a law without
            clauses, or one that has nothing to try.
    """

    def register(check: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        if not check.__name__.startswith("law_"):
            raise ValueError(f"{check.__name__}: the name of a law starts with 'law_'")
        name = check.__name__.removeprefix("law_").replace("_", "-")
        if name in _LAWS:
            raise ValueError(f"{name}: two laws of this name")
        if not clauses:
            raise ValueError(f"{name}: a law cites at least one clause")
        if not pinned and explore is None:
            raise ValueError(f"{name}: a law needs pinned cases or a strategy")
        _LAWS[name] = Law(
            name=name,
            clauses=clauses,
            judges=judges,
            check=check,
            pinned=tuple(pinned),
            explore=explore,
            design=design,
            needs=frozenset(needs),
            cost=cost,
            wide=tuple(wide),
            large=tuple(large),
            fresh=fresh,
        )
        return check

    return register


def registered() -> dict[str, Law]:
    """The laws registered so far, by name; `attnspec.conformance.laws` registers all."""
    return dict(_LAWS)
