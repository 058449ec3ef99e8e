"""The expected result of a packed call: that of a padded call for each sequence, with its bound."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.attention.bounds.forward import merge_exponent
from attnspec.conformance.attention.bounds.roundoff import UNIT, Roundoff, theta
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.memoize import memoize_oracle
from attnspec.conformance.attention.oracle import Expected, expect, expect_scalar
from attnspec.conformance.attention.oracle_gradients import Gradient, expect_gradients
from attnspec.spec import CausalAlignment, EmptyRow, Profile, Rounding
from attnspec.spec.packed import PackedProfile

_EXPECT, _EXPECT_GRADIENTS = (
    memoize_oracle(expect, kept=512),
    memoize_oracle(expect_gradients, kept=256),
)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The expected rows of one sequence.

    Attributes:
        out: the output in float64.
        bound: the largest distance allowed.
        lse: the log-sum-exp.
        lse_bound: its bound.
        may_be_nan: true where NaN is allowed beside the expected value; None if nowhere.
    """

    out: Float64[torch.Tensor, "queries heads d_head"]
    bound: Float64[torch.Tensor, "queries heads d_head"]
    lse: Float64[torch.Tensor, "heads queries"]
    lse_bound: Float64[torch.Tensor, "heads queries"]
    may_be_nan: Bool[torch.Tensor, "queries heads d_head"] | None = None


def padded_profile(
    profile: PackedProfile,
    alignment: CausalAlignment = CausalAlignment.LOWER_RIGHT,
    roundings: int = 0,
) -> Profile:
    """Return the profile of the padded call of one sequence.

    Args:
        profile: of the packed call.
        alignment: of the diagonal.
        roundings: of the outputs of parts, one after the other, which are merged as often. The
            bound has the roundings of one merge, each a multiple of the unit roundoff of sums; so
            many merges have at most those of one at so many times this unit.
    """
    accumulator = profile.accumulator
    if roundings > 1:
        unit = UNIT[torch.float32] if accumulator is None else accumulator
        accumulator = min(roundings * unit, 0.5)
    return Profile(
        causal_alignment=alignment,
        empty_row=profile.empty_row,
        rounding=Rounding(level=profile.rounding, accumulator=accumulator),
    )


def expect_rows(
    call: Call, profile: Profile, *, by_scalars: bool = False, roundings: int = 0
) -> Rows:
    """Return the expected rows of the padded call of a sequence.

    Args:
        call: of one sequence.
        profile: of the padded call.
        by_scalars: use the scalar definition, which judges the reference itself.
        roundings: of the outputs of parts (see `rounded_parts`).
    """
    oracle: Callable[..., Expected] = expect_scalar if by_scalars else _EXPECT
    expected = oracle(call, profile)
    bound = expected.bound
    if roundings and torch.finfo(call.value.dtype).bits == 16:
        bound = bound + rounded_parts(call, expected, profile, oracle, roundings)
        # an expected NaN or infinity has a bound of zero
        bound = torch.where(expected.out.isfinite(), bound, expected.bound)
    nan = expected.may_be_nan
    if call.key.shape[2] == 0 and profile.empty_row is not EmptyRow.ZERO:
        # zero divided by zero, unless a kernel returns before it divides
        nan = torch.ones_like(expected.out, dtype=torch.bool)
    return Rows(
        out=expected.out[0].transpose(0, 1),
        bound=bound[0].transpose(0, 1),
        lse=expected.lse[0],
        lse_bound=expected.lse_bound[0],
        may_be_nan=None if nan is None else nan[0].transpose(0, 1),
    )


def rounded_parts(
    call: Call,
    expected: Expected,
    profile: Profile,
    oracle: Callable[..., Expected],
    roundings: int,
) -> Float64[torch.Tensor, "batch heads queries d_value"]:
    r"""Return the error of an output whose parts are rounded to a storage type of 16 bits.

    The parts of the keys have outputs o_s, which are merged in a tree: each node is the sum of its
    children with weights ŵ, and each node but the root is rounded, õ = o (1 + δ) + ε with |δ| ≤ u_o
    and |ε| ≤ f. Let n be the largest number of rounded nodes on the way from a part to the root,
    and Ŵ the product of the weights on the way from a node to the root. Then

        out = Σ_s Ŵ_s o_s Π (1 + δ) + Σ_nodes Ŵ ε Π (1 + δ)

    and without δ and ε this is a kernel that the bound of NUM-3 covers, whose unit roundoff of sums
    `padded_profile` has multiplied by n for the n merges. The roundings add at most

        ((1 + u_o)ⁿ - 1) Σ_s Ŵ_s |o_s|  +  n f (1 + u_o)ⁿ⁻¹ (1 + G)

    - Σ Ŵ_s|o_s| is at most what the same kernel gives for |v| if its roundings all go up: M, the
      exact output for |v| and the bound of that output.
    - The weights Ŵ of the nodes of one depth add up to 1 + G at most, G the error of merged parts
      (eq-num-merge). Parts that are stored before they are divided by their sum have weights
      exp(m_s - m)/ℓ instead, which add up to no more since each ℓ_s is 1 at least.

    The result is stored after that, (1 + u_o) times the sum. The number of splits enters through n
    alone: what is rounded at one depth are the shares of one output.

    A part may be as large as the largest value, and overflow although the output is small. Nothing
    is promised if twice the largest value exceeds the range of the storage type.

    Args:
        call: of one sequence, in 16 bits.
        expected: its result.
        profile: of the padded call, for so many roundings.
        oracle: returns the expected result of a call.
        roundings: n.
    """
    r = Roundoff.of(call.value.dtype, profile)
    sizes = call.value.abs()
    largest = sizes.masked_fill(~sizes.isfinite(), 0.0)
    if sizes.numel() and 2 * float(largest.amax()) > torch.finfo(sizes.dtype).max:
        return torch.full_like(expected.bound, torch.inf)
    of_sizes = oracle(call.but(value=sizes), profile)
    mass = of_sizes.out + of_sizes.bound
    lse_size = torch.where(expected.lse.isfinite(), expected.lse.abs(), 0.0)[..., None]
    merge = merge_exponent(lse_size, call.key.shape[2], r)
    floors = roundings * r.f * (1 + r.u_o) ** (roundings - 1) * merge.clamp(max=60).exp()
    return (1 + r.u_o) * (theta(roundings, r.u_o) * mass + floors)


def expect_row_gradients(
    call: Call, grad_out: torch.Tensor, profile: Profile, *, by_formula: bool = False
) -> dict[str, Gradient]:
    """Return the expected gradients of the padded call of a sequence, (length, heads, channels).

    Args:
        call: of one sequence.
        grad_out: the incoming gradient, (queries, heads, d_head).
        profile: of the padded call.
        by_formula: use the closed form, which judges the reference itself.
    """
    operands = {"query": call.query, "key": call.key, "value": call.value}
    if 0 in (call.query.shape[2], call.key.shape[2]):
        zeros = {name: torch.zeros_like(_packed(each)).double() for name, each in operands.items()}
        return {name: Gradient(exact=zero, bound=zero) for name, zero in zeros.items()}
    grad = grad_out.transpose(0, 1)[None]
    expected: Any = (
        expect_gradients(call, grad, profile, by_formula=True)
        if by_formula
        else _EXPECT_GRADIENTS(call, grad, profile)
    )
    gradients = {name: getattr(expected, name) for name in operands}
    return {
        name: Gradient(
            exact=_packed(each.exact),
            bound=_packed(each.bound),
            may_be_nan=None if each.may_be_nan is None else _packed(each.may_be_nan),
        )
        for name, each in gradients.items()
    }


def _packed(x: torch.Tensor) -> torch.Tensor:
    """Return (length, heads, channels) of (1, heads, length, channels)."""
    return x[0].transpose(0, 1)
