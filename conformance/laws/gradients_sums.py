"""Laws of GRD: what gradients add up to, over keys, over a group of heads, over their causes."""

import torch

from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import grid, per_head, plain, readable
from attnspec.conformance.laws.gradients_sides import (
    BACKWARD,
    DTYPES,
    F16,
    F64,
    FEATURES,
    GROUPED,
    LENGTHS,
    SMALL,
    TINIEST,
    Found,
    biased,
    check_gradients,
    check_part,
    evident_gradients,
    expected_of,
    gradients_of,
    incoming,
    judged_gradients,
    there,
    zero_empty_rows,
)
from attnspec.conformance.oracle_gradients import ExpectedGradients
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import WRT, Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)
HIDING = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
RANDOM = Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
TAME = (Values.NORMAL, Values.PEAKED, Values.ONE_HOT, Values.INTEGERS, Values.TIES)
UNCAPPED = (Feature.WINDOW, Feature.ALIBI)


def wide(tensor: torch.Tensor | None, name: str) -> torch.Tensor:
    """A gradient that came, in float64."""
    return there(tensor, name).double()


def added(numbers: torch.Tensor, *axes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum along some axes, which are kept, and how far float64 may be from it.

    A sum of n numbers errs by (n - 1) u of the sum of their magnitudes at most, up to u². Nothing
    is known of the sum of what is not finite, which each law has judged number by number before.
    """
    total, size = numbers.sum(axes, keepdim=True), numbers.abs().sum(axes, keepdim=True)
    own = numbers.numel() // max(total.numel(), 1) * 2.0**-52 * size
    return total, torch.where(own.isfinite(), own, torch.inf)


@law(
    "GRD-9",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(mask=BIAS, mask_gradient=True),
        *every(SMALL.but(mask=BIAS, mask_gradient=True), dtype=DTYPES),
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
        only=biased,
    ),
    needs={Feature.BACKWARD, Feature.MASK},
    cost=3,
)
def law_the_gradients_of_a_row_of_scores_cancel(subject: Subject, case: Case) -> None:
    """GRD-9: a softmax feels no shift, so that over the keys of a row dB adds up to zero."""
    mask = Mask(kind=MaskKind.FLOAT, shape=MaskShape.FULL, pattern=MaskPattern.BIAS)
    if case.mask is not None and case.mask.shape is MaskShape.FULL:
        mask = case.mask
    call = subject.draw(case, backward=True, mask=mask, mask_gradient=True)
    grad = incoming(case)
    message = "wrong, whatever it adds up to"
    found, expected = judged_gradients(subject, call, grad, ("attn_mask",), message)
    gradient = expected_of(expected, "attn_mask")
    total, own = added(wide(found["attn_mask"], "attn_mask"), -1)
    bound = gradient.bound.sum(-1, keepdim=True) + own
    message = "the gradients of the scores of a row must add up to zero"
    check_part(total, "attn_mask", torch.zeros_like(total), bound, message)


@law(
    "GRD-10",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES),
        *every(SMALL, scale=(0.3, 2.0), is_causal=(True,)),
        SMALL.but(mask=RANDOM),
        *every(GROUPED, dtype=DTYPES),
        SMALL.but(alibi=True, window=(2, 3)),
        SMALL.but(queries=17, keys=129),
    ),
    wide=(
        GROUPED.but(is_causal=True, keys=5),
        SMALL.but(queries=65, keys=17),
        GROUPED.but(queries=65, keys=65, d_head=32, d_value=32),
    ),
    explore=cases(always=BACKWARD, sometimes=UNCAPPED, families=TAME, lengths=LENGTHS, only=plain),
    needs={Feature.BACKWARD},
    cost=3,
)
def law_gradients_balance(subject: Subject, case: Case) -> None:
    """GRD-10: Σ dK = 0 and Σ dV = Σ dO over keys and queries, and Σ q·dQ = Σ k·dK."""
    call = subject.draw(case, backward=True, softcap=None, sinks=False)
    alive = readable(subject, call).any(-1)
    if not (zero_empty_rows(subject) or bool(alive.all())):
        raise NotClaimed("the gradient of an empty row that is not zero is not said")
    grad = incoming(case)
    message = "wrong, whatever it adds up to"
    found, expected = judged_gradients(subject, call, grad, WRT, message)
    d_query, d_key, d_value = (wide(found[name], name) for name in WRT)
    query, key, value = (expected_of(expected, name) for name in WRT)

    total, own = added(d_key, 2)
    bound = key.bound.sum(2, keepdim=True) + own
    message = "the gradients of the keys must add up to zero: all scores of a row may shift"
    check_part(total, "key", torch.zeros_like(total), bound, message)

    shape = (case.batch, case.kv_heads, -1, case.d_value)
    given, rounding = added(torch.where(alive[..., None], grad.double(), 0.0).reshape(shape), 2)
    total, own = added(d_value, 2)
    bound = value.bound.sum(2, keepdim=True) + own + rounding
    message = "the gradients of the values must add up to what came in: weights add up to one"
    check_part(total, "value", given, bound, message)

    query_size, key_size = call.query.double(), call.key.double()
    shape = (case.batch, case.kv_heads, -1, case.d_head)
    left, own = added((query_size * d_query).reshape(shape), 2, 3)
    right, rounding = added(key_size * d_key, 2, 3)
    slack = (query_size.abs() * query.bound).reshape(shape).sum((2, 3), keepdim=True)
    slack = slack + (key_size.abs() * key.bound).sum((2, 3), keepdim=True)
    message = "queries and keys must feel the same scores: Σ q·dQ = Σ k·dK"
    check_part(left, "query", right, slack + own + rounding, message)


@law(
    "GRD-11",
    "NUM-10",
    judges=Judged.ATTENTION,
    pinned=(
        GROUPED.but(batch=1, heads=2, kv_heads=1, queries=1, keys=2, d_head=2, d_value=2),
        *every(GROUPED, dtype=DTYPES),
        GROUPED.but(heads=6, kv_heads=3, is_causal=True),
        GROUPED.but(heads=4, kv_heads=2, queries=17, keys=65),
        GROUPED.but(heads=4, kv_heads=2, softcap=2.0),
        GROUPED.but(heads=6, kv_heads=2, sinks=True, alibi=True),
    ),
    wide=(
        GROUPED.but(heads=8, kv_heads=2),
        GROUPED.but(heads=7, kv_heads=1, batch=1),
        GROUPED.but(heads=12, kv_heads=4, batch=3),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=FEATURES,
        grouped=True,
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    needs={Feature.BACKWARD, Feature.GQA},
    cost=5,
)
def law_a_group_adds_up_its_gradients(subject: Subject, case: Case) -> None:
    """GRD-11: dK and dV of a shared head are the sums of those of the heads that share it."""
    call = subject.draw(case, backward=True)
    apart = subject.draw(case, backward=True, kv_heads=case.heads)
    apart = call.but(
        key=per_head(call.key, case.heads).contiguous(),
        value=per_head(call.value, case.heads).contiguous(),
        attn_mask=call.attn_mask,
    )
    grad = incoming(case)
    message = "the gradient of a shared head is wrong"
    found, expected = judged_gradients(subject, call, grad, WRT, message)
    each, also = judged_gradients(subject, apart, grad, WRT, "wrong without groups")
    message = "a shared key must have the sum of the gradients of the heads that share it"
    for name in ("key", "value"):
        shape = (case.batch, case.kv_heads, -1, *found[name].shape[2:])
        together, own = added(each[name].double().reshape(shape), 2)
        bound = expected_of(also, name).bound.reshape(shape).sum(2)
        bound = bound + expected_of(expected, name).bound + own[:, :, 0]
        check_part(
            found[name].double(), name, together[:, :, 0], bound, message, _nan(expected, name)
        )
    evident_gradients(expected)


def _nan(expected: ExpectedGradients, name: str) -> torch.Tensor | None:
    return expected_of(expected, name).may_be_nan


@law(
    "GRD-12",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=BIAS, mask_gradient=True),
        SMALL.but(softcap=2.0),
        SMALL.but(sinks=True, window=(2, 2)),
    ),
    wide=(
        SMALL.but(queries=33, keys=65, dtype=F16),
        SMALL.but(queries=65, keys=33, dtype=F64),
    ),
    explore=cases(always=BACKWARD, sometimes=FEATURES, families=TAME, lengths=LENGTHS, only=plain),
    needs={Feature.BACKWARD},
    cost=8,
)
def law_gradients_are_linear_in_the_incoming_one(subject: Subject, case: Case) -> None:
    """GRD-12: the gradients of dO + dO' are the sums of theirs, and those of 4 dO four times."""
    call = subject.draw(case, backward=True)
    wrt = gradients_of(subject, case)
    one = grid(incoming(case).double()).to(case.dtype)
    two = grid(incoming(case, purpose="another grad").double()).to(case.dtype)

    def judged(grad: torch.Tensor) -> tuple[Found, ExpectedGradients]:
        _, found = subject.differentiate(call, grad, wrt=wrt)
        expected = subject.expect_gradients(call, grad)
        check_gradients(call, found, expected, "the gradient of one of two parts is wrong")
        return found, expected

    first, second, whole, fourfold = (judged(each) for each in (one, two, one + two, 4 * one))
    for name in wrt:
        left, right = wide(first[0][name], name), wide(second[0][name], name)
        bounds = [expected_of(each[1], name).bound for each in (first, second, whole, fourfold)]
        both, own = added(torch.stack([left, right]), 0)
        total = bounds[0] + bounds[1] + bounds[2] + own[0]
        nan = _nan(whole[1], name)
        message = "the gradients of two parts do not add up"
        check_part(wide(whole[0][name], name), name, both[0], total, message, nan)
        message = "four times the incoming gradient does not give four times the gradients"
        total = torch.where(left.isfinite(), 4 * bounds[0] + bounds[3], torch.inf)
        check_part(wide(fourfold[0][name], name), name, 4 * left, total, message, nan)
