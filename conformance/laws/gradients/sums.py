"""Laws of GRD: sums of gradients over keys, groups of heads and incoming gradients."""

import torch

from attnspec.conformance.attention.oracle_gradients import ExpectedGradients
from attnspec.conformance.attention.strategies import cases, vary
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import (
    in_groups,
    plain,
    readable,
    repeat_kv,
    round_to_grid,
)
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    DTYPES,
    F16,
    F64,
    HIDDEN,
    HIDING,
    LENGTHS,
    OPTIONS,
)
from attnspec.conformance.laws.helpers.gradients import (
    BACKWARD,
    BIAS,
    GROUPED,
    SMALL,
    TINIEST,
    Gradients,
    check_gradient,
    check_gradients,
    differentiate_and_judge,
    empty_rows_are_zero,
    expected_gradient,
    has_float_mask,
    incoming_gradient,
    operands_with_gradient,
    require_evidence_of_gradients,
    require_gradient,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import (
    Case,
    Feature,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    SoftcapOrder,
    Values,
)

TAME = (Values.NORMAL, Values.PEAKED, Values.ONE_HOT, Values.INTEGERS, Values.TIES)
UNCAPPED = (Feature.WINDOW, Feature.ALIBI)


def in_float64(tensor: torch.Tensor | None, name: str) -> torch.Tensor:
    """Return a gradient, which must not be None, in float64."""
    return require_gradient(tensor, name).double()


def sum_with_error(numbers: torch.Tensor, *axes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum along some axes, which are kept, and bound the error of that sum in float64.

    A sum of n numbers errs by at most (n - 1) u times the sum of their magnitudes, up to u². Sums
    that are not finite have an infinite bound: each law judges their terms one by one before.
    """
    total, size = numbers.sum(axes, keepdim=True), numbers.abs().sum(axes, keepdim=True)
    error = numbers.numel() // max(total.numel(), 1) * 2.0**-52 * size
    return total, torch.where(error.isfinite(), error, torch.inf)


@law(
    "GRD-9",
    pinned=(
        TINIEST.but(mask=BIAS, mask_gradient=True),
        *vary(SMALL.but(mask=BIAS, mask_gradient=True), dtype=DTYPES),
        SMALL.but(mask=HIDING, mask_gradient=True),
        GROUPED.but(mask=BIAS, mask_gradient=True, is_causal=True),
        GROUPED.but(mask=BIAS, mask_gradient=True),
        SMALL.but(mask=BIAS, mask_gradient=True, softcap=2.0),
        SMALL.but(mask=BIAS, mask_gradient=True, alibi=True, window=(3, 2)),
    ),
    wide=(SMALL.but(mask=BIAS, mask_gradient=True, queries=17, keys=65),),
    explore=cases(
        always=BACKWARD,
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.ALIBI),
        masked=True,
        patterns=(MaskPattern.BIAS,),
        families=TAME,
        lengths=LENGTHS,
        only=has_float_mask,
    ),
    cost=3,
)
def law_the_gradients_of_a_row_of_scores_cancel(subject: Subject, case: Case) -> None:
    """GRD-9: a shift does not change a softmax, so dB adds up to zero over the keys of a row.

    Not so under a softcap that comes after the bias, which bounds the shift: it is left out.
    """
    mask = Mask(kind=MaskKind.FLOAT, shape=MaskShape.FULL, pattern=MaskPattern.BIAS)
    if case.mask is not None and case.mask.shape is MaskShape.FULL:
        mask = case.mask
    bounds_shift = subject.implementation.profile.softcap_order is SoftcapOrder.AFTER_BIAS
    softcap = None if bounds_shift else case.softcap
    call = subject.draw(case, backward=True, mask=mask, mask_gradient=True, softcap=softcap)
    grad = incoming_gradient(case)
    message = "the gradient differs from the definition"
    gradients, expected = differentiate_and_judge(subject, call, grad, ("attn_mask",), message)
    gradient = expected_gradient(expected, "attn_mask")
    total, error = sum_with_error(in_float64(gradients["attn_mask"], "attn_mask"), -1)
    bound = gradient.bound.sum(-1, keepdim=True) + error
    message = "the gradients of the scores of a row must add up to zero"
    check_gradient(total, "attn_mask", torch.zeros_like(total), bound, message)


@law(
    "GRD-10",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        *vary(SMALL, scale=(0.3, 2.0), is_causal=(True,)),
        SMALL.but(mask=HIDDEN),
        *vary(GROUPED, dtype=DTYPES),
        SMALL.but(alibi=True, window=(2, 3)),
        SMALL.but(queries=17, keys=129),
    ),
    wide=(
        GROUPED.but(is_causal=True, keys=5),
        SMALL.but(queries=65, keys=17),
        GROUPED.but(queries=65, keys=65, d_head=32, d_value=32),
    ),
    explore=cases(always=BACKWARD, sometimes=UNCAPPED, families=TAME, lengths=LENGTHS, only=plain),
    cost=3,
)
def law_sums_of_gradients_agree(subject: Subject, case: Case) -> None:
    """GRD-10: Σ dK = 0 and Σ dV = Σ dO over keys and queries, and Σ q·dQ = Σ k·dK."""
    call = subject.draw(case, backward=True, softcap=None, sinks=False)
    reads = readable(subject, call).any(-1)
    if not (empty_rows_are_zero(subject) or bool(reads.all())):
        raise NotClaimed("the gradient of an empty row is defined only if the row gives zero")
    grad = incoming_gradient(case)
    message = "the gradient differs from the definition"
    gradients, expected = differentiate_and_judge(subject, call, grad, WRT, message)
    d_query, d_key, d_value = (in_float64(gradients[name], name) for name in WRT)
    query, key, value = (expected_gradient(expected, name) for name in WRT)

    total, error = sum_with_error(d_key, 2)
    bound = key.bound.sum(2, keepdim=True) + error
    message = "the gradients of the keys must add up to zero: all scores of a row may shift"
    check_gradient(total, "key", torch.zeros_like(total), bound, message)

    def by_group(tensor: torch.Tensor) -> torch.Tensor:
        return in_groups(subject, tensor, case.kv_heads).flatten(2, 3)

    incoming, other_error = sum_with_error(
        by_group(torch.where(reads[..., None], grad.double(), 0.0)), 2
    )
    total, error = sum_with_error(d_value, 2)
    bound = value.bound.sum(2, keepdim=True) + error + other_error
    message = "the gradients of the values must add up to the incoming one: weights add up to one"
    check_gradient(total, "value", incoming, bound, message)

    query_operand, key_operand = call.query.double(), call.key.double()
    left, error = sum_with_error(by_group(query_operand * d_query), 2, 3)
    right, other_error = sum_with_error(key_operand * d_key, 2, 3)
    slack = by_group(query_operand.abs() * query.bound).sum((2, 3), keepdim=True)
    slack = slack + (key_operand.abs() * key.bound).sum((2, 3), keepdim=True)
    message = "queries and keys must get gradients of the same scores: Σ q·dQ = Σ k·dK"
    check_gradient(left, "query", right, slack + error + other_error, message)


MANY_HEADS = GROUPED.but(
    batch=1,
    heads=64,
    kv_heads=1,
    queries=1,
    keys=1009,
    d_head=1,
    d_value=1,
    values=Values.CANCELLATION,
)
"""Sums of many heads in 16 bits: it shows whether they are rounded after each head."""


@law(
    "GRD-11",
    "NUM-10",
    pinned=(
        GROUPED.but(batch=1, heads=2, kv_heads=1, queries=1, keys=2, d_head=2, d_value=2),
        *vary(GROUPED, dtype=DTYPES),
        GROUPED.but(heads=6, kv_heads=3, is_causal=True),
        GROUPED.but(heads=4, kv_heads=2, queries=17, keys=65),
        GROUPED.but(heads=4, kv_heads=2, softcap=2.0),
        GROUPED.but(heads=6, kv_heads=2, sinks=True, alibi=True),
    ),
    wide=(
        GROUPED.but(heads=8, kv_heads=2),
        GROUPED.but(heads=7, kv_heads=1, batch=1),
        GROUPED.but(heads=12, kv_heads=4, batch=3),
        *vary(MANY_HEADS, dtype=(F16, BF16)),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=OPTIONS,
        grouped=True,
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    cost=5,
)
def law_gradients_are_summed_over_a_group(subject: Subject, case: Case) -> None:
    """GRD-11: dK and dV of a shared head are the sums of those of the heads that share it."""
    call = subject.draw(case, backward=True)
    repeated = subject.draw(case, backward=True, kv_heads=case.heads)
    repeated = call.but(
        key=repeat_kv(subject, call.key, case.heads).contiguous(),
        value=repeat_kv(subject, call.value, case.heads).contiguous(),
        attn_mask=call.attn_mask,
    )
    grad = incoming_gradient(case)
    message = "the gradient of a shared head is wrong"
    gradients, expected = differentiate_and_judge(subject, call, grad, WRT, message)
    repeated_gradients, expected_repeated = differentiate_and_judge(
        subject, repeated, grad, WRT, "the gradient is wrong without groups"
    )
    message = "a shared key must have the sum of the gradients of the heads that share it"
    for name in ("key", "value"):
        of_heads = in_groups(subject, repeated_gradients[name].double(), case.kv_heads)
        together, error = sum_with_error(of_heads, 2)
        bound = expected_gradient(expected_repeated, name).bound
        bound = in_groups(subject, bound, case.kv_heads).sum(2)
        bound = bound + expected_gradient(expected, name).bound + error[:, :, 0]
        check_gradient(
            gradients[name].double(), name, together[:, :, 0], bound, message, _nan(expected, name)
        )
    require_evidence_of_gradients(expected)


def _nan(expected: ExpectedGradients, name: str) -> torch.Tensor | None:
    return expected_gradient(expected, name).may_be_nan


@law(
    "GRD-12",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=BIAS, mask_gradient=True),
        SMALL.but(softcap=2.0),
        SMALL.but(sinks=True, window=(2, 2)),
    ),
    wide=(
        SMALL.but(queries=33, keys=65, dtype=F16),
        SMALL.but(queries=65, keys=33, dtype=F64),
    ),
    explore=cases(always=BACKWARD, sometimes=OPTIONS, families=TAME, lengths=LENGTHS, only=plain),
    cost=8,
)
def law_gradients_are_linear_in_the_incoming_one(subject: Subject, case: Case) -> None:
    """GRD-12: the gradients of dO + dO' are the sums of theirs, and those of 4 dO four times."""
    call = subject.draw(case, backward=True)
    wrt = operands_with_gradient(subject, case)
    grad = round_to_grid(incoming_gradient(case).double()).to(case.dtype)
    other_grad = round_to_grid(incoming_gradient(case, purpose="another grad").double()).to(
        case.dtype
    )

    def differentiate(grad: torch.Tensor) -> tuple[Gradients, ExpectedGradients]:
        _, gradients = subject.differentiate(call, grad, wrt=wrt)
        expected = subject.expect_gradients(call, grad)
        check_gradients(call, gradients, expected, "the gradient of one of two parts is wrong")
        return gradients, expected

    first, second, summed, fourfold = (
        differentiate(incoming) for incoming in (grad, other_grad, grad + other_grad, 4 * grad)
    )
    for name in wrt:
        left, right = in_float64(first[0][name], name), in_float64(second[0][name], name)
        bounds = [
            expected_gradient(expected, name).bound
            for _, expected in (first, second, summed, fourfold)
        ]
        total, error = sum_with_error(torch.stack([left, right]), 0)
        bound = bounds[0] + bounds[1] + bounds[2] + error[0]
        nan = _nan(summed[1], name)
        message = "the gradients of two parts do not add up"
        check_gradient(in_float64(summed[0][name], name), name, total[0], bound, message, nan)
        message = "four times the incoming gradient does not give four times the gradients"
        bound = torch.where(left.isfinite(), 4 * bounds[0] + bounds[3], torch.inf)
        check_gradient(in_float64(fourfold[0][name], name), name, 4 * left, bound, message, nan)
