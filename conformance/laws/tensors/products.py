"""The law of TEN-22: products of float32 numbers may be less precise, and nothing else changes."""

import math
from dataclasses import replace

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.modes import product_precision
from attnspec.conformance.attention.oracle import Expected, check_oracle
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.calls import require_evidence
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    F16,
    F64,
    HIDING,
    SMALL,
    TINIEST,
)
from attnspec.conformance.laws.helpers.options import check_lse
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Values

PRECISIONS = {"high": torch.finfo(F16).eps, "medium": torch.finfo(BF16).eps}
"""Settings below "highest", and the spacing at 1 of the numbers to which they let factors be cut.

"high" allows TF32, whose significand has the length of float16's, or sums of two bfloat16 numbers,
which are nearer; "medium" allows bfloat16.
"""


@law(
    "TEN-22",
    pinned=(
        TINIEST,
        # of one key the weight is 1: the output is the value
        TINIEST.but(keys=1, d_value=64),
        TINIEST.but(is_causal=True, queries=3),
        TINIEST.but(mask=HIDING, keys=5),
        TINIEST.but(mask=BIAS),
        TINIEST.but(window=(1, 0), queries=3),
        TINIEST.but(softcap=1.0),
        TINIEST.but(sinks=True),
        TINIEST.but(alibi=True),
        TINIEST.but(return_lse=True),
        TINIEST.but(heads=2),
        SMALL.but(is_causal=True),
        *vary(TINIEST.but(keys=70, values=Values.POSITIVE), dtype=(F64, F16, BF16)),
    ),
    cost=3,
)
def law_a_lower_precision_of_products_changes_nothing_else(subject: Subject, case: Case) -> None:
    """TEN-22: if products of float32 numbers may be less precise, results lose no more than that.

    The call leaves the setting as it is.
    """
    call = subject.draw(case)
    # torch.compile compiles anew for each precision
    skipped = {"high"} if subject.implementation.compiles_each_shape else set[str]()
    for precision, spacing in PRECISIONS.items():
        if precision in skipped:
            continue
        with product_precision(precision):
            result = subject.call_with_lse(call) if call.return_lse else (subject.call(call), None)
            after = torch.get_float32_matmul_precision()
        condition = f"if products of float32 numbers have {precision} precision"
        if after != precision:
            raise Violation(f"the call sets the precision of float32 products to {after!r}")
        expected = expect_of_products(subject, call, spacing)
        require_evidence(call, expected)
        out, lse = result
        check_oracle(call, out, expected, f"the output is wrong {condition}")
        if lse is not None:
            check_lse(lse, expected.lse, expected, f"the log-sum-exp is wrong {condition}")


def expect_of_products(subject: Subject, call: Call, spacing: float) -> Expected:
    """Return what is expected of a call whose products have factors of less precision.

    A factor that is rounded or cut to a spacing ε at 1 errs by the part ε of its size. With factors
    q and k, or scaled ones, a score errs by e = ((1 + ε)² - 1) |scale| max Σ|q||k| at most, before
    or after softcap, whose slope is 1 at most; the log-sum-exp errs by as much. A weight changes by
    a factor within exp(± 2 e), or not at all if one key is there and no sink. As a factor of its
    value it errs by ε, and the row sum too if it is a product: (1 + ε)/(1 - ε) altogether, and
    ln(1 + ε) in the log-sum-exp. Values err by ε unless their dtype holds no more numbers. These
    are a part m of Σ p|v|. The roundings of the profile are those at the changed numbers, whose
    sizes grow by as much.
    """
    expected = subject.expect(call)
    if call.value.dtype == F64:
        return expected
    sizes = subject.expect(call.but(value=call.value.abs()))
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else abs(call.scale)
    query, key = call.query.double().abs(), call.key.double().abs()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    largest = (query @ key.mT).amax(-1, keepdim=True)
    e = ((1 + spacing) ** 2 - 1) * scale * largest
    shift = torch.zeros_like(e) if key.shape[2] == 1 and call.sinks is None else e
    of_values = 0.0 if torch.finfo(call.value.dtype).eps >= spacing else spacing
    m = torch.exp(2 * shift) * (1 + spacing) / (1 - spacing) * (1 + of_values) - 1
    bound = (1 + m) * (1 + spacing) ** 2 * expected.bound + m * (sizes.out.abs() + sizes.bound)
    more_of_lse = (e[..., 0] + math.log1p(spacing)) * (expected.lse != -torch.inf)
    return replace(
        expected,
        # of rows that read nothing, and give NaN, the bound stays
        bound=torch.where(bound.isnan(), expected.bound, bound),
        lse_bound=(1 + spacing) ** 2 * expected.lse_bound + more_of_lse,
    )
