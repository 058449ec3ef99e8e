"""Laws of ATT, options: parts of the keys, attended apart, merge into the whole."""

from itertools import pairwise

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    check_oracle,
    claimed,
    evident,
    plain,
    readable,
)
from attnspec.conformance.laws.options_sides import (
    BF16,
    BIAS,
    DTYPES,
    EMPTY_ROWS,
    F64,
    GROUPED,
    HIDDEN,
    SMALL,
    TILES,
    TINIEST,
    check_lse,
    masked_out,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Mask, MaskShape, Values

TOLD = SMALL.but(return_lse=True)
FULL = Mask(shape=MaskShape.FULL)
U64 = 2.0**-53


@law(
    "ATT-35",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True),
        *every(TOLD, dtype=DTYPES),
        *every(TOLD.but(keys=17), values=Values),
        *every(TOLD, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        TOLD.but(softcap=1.0),
        TOLD.but(sinks=True),
        TOLD.but(is_causal=True),
        TOLD.but(window=(2, 1)),
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
    needs={Feature.LSE},
    cost=6,
)
def law_two_halves_merge_into_the_whole(subject: Subject, case: Case) -> None:
    """ATT-35: attention to two halves of the keys, weighed by their log-sum-exps, is the whole."""
    _merge(subject, case, (0, case.keys // 2, case.keys))


@law(
    "ATT-35",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True, keys=4),
        *every(TOLD, dtype=DTYPES),
        *every(TOLD.but(keys=17), values=(Values.GROWING, Values.OFFSET, Values.NEGATIVE)),
        TOLD.but(mask=EMPTY_ROWS, keys=9),
        TOLD.but(mask=FULL, is_causal=True, keys=9),
        TOLD.but(sinks=True, dtype=F64, keys=9),
        TOLD.but(softcap=1.0, keys=9),
        GROUPED.but(return_lse=True),
        TILES.but(return_lse=True, queries=5, keys=129),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS),
        scales=POSITIVE,
        only=lambda case: plain(case) and case.keys > 3,
    ),
    needs={Feature.LSE},
    cost=8,
)
def law_many_uneven_parts_merge_into_the_whole(subject: Subject, case: Case) -> None:
    """ATT-35: so is that to a single key, to no key, to most keys and to the rest."""
    most = max(1, 2 * case.keys // 3)
    # a part without keys weighs nothing
    empty = () if subject.refuses(case.but(keys=0)) else (1,)
    _merge(subject, case, (0, 1, *empty, most, case.keys))


@law(
    "ATT-35",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True, mask=Mask()),
        *every(TOLD.but(mask=FULL), dtype=DTYPES),
        TOLD.but(mask=FULL, values=Values.NEGATIVE),
        TOLD.but(mask=FULL, softcap=1.0),
        TOLD.but(mask=EMPTY_ROWS),
        GROUPED.but(return_lse=True, mask=FULL),
        TILES.but(return_lse=True, mask=FULL, queries=17),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=(Feature.SOFTCAP,),
        masked=True,
        causal=False,
        scales=POSITIVE,
        only=lambda case: plain(case) and case.keys > 1 and case.mask is not None,
    ),
    needs={Feature.LSE, Feature.MASK},
    cost=4,
)
def law_a_part_that_is_hidden_weighs_nothing(subject: Subject, case: Case) -> None:
    """ATT-35: a part whose keys are hidden from every second query leaves those to the others."""
    call = subject.draw(case)
    call = masked_out(subject, call)
    mask = readable(subject, call)
    first = torch.arange(case.keys, device=mask.device) < case.keys // 2
    odd = torch.arange(case.queries, device=mask.device)[:, None] % 2 == 1
    mask = mask & ~(first & odd) & ~(~first & ~odd)
    _merge_parts(subject, call.but(attn_mask=mask), (0, case.keys // 2, case.keys))


def _merge(subject: Subject, case: Case, edges: tuple[int, ...]) -> None:
    """Hold the merged parts of a case to the whole."""
    call = subject.draw(case)
    whole, lse = subject.call_with_lse(call)
    expected = subject.expect(call)
    check_oracle(call, whole, expected, "the output beside a log-sum-exp is wrong")
    check_lse(lse, expected.lse, expected, "the log-sum-exp is not that of the definition")
    if case.is_causal or case.window is not None or case.mask is not None:
        # places of keys change in a part, so a mask has to say what may be read
        claimed(subject, case.but(is_causal=False, window=None, mask=case.mask or FULL))
        call = masked_out(subject, call)
    _merge_parts(subject, call, edges)


def _merge_parts(subject: Subject, call: Call, edges: tuple[int, ...]) -> None:
    """Attend to runs of keys apart, merge what comes back, and hold that to the whole."""
    expected = subject.expect(call)
    outs, lses, bounds, lse_bounds = [], [], [], []
    for number, (start, stop) in enumerate(pairwise(edges)):
        part = call.but(
            key=call.key[:, :, start:stop],
            value=call.value[:, :, start:stop],
            attn_mask=None if call.attn_mask is None else call.attn_mask[..., start:stop],
            # the sink is one more key, and so belongs to one part
            sinks=call.sinks if number == 0 else None,
        )
        out, lse = subject.call_with_lse(part)
        due = subject.expect(part)
        message = f"attention to the keys {start} to {stop - 1} is wrong"
        check_oracle(part, out, due, message)
        check_lse(lse, due.lse, due, message)
        outs.append(out.double())
        lses.append(lse.double())
        bounds.append(due.bound)
        lse_bounds.append(due.lse_bound)
    logs, reached = torch.stack(lses), torch.stack(lse_bounds)
    peak = logs.amax(0)
    if bool(peak.isnan().any()):
        raise Violation("the log-sum-exp of a part is NaN")
    base = torch.where(peak == -torch.inf, 0.0, peak)
    masses = (logs - base).exp()
    total = masses.sum(0)
    reads = total > 0
    weights = masses / torch.where(reads, total, 1.0)
    # a part that reads nothing weighs nothing, whatever its output
    parts = torch.where(weights[..., None] > 0, torch.stack(outs), 0.0)
    merged = (weights[..., None] * parts).sum(0)
    # A weight e^(l - lse) is off by the error of l and that of lse, which is no larger than the
    # largest of the errors of the parts; and by the roundings of this sum in float64.
    off = reached + reached.amax(0)
    apart = torch.where(logs.isfinite(), base - logs, 0.0).amax(0)
    roundings = U64 * (2 * apart + 2 * len(logs) + 8)
    grown = (off + roundings).expm1()
    slack = ((1 + grown) * weights)[..., None] * torch.stack(bounds)
    slack = slack + (grown * weights)[..., None] * parts.abs()
    slack = torch.where(weights[..., None] > 0, slack, 0.0).sum(0)
    judged = reads[..., None] & merged.isfinite() & expected.out.isfinite()
    check_close(
        torch.where(judged, merged, 0.0),
        torch.where(judged, expected.out, 0.0),
        torch.where(judged, slack + U64 * merged.abs(), 0.0),
        what="out",
        message="the parts of the keys do not merge into the whole",
    )
    both = torch.where(reads, base + total.log(), -torch.inf)
    known = reached.amax(0) + U64 * (2 * base.abs() + apart + len(logs) + 4)
    check_close(
        both,
        expected.lse,
        torch.where(expected.lse.isfinite(), known, expected.lse_bound),
        what="lse",
        message="the log-sum-exps of the parts do not add up to that of the whole",
        axes=("batch", "head", "query"),
    )
    evident(call, expected)
