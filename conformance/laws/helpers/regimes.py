"""The plan of a design: the regimes of each case, chosen so that every two of them meet."""

import functools
import json
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product, repeat
from pathlib import Path
from typing import Any

import torch

from attnspec.conformance.attention.fields import FIELDS, case_of
from attnspec.conformance.attention.regimes import AXES, Regime
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.calls import plain
from attnspec.conformance.laws.helpers.claims import DesignClaims
from attnspec.conformance.laws.helpers.condense import condensed
from attnspec.conformance.laws.helpers.pairwise import each_once, pairwise
from attnspec.spec import Case, Feature, Values
from attnspec.spec.case import MODES_WITHOUT_GRADIENTS

Choice = Regime | None
"""A regime of an axis, or None if any value does."""

FREE = (
    "tiles of queries",
    "tiles of keys",
    "extent",
    "scores",
    "keys that a mask hides",
    "shape of mask",
    "layout of mask",
    "side of window",
)
"""Axes on which a case need not be in any class."""

BYTES = 2**30
"""Memory that a call with its operands may take."""

TILE = 16
"""Queries and keys to which a kernel may pad fewer."""

OPERATIONS = 4e8
"""Operations that a call may take: about a second on one core."""

CHEAP = 1.5e8
"""Operations up to which a call combines many pairs; a pair that takes more has its own call."""

SEVERAL = 4
"""Pairs of one regime, from which on they have rows that combine them."""

ROTATIONS = 16
"""Draws of values inside the classes of a case, of which the cheapest is taken."""

LIGHT = 3e7
"""Operations up to which a call takes further choices by chance."""

VARIED = {
    "causal": ("no", "yes"),
    "batch": ("1", "2 to 4"),
    "heads": ("1", "odd", "even, up to 6"),
    "call": ("plain", "no_grad", "inference", "default_float64", "deterministic"),
    "log-sum-exp": ("no", "yes"),
    "sinks": ("no", "yes"),
    **{
        f"layout of {name}": ("contiguous", "heads_inside", "padded", "packed", "transposed")
        for name in ("query", "key", "value")
    },
}
"""Axes, and classes of them, that a light case takes by chance if its row leaves them free."""

SHARE_VARIED = 0.6
"""Share of the free axes that a case takes a class of."""


NARROW = 4
"""Width of heads in long calls of any width: it keeps them affordable."""

MANY_TOKENS = 2**14
"""Queries and keys of all heads, beyond which heads are narrow unless a row names their width."""

MANY_HEADS = 65_535
"""Heads of all batch elements, beyond which calls are long whatever their lengths."""

NO_QUERIES, NO_KEYS = (
    next(regime for regime in AXES[axis] if regime.name == "0") for axis in ("queries", "keys")
)


def _named(**names: Iterable[str]) -> frozenset[Regime]:
    """Return regimes by the axis and the beginnings of their names."""
    return frozenset(
        regime
        for axis, beginnings in names.items()
        for regime in AXES[axis]
        if regime.name.startswith(tuple(beginnings))
    )


WITHOUT_GRADIENTS = _named(scale=["zero"], scores=["all below 0.0001"]) | {
    regime for regime in AXES["keys"] if regime.name == "1"
}
"""Regimes in which gradients are zero or nearly, so that they show no mistake of another one."""

NOT_TRAINED = _named(
    queries=["8 001 to 65 000", "over 65 000"],
    keys=["8 001 to 65 000", "over 65 000"],
    batch=["over 65 535"],
    extent=["decoding", "over 65 535"],
)
"""Regimes of decoding, and of longer or larger calls than training makes.

Each meets a backward pass once, and no second regime beside it: together these took half the time.
"""

BACKWARD = {
    is_there: next(regime for regime in AXES["backward"] if regime.conditions["backward"](is_there))
    for is_there in (False, True)
}
"""The regimes of calls without a backward pass, and with one."""


def pairs_shown(regimes: Iterable[Regime]) -> set[frozenset[Regime]]:
    """Return the pairs of regimes of a call that its result can show to be wrong.

    A call without queries has no output and one without keys reads nothing, so that they show the
    pairs with that regime alone.
    """
    held = frozenset(regimes)
    empty = _empty(held)
    return {
        frozenset(pair)
        for pair in combinations(held, 2)
        if pair[0].axis != pair[1].axis and (empty is None or empty in pair)
    }


def _empty(regimes: Iterable[Choice]) -> Regime | None:
    """Return the regime of no queries or else of no keys, if it is among some."""
    held = frozenset(regimes)
    return next((each for each in (NO_QUERIES, NO_KEYS) if each in held), None)


def _shown(row: Mapping[str, Choice]) -> set[frozenset[Regime]]:
    """Return the pairs that the cases of a row show."""
    return pairs_shown(filter(None, row.values()))


def _shows(row: Mapping[str, Choice], pairs: Iterable[frozenset[Choice]]) -> bool:
    """Return whether the cases of a row show some pairs of its choices: quicker than all pairs."""
    empty = _empty(row.values())
    return empty is None or all(empty in pair for pair in pairs)


def _axis_of(choice: Choice) -> str:
    """Return the axis of a regime."""
    assert choice is not None
    return choice.axis


def _names(pair: frozenset[Regime]) -> list[str]:
    """Return the names of a pair, by which pairs are sorted."""
    return sorted(map(str, pair))


def gibibytes(case: Case) -> float:
    """Return the memory that a call takes if its scores are stored, in GiB.

    Kernels may pad queries and keys to a tile, which counts if there are many batch elements.
    """
    copies = 5 if case.backward else 2
    lengths = max(case.queries, TILE), max(case.keys, TILE)
    return 8 * copies * (_scores(case, *lengths) + _numbers(case, *lengths)) / 2**30


def operations(case: Case) -> float:
    """Return roughly the operations of a call and of its bound, which takes 100 for each number."""
    products = _scores(case, case.queries, case.keys) * (case.d_head + case.d_value + 10)
    numbers = _numbers(case, case.queries, case.keys)
    return (4 if case.backward else 1) * products + (200 if case.backward else 100) * numbers


def _scores(case: Case, queries: int, keys: int) -> int:
    return case.batch * case.heads * queries * keys


def _numbers(case: Case, queries: int, keys: int) -> int:
    """Return the elements of the operands and the output, keys and values for each query head."""
    return case.batch * case.heads * (queries + keys + 1) * (case.d_head + case.d_value)


def too_costly(case: Case) -> str:
    """Return the reason why a case takes too much memory or time, or an empty string."""
    if gibibytes(case) > BYTES / 2**30:
        return f"needs {gibibytes(case):.1f} GiB"
    if operations(case) > OPERATIONS:
        return f"needs about {operations(case) / OPERATIONS:.1f} s"
    return ""


@functools.cache
def _choices(
    field: str, regimes: frozenset[Regime], among: tuple[Any, ...] | None
) -> tuple[Any, ...]:
    """Return the values of a field, or some of them, that satisfy what some regimes require."""
    conditions = [regime.conditions[field] for regime in regimes]
    values = FIELDS[field].values if among is None else among
    return tuple(value for value in values if all(condition(value) for condition in conditions))


def _possible_values(
    row: Mapping[str, Choice],
    usual: Mapping[str, Any],
    heads: tuple[tuple[int, int], ...],
    pick: Callable[[tuple[Any, ...]], Any],
) -> Iterator[dict[str, Any]]:
    """Yield values of all fields that satisfy a row: any, with equal widths, with equal lengths.

    Args:
        row: the choices of some axes, or of all.
        usual: a value for each field on which the row has no condition.
        heads: the numbers of heads that the subject claims.
        pick: chooses among the values of a field that satisfy the row.
    """
    regimes: dict[str, set[Regime]] = {}
    for regime in row.values():
        if regime is not None:
            for field in regime.conditions:
                regimes.setdefault(field, set()).add(regime)
    choices = {
        field: _choices(field, frozenset(held), heads if field == "heads" else None)
        for field, held in regimes.items()
    }
    if not all(choices.values()):
        return
    values = {**usual, **{field: pick(among) for field, among in choices.items()}}
    # a field without a condition may have any value
    choices = {name: FIELDS[name].values for pair in EQUAL_FIELDS for name in pair} | choices
    is_huge = values["batch"] * values["heads"][0] > MANY_HEADS
    if is_huge:
        # the largest batches leave room for the smallest calls alone
        sizes = ("queries", "keys", "d_head", "d_value")
        values |= {name: 1 for name in sizes if name not in regimes}
    if row.get("side of window") is not None and values["window"] is None:
        return
    if values["scale"] == 0 and "scores" not in row:
        values["scores"] = Values.TINY
    if row.get("layout of mask") is not None and "mask" not in regimes:
        values["mask"] = FIELDS["mask"].values[1]
    tokens = values["batch"] * values["heads"][0] * (values["queries"] + values["keys"])
    is_costly = tokens > MANY_TOKENS and not is_huge
    narrow = {name: NARROW for name in ("d_head", "d_value") if is_costly and name not in regimes}
    for widths in (narrow, {}) if narrow else ({},):
        for changes in product(
            *map(_equal, repeat(values | widths), repeat(choices), EQUAL_FIELDS)
        ):
            changed = functools.reduce(operator.or_, changes, values | widths)
            if _is_consistent(row, changed):
                yield changed


EQUAL_FIELDS = (("d_head", "d_value"), ("queries", "keys"))
"""Fields that some kernels require to be equal."""


def _equal(
    values: Mapping[str, Any], choices: Mapping[str, tuple[Any, ...]], fields: tuple[str, str]
) -> list[dict[str, Any]]:
    """Return the changes that make two fields equal, after no change."""
    one, two = fields
    changes: list[dict[str, Any]] = [{}]
    changes += [{two: values[one]}] if values[one] in choices[two] else []
    changes += [{one: values[two]}] if values[two] in choices[one] else []
    return changes


def _is_consistent(row: Mapping[str, Choice], values: Mapping[str, Any]) -> bool:
    """Return whether the values that were chosen for a row go together."""
    has_scores, has_mask = bool(values["queries"] and values["keys"]), values["mask"] is not None
    of_masks = ("keys that a mask hides", "shape of mask", "layout of mask")
    needed = {
        "scores": has_scores,
        **dict.fromkeys(of_masks, has_mask),
        "side of window": values["window"] is not None,
    }
    return (
        all(is_there or row.get(axis) is None for axis, is_there in needed.items())
        and not (has_scores and values["scale"] == 0 and values["scores"] is not Values.TINY)
        and not (values["backward"] and values["mode"] in MODES_WITHOUT_GRADIENTS)
    )


STORED = Path(__file__).with_name("regimes.json")
"""The combined rows of a subject that claims everything; see `stored_rows`."""


def to_json(rows: Iterable[Mapping[str, Choice]]) -> str:
    """Return rows as JSON: the names of all classes, and for each row the place of its classes."""
    names = {axis: [each.name for each in classes] for axis, classes in AXES.items()}
    places = [
        [-1 if (each := row[axis]) is None else AXES[axis].index(each) for axis in AXES]
        for row in rows
    ]
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in places)
    return f'{{"axes": {json.dumps(names, ensure_ascii=False)},\n"rows": [\n{lines}\n]}}\n'


@functools.cache
def stored_rows() -> tuple[Mapping[str, Choice], ...]:
    """Return the stored rows: a design is found several times faster if it begins with them.

    They need not be those of the present classes: what they miss is added, and what is unknown left
    out. `attnspec.conformance.evidence.rows_of_regimes` writes them anew.
    """
    if not STORED.exists():
        return ()
    known = {(axis, each.name): each for axis, classes in AXES.items() for each in classes}
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    choices = [
        [*(known.get((axis, name)) for name in names), None]
        for axis, names in stored["axes"].items()
    ]
    return tuple(
        dict.fromkeys(AXES)
        | {
            axis: of_axis[place]
            for axis, of_axis, place in zip(stored["axes"], choices, row, strict=True)
            if axis in AXES
        }
        for row in stored["rows"]
    )


class Plan:
    """The regimes of each case of a design, without their values.

    Attributes:
        axes: the axes of regimes, with the classes that calls of this kind have.
        combined: the choices of the cases that show many pairs.
        rows: the choices of each case, on some axes or on all.
        claimed: as in `Design`.
        not_tried: as in `Design`.
    """

    def __init__(
        self, claims: DesignClaims, earlier: Sequence[Mapping[str, Choice]], *, backward: bool
    ) -> None:
        """Choose the rows for some claims, beginning with earlier ones.

        Args:
            claims: of the subject.
            earlier: rows of an earlier plan; those of the other kind of call are ignored.
            backward: true for calls with a backward pass, false for calls without.
        """
        if not backward:
            claims = replace(claims, features=claims.features - {Feature.BACKWARD})
        self.device = claims.device
        self.subject = claims.subject()
        self.usual = _usual_values(self.subject) | {"backward": backward}
        self.heads = _claimed_heads(self.subject, self.usual)
        self.axes = {axis: _classes(classes, backward) for axis, classes in AXES.items()}
        self._simplest: dict[frozenset[tuple[str, Choice]], Case | None] = {}
        earlier = [row for row in earlier if row["backward"] is BACKWARD[backward]]
        self.claimed, self.not_tried = self._claimed(backward)
        self.combined: tuple[Mapping[str, Choice], ...] = tuple(self._combined(earlier))
        is_cheap = functools.partial(self._takes_at_most, CHEAP)
        rows: list[Mapping[str, Choice]] = [
            *condensed(self.combined, self._claimed_of, _shows, _axis_of, is_cheap)
        ]
        rows += self._further(set(self.claimed.difference(*map(_shown, rows))))
        # values are drawn axis by axis: in one order, so that a seed repeats them
        self.rows: list[Mapping[str, Choice]] = [
            {axis: row[axis] for axis in AXES if axis in row} for row in rows
        ]

    def _claimed_of(self, row: Mapping[str, Choice]) -> frozenset[frozenset[Choice]]:
        """Return the claimed pairs that the cases of a row show."""
        return frozenset(_shown(row)) & self.claimed

    def _claimed(
        self, backward: bool
    ) -> tuple[frozenset[frozenset[Regime]], dict[str, list[frozenset[Regime]]]]:
        """Return the pairs that a call may hold, and by the reason those of too costly calls."""
        claimed: set[frozenset[Regime]] = set()
        not_tried: dict[str, list[frozenset[Regime]]] = {}
        for pair in self._pairs(backward):
            simplest = self.simplest({regime.axis: regime for regime in pair})
            if simplest is None:
                continue
            if reason := too_costly(simplest):
                not_tried.setdefault(reason, []).append(frozenset(pair))
            else:
                claimed.add(frozenset(pair))
        return frozenset(claimed), not_tried

    def _further(self, missing: set[frozenset[Regime]]) -> Iterator[Mapping[str, Choice]]:
        """Yield rows of the pairs that the combined rows miss, most of whose calls are long.

        A regime of long calls meets all others in a few rows of its own.
        """
        takes_affordable = functools.partial(self._takes_at_most, OPERATIONS)
        while missing:
            counts = Counter(regime for pair in missing for regime in pair)
            regime, count = min(counts.items(), key=lambda each: (-each[1], str(each[0])))
            if count < SEVERAL:
                break
            pairs = {pair for pair in missing if regime in pair}
            axes: dict[str, tuple[Choice, ...]] = {regime.axis: (regime,)}
            for partner in sorted(frozenset().union(*pairs) - {regime}, key=str):
                axes[partner.axis] = (partner, *axes.get(partner.axis, (None,)))
            rows = each_once(axes, takes_affordable)
            yield from rows
            missing -= pairs
            for pair in sorted(pairs.difference(*map(_shown, rows)), key=_names):
                yield {each.axis: each for each in pair}
        for pair in sorted(missing, key=_names):
            yield {each.axis: each for each in pair}

    def _pairs(self, backward: bool) -> Iterator[tuple[Regime, Regime]]:
        """Yield the pairs of regimes that calls can show."""
        for left, right in combinations(self.axes, 2):
            yield from product(self.axes[left], self.axes[right])
        if backward:
            alone = sorted(WITHOUT_GRADIENTS | NOT_TRAINED, key=str)
            yield from ((regime, BACKWARD[True]) for regime in alone)

    def _combined(self, earlier: Sequence[Mapping[str, Choice]]) -> Iterator[Mapping[str, Choice]]:
        """Yield rows that combine many pairs; those that show little have their own designs."""
        axes: dict[str, tuple[Choice, ...]] = {
            axis: (*regimes, None) if axis in FREE else regimes
            for axis, regimes in self.axes.items()
        }
        queries, keys = (
            {empty.axis: tuple(each for each in axes[empty.axis] if each is not empty)}
            for empty in (NO_QUERIES, NO_KEYS)
        )
        alone = (NO_QUERIES, NO_KEYS)
        own = {each: [row for row in earlier if row[each.axis] is each] for each in alone}
        others = [row for row in earlier if not any(row[each.axis] is each for each in alone)]
        is_cheap = functools.partial(self._takes_at_most, CHEAP)
        yield from pairwise(axes | queries | keys, is_cheap, others)
        yield from each_once(axes | {"queries": (NO_QUERIES,)}, is_cheap, own[NO_QUERIES])
        yield from each_once(axes | queries | {"keys": (NO_KEYS,)}, is_cheap, own[NO_KEYS])

    def _takes_at_most(self, limit: float, row: Mapping[str, Choice]) -> bool:
        simplest = self.simplest(row)
        return simplest is not None and operations(simplest) <= limit and not too_costly(simplest)

    def simplest(self, row: Mapping[str, Choice]) -> Case | None:
        """Return the simplest case that satisfies a row; that of a value or a pair is kept."""
        if len(row) > 2:
            return self.case(row, min_of)
        key = frozenset(row.items())
        if key not in self._simplest:
            self._simplest[key] = self.case(row, min_of)
        return self._simplest[key]

    def case(
        self,
        row: Mapping[str, Choice],
        pick: Callable[[tuple[Any, ...]], Any],
        dtype: torch.dtype | None = None,
    ) -> Case | None:
        """Return a claimed case that satisfies a row, or None if there is none.

        A row without a storage type has a given one, or else the usual one.
        """
        found = self._claimed_case(row, pick, dtype)
        return None if found is None else found[1]

    def values(
        self, row: Mapping[str, Choice], pick: Callable[[tuple[Any, ...]], Any]
    ) -> dict[str, Any] | None:
        """Return the values of all fields of a claimed case that satisfies a row, or None."""
        found = self._claimed_case(row, pick, None)
        return None if found is None else found[0]

    def _claimed_case(
        self,
        row: Mapping[str, Choice],
        pick: Callable[[tuple[Any, ...]], Any],
        dtype: torch.dtype | None,
    ) -> tuple[dict[str, Any], Case] | None:
        """Return a claimed case that satisfies a row after the values of its fields, or None."""
        usual = self.usual if dtype is None else self.usual | {"dtype": dtype}
        for values in _possible_values(row, usual, self.heads, pick):
            case = case_of(values, self.device)
            if self.subject.refuses(case) is None and plain(case):
                return values, case
            claimed = self.subject.implementation
            if case.dtype not in claimed.dtypes or not self.subject.claims(*case.features):
                return None  # the other values differ in widths and lengths alone
        return None

    def rotated(self, number: int, seed: int) -> Case:
        """Return a case of a row, with values that a seed selects."""
        row, dice = self.rows[number], random.Random(f"{seed}/{number}")
        varied = {
            axis: dice.choice([each for each in self.axes[axis] if each.name in names])
            for axis, names in VARIED.items()
            if axis not in row and dice.random() < SHARE_VARIED
        }
        chosen = self._cheapest(row, dice) or self.case(row, min_of)
        assert chosen is not None
        if operations(chosen) < LIGHT:
            more = self._cheapest({**row, **varied}, dice)
            if more is not None and operations(more) < CHEAP:
                chosen = more
        return chosen.but(seed=(seed + number) % 2**16)

    def _cheapest(self, row: Mapping[str, Choice], dice: random.Random) -> Case | None:
        """Return the cheapest of some cases of a row, or None if none is affordable."""
        dtypes = self.subject.implementation.dtypes
        if self.usual["backward"]:
            # gradients in 16 bits show few mistakes, and a call that shows none is repeated
            dtypes = (*dtypes, *[finest(dtypes)] * len(dtypes))
        drawn = [self.case(row, dice.choice, dice.choice(dtypes)) for _ in range(ROTATIONS)]
        affordable = [each for each in drawn if each is not None and not too_costly(each)]
        return min(affordable, key=operations, default=None)


def _classes(classes: tuple[Regime, ...], backward: bool) -> tuple[Regime, ...]:
    """Return the classes of an axis that meet all others in calls of one kind."""
    alone = WITHOUT_GRADIENTS | NOT_TRAINED if backward else frozenset()
    excluded = {BACKWARD[not backward]} | alone
    return tuple(each for each in classes if each not in excluded)


def _usual_values(subject: Subject) -> dict[str, Any]:
    """Return a value for each field, so that the subject claims the case that has all of them."""
    values = {name: field.values[0] for name, field in FIELDS.items()}
    base = subject.fit(case_of(values))
    return values | {"dtype": base.dtype, "d_head": base.d_head, "d_value": base.d_value}


def _claimed_heads(subject: Subject, usual: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return the numbers of heads that a subject claims: without groups they are equal."""
    heads = FIELDS["heads"].values
    cases = {value: case_of({**usual, "heads": value}, subject.device) for value in heads}
    return tuple(value for value, case in cases.items() if subject.refuses(case) is None) or heads


def finest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """Return the storage type of the closest numbers, which hides least."""
    return min(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def min_of(choices: tuple[Any, ...]) -> Any:
    """Return the simplest of the values that satisfy a row."""
    return choices[0]
