"""Laws of ATT, options: the log-sum-exp that comes back beside the output."""

import torch

from attnspec.conformance.compare import check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    check_oracle,
    evident,
    grid,
    plain,
    readable,
)
from attnspec.conformance.laws.options_sides import (
    BF16,
    BIAS,
    DTYPES,
    EMPTY_ROWS,
    F16,
    F64,
    GROUPED,
    HIDDEN,
    SMALL,
    TILES,
    TINIEST,
    UNBIASED,
    check_lse,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.values import normal
from attnspec.spec import Case, Feature, Values

OTHERS = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI)
TOLD = SMALL.but(return_lse=True)


@law(
    "ATT-30",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True),
        *every(TOLD, dtype=DTYPES),
        *every(TOLD.but(keys=17), values=Values),
        *every(TOLD.but(keys=17, dtype=BF16), values=(Values.OFFSET, Values.NEGATIVE)),
        *every(TOLD, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        TOLD.but(is_causal=True, queries=9),
        TOLD.but(window=(2, 1)),
        TOLD.but(softcap=1.0, values=Values.PEAKED),
        TOLD.but(sinks=True),
        TOLD.but(alibi=True),
        TOLD.but(sinks=True, softcap=3.0, alibi=True, window=(3, None), mask=BIAS),
        TOLD.but(queries=3, keys=5, heads=2, kv_heads=1),
        GROUPED.but(return_lse=True),
        TILES.but(return_lse=True, values=Values.GROWING, queries=17),
        TILES.but(return_lse=True, keys=129, queries=5, dtype=F16),
    ),
    explore=cases(always=(Feature.LSE,), sometimes=OTHERS, empty=True, only=plain),
    needs={Feature.LSE},
)
def law_log_sum_exp_equals_the_definition(subject: Subject, case: Case) -> None:
    """ATT-30: beside the output comes the natural logarithm of its denominator, in full width."""
    call = subject.draw(case)
    out, lse = subject.call_with_lse(call)
    expected = subject.expect(call)
    check_lse(lse, expected.lse, expected, "the log-sum-exp is not that of the definition")
    check_oracle(call, out, expected, "the output beside a log-sum-exp is wrong")


@law(
    "ATT-30",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True),
        *every(TOLD, dtype=DTYPES),
        *every(TOLD, keys=(1, 2, 16, 17, 257)),
        TOLD.but(scale=2.0),
        TOLD.but(mask=HIDDEN),
        TOLD.but(is_causal=True),
        TOLD.but(window=(2, 1)),
        TOLD.but(softcap=0.5),
        TOLD.but(sinks=True),
        GROUPED.but(return_lse=True, sinks=True),
        TILES.but(return_lse=True),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS),
        patterns=UNBIASED,
        scales=POSITIVE,
    ),
    needs={Feature.LSE},
    cost=2,
)
def law_log_sum_exp_of_equal_scores_counts_the_keys(subject: Subject, case: Case) -> None:
    """ATT-30: a query of zeros that reads n keys has the log-sum-exp ln n, or ln(n + e^z)."""
    call = subject.draw(case)
    call = call.but(query=torch.zeros_like(call.query))
    _, lse = subject.call_with_lse(call)
    expected = subject.expect(call)
    count = readable(subject, call).double().sum(-1)
    if call.sinks is not None:
        count = count + call.sinks.double().exp()[:, None]
    check_lse(lse, count.log(), expected, "the log-sum-exp of n equal scores is not ln n")


@law(
    "ATT-31",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True, mask=EMPTY_ROWS),
        *every(TOLD.but(mask=EMPTY_ROWS), dtype=DTYPES),
        TOLD.but(mask=EMPTY_ROWS, is_causal=True),
        TOLD.but(mask=EMPTY_ROWS, sinks=True),
        TOLD.but(mask=EMPTY_ROWS, softcap=1.0, alibi=True),
        TOLD.but(queries=13, keys=4, window=(2, 1)),
        TOLD.but(queries=13, keys=4, window=(0, 0), sinks=True, dtype=F16),
        TOLD.but(keys=0),
        GROUPED.but(return_lse=True, mask=EMPTY_ROWS),
        TILES.but(return_lse=True, mask=EMPTY_ROWS, dtype=F64),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=OTHERS,
        scales=POSITIVE,
        only=lambda case: plain(case) and (case.mask is not None or case.window is not None),
    ),
    needs={Feature.LSE},
)
def law_an_empty_row_has_the_log_sum_exp_of_nothing(subject: Subject, case: Case) -> None:
    """ATT-31: a query that may read nothing has minus infinity, or the logit of its sink."""
    call = subject.draw(case)
    empty = ~readable(subject, call).any(-1)
    if not bool(empty.any()):
        raise NotClaimed("every query reads a key")
    _, lse = subject.call_with_lse(call)
    expected = subject.expect(call)
    nothing = torch.full_like(expected.lse, -torch.inf)
    if call.sinks is not None:
        nothing = call.sinks.double()[:, None].expand_as(nothing)
    target = torch.where(empty, nothing, expected.lse)
    check_lse(lse, target, expected, "a query that reads nothing has a log-sum-exp of its own")


@law(
    "ATT-32",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True),
        *every(TOLD, dtype=DTYPES),
        *every(TOLD, scale=(0.5, 2.0)),
        TOLD.but(mask=HIDDEN),
        TOLD.but(is_causal=True),
        TOLD.but(window=(2, None)),
        TOLD.but(alibi=True),
        GROUPED.but(return_lse=True),
        TILES.but(return_lse=True),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=(Feature.WINDOW, Feature.ALIBI),
        families=(Values.NORMAL, Values.TIES, Values.PEAKED),
        scales=POSITIVE,
        only=plain,
    ),
    needs={Feature.LSE},
    cost=3,
)
def law_log_sum_exp_moves_with_all_scores(subject: Subject, case: Case) -> None:
    """ATT-32: one vector added to every key moves the log-sum-exp by its score, and no output."""
    call = subject.draw(case)
    # on the grid the sum is exact
    shift = grid(normal(case, "shift", case.d_head)).to(call.key)
    call = call.but(key=grid(call.key))
    moved = call.but(key=call.key + shift)
    before = subject.expect(call, with_bound=False)
    out, lse = subject.call_with_lse(moved)
    after = subject.expect(moved)
    scale = case.d_head**-0.5 if case.scale is None else case.scale
    by = scale * (call.query.double() @ shift.double())
    check_lse(lse, before.lse + by, after, "the log-sum-exp does not move with all scores")
    check_oracle(moved, out, after, "the output is wrong after a move of all scores")


@law(
    "ATT-32",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True),
        *every(TOLD, dtype=DTYPES),
        TOLD.but(softcap=1.0),
        TOLD.but(window=(2, 1), alibi=True),
        GROUPED.but(return_lse=True),
        TILES.but(return_lse=True),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.ALIBI),
        masked=False,
        causal=False,
        scales=POSITIVE,
        only=plain,
    ),
    needs={Feature.LSE, Feature.MASK},
    cost=3,
)
def law_log_sum_exp_moves_with_the_bias(subject: Subject, case: Case) -> None:
    """ATT-32: a float mask of one number adds that number to the log-sum-exp, softcap or not."""
    bare = subject.draw(case)
    exact = subject.expect(bare, with_bound=False).lse
    subject.draw(case, mask=BIAS)  # not claimed where masks are refused
    for constant in (3.0, -5.0):
        bias = torch.full((case.queries, case.keys), constant, dtype=case.dtype)
        call = bare.but(attn_mask=bias.to(bare.query.device))
        _, lse = subject.call_with_lse(call)
        expected = subject.expect(call)
        check_lse(lse, exact + constant, expected, "the log-sum-exp does not feel a constant bias")


@law(
    "ATT-33",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True),
        *every(TOLD, dtype=DTYPES),
        *every(TOLD, values=(Values.PEAKED, Values.OFFSET)),
        *every(TOLD, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        TOLD.but(is_causal=True),
        TOLD.but(window=(2, 1), softcap=1.0, sinks=True, alibi=True),
        GROUPED.but(return_lse=True),
        TILES.but(return_lse=True),
    ),
    explore=cases(always=(Feature.LSE,), sometimes=OTHERS, scales=POSITIVE, only=plain),
    needs={Feature.LSE},
    cost=3,
)
def law_asking_for_the_log_sum_exp_changes_no_output(subject: Subject, case: Case) -> None:
    """ATT-33: the output is the same, whether or not the log-sum-exp is asked for."""
    call = subject.draw(case)
    expected = subject.expect(call)
    beside, _ = subject.call_with_lse(call)
    check_oracle(call, beside, expected, "the output beside a log-sum-exp is wrong")
    alone = subject.call(call.but(return_lse=False))
    check_oracle(call, alone, expected, "the output without a log-sum-exp is wrong")
    check_close(
        alone,
        torch.where(beside.isfinite() & alone.isfinite(), beside, alone).double(),
        2 * expected.bound,
        what="out",
        message="the log-sum-exp changes the output",
        dtype=case.dtype,
        may_be_nan=expected.may_be_nan,
    )
    evident(call, expected)


@law(
    "ATT-34",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True, d_head=4, d_value=4),
        *every(TOLD, dtype=DTYPES),
        TOLD.but(mask=HIDDEN),
        TOLD.but(mask=BIAS),
        TOLD.but(is_causal=True),
        TOLD.but(window=(2, None)),
        TOLD.but(softcap=1.0),
        TOLD.but(sinks=True),
        TOLD.but(alibi=True),
        GROUPED.but(return_lse=True, d_value=17),
        TILES.but(return_lse=True, keys=64),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=OTHERS,
        scales=POSITIVE,
        only=lambda case: plain(case) and 0 < case.keys <= case.d_value,
    ),
    needs={Feature.LSE},
    cost=2,
)
def law_log_sum_exp_normalises_the_weights(subject: Subject, case: Case) -> None:
    """ATT-34: with identity values an output is e to the score less the log-sum-exp beside it."""
    call = subject.draw(case)
    eye = torch.eye(case.keys, case.d_value, dtype=case.dtype, device=call.value.device)
    call = call.but(value=eye.expand_as(call.value).contiguous())
    out, lse = subject.call_with_lse(call)
    expected = subject.expect(call)
    check_lse(lse, expected.lse, expected, "the log-sum-exp is not that of the definition")
    # e^(x - lse) = p e^(exact lse - lse); rows that read nothing have no weights
    given = expected.lse.isfinite() & lse.isfinite() & readable(subject, call).any(-1)
    ratio = torch.where(given, (expected.lse - lse.double()).exp(), 1.0)[..., None]
    slack = torch.where(given, expected.lse_bound.expm1(), 0.0)[..., None]
    check_close(
        out,
        torch.where(given[..., None], expected.out * ratio, expected.out),
        expected.bound + expected.out.abs().nan_to_num(0.0) * slack,
        what="out",
        message="the weights are not e to the score less the log-sum-exp",
        dtype=case.dtype,
        may_be_nan=expected.may_be_nan,
    )
    evident(call, expected)
