"""Calls of a rotary embedding, and the expected results with their bounds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, Violation
from attnspec.conformance.operators.precision import Precision
from attnspec.conformance.operators.rotary.angles import (
    exact_frequencies,
    roundoff_of_angles,
    turns,
)
from attnspec.conformance.operators.rotary.bounds import Turned, turned
from attnspec.conformance.operators.rotary.case import BASE, RotaryCase
from attnspec.conformance.operators.rotary.explanation import explanation, is_of_float16
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.spec.rotary import RotaryImplementation, RotaryProfile

AXES = ("batch", "head", "token", "channel")
"""Names of the axes in a message."""


@dataclass(kw_only=True)
class RotarySubject(OperatorSubject):
    """A rotary embedding under test."""

    implementation: RotaryImplementation

    @property
    def profile(self) -> RotaryProfile:
        """The declared answers."""
        return self.implementation.profile

    def call(self, x: torch.Tensor, positions: torch.Tensor, case: RotaryCase) -> torch.Tensor:
        """Return the output in the configuration of a case, checked for its form.

        Raises:
            Raised: if the function raises.
            Explained: if the function changes an operand.
            Violation: if the output has a wrong form.
        """
        given = {"x": x, "positions": positions}
        before = {name: each.clone() for name, each in given.items()}
        result = self.run(_call(x, positions, case), lambda: self._made(x, positions, case))
        for name, each in given.items():
            if not torch.equal(each, before[name]):
                again = ", so that a second call turns it twice" if name == "x" else ""
                raise Explained(f"the call overwrites {name}{again}")
        return checked(result, tuple(x.shape), x.dtype)

    def _made(self, x: torch.Tensor, positions: torch.Tensor, case: RotaryCase) -> Any:
        return self.implementation.function(x, positions, **_keywords(case))

    def gradient(
        self, x: torch.Tensor, positions: torch.Tensor, case: RotaryCase, grad_out: torch.Tensor
    ) -> torch.Tensor:
        """Return the gradient of x, in the strides that x has.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the output or the gradient has a wrong form.
        """
        leaf = x.detach().requires_grad_()
        _, grads = self.differentiate(
            _call(leaf, positions, case, grad_out=grad_out, wrt=("x",)),
            lambda: self._made(leaf, positions, case),
            lambda got: checked(got, tuple(x.shape), x.dtype),
        )
        return checked(grads["x"], tuple(x.shape), x.dtype, "gradient of x")

    def expect(
        self, x: torch.Tensor, positions: torch.Tensor, case: RotaryCase, *, back: bool = False
    ) -> Turned:
        """Return the exact result in float64, and the distance that is allowed.

        Args:
            x: queries or keys, or an incoming gradient.
            positions: of the tokens.
            case: has the configuration.
            back: turn the other way, as the gradient does.
        """
        started = time.perf_counter()
        length = int(positions.max()) + 1 if positions.numel() else 0
        found = exact_frequencies(case.turned, case.base, case.scaling, length)
        computed = self.profile.float64_precision.computed_in(x.dtype)
        result = turned(
            x,
            turns(positions, found, roundoff_of_angles(x.dtype, self.profile)),
            self.profile.pairing,
            Precision.of(computed),
            self.profile.working,
            is_narrowed=computed is not x.dtype,
            back=back,
        )
        tally.spent("oracle", started)
        return result

    def judge_case(self, case: Any, message: str) -> None:
        """Check the output of a case against the definition."""
        self.judge(case.draw(), case.positions(), case, message)

    def judge(
        self, x: torch.Tensor, positions: torch.Tensor, case: RotaryCase, message: str
    ) -> torch.Tensor:
        """Check the output of a call against the definition, and return it.

        Raises:
            Explained: if the wrong result has a name; the message is the name.
            Violation: for another wrong result.
        """
        expected, got = self.expect(x, positions, case), self.call(x, positions, case)
        with self.explaining(x, positions, case, got):
            check_close(got, expected.value, expected.bound, what="out", message=message, axes=AXES)
        return got

    def cause(self, x: torch.Tensor, positions: torch.Tensor, case: RotaryCase) -> str:
        """Return the name of a wrong output of a call; empty if it is right or has no name."""
        got = self.call(x, positions, case)
        return self._refined(explanation(got, x, positions, case, self.profile), x, case)

    @contextmanager
    def explaining(
        self, x: torch.Tensor, positions: torch.Tensor, case: RotaryCase, got: torch.Tensor
    ) -> Iterator[None]:
        """Name what the output of a call is instead, if a check of it fails.

        Raises:
            Explained: naming it.
            Violation: that of the check, if there is no name.
        """
        try:
            yield
        except Violation as error:
            failed = self.last_call
            cause = explanation(got, x, positions, case, self.profile)
            cause = self._refined(cause, x, case)
            self.last_call = failed  # the call that the failure shows
            if not cause:
                raise
            raise Explained(cause, error.mismatch) from None

    def _refined(self, name: str, x: torch.Tensor, case: RotaryCase) -> str:
        """Return the name of a coarser type of angles if larger positions show it.

        Angles of small positions in bfloat16 may err as little as those in float16.
        """
        if not is_of_float16(name):
            return name
        positions = torch.tensor([[257, 385, 1027]])
        drawn = torch.linspace(-2, 2, 3 * x.shape[-1], dtype=torch.float64)
        other = drawn.view(1, 1, 3, -1).to(x.dtype)
        try:
            got = self.call(other, positions, case)
        except Violation:
            return name
        return explanation(got, other, positions, case, self.profile) or name


def _keywords(case: RotaryCase) -> dict[str, Any]:
    """Return the keywords of a call, those alone that differ from the default."""
    result: dict[str, Any] = {}
    if case.turned != case.d_head:
        result["rotary_dim"] = case.turned
    if case.base != BASE:
        result["base"] = case.base
    if case.scaling is not None:
        result["scaling"] = case.scaling.parameters()
    return result


def _call(
    x: torch.Tensor, positions: torch.Tensor, case: RotaryCase, **backward: Any
) -> OperatorCall:
    keywords = tuple(f"{name}={value!r}" for name, value in _keywords(case).items())
    return OperatorCall(
        tensors={"x": x, "positions": positions},
        arguments=("x", "positions", *keywords),
        **backward,
    )
