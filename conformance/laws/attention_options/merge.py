"""Laws of ATT, options: attention to parts of the keys merges into the whole."""

from itertools import pairwise

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.calls import (
    plain,
    readable,
    require_claimed,
    require_evidence,
)
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    EMPTY_ROWS,
    F64,
    GROUPED,
    HIDDEN,
    TILES,
    TINIEST,
    WITH_LSE,
)
from attnspec.conformance.laws.helpers.options import check_lse, with_only_a_mask
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Mask, Values

U64 = 2.0**-53


@law(
    "ATT-35",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(WITH_LSE, dtype=DTYPES),
        *vary(WITH_LSE.but(keys=17), values=Values),
        *vary(WITH_LSE, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        WITH_LSE.but(softcap=1.0),
        WITH_LSE.but(sinks=True),
        WITH_LSE.but(is_causal=True),
        WITH_LSE.but(window=(2, 1)),
        GROUPED.but(return_lse=True),
        TILES.but(return_lse=True, queries=17),
        TILES.but(return_lse=True, queries=3, keys=256, dtype=BF16),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS),
        scales=POSITIVE,
        only=lambda case: plain(case) and case.keys > 1,
    ),
    cost=6,
)
def law_two_halves_merge_into_the_whole(subject: Subject, case: Case) -> None:
    """ATT-35: attention to two halves of the keys, weighed by their log-sum-exps, is the whole."""
    _check_parts_of_case(subject, case, (0, case.keys // 2, case.keys))


@law(
    "ATT-35",
    pinned=(
        TINIEST.but(return_lse=True, keys=4),
        *vary(WITH_LSE, dtype=DTYPES),
        *vary(WITH_LSE.but(keys=17), values=(Values.GROWING, Values.OFFSET, Values.NEGATIVE)),
        WITH_LSE.but(mask=EMPTY_ROWS, keys=9),
        WITH_LSE.but(mask=HIDDEN, is_causal=True, keys=9),
        WITH_LSE.but(sinks=True, dtype=F64, keys=9),
        WITH_LSE.but(softcap=1.0, keys=9),
        GROUPED.but(return_lse=True),
        TILES.but(return_lse=True, queries=5, keys=129),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS),
        scales=POSITIVE,
        only=lambda case: plain(case) and case.keys > 3,
    ),
    cost=8,
)
def law_many_uneven_parts_merge_into_the_whole(subject: Subject, case: Case) -> None:
    """ATT-35: so do a single key, no key, most keys and the rest merge into the whole."""
    most = max(1, 2 * case.keys // 3)
    # a part without keys weighs nothing
    empty = () if subject.refuses(case.but(keys=0)) else (1,)
    _check_parts_of_case(subject, case, (0, 1, *empty, most, case.keys))


@law(
    "ATT-35",
    pinned=(
        TINIEST.but(return_lse=True, mask=Mask()),
        *vary(WITH_LSE.but(mask=HIDDEN), dtype=DTYPES),
        WITH_LSE.but(mask=HIDDEN, values=Values.NEGATIVE),
        WITH_LSE.but(mask=HIDDEN, softcap=1.0),
        WITH_LSE.but(mask=EMPTY_ROWS),
        GROUPED.but(return_lse=True, mask=HIDDEN),
        TILES.but(return_lse=True, mask=HIDDEN, queries=17),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=(Feature.SOFTCAP,),
        masked=True,
        causal=False,
        scales=POSITIVE,
        only=lambda case: plain(case) and case.keys > 1 and case.mask is not None,
    ),
    cost=4,
)
def law_a_part_without_readable_keys_has_weight_zero(subject: Subject, case: Case) -> None:
    """ATT-35: a part whose keys are hidden from every second query has no weight there."""
    call = subject.draw(case)
    call = with_only_a_mask(subject, call)
    mask = readable(subject, call)
    in_first_half = torch.arange(case.keys, device=mask.device) < case.keys // 2
    odd = torch.arange(case.queries, device=mask.device)[:, None] % 2 == 1
    mask = mask & ~(in_first_half & odd) & ~(~in_first_half & ~odd)
    check_merged_parts(subject, call.but(attn_mask=mask), (0, case.keys // 2, case.keys))


def _check_parts_of_case(subject: Subject, case: Case, edges: tuple[int, ...]) -> None:
    """Compare a case with the merged parts of its keys."""
    call = subject.draw(case)
    whole, lse = subject.call_with_lse(call)
    expected = subject.expect(call)
    check_oracle(call, whole, expected, "the output with a log-sum-exp is wrong")
    check_lse(lse, expected.lse, expected, "the log-sum-exp differs from the definition")
    if case.is_causal or case.window is not None or case.mask is not None:
        # positions of keys change in a part, so a mask must say which keys are readable
        require_claimed(subject, case.but(is_causal=False, window=None, mask=case.mask or HIDDEN))
        call = with_only_a_mask(subject, call)
    check_merged_parts(subject, call, edges)


def check_merged_parts(subject: Subject, call: Call, edges: tuple[int, ...]) -> None:
    """Attend to consecutive parts of the keys, merge the results, and compare with the whole."""
    expected = subject.expect(call)
    outs, lses, bounds, lse_bounds = [], [], [], []
    for number, (start, stop) in enumerate(pairwise(edges)):
        part = call.but(
            key=call.key[:, :, start:stop],
            value=call.value[:, :, start:stop],
            attn_mask=None if call.attn_mask is None else call.attn_mask[..., start:stop],
            # the sink is one more key, which belongs to one part
            sinks=call.sinks if number == 0 else None,
        )
        out, lse = subject.call_with_lse(part)
        expected_part = subject.expect(part)
        message = f"attention to the keys {start} to {stop - 1} is wrong"
        check_oracle(part, out, expected_part, message)
        check_lse(lse, expected_part.lse, expected_part, message)
        outs.append(out.double())
        lses.append(lse.double())
        bounds.append(expected_part.bound)
        lse_bounds.append(expected_part.lse_bound)
    stacked_lses, stacked_lse_bounds = torch.stack(lses), torch.stack(lse_bounds)
    peak = stacked_lses.amax(0)
    if bool(peak.isnan().any()):
        raise Violation("the log-sum-exp of a part is NaN")
    base = torch.where(peak == -torch.inf, 0.0, peak)
    masses = (stacked_lses - base).exp()
    total = masses.sum(0)
    reads_keys = total > 0
    weights = masses / torch.where(reads_keys, total, 1.0)
    # the output of a part that reads nothing has no weight
    parts = torch.where(weights[..., None] > 0, torch.stack(outs), 0.0)
    merged = (weights[..., None] * parts).sum(0)
    # The error of a weight e^(l - lse) comes from l, from lse, whose error is at most the largest
    # error of the parts, and from the roundings of this sum in float64.
    lse_error = stacked_lse_bounds + stacked_lse_bounds.amax(0)
    spread = torch.where(stacked_lses.isfinite(), base - stacked_lses, 0.0).amax(0)
    roundings = U64 * (2 * spread + 2 * len(stacked_lses) + 8)
    growth = (lse_error + roundings).expm1()
    slack = ((1 + growth) * weights)[..., None] * torch.stack(bounds)
    slack = slack + (growth * weights)[..., None] * parts.abs()
    slack = torch.where(weights[..., None] > 0, slack, 0.0).sum(0)
    is_judged = reads_keys[..., None] & merged.isfinite() & expected.out.isfinite()
    check_close(
        torch.where(is_judged, merged, 0.0),
        torch.where(is_judged, expected.out, 0.0),
        torch.where(is_judged, slack + U64 * merged.abs(), 0.0),
        what="out",
        message="the parts of the keys do not merge into the whole",
    )
    merged_lse = torch.where(reads_keys, base + total.log(), -torch.inf)
    lse_slack = stacked_lse_bounds.amax(0) + U64 * (2 * base.abs() + spread + len(stacked_lses) + 4)
    check_close(
        merged_lse,
        expected.lse,
        torch.where(expected.lse.isfinite(), lse_slack, expected.lse_bound),
        what="lse",
        message="the log-sum-exps of the parts do not add up to the whole log-sum-exp",
        axes=("batch", "head", "query"),
    )
    require_evidence(call, expected)
