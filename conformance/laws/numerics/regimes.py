"""The law of NUM that calls every two regimes together, judged by some rows of long calls."""

import math
from collections.abc import Iterator
from functools import partial

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.attention.oracle_gradients import Gradient
from attnspec.conformance.attention.regimes import regimes_of
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.attention.values import generator
from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.laws.helpers.cases import BF16, F16, F32
from attnspec.conformance.laws.helpers.design import Design, design
from attnspec.conformance.laws.helpers.gradients import (
    AXES,
    empty_rows_are_zero,
    incoming_gradient,
    require_gradient,
)
from attnspec.conformance.laws.helpers.options import ROW_AXES
from attnspec.conformance.laws.helpers.regimes import pairs_shown
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Layout, Layouts, Mask, MaskKind, MaskPattern, MaskShape, Values

SCORES_JUDGED = 2**16
"""Scores of a call up to which each row is judged; of a longer one, random rows of so many."""

ROWS_JUDGED = 32
"""Rows of a longer call that are judged at most: their bound takes most of the time."""

LAYOUTS = tuple(each for layout in Layout for each in (layout, Layout.EXPANDED))
"""Layouts of the incoming gradient in turn; every second is expanded, as the gradient of a sum."""

MILD = 0.1
"""A scale that spreads the weights of any width."""

ROTATIONS = 10
"""Values inside each class of calls that effort thorough tries."""

DECODING = Case(
    queries=1,
    keys=1031,
    d_head=16,
    d_value=16,
    dtype=F32,
    values=Values.PEAKED,
)
TILES = DECODING.but(queries=305, keys=433, d_head=24, d_value=24)

PACKED = DECODING.but(
    heads=2,
    kv_heads=2,
    queries=33,
    keys=33,
    layouts=Layouts(query=Layout.PACKED, key=Layout.PACKED, value=Layout.PACKED),
)
"""Operands that share a buffer."""


def cases_of_design(subject: Subject, seed: int, *, backward: bool) -> tuple[Case, ...]:
    """Return the cases of a subject's design, and note what they are to cover."""
    chosen: Design = design(subject, seed, backward=backward)
    count = tally.current()
    if count is not None:
        count.claimed_pairs |= chosen.claimed
        count.untried_pairs |= chosen.not_tried
    return chosen.cases


def further_cases(subject: Subject, seed: int, *, backward: bool) -> tuple[Case, ...]:
    """Return cases of the same design with other values inside the classes."""
    seeds = ((seed + step) % 2**32 for step in range(1, ROTATIONS))
    chosen = (design(subject, each, backward=backward) for each in seeds)
    return tuple(dict.fromkeys(case for each in chosen for case in each.cases))


@law(
    "NUM-18",
    pinned=(
        DECODING,
        DECODING.but(heads=33, kv_heads=3, queries=3, dtype=BF16),
        TILES,
        TILES.but(queries=140, keys=545, d_head=128, d_value=128, dtype=BF16),
        DECODING.but(batch=2, mask=Mask(pattern=MaskPattern.HALF, shape=MaskShape.KEYS)),
        DECODING.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.HALF)),
        TILES.but(mask=Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.QUERIES)),
        TILES.but(heads=2, kv_heads=2, mask=Mask(shape=MaskShape.KEYS_OF_HEADS)),
        PACKED,
    ),
    wide=partial(cases_of_design, backward=False),
    large=partial(further_cases, backward=False),
    fresh=True,
)
def law_every_two_regimes_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-18: in any two regimes, output and log-sum-exp are within their bounds."""
    _check_until_telling(subject, case)


@law(
    "NUM-18",
    pinned=(
        TILES.but(backward=True),
        TILES.but(backward=True, dtype=F16, queries=257, keys=260, d_head=96, d_value=96),
        PACKED.but(backward=True, dtype=F16, queries=300, keys=300),
    ),
    wide=partial(cases_of_design, backward=True),
    large=partial(further_cases, backward=True),
    fresh=True,
)
def law_gradients_in_every_two_regimes_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-18: in any two regimes of calls with a backward pass, gradients are within bounds."""
    _check_until_telling(subject, case)


def _check_until_telling(subject: Subject, case: Case) -> None:
    """Check the results of a call, and of calls that hide mistakes less, until one would show."""
    if not _check_call(subject, case):
        for telling in _telling(subject, case):
            if _check_call(subject, telling):
                break


def _telling(subject: Subject, case: Case) -> Iterator[Case]:
    """Yield claimed cases like a given one, with numbers and a type that hide mistakes less."""
    widest = max(subject.implementation.dtypes, key=lambda dtype: torch.finfo(dtype).bits)
    scale = math.copysign(MILD, case.scale) if case.scale else None
    ordinary = case.but(values=Values.NORMAL, scale=scale)
    for other in dict.fromkeys((ordinary, ordinary.but(dtype=widest))):
        if other != case and subject.refuses(other) is None:
            yield other


def _check_call(subject: Subject, case: Case) -> bool:
    """Check the results of a call, and return whether a wrong result would exceed its bound.

    Only then the pairs of regimes of the call count as covered.
    """
    call = subject.draw(case)
    rows = judged_rows(subject, case)
    here = rows.to(call.query.device)
    expected = subject.expect(call, rows=rows)
    if case.return_lse:
        out, lse = subject.call_with_lse(call)
        check_close(
            lse[:, :, here],
            expected.lse,
            expected.lse_bound,
            what="lse",
            message="the log-sum-exp differs from the definition",
            may_be_nan=expected.lse_may_be_nan,
            axes=ROW_AXES,
            rows=rows,
        )
    else:
        out = subject.call(call)
    check_close(
        out[:, :, here],
        expected.out,
        expected.bound,
        what="out",
        message="the output differs from the definition",
        dtype=case.dtype,
        may_be_nan=expected.may_be_nan,
        rows=rows,
    )
    is_evidence = expected.is_zero or expected.is_evidence
    if case.backward:
        is_evidence &= _check_gradients(subject, case, call, rows)
        leaves = {name: getattr(call, name).detach().requires_grad_() for name in WRT}
        call = call.but(**leaves)
    count = tally.current()
    if count is not None:
        pairs = pairs_shown(regimes_of(call))
        count.called_pairs |= pairs
        count.covered_pairs |= pairs if is_evidence else set()
    return is_evidence


def judged_rows(subject: Subject, case: Case) -> torch.Tensor:
    """Return the rows by which a case is judged: all of a short one, and some of a long one.

    The gradients of a row that reads nothing are NaN under some profiles, whatever comes in, so
    that a backward pass under these is judged by all rows.
    """
    zeros = empty_rows_are_zero(subject)
    scores = case.batch * case.heads * case.queries * case.keys
    if scores <= SCORES_JUDGED or (case.backward and not zeros):
        return torch.arange(case.queries)
    count = min(max(2, SCORES_JUDGED * case.queries // scores), ROWS_JUDGED)
    at_ends = torch.tensor([0, case.queries - 1])
    within = torch.randint(case.queries, (count - 2,), generator=generator(case.seed, "rows"))
    rows: torch.Tensor = torch.cat([at_ends, within]).unique()
    return rows


def _check_gradients(subject: Subject, case: Case, call: Call, rows: torch.Tensor) -> bool:
    """Check the gradients that come from some rows: no gradient comes into the others.

    Returns:
        True if a wrong gradient of each operand would exceed its bound.
    """
    here = rows.to(call.query.device)
    drawn = incoming_gradient(case)
    grad = torch.zeros_like(drawn)
    grad[:, :, here] = drawn[:, :, here]
    grad = lay_out(grad, LAYOUTS[case.seed % len(LAYOUTS)])
    _, gradients = subject.differentiate(call, grad)
    expected = subject.expect_gradients(call, grad, rows=rows)
    for name, gradient in gradients.items():
        exact: Gradient = getattr(expected, name)
        got = require_gradient(gradient, name)
        check_close(
            got[:, :, here] if name == "query" else got,
            exact.exact,
            exact.bound,
            what=f"gradient of {name}",
            message="a gradient differs from the definition",
            dtype=case.dtype,
            may_be_nan=exact.may_be_nan,
            axes=AXES[name],
            rows=rows if name == "query" else None,
        )
    gradients_are_evidence = (
        exact.is_zero or exact.is_evidence
        for exact in (expected.query, expected.key, expected.value)
    )
    return all(gradients_are_evidence)
