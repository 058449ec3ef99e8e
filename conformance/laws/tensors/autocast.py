"""Laws of TEN-19: autocast lowers the precision of results and gradients, and nothing else."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from attnspec.conformance.attention.bounds.roundoff import UNIT, theta
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import Expected, check_oracle
from attnspec.conformance.attention.oracle_gradients import ExpectedGradients
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import WRT, Recorded, Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.laws.helpers.calls import new_contents, require_evidence
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    F16,
    F32,
    F64,
    HIDING,
    SMALL,
    TINIEST,
)
from attnspec.conformance.laws.helpers.gradients import (
    AXES,
    Gradients,
    expected_gradient,
    incoming_gradient,
    require_evidence_of_gradients,
    require_gradient,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Mask, Profile, RoundingLevel, Values

MANY_HEADS = SMALL.but(batch=5, heads=12, kv_heads=4, queries=5, keys=66)
"""More heads and batch elements than a kernel may count on, and more keys than a tile."""

SEVERAL_TILES = MANY_HEADS.but(
    batch=2, heads=4, kv_heads=2, queries=264, keys=264, d_head=64, d_value=64, is_causal=True
)

LEAST_TILE = 64
"""The fewest keys after which a running sum under autocast may be rounded."""


@law(
    "TEN-19",
    pinned=(
        TINIEST,
        TINIEST.but(is_causal=True, queries=3),
        TINIEST.but(mask=HIDING, keys=5),
        TINIEST.but(mask=BIAS),
        TINIEST.but(mask=Mask(), queries=4, keys=4),
        TINIEST.but(sinks=True),
        TINIEST.but(alibi=True),
        TINIEST.but(window=(1, 0), queries=3),
        TINIEST.but(heads=2),
        TINIEST.but(keys=70),
        # so many keys that a sum in 16 bits stops growing
        TINIEST.but(keys=1100, values=Values.POSITIVE),
        # arguments that an earlier operation under autocast returned
        *vary(SMALL, dtype=(F16, BF16)),
        TINIEST.but(keys=70, dtype=F16),
        MANY_HEADS,
        MANY_HEADS.but(dtype=BF16, is_causal=True),
        TINIEST.but(queries=9, keys=140, d_head=128, d_value=128),
    ),
    wide=tuple(SEVERAL_TILES.but(dtype=dtype) for dtype in (F32, BF16)),
    cost=8,
)
def law_autocast_lowers_the_precision_and_nothing_else(subject: Subject, case: Case) -> None:
    """TEN-19: under autocast the result is that of the arguments, as they are or cast.

    While autocast is on, the keys are overwritten: a cast may be kept for the numbers of a call.
    """
    call, changed = subject.draw(case), subject.draw(case)
    changed.key.copy_(new_contents(case, "key", changed.key))
    in_place = call.but(key=call.key.clone())
    outs = []
    with torch.autocast(call.query.device.type, dtype=dtype_of_autocast(case)):
        for numbers in (call, changed):
            in_place.key.copy_(numbers.key)
            outs.append(_run_under_autocast(subject, in_place))
    for numbers, out in zip((call, changed), outs, strict=True):
        _check_under_autocast(subject, numbers, out)


def _check_under_autocast(subject: Subject, call: Call, out: torch.Tensor) -> None:
    """Compare the output of a call under autocast with those of the calls that it may make."""
    subject.last_call = call
    dtype = dtype_of_autocast(call.value)
    *others, all_cast = casts(call, dtype)
    # the usual one, and the one that a failure shows
    usual = _expect_cast(subject, all_cast, dtype)
    require_evidence(all_cast, usual)
    allowed = itertools.chain(
        (subject.expect(call),) if _is_as_outside(call, out.dtype) else (),
        (usual,),
        (_expect_cast(subject, cast, dtype) for cast in others),
    )
    nearest = next((each for each in allowed if _is_right(out, each)), usual)
    as_returned = call.but(value=call.value.to(out.dtype))
    check_oracle(as_returned, out, nearest, "the output is wrong under autocast")


def dtype_of_autocast(given: Case | torch.Tensor) -> torch.dtype:
    """Return the dtype to which autocast casts: bfloat16, or that of arguments of 16 bits.

    Results of earlier operations under autocast are in its dtype already.
    """
    return given.dtype if given.dtype in (F16, BF16) else BF16


def _is_as_outside(call: Call, dtype: torch.dtype) -> bool:
    """Return whether an output under autocast is at least as wide as one outside."""
    return dtype in (F32, call.value.dtype)


def _expect_cast(subject: Subject, cast: Call, dtype: torch.dtype) -> Expected:
    """Return what is expected of a call whose intermediate results autocast rounds.

    Level `eager` holds running sums and log-sum-exps in float32. Under autocast an operation may
    return either of them in 16 bits, with unit roundoff u:

    - A sum over tiles of 64 keys or more is rounded after each tile and with the result of the
      tile, w = (1 + u)^(t + 1) - 1 for t tiles: numerator and row sum err by w of the sum of their
      sizes, their quotient by (1 + w)/(1 - w) - 1.
    - The log-sum-exp of a row, or of each part and of all of them, shifts each exponent by at most
      u |lse| as it is stored and as it is used: |lse| + ln(T + 1) bounds the mean size of those of
      parts, as in the bound of merged parts. The weights err by m = exp(2 u (...)) - 1.

    Both are relative to N = Σ p|v|, the output of the sizes of the values. A numerator below the
    normal numbers loses up to half of the smallest number of the dtype each time that it is
    rounded; the row sum that divides it is 1 or more.
    """
    profile, u = at_level_eager(subject), UNIT[dtype]
    expected = subject.oracle(cast, profile)
    sizes = subject.oracle(cast.but(value=cast.value.abs()), profile)
    keys = cast.key.shape[-2]
    roundings = -(-keys // LEAST_TILE) + 1
    w, lost = theta(roundings, u), roundings * torch.finfo(dtype).smallest_normal * u
    lse = torch.where(expected.lse == -math.inf, 0.0, expected.lse.abs())[..., None]
    m = torch.expm1(2 * u * (lse + math.log(keys + 1)))
    more = (1 + w) / (1 - w) * (1 + m) - 1 if w < 1 else torch.full_like(m, math.inf)
    reads = (expected.lse != -math.inf)[..., None]
    more = more * (sizes.out.abs() + sizes.bound) + lost
    bound = expected.bound + torch.where(reads, more, 0.0)
    return replace(expected, bound=bound)


@law(
    "TEN-19",
    pinned=tuple(
        case.but(backward=True)
        for case in (
            TINIEST,
            TINIEST.but(is_causal=True, queries=3),
            TINIEST.but(mask=HIDING, keys=5),
            TINIEST.but(mask=BIAS),
            TINIEST.but(heads=2, kv_heads=1, queries=4, keys=4, d_value=3),
            TINIEST.but(softcap=1.0),
            SMALL,
            *vary(SMALL, dtype=(F16, BF16)),
            MANY_HEADS.but(is_causal=True),
        )
    ),
    wide=tuple(SEVERAL_TILES.but(backward=True, dtype=dtype) for dtype in (F32, BF16)),
    cost=8,
)
def law_autocast_lowers_the_precision_of_gradients_and_nothing_else(
    subject: Subject, case: Case
) -> None:
    """TEN-19: the gradients of a call under autocast are those of the arguments, as is or cast.

    The backward pass runs outside, as PyTorch recommends.
    """
    call = subject.draw(case)
    # numbers of the dtype of autocast: whether a backward pass casts them makes no difference
    dtype = dtype_of_autocast(case)
    grad = incoming_gradient(case.but(dtype=dtype))
    leaves = {name: getattr(call, name).detach().requires_grad_() for name in WRT}
    with torch.enable_grad():
        out = _run_under_autocast(subject, call.but(**leaves))
    if not out.requires_grad:
        raise Violation("the output under autocast must require a gradient")
    recorded = Recorded(call=call, leaves=leaves, out=out)
    try:
        gradients = subject.backpropagate(recorded, grad.to(out.dtype))
    except Raised as error:
        raise NotClaimed("refuses backward passes of calls under autocast") from error
    usual = subject.oracle_gradients(casts(call, dtype)[-1], grad, at_level_eager(subject))
    require_evidence_of_gradients(usual)
    allowed = _expected_gradients(subject, call, grad, out.dtype)
    nearest = next((each for each in allowed if _are_right(gradients, each)), usual)
    for name, tensor in gradients.items():
        expected = expected_gradient(nearest, name)
        check_close(
            require_gradient(tensor, name),
            expected.exact,
            expected.bound,
            what=f"gradient of {name}",
            message="the gradient of a call under autocast is wrong",
            dtype=case.dtype,
            may_be_nan=expected.may_be_nan,
            axes=AXES[name],
        )


def _run_under_autocast(subject: Subject, call: Call) -> torch.Tensor:
    """Return the output of a call under autocast, in float32 or in the dtype of autocast.

    Raises:
        NotClaimed: if the call is in float64, or is refused.
        Violation: if the output is no tensor, or has another dtype.
    """
    if call.value.dtype == F64:
        raise NotClaimed("autocast leaves float64 as it is")
    dtype = dtype_of_autocast(call.value)
    try:
        with torch.autocast(call.query.device.type, dtype=dtype):
            out = subject.run(call)
    except Raised as error:
        raise NotClaimed("refuses calls under autocast") from error
    if not isinstance(out, torch.Tensor) or out.dtype not in (F32, dtype):
        shown = out.dtype if isinstance(out, torch.Tensor) else type(out).__name__
        names = f"float32 or {str(dtype).removeprefix('torch.')}"
        raise Violation(f"the output under autocast must have dtype {names}: {shown}")
    return out


def at_level_eager(subject: Subject) -> Profile:
    """Return the profile of a subject with every intermediate result rounded to storage."""
    profile = subject.implementation.profile
    return replace(profile, rounding=replace(profile.rounding, level=RoundingLevel.EAGER))


def casts(call: Call, dtype: torch.dtype) -> list[Call]:
    """Return the calls in which values, and any of the other floating tensors, have a dtype.

    The values determine the dtype of the bound. In the last call all tensors are cast.
    """
    others = [
        name
        for name, tensor in call.tensors.items()
        if name != "value" and tensor.is_floating_point() and tensor.dtype != dtype
    ]
    subsets = (itertools.combinations(others, size) for size in range(len(others) + 1))
    return [
        call.but(**{name: getattr(call, name).to(dtype) for name in ("value", *subset)})
        for subset in itertools.chain.from_iterable(subsets)
    ]


def _expected_gradients(
    subject: Subject, call: Call, grad: torch.Tensor, dtype: torch.dtype
) -> Iterator[ExpectedGradients]:
    """Generate the gradients that are allowed: first those of the call outside, if in its dtype."""
    if _is_as_outside(call, dtype):
        yield subject.expect_gradients(call, grad.to(call.value.dtype))
    for cast in reversed(casts(call, dtype_of_autocast(call.value))):
        yield subject.oracle_gradients(cast, grad, at_level_eager(subject))


def _are_right(gradients: Gradients, expected: ExpectedGradients) -> bool:
    """Return whether each element of all gradients lies within its bound of the expected one."""
    pairs = ((tensor, expected_gradient(expected, name)) for name, tensor in gradients.items())
    return all(
        tensor is not None and bool(((tensor.double() - each.exact).abs() <= each.bound).all())
        for tensor, each in pairs
    )


def _is_right(out: torch.Tensor, expected: Expected) -> bool:
    """Return whether each element of an output lies within its bound of the expected one."""
    return bool(((out.double() - expected.out).abs() <= expected.bound).all())
