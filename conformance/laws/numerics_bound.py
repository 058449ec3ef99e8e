"""A law of NUM: every result is within its bound, also on calls that no run has made before."""

import torch

from attnspec.conformance.compare import AXES, check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import check_oracle, plain
from attnspec.conformance.laws.gradients_sides import (
    gradients_of,
    incoming,
    judged_gradients,
    kind_of,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, Feature, Layout, Mask, MaskKind, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=2, heads=4, kv_heads=2, queries=17, keys=33, d_head=16, d_value=16, dtype=F32)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)
EVERYTHING = SMALL.but(
    mask=BIAS, window=(20, 5), softcap=3.0, sinks=True, alibi=True, return_lse=True, backward=True
)
OPTIONS = (
    Feature.WINDOW,
    Feature.SOFTCAP,
    Feature.SINKS,
    Feature.ALIBI,
    Feature.LSE,
    Feature.BACKWARD,
)


@law(
    "NUM-3",
    "NUM-2",
    "NUM-4",
    "NUM-5",
    "NUM-6",
    "NUM-7",
    "NUM-8",
    "NUM-9",
    "NUM-10",
    "NUM-11",
    "NUM-12",
    "NUM-13",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL.but(is_causal=True), dtype=(F32, F64, F16, BF16)),
        SMALL.but(mask=Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.FULL)),
        *every(SMALL, softcap=(2.0,), sinks=(True,), alibi=(True,), return_lse=(True,)),
        *every(SMALL.but(backward=True, values=Values.PEAKED), dtype=(F32, BF16)),
        *every(EVERYTHING, dtype=(F32, F64, F16, BF16)),
    ),
    explore=cases(
        sometimes=OPTIONS,
        lengths=(1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 129),
        layouts=tuple(Layout),
        only=plain,
    ),
    cost=3,
    fresh=True,
)
def law_every_result_is_within_its_bound(subject: Subject, case: Case) -> None:
    """NUM-3: output, log-sum-exp and gradients, also of calls that no run has made before."""
    call = subject.draw(case)
    expected = subject.expect(call)
    message = "further from the definition than rounding can take it"
    if case.return_lse:
        out, lse = subject.call_with_lse(call)
        check_close(
            lse,
            expected.lse,
            expected.lse_bound,
            what="lse",
            message=message,
            may_be_nan=expected.lse_may_be_nan,
            axes=AXES[:3],
        )
    else:
        out = subject.call(call)
    check_oracle(call, out, expected, message)
    if case.backward:
        grad = incoming(case, kind_of(case))
        judged_gradients(subject, call, grad, gradients_of(subject, case), message)
