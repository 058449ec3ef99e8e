"""A law: a property that any implementation must have, with the clauses that it enforces."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.subjects.kinds import SUBJECT_KINDS, SubjectKind
from attnspec.spec import Case

Machine = Callable[[Callable[[Any], None]], RuleBasedStateMachine]
"""`machine(attempt)` returns a state machine whose rules build a case and pass it to `attempt`."""

Source = SearchStrategy[Any] | Machine
"""The source of explored cases: a strategy that draws them, or a machine that builds them."""

Explore = Callable[[Any], Source | None]

Wide = Sequence[Any] | Callable[[Any, int], Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class Law:
    """A named property and the cases on which it is tried.

    Attributes:
        name: the name of the function without `law_`, words joined by hyphens.
        clauses: the ids of the clauses that it enforces; a failure names the first.
        judges: the kind of subject that `check` takes.
        check: `check(subject, case)` returns if the law holds and raises `Violation` if not.
        pinned: cases tried first, in this order, smallest first, without shrinking.
        design: `design(subject)` returns cases chosen for the claims of the subject, tried after
            the pinned ones and like them.
        wide: cases that detect no further mutant, most of them larger, tried from effort standard
            on, after the pinned ones and like them; or `wide(subject, seed)`, which returns them.
        large: likewise, tried at effort thorough only, after these.
        explore: `explore(subject)` returns the strategy from which further cases are drawn, the
            state machine that builds them, or None if only the pinned cases are tried.
        needs: features without which the law does not apply to a subject.
        cost: the cost of a case, in plain calls; exploration tries proportionally fewer cases.
        fresh: true if explored cases differ from run to run at every effort; the seed is printed.
    """

    name: str
    clauses: tuple[str, ...]
    judges: SubjectKind
    check: Callable[[Any, Any], None]
    pinned: Sequence[Any] = ()
    explore: Explore | None = None
    design: Callable[[Any], Sequence[Any]] | None = None
    needs: frozenset[str] = frozenset()
    cost: float = 1.0
    wide: Wide = ()
    large: Wide = ()
    fresh: bool = False

    @property
    def sentence(self) -> str:
        """The first line of the docstring of the law."""
        return (self.check.__doc__ or "").strip().splitlines()[0]

    @property
    def is_long(self) -> bool:
        """True if it chooses cases for the claims of a subject, which takes up to a minute."""
        return callable(self.wide)


_LAWS: dict[str, Law] = {}


def law(
    *clauses: str,
    pinned: Sequence[Any] = (),
    explore: Explore | None = None,
    design: Callable[[Any], Sequence[Any]] | None = None,
    needs: Iterable[str] = (),
    cost: float = 1.0,
    wide: Wide = (),
    large: Wide = (),
    fresh: bool = False,
) -> Callable[[Callable[[Any, Any], None]], Callable[[Any, Any], None]]:
    """Register a function `law_<name>(subject, case)` as a law; the function itself stays plain.

    The parameters are fields of `Law`. The type of `subject` says which kind of subject the law
    judges, and the features that all pinned cases use are added to what it needs.

    Raises:
        ValueError: if the name does not start with `law_` or is taken, if the type of its subject
            is of no kind, or if the law has no clause, or neither pinned cases nor a strategy.
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
            judges=_kind_of_subject(check),
            check=check,
            pinned=tuple(pinned),
            explore=explore,
            design=design,
            needs=frozenset(needs).union(_common_features(pinned)),
            cost=cost,
            wide=wide if callable(wide) else tuple(wide),
            large=large if callable(large) else tuple(large),
            fresh=fresh,
        )
        return check

    return register


def _kind_of_subject(check: Callable[[Any, Any], None]) -> SubjectKind:
    """Return the kind of subject that a law takes, by the annotation of its first parameter."""
    subject = next(iter(get_type_hints(check).values()), None)
    if subject not in SUBJECT_KINDS:
        raise ValueError(f"{check.__name__}: the annotation of its subject is of no kind")
    return SUBJECT_KINDS[subject]


def _common_features(pinned: Sequence[Any]) -> frozenset[str]:
    """Return the features that every pinned case of attention uses."""
    features = [case.features for case in pinned if isinstance(case, Case)]
    return frozenset[str].intersection(*features) if features else frozenset()


def registered() -> dict[str, Law]:
    """Return the laws registered so far, by name; `laws.load` registers all."""
    return dict(_LAWS)
