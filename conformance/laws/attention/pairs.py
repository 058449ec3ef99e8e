"""The law of ATT that combines every two options and compares each result with the oracle."""

import functools

import torch

from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.oracle_gradients import Gradient
from attnspec.conformance.attention.strategies import FINITE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.laws.helpers.calls import normal_like, plain, require_evidence
from attnspec.conformance.laws.helpers.cases import TINIEST
from attnspec.conformance.laws.helpers.claims import DesignClaims
from attnspec.conformance.laws.helpers.pairwise import Row, pairwise
from attnspec.conformance.laws.law import law
from attnspec.spec import (
    Case,
    Feature,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)

BOOL = Mask(shape=MaskShape.FULL)
FLOAT = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)
AXES = {
    "values": tuple(Values),
    "mask": (
        None,
        BOOL,
        FLOAT,
        Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS),
        Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.BATCH),
        Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.DOCUMENTS, shape=MaskShape.RANK_2),
    ),
    "keys": (7, 1, 17, 33),
    "queries": (5, 1, 16, 18),
    "dtype": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    "groups": ((2, 2), (3, 1), (6, 2)),
    "channels": ((8, 8), (5, 5), (16, 3)),
    "batch": (2, 1, 3),
    "is_causal": (False, True),
    "scale": (None, 0.3),
    "window": (None, (2, 0), (None, 1), (1, None)),
    "softcap": (None, 1.5, 30.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "return_lse": (False, True),
    "backward": (False, True),
    "query_layout": (Layout.CONTIGUOUS, Layout.HEADS_INSIDE, Layout.SLICED),
    "key_layout": (Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.EXPANDED),
    "value_layout": (Layout.CONTIGUOUS, Layout.HEADS_INSIDE, Layout.ODD_STRIDES),
}
FEATURES = (
    Feature.WINDOW,
    Feature.SOFTCAP,
    Feature.SINKS,
    Feature.ALIBI,
    Feature.LSE,
    Feature.BACKWARD,
)


def case_of(row: Row) -> Case:
    """Return the case of a row of the design."""
    (heads, kv_heads), (d_head, d_value) = row["groups"], row["channels"]
    layouts = Layouts(query=row["query_layout"], key=row["key_layout"], value=row["value_layout"])
    compound = ("groups", "channels", "query_layout", "key_layout", "value_layout")
    fields = {name: value for name, value in row.items() if name not in compound}
    return Case(
        heads=heads, kv_heads=kv_heads, d_head=d_head, d_value=d_value, layouts=layouts, **fields
    )


def design(subject: Subject) -> list[Case]:
    """Return claimed cases in which every pair of options occurs together (pairwise testing).

    For a kernel that compiles each shape, they have few shapes.
    """
    chosen = _design(DesignClaims.of(subject))
    if not subject.implementation.compiles_each_shape:
        return list(chosen)
    return list(dict.fromkeys(map(subject.fit, chosen)))


@functools.lru_cache(maxsize=64)
def _design(claims: DesignClaims) -> tuple[Case, ...]:
    """Compute the design of some claims, once for all subjects that share them."""
    subject = claims.subject()
    claimed_dtypes = {"dtype": tuple(dtype for dtype in AXES["dtype"] if dtype in claims.dtypes)}
    # the first values, which complete a row, must be claimed
    base = case_of({name: values[0] for name, values in (AXES | claimed_dtypes).items()})
    base = subject.fit(base)
    channels = dict.fromkeys([(base.d_head, base.d_value), *AXES["channels"]])
    axes = AXES | claimed_dtypes | {"channels": tuple(channels)}
    first = {name: values[0] for name, values in axes.items()}

    def claimed(row: Row) -> bool:
        return subject.refuses(case_of(first | row).but(device=claims.device)) is None

    if not claimed({}):
        return ()
    return tuple(case_of(row).but(device=claims.device) for row in pairwise(axes, claimed))


@law(
    "ATT-1",
    pinned=(TINIEST, *vary(TINIEST, dtype=AXES["dtype"])),
    design=design,
    explore=cases(only=plain, sometimes=FEATURES, families=FINITE),
)
def law_options_combine(subject: Subject, case: Case) -> None:
    """ATT-1: with any two options, output, log-sum-exp and gradients equal the definition."""
    call = subject.draw(case)
    if case.return_lse:
        out, lse = subject.call_with_lse(call)
    else:
        out, lse = subject.call(call), None
    expected = subject.expect(call)
    check_oracle(call, out, expected, "the output differs from the definition")
    if lse is not None:
        check_close(
            lse,
            expected.lse,
            expected.lse_bound,
            what="lse",
            message="the log-sum-exp differs from the definition",
            may_be_nan=expected.lse_may_be_nan,
            axes=("batch", "head", "query"),
        )
    if case.backward:
        grad_out = normal_like(case, "grad_out", out)
        _, gradients = subject.differentiate(call, grad_out)
        expected_gradients = subject.expect_gradients(call, grad_out)
        for name, gradient in gradients.items():
            expected_gradient: Gradient = getattr(expected_gradients, name)
            check_close(
                gradient,
                expected_gradient.exact,
                expected_gradient.bound,
                what=f"the gradient of {name}",
                message="a gradient differs from the definition",
                dtype=case.dtype,
                may_be_nan=expected_gradient.may_be_nan,
            )
    require_evidence(call, expected)
