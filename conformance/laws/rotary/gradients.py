"""Laws of ROT: the gradient turns the incoming gradient back; regimes."""

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.rotary.definition import PARTIAL, PINNED
from attnspec.conformance.operators.regimes import note_call
from attnspec.conformance.operators.rotary import regimes
from attnspec.conformance.operators.rotary.bounds import Turned
from attnspec.conformance.operators.rotary.case import RotaryCase, cases
from attnspec.conformance.operators.rotary.subject import AXES, RotarySubject


@law(
    "ROT-20",
    pinned=tuple(case.but(backward=True) for case in (*PINNED, *PARTIAL[:2])),
    explore=lambda subject: cases(subject, backward=True),
    cost=3.0,
)
def law_the_gradient_turns_back(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-20: the gradient of x is the incoming gradient, turned by minus the angle."""
    _check_gradient(subject, case)


@law("ROT-21", pinned=regimes.PINNED, wide=regimes.cases)
def law_rotary_is_right_in_every_two_regimes(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-21: in any two classes of sizes, positions, strides, types and passes, it is right."""
    x, positions = case.draw(), case.positions()
    expected = subject.expect(x, positions, case)
    subject.judge(x, positions, case, "a rotation of this size, place, layout or type is wrong")
    if case.backward:
        _check_gradient(subject, case)
    call = regimes.RotaryCall(x.requires_grad_(case.backward), positions, case.turned)
    note_call(call, expected.value, expected.bound, regimes.AXES)


def _check_gradient(subject: RotarySubject, case: RotaryCase) -> None:
    x, positions, grad_out = case.draw(), case.positions(), case.draw_gradient()
    got = subject.gradient(x, positions, case, grad_out)
    expected = subject.expect(grad_out, positions, case, back=True)
    try:
        check_close(
            got,
            expected.value,
            expected.bound,
            what="gradient of x",
            message="the gradient is not the incoming gradient, turned back",
            axes=AXES,
        )
    except Violation as error:
        # a wrong rotation has the gradient of a wrong rotation
        if cause := subject.cause(x, positions, case):
            raise Explained(cause, error.mismatch) from None
        raise _named(error, got, subject.expect(grad_out, positions, case), case) from None


def _named(error: Violation, got: torch.Tensor, forward: Turned, case: RotaryCase) -> Violation:
    """Return the violation with the name of the wrong gradient, if it has one."""
    if not bool(got[..., : case.turned].any()):
        return Explained("no gradient flows to the turned channels", error.mismatch)
    if bool(((got.double() - forward.value).abs() <= forward.bound).all()):
        cause = "the backward pass turns forward: the sine has the wrong sign there"
        return Explained(cause, error.mismatch)
    return error
