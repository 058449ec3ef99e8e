"""Cases of an online softmax and of a merge: shapes, storage types and contents."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators.rows_case import normal
from attnspec.spec import Layout
from attnspec.spec.online_softmax import LogBase

LAYOUTS = (Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.SLICED)
"""The strides in which operands are drawn."""


class Scores(StrEnum):
    """The contents of the scores, each named after the property that it has."""

    NORMAL = "normal"
    GROWING = "growing"
    """Each score is larger than those before: every tile has a new maximum."""
    FALLING = "falling"
    LARGE = "large"
    """Around plus and minus 1 000, whose exponentials overflow and underflow."""
    NEGATIVE = "negative"
    """Around −60 000: a sentinel in the place of minus infinity exceeds them."""
    EQUAL = "equal"
    LAST = "last"
    """The last key weighs as much as all others together: it lies in the shortest tile."""
    UNLIKE = "unlike"
    """Each row lies 400 above the one before: a maximum of another row underflows."""
    HIDDEN = "hidden"
    """A third of the scores is minus infinity."""
    HIDDEN_FIRST = "hidden_first"
    """Most scores are, from the first on, and those that are left lie around −20 000."""
    HIDDEN_LAST = "hidden_last"
    HIDDEN_ROW = "hidden_row"
    """All scores of every second row are, from the first row on."""


HIDING = (Scores.HIDDEN, Scores.HIDDEN_FIRST, Scores.HIDDEN_LAST, Scores.HIDDEN_ROW)
"""The contents with hidden scores."""


class Words:
    """The text of a case: its fields that differ from their defaults."""

    def __str__(self) -> str:
        words = []
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if item.name == "dtype":
                words.append(f"dtype={str(value).removeprefix('torch.')}")
            elif item.name in _SHAPES or value != item.default:
                words.append(f"{item.name}={value}")
        return " ".join(words)


_SHAPES = ("queries", "keys", "d_value", "rows")


@dataclass(frozen=True, kw_only=True)
class OnlineSoftmaxCase(Words):
    """One call of an online softmax.

    Attributes:
        queries: the number of rows of scores.
        keys: the number of scores of a row, at least 1.
        d_value: the number of channels of a value.
        dtype: the storage type of scores and values.
        scores: the contents of the scores.
        layout: the strides of scores and values.
        backward: whether gradients of scores and values are computed.
        seed: selects the numbers.
    """

    queries: int = 2
    keys: int = 4
    d_value: int = 3
    dtype: torch.dtype = torch.float64
    scores: Scores = Scores.NORMAL
    layout: Layout = Layout.CONTIGUOUS
    backward: bool = False
    seed: int = 0

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses: none."""
        return frozenset()

    def but(self, **changes: Any) -> "OnlineSoftmaxCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and values."""
        drawn = _CONTENTS[self.scores](self)
        values = normal(self.seed, "values", self.keys, self.d_value)
        return (
            lay_out(drawn.to(self.dtype), self.layout),
            lay_out(values.to(self.dtype), self.layout),
        )

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient of the output."""
        return normal(self.seed, "grad_out", self.queries, self.d_value).to(self.dtype)


def _normal(case: OnlineSoftmaxCase) -> torch.Tensor:
    return 2 * normal(case.seed, "scores", case.queries, case.keys)


def _places(case: OnlineSoftmaxCase) -> torch.Tensor:
    return torch.arange(case.keys, dtype=torch.float64)


def _last(case: OnlineSoftmaxCase) -> torch.Tensor:
    scores = _normal(case) / 4
    others = scores[:, :-1]
    if case.keys > 1:
        scores[:, -1] = torch.logsumexp(others, -1)
    return scores


def _unlike(case: OnlineSoftmaxCase) -> torch.Tensor:
    return _normal(case) + 400 * (torch.arange(case.queries) % 3)[:, None]


def _hidden(case: OnlineSoftmaxCase) -> torch.Tensor:
    is_hidden = normal(case.seed, "hidden", case.queries, case.keys) > 0.43
    rows = torch.arange(case.queries)
    is_hidden[rows, (rows + case.seed) % case.keys] = False
    return _normal(case).masked_fill(is_hidden, -torch.inf)


def _hidden_first(case: OnlineSoftmaxCase) -> torch.Tensor:
    count = case.keys - 1 - case.keys // 8
    return (_normal(case) - 20_000).masked_fill(_places(case) < count, -torch.inf)


def _hidden_last(case: OnlineSoftmaxCase) -> torch.Tensor:
    return _normal(case).masked_fill(_places(case) > case.keys // 8, -torch.inf)


def _hidden_row(case: OnlineSoftmaxCase) -> torch.Tensor:
    scores = _normal(case)
    scores[::2] = -torch.inf
    return scores


_CONTENTS: dict[Scores, Callable[[OnlineSoftmaxCase], torch.Tensor]] = {
    Scores.NORMAL: _normal,
    Scores.GROWING: lambda case: _normal(case) / 4 + 3 * _places(case),
    Scores.FALLING: lambda case: _normal(case) / 4 - 3 * _places(case),
    Scores.LARGE: lambda case: _normal(case) + 1000 * (2 * (_places(case) % 2) - 1),
    Scores.NEGATIVE: lambda case: _normal(case) - 60_000,
    Scores.EQUAL: lambda case: torch.full_like(_normal(case), 0.75),
    Scores.LAST: _last,
    Scores.UNLIKE: _unlike,
    Scores.HIDDEN: _hidden,
    Scores.HIDDEN_FIRST: _hidden_first,
    Scores.HIDDEN_LAST: _hidden_last,
    Scores.HIDDEN_ROW: _hidden_row,
}


class Parts(StrEnum):
    """The log-sum-exps of two parts, each named after the property that they have."""

    NORMAL = "normal"
    EQUAL = "equal"
    FAR = "far"
    """Up to 60 apart: one part weighs next to nothing."""
    LARGE = "large"
    """Around plus 1 000, whose exponentials overflow."""
    NEGATIVE = "negative"
    """Around −60 000."""
    ONE_EMPTY = "one_empty"
    """One part of each row is empty, by turns the first and the second."""
    BOTH_EMPTY = "both_empty"
    """Both parts of every second row are."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxMergeCase(Words):
    """One call of a merge.

    Attributes:
        rows: the axes before the channels.
        d_value: the number of channels.
        dtype: the storage type of the outputs.
        parts: the contents of the log-sum-exps.
        layout: the strides of the outputs.
        seed: selects the numbers.
    """

    rows: tuple[int, ...] = (2,)
    d_value: int = 3
    dtype: torch.dtype = torch.float64
    parts: Parts = Parts.NORMAL
    layout: Layout = Layout.CONTIGUOUS
    seed: int = 0

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses: none."""
        return frozenset()

    def but(self, **changes: Any) -> "SoftmaxMergeCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw(self, base: LogBase, parts: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return output and log-sum-exp of each part; the output of an empty part is zero.

        Args:
            base: the base of the logarithm.
            parts: their number.
        """
        drawn = []
        for part in range(parts):
            out = normal(self.seed, f"out {part}", *self.rows, self.d_value)
            lse = _LSE[self.parts](normal(self.seed, f"lse {part}", *self.rows), part)
            out = torch.where(lse[..., None] == -torch.inf, 0.0, out)
            wide = torch.float64 if self.dtype == torch.float64 else torch.float32
            drawn.append(
                (lay_out(out.to(self.dtype), self.layout), (lse / base.unit).to(wide).contiguous())
            )
        return drawn


def _by_turns(lse: torch.Tensor, part: int) -> torch.Tensor:
    """Empty one of the first two parts of each row."""
    turn = torch.arange(lse.numel()).view(lse.shape) % 2
    return torch.where(turn == part, -torch.inf, lse)


def _every_second(lse: torch.Tensor, part: int) -> torch.Tensor:
    turn = torch.arange(lse.numel()).view(lse.shape) % 2
    return torch.where(turn == 0, -torch.inf, lse)


_LSE: dict[Parts, Callable[[torch.Tensor, int], torch.Tensor]] = {
    Parts.NORMAL: lambda lse, part: 2 * lse,
    Parts.EQUAL: lambda lse, part: torch.full_like(lse, 1.25),
    Parts.FAR: lambda lse, part: 20 * lse,
    Parts.LARGE: lambda lse, part: 1000 + lse,
    Parts.NEGATIVE: lambda lse, part: -60_000 + lse,
    Parts.ONE_EMPTY: _by_turns,
    Parts.BOTH_EMPTY: _every_second,
}


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[OnlineSoftmaxCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "queries": st.sampled_from([1, 2, 3, 5, 17]),
        "keys": st.sampled_from([1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33, 63, 65, 127, 129, 257]),
        "d_value": st.sampled_from([1, 2, 3, 8, 17]),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "scores": st.sampled_from(Scores),
        "layout": st.sampled_from(LAYOUTS),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[OnlineSoftmaxCase] = st.builds(OnlineSoftmaxCase, **strategies)
    return built.filter(lambda case: subject.refuses(case) is None)


def merge_cases(subject: Any, **fixed: Any) -> st.SearchStrategy[SoftmaxMergeCase]:
    """Return a strategy that draws merges a subject claims, with some fields given."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "rows": st.sampled_from([(1,), (2,), (3,), (2, 3), (2, 3, 5), (33,)]),
        "d_value": st.sampled_from([1, 2, 3, 8, 17, 64]),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "parts": st.sampled_from(Parts),
        "layout": st.sampled_from(LAYOUTS),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[SoftmaxMergeCase] = st.builds(SoftmaxMergeCase, **strategies)
    return built.filter(lambda case: subject.refuses(case) is None)
