"""Laws of ATT, options: the log-sum-exp returned with the output."""

import torch

from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import normal
from attnspec.conformance.comparison.close import check_close, check_equal
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import (
    caps_bias,
    plain,
    readable,
    require_evidence,
    round_to_grid,
)
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    EMPTY_ROWS,
    F16,
    F64,
    GROUPED,
    HIDDEN,
    OPTIONS,
    TILES,
    TINIEST,
    UNBIASED,
    WITH_LSE,
)
from attnspec.conformance.laws.helpers.options import check_lse
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Values


@law(
    "ATT-30",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(WITH_LSE, dtype=DTYPES),
        *vary(WITH_LSE.but(keys=17), values=Values),
        *vary(WITH_LSE.but(keys=17, dtype=BF16), values=(Values.OFFSET, Values.NEGATIVE)),
        *vary(WITH_LSE, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        WITH_LSE.but(is_causal=True, queries=9),
        WITH_LSE.but(window=(2, 1)),
        WITH_LSE.but(softcap=1.0, values=Values.PEAKED),
        WITH_LSE.but(sinks=True),
        WITH_LSE.but(alibi=True),
        WITH_LSE.but(sinks=True, softcap=3.0, alibi=True, window=(3, None), mask=BIAS),
        WITH_LSE.but(queries=3, keys=5, heads=2, kv_heads=1),
        GROUPED.but(return_lse=True),
        TILES.but(return_lse=True, values=Values.GROWING, queries=17),
        TILES.but(return_lse=True, keys=129, queries=5, dtype=F16),
    ),
    explore=cases(always=(Feature.LSE,), sometimes=OPTIONS, empty=True, only=plain),
)
def law_log_sum_exp_equals_the_definition(subject: Subject, case: Case) -> None:
    """ATT-30: the log-sum-exp is the natural logarithm of the denominator, in full width."""
    call = subject.draw(case)
    out, lse = subject.call_with_lse(call)
    expected = subject.expect(call)
    check_lse(lse, expected.lse, expected, "the log-sum-exp differs from the definition")
    check_oracle(call, out, expected, "the output with a log-sum-exp is wrong")


@law(
    "ATT-30",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(WITH_LSE, dtype=DTYPES),
        *vary(WITH_LSE, keys=(1, 2, 16, 17, 257)),
        WITH_LSE.but(scale=2.0),
        WITH_LSE.but(mask=HIDDEN),
        WITH_LSE.but(is_causal=True),
        WITH_LSE.but(window=(2, 1)),
        WITH_LSE.but(softcap=0.5),
        WITH_LSE.but(sinks=True),
        GROUPED.but(return_lse=True, sinks=True),
        TILES.but(return_lse=True),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS),
        patterns=UNBIASED,
        scales=POSITIVE,
    ),
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
    pinned=(
        TINIEST.but(return_lse=True, mask=EMPTY_ROWS),
        *vary(WITH_LSE.but(mask=EMPTY_ROWS), dtype=DTYPES),
        WITH_LSE.but(mask=EMPTY_ROWS, is_causal=True),
        WITH_LSE.but(mask=EMPTY_ROWS, sinks=True),
        WITH_LSE.but(mask=EMPTY_ROWS, softcap=1.0, alibi=True),
        WITH_LSE.but(queries=13, keys=4, window=(2, 1)),
        WITH_LSE.but(queries=13, keys=4, window=(0, 0), sinks=True, dtype=F16),
        WITH_LSE.but(keys=0),
        GROUPED.but(return_lse=True, mask=EMPTY_ROWS),
        TILES.but(return_lse=True, mask=EMPTY_ROWS, dtype=F64),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=OPTIONS,
        scales=POSITIVE,
        only=lambda case: plain(case) and (case.mask is not None or case.window is not None),
    ),
)
def law_an_empty_row_has_its_log_sum_exp(subject: Subject, case: Case) -> None:
    """ATT-31: a query that may read nothing has minus infinity, or the logit of its sink."""
    call = subject.draw(case)
    empty = ~readable(subject, call).any(-1)
    if not bool(empty.any()):
        raise NotClaimed("every query reads a key")
    _, lse = subject.call_with_lse(call)
    expected = subject.expect(call)
    empty_lse = torch.full_like(expected.lse, -torch.inf)
    if call.sinks is not None:
        empty_lse = call.sinks.double()[:, None].expand_as(empty_lse)
    target = torch.where(empty, empty_lse, expected.lse)
    check_lse(lse, target, expected, "the log-sum-exp of a query that reads nothing is wrong")


@law(
    "ATT-32",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(WITH_LSE, dtype=DTYPES),
        *vary(WITH_LSE, scale=(0.5, 2.0)),
        WITH_LSE.but(mask=HIDDEN),
        WITH_LSE.but(is_causal=True),
        WITH_LSE.but(window=(2, None)),
        WITH_LSE.but(alibi=True),
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
    cost=3,
)
def law_log_sum_exp_shifts_with_all_scores(subject: Subject, case: Case) -> None:
    """ATT-32: one vector added to every key shifts the log-sum-exp by its score, and no output."""
    call = subject.draw(case)
    # on the grid the sum is exact
    shift = round_to_grid(normal(case, "shift", case.d_head)).to(call.key)
    call = call.but(key=round_to_grid(call.key))
    moved = call.but(key=call.key + shift)
    before = subject.expect(call, with_bound=False)
    out, lse = subject.call_with_lse(moved)
    after = subject.expect(moved)
    scale = case.d_head**-0.5 if case.scale is None else case.scale
    score_shift = scale * (call.query.double() @ shift.double())
    check_lse(
        lse, before.lse + score_shift, after, "the log-sum-exp does not shift with all scores"
    )
    check_oracle(moved, out, after, "the output is wrong after a shift of all scores")


@law(
    "ATT-32",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(WITH_LSE, dtype=DTYPES),
        WITH_LSE.but(softcap=1.0),
        WITH_LSE.but(window=(2, 1), alibi=True),
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
    needs={Feature.MASK},
    cost=3,
)
def law_log_sum_exp_shifts_with_the_bias(subject: Subject, case: Case) -> None:
    """ATT-32: a float mask of one number adds that number to the log-sum-exp, softcap or not.

    A softcap that comes after the bias bounds that number too: the definition judges it.
    """
    bare = subject.draw(case)
    exact = subject.expect(bare, with_bound=False).lse
    subject.draw(case, mask=BIAS)  # not claimed if masks are refused
    for constant in (3.0, -5.0):
        bias = torch.full((case.queries, case.keys), constant, dtype=case.dtype)
        call = bare.but(attn_mask=bias.to(bare.query.device))
        _, lse = subject.call_with_lse(call)
        expected = subject.expect(call)
        target = expected.lse if caps_bias(subject, call) else exact + constant
        check_lse(lse, target, expected, "a constant bias is not added to the log-sum-exp")


@law(
    "ATT-33",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(WITH_LSE, dtype=DTYPES),
        *vary(WITH_LSE, values=(Values.PEAKED, Values.OFFSET)),
        *vary(WITH_LSE, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        WITH_LSE.but(is_causal=True),
        WITH_LSE.but(window=(2, 1), softcap=1.0, sinks=True, alibi=True),
        GROUPED.but(return_lse=True),
        TILES.but(return_lse=True),
    ),
    explore=cases(always=(Feature.LSE,), sometimes=OPTIONS, scales=POSITIVE, only=plain),
    cost=3,
)
def law_returning_the_log_sum_exp_changes_no_output(subject: Subject, case: Case) -> None:
    """ATT-33: the output is the same with and without a log-sum-exp."""
    call = subject.draw(case)
    expected = subject.expect(call)
    with_lse, _ = subject.call_with_lse(call)
    check_oracle(call, with_lse, expected, "the output with a log-sum-exp is wrong")
    without_lse = subject.call(call.but(return_lse=False))
    check_oracle(call, without_lse, expected, "the output without a log-sum-exp is wrong")
    check_close(
        without_lse,
        torch.where(with_lse.isfinite() & without_lse.isfinite(), with_lse, without_lse).double(),
        2 * expected.bound,
        what="out",
        message="returning the log-sum-exp changes the output",
        dtype=case.dtype,
        may_be_nan=expected.may_be_nan,
    )
    require_evidence(call, expected)


@law(
    "ATT-34",
    pinned=(
        TINIEST.but(return_lse=True, d_head=4, d_value=4),
        *vary(WITH_LSE, dtype=DTYPES),
        WITH_LSE.but(mask=HIDDEN),
        WITH_LSE.but(mask=BIAS),
        WITH_LSE.but(is_causal=True),
        WITH_LSE.but(window=(2, None)),
        WITH_LSE.but(softcap=1.0),
        WITH_LSE.but(sinks=True),
        WITH_LSE.but(alibi=True),
        GROUPED.but(return_lse=True, d_value=17),
        TILES.but(return_lse=True, keys=64),
    ),
    explore=cases(
        always=(Feature.LSE,),
        sometimes=OPTIONS,
        scales=POSITIVE,
        only=lambda case: plain(case) and 0 < case.keys <= case.d_value,
    ),
    cost=2,
)
def law_log_sum_exp_normalises_the_weights(subject: Subject, case: Case) -> None:
    """ATT-34: with identity values an output is e to the score less the log-sum-exp beside it."""
    call = subject.draw(case)
    eye = torch.eye(case.keys, case.d_value, dtype=case.dtype, device=call.value.device)
    call = call.but(value=eye.expand_as(call.value).contiguous())
    out, lse = subject.call_with_lse(call)
    expected = subject.expect(call)
    check_lse(lse, expected.lse, expected, "the log-sum-exp differs from the definition")
    # e^(x - lse) = p e^(exact lse - lse); rows that read nothing have no weights
    finite = expected.lse.isfinite() & lse.isfinite() & readable(subject, call).any(-1)
    ratio = torch.where(finite, (expected.lse - lse.double()).exp(), 1.0)[..., None]
    slack = torch.where(finite, expected.lse_bound.expm1(), 0.0)[..., None]
    check_close(
        out,
        torch.where(finite[..., None], expected.out * ratio, expected.out),
        expected.bound + expected.out.abs().nan_to_num(0.0) * slack,
        what="out",
        message="the weights are not e^(score - log-sum-exp)",
        dtype=case.dtype,
        may_be_nan=expected.may_be_nan,
    )
    require_evidence(call, expected)


@law(
    "ATT-36",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(WITH_LSE, dtype=DTYPES),
        WITH_LSE.but(mask=BIAS, is_causal=True),
        GROUPED.but(return_lse=True, sinks=True),
    ),
    explore=cases(always=(Feature.LSE,), sometimes=OPTIONS, only=plain),
    cost=2,
)
def law_the_log_sum_exp_has_memory_of_its_own(subject: Subject, case: Case) -> None:
    """ATT-36: the log-sum-exp survives a later call, and writing to the arguments or the output."""
    drawn = subject.draw(case)
    call = drawn.but(**{name: tensor.clone() for name, tensor in drawn.tensors.items()})
    out, lse = subject.call_with_lse(call)
    before = lse.clone()
    subject.call_with_lse(call.but(key=-call.key))
    check_equal(lse, before, what="lse", message="a later call writes to an earlier log-sum-exp")
    for name, tensor in {**call.tensors, "the output": out}.items():
        tensor.untyped_storage().fill_(0)  # type: ignore[attr-defined]  # absent from torch's stubs
        message = f"writing to {name} changes the log-sum-exp"
        check_equal(lse, before, what="lse", message=message)
