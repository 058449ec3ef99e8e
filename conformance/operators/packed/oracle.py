"""The expected result of a packed call: that of a padded call for each sequence, with its bound."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float64

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
    profile: PackedProfile, alignment: CausalAlignment = CausalAlignment.LOWER_RIGHT
) -> Profile:
    """Return the profile of the padded call of one sequence."""
    return Profile(
        causal_alignment=alignment,
        empty_row=profile.empty_row,
        rounding=Rounding(level=profile.rounding, accumulator=profile.accumulator),
    )


def expect_rows(call: Call, profile: Profile, *, by_scalars: bool = False) -> Rows:
    """Return the expected rows of the padded call of a sequence.

    Args:
        call: of one sequence.
        profile: of the padded call.
        by_scalars: use the scalar definition, which judges the reference itself.
    """
    oracle: Callable[..., Expected] = expect_scalar if by_scalars else _EXPECT
    expected = oracle(call, profile)
    nan = expected.may_be_nan
    if call.key.shape[2] == 0 and profile.empty_row is not EmptyRow.ZERO:
        # zero divided by zero, unless a kernel returns before it divides
        nan = torch.ones_like(expected.out, dtype=torch.bool)
    return Rows(
        out=expected.out[0].transpose(0, 1),
        bound=expected.bound[0].transpose(0, 1),
        lse=expected.lse[0],
        lse_bound=expected.lse_bound[0],
        may_be_nan=None if nan is None else nan[0].transpose(0, 1),
    )


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
