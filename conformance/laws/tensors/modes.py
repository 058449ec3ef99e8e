"""Laws of TEN: modes of PyTorch, such as inference mode and the default dtype, change nothing."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.modes import default_dtype, deterministic_algorithms
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.calls import new_contents
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
from attnspec.conformance.laws.helpers.gradients import check_gradients, incoming_gradient
from attnspec.conformance.laws.helpers.options import check_lse
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Mask, MaskShape

PAIR = Case(batch=2, heads=2, kv_heads=2, queries=19, keys=19, d_head=8, d_value=8, dtype=F32)
WITH_OPTIONS: tuple[dict[str, Any], ...] = (
    {"is_causal": True},
    *({"mask": Mask(shape=shape)} for shape in MaskShape),
    {"mask": BIAS},
    {"mask": HIDING},
    {"window": (2, 1)},
    {"softcap": 1.0},
    {"sinks": True},
    {"alibi": True},
    {"return_lse": True},
    {"heads": 4},
    *({"dtype": dtype} for dtype in (F64, BF16)),
)
"""The fields of cases in which each option and shape of a mask occurs once."""


@law(
    "TEN-15",
    # each at lengths of its own, which no other law has: nothing of these lengths is cached yet
    pinned=(
        TINIEST,
        *(PAIR.but(**{"keys": 21 + 2 * n} | fields) for n, fields in enumerate(WITH_OPTIONS)),
        PAIR.but(queries=1, keys=1101),
    ),
    cost=5,
)
def law_calls_without_gradients_are_right_and_change_no_later_call(
    subject: Subject, case: Case
) -> None:
    """TEN-15: in inference mode and no_grad mode calls are right, and spoil no later gradient."""
    call = subject.draw(case)
    with torch.inference_mode():
        made_inside = call.but(**{name: tensor.clone() for name, tensor in call.tensors.items()})
        results = [_run(subject, made_inside), _run(subject, call)]
    for result in results:
        _judge(subject, call, result, "in inference mode")
    for name, tensor in made_inside.tensors.items():
        changed = call.but(**{name: new_contents(case, name, getattr(call, name))})
        with torch.inference_mode():
            original = tensor.clone()
            tensor.copy_(getattr(changed, name))
            result = _run(subject, made_inside)
            tensor.copy_(original)
        _judge(subject, changed, result, f"in inference mode after {name} was overwritten")
    with torch.no_grad():
        result = _run(subject, call)
    _judge(subject, call, result, "in no_grad mode")
    _differentiate_and_judge(subject, case, "after a call in inference mode")


@law(
    "TEN-16",
    pinned=(
        TINIEST,
        *(SMALL.but(**fields) for fields in WITH_OPTIONS if "heads" not in fields),
        SMALL.but(kv_heads=1),
        # positions above 256 are not exact in bfloat16
        TINIEST.but(alibi=True, keys=300),
        TINIEST.but(window=(None, 258), keys=300),
        # more keys than a tile
        TINIEST.but(keys=300),
    ),
    cost=6,
)
def law_the_default_dtype_changes_nothing(subject: Subject, case: Case) -> None:
    """TEN-16: output, log-sum-exp and gradients do not depend on torch's default dtype."""
    call = subject.draw(case)
    for dtype in (BF16, F16, F64):
        with default_dtype(dtype):
            result = _run(subject, call)
        name = str(dtype).removeprefix("torch.")
        _judge(subject, call, result, f"if the default dtype is {name}")
    # one backward pass: torch.compile compiles anew for each default dtype
    _differentiate_and_judge(subject, case, "if the default dtype is bfloat16", default_dtype(BF16))


@law(
    "TEN-21",
    pinned=(
        TINIEST,
        *(PAIR.but(**fields) for fields in WITH_OPTIONS),
        PAIR.but(queries=70, keys=150, is_causal=True, dtype=BF16),
    ),
    cost=3,
)
def law_deterministic_algorithms_give_the_same(subject: Subject, case: Case) -> None:
    """TEN-21: if deterministic algorithms are requested, results and gradients are right."""
    call = subject.draw(case)
    with deterministic_algorithms():
        result = _run(subject, call)
    condition = "if deterministic algorithms are requested"
    _judge(subject, call, result, condition)
    _differentiate_and_judge(subject, case, condition, deterministic_algorithms())


def _run(subject: Subject, call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the output of a call, and its log-sum-exp if the call returns one."""
    return subject.call_with_lse(call) if call.return_lse else (subject.call(call), None)


def _judge(
    subject: Subject,
    call: Call,
    result: tuple[torch.Tensor, torch.Tensor | None],
    condition: str,
) -> None:
    """Compare an output, and a log-sum-exp if there is one, with the oracle."""
    subject.last_call = call
    expected = subject.expect(call)
    out, lse = result
    if out.requires_grad:
        raise Violation(f"the output requires a gradient {condition}, though no argument does")
    check_oracle(call, out, expected, f"the output is wrong {condition}")
    if lse is not None:
        check_lse(lse, expected.lse, expected, f"the log-sum-exp is wrong {condition}")


def _differentiate_and_judge(
    subject: Subject,
    case: Case,
    condition: str,
    state: AbstractContextManager[object] | None = None,
) -> None:
    """Compare the gradients of a case with the oracle, if they are claimed.

    Args:
        subject: the subject.
        case: the case; it is claimed without gradients.
        condition: the circumstance that a failure message names.
        state: enters the state of torch in which to call and differentiate.
    """
    if subject.refuses(case.but(backward=True)) is not None:
        return
    call, grad = subject.draw(case, backward=True), incoming_gradient(case)
    with state or nullcontext():
        out, gradients = subject.differentiate(call, grad, wrt=WRT)
    check_oracle(call, out, subject.expect(call), f"the output is wrong {condition}")
    message = f"the gradient is wrong {condition}"
    check_gradients(call, gradients, subject.expect_gradients(call, grad), message)
