"""Calls of an online softmax and of a merge, and the results that are expected."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, Violation
from attnspec.conformance.operators.gated_mlp.subject import Allowed
from attnspec.conformance.operators.online_softmax.bounds import Bounds, bounds, merge_bounds
from attnspec.conformance.operators.online_softmax.case import OnlineSoftmaxCase, SoftmaxMergeCase
from attnspec.conformance.operators.online_softmax.explanation import (
    explanation,
    gradient_explanation,
    merge_explanation,
)
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.reference.online_softmax import merge, safe
from attnspec.reference.operator_implementations import ONLINE_SOFTMAX, SOFTMAX_MERGE
from attnspec.spec.online_softmax import (
    LogBase,
    OnlineSoftmaxImplementation,
    OnlineSoftmaxProfile,
    SoftmaxMergeImplementation,
    SoftmaxMergeProfile,
)

AXES = ("query", "channel")
"""Names of the axes of an output in a message."""

OF_MERGE = ("batch", "head", "row", "channel")
"""Names of the axes of a merged output; one of lower rank uses the last ones."""

Result = tuple[torch.Tensor, torch.Tensor]
"""Output and log-sum-exp."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Exact results of one call, in float64.

    Attributes:
        out: the output.
        lse: the log-sum-exp, in the declared base.
        bounds: the largest distance from each.
        grads: the gradients of `scores` and `values`, if there is a backward pass.
    """

    out: torch.Tensor
    lse: torch.Tensor
    bounds: Bounds
    grads: dict[str, torch.Tensor] = field(default_factory=dict)


def _checked(result: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Result:
    """Return output and log-sum-exp of a result.

    Raises:
        Violation: if their number, a shape or a storage type is wrong.
    """
    if not (isinstance(result, tuple | list) and len(result) == 2):
        raise Violation(f"the result must be (out, lse), got {type(result).__name__}")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return checked(result[0], shape, dtype), checked(result[1], shape[:-1], wide, "lse")


def check_both(
    got: Result,
    expected: Expected,
    message: str,
    axes: tuple[str, ...] = AXES,
    only: str = "",
) -> None:
    """Check output and log-sum-exp, or one of them.

    Raises:
        Violation: with the message, if one exceeds its bound.
    """
    if only != "lse":
        right, bound = expected.out, expected.bounds.out
        check_close(got[0], right, bound, what="out", message=message, axes=axes)
    if only != "out":
        right, bound = expected.lse, expected.bounds.lse
        check_close(got[1], right, bound, what="lse", message=message, axes=axes[:-1])


@dataclass(kw_only=True)
class OnlineSoftmaxSubject(OperatorSubject):
    """An online softmax under test."""

    implementation: OnlineSoftmaxImplementation

    @property
    def profile(self) -> OnlineSoftmaxProfile:
        """The declared answers."""
        return self.implementation.profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which torch's functions judge."""
        return self.implementation.function is ONLINE_SOFTMAX.function

    def call(self, scores: torch.Tensor, values: torch.Tensor) -> Result:
        """Return output and log-sum-exp, checked for type, shape and storage type.

        Raises:
            Raised: if the function raises.
            Violation: if the result has a wrong form.
        """
        got = self.run(_call(scores, values), lambda: self.implementation.function(scores, values))
        return _checked(got, (len(scores), values.shape[-1]), scores.dtype)

    def gradients(
        self, scores: torch.Tensor, values: torch.Tensor, grad_out: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the gradients of scores and values, in the strides that these have.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the output has a wrong form, or a gradient is missing.
        """
        leaves = {
            "scores": scores.detach().requires_grad_(),
            "values": values.detach().requires_grad_(),
        }
        shape = (len(scores), values.shape[-1])
        _, grads = self.differentiate(
            _call(*leaves.values(), grad_out=grad_out, wrt=tuple(leaves)),
            lambda: self.implementation.function(*leaves.values()),
            lambda got: _checked(got, shape, scores.dtype)[0],
        )
        for name, grad in grads.items():
            checked(grad, tuple(leaves[name].shape), scores.dtype, f"gradient of {name}")
        return grads

    def expect(
        self, scores: torch.Tensor, values: torch.Tensor, grad_out: torch.Tensor | None = None
    ) -> Expected:
        """Return the exact results in float64, and the distance that is allowed."""
        started = time.perf_counter()
        allowed = bounds(scores, values, self.profile, grad_out)
        grads = {}
        with torch.enable_grad():
            wide = scores.detach().double().requires_grad_()
            mixed = values.detach().double().requires_grad_()
            out, lse = (_of_torch if self.is_reference else safe)(wide, mixed)
            grad = None if grad_out is None else grad_out.double()
            if grad is not None:
                found = torch.autograd.grad(out, [wide, mixed], grad)
                grads = dict(zip(("scores", "values"), found, strict=True))
        # the oracle rounds too
        own = bounds(wide, mixed, OnlineSoftmaxProfile(base=self.profile.base), grad)
        tally.spent("oracle", started)
        return Expected(
            out=out.detach(),
            lse=lse.detach() / self.profile.base.unit,
            bounds=allowed.plus(own),
            grads=grads,
        )

    def judge_case(self, case: OnlineSoftmaxCase, message: str) -> None:
        """Check output and log-sum-exp of a case against the definition."""
        self.judge(*case.draw(), message)

    def judge(
        self, scores: torch.Tensor, values: torch.Tensor, message: str, *, only: str = ""
    ) -> Result:
        """Check output and log-sum-exp of a call against the definition, and return them.

        Raises:
            Explained: naming what they are instead, if there is a name for it.
            Violation: with the message.
        """
        expected, got = self.expect(scores, values), self.call(scores, values)
        try:
            check_both(got, expected, message, only=only)
        except Violation as error:
            cause = self._name(got, scores, values, expected)
            if cause:
                raise Explained(cause, error.mismatch) from None
            raise
        return got

    def cause(self, scores: torch.Tensor, values: torch.Tensor) -> str:
        """Return the name of what a call gives instead, or an empty string if it has none."""
        return self._name(self.call(scores, values), scores, values, self.expect(scores, values))

    def _name(
        self, got: Result, scores: torch.Tensor, values: torch.Tensor, expected: Expected
    ) -> str:
        right, bound = (expected.out, expected.lse), (expected.bounds.out, expected.bounds.lse)
        return explanation(got, scores, values, self.profile.base, right, bound)

    def judge_gradients(
        self, scores: torch.Tensor, values: torch.Tensor, grad_out: torch.Tensor
    ) -> None:
        """Check the gradients of a call against those of the definition.

        Raises:
            Explained: naming what they are instead, if there is a name for it.
            Violation: naming the first that is wrong.
        """
        expected = self.expect(scores, values, grad_out)
        got = self.gradients(scores, values, grad_out)
        allowed = {
            name: Allowed(value=value, bound=getattr(expected.bounds, name))
            for name, value in expected.grads.items()
        }
        try:
            for name, each in allowed.items():
                check_close(
                    got[name],
                    each.value,
                    each.bound,
                    what=f"gradient of {name}",
                    message=f"the gradient of {name} differs from that of the definition",
                    axes=("query", "key") if name == "scores" else ("key", "channel"),
                )
        except Violation as error:
            cause = gradient_explanation(got, scores, values, grad_out, allowed)
            if cause:
                raise Explained(cause, error.mismatch) from None
            raise


def _of_torch(scores: torch.Tensor, values: torch.Tensor) -> Result:
    """Return the results of torch's functions, with zeros for rows without visible keys."""
    is_empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(torch.where(is_empty, 0.0, scores), -1)
    out = torch.where(is_empty, 0.0, weights) @ values
    return out, torch.logsumexp(scores, -1)


def _call(scores: torch.Tensor, values: torch.Tensor, **backward: Any) -> OperatorCall:
    return OperatorCall(
        tensors={"scores": scores, "values": values},
        arguments=("scores", "values"),
        differentiated="out[0]",
        **backward,
    )


@dataclass(kw_only=True)
class SoftmaxMergeSubject(OperatorSubject):
    """A merge of two parts under test."""

    implementation: SoftmaxMergeImplementation

    @property
    def profile(self) -> SoftmaxMergeProfile:
        """The declared answers."""
        return self.implementation.profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which torch's functions judge."""
        return self.implementation.function is SOFTMAX_MERGE.function

    def call(self, a: Result, b: Result) -> Result:
        """Return the merged output and log-sum-exp, checked for type, shape and storage type.

        Raises:
            Raised: if the function raises.
            Violation: if the result has a wrong form.
        """
        names = ("out_a", "lse_a", "out_b", "lse_b")
        call = OperatorCall(tensors=dict(zip(names, (*a, *b), strict=True)), arguments=names)
        got = self.run(call, lambda: self.implementation.function(*a, *b))
        return _checked(got, tuple(a[0].shape), a[0].dtype)

    def expect(self, a: Result, b: Result) -> Expected:
        """Return the exact result in float64, and the distance that is allowed."""
        started = time.perf_counter()
        base = self.profile.base
        wide = [each.detach().double() for each in (*a, *b)]
        natural = (wide[0], wide[1] * base.unit, wide[2], wide[3] * base.unit)
        out, lse = (_merged_by_torch if self.is_reference else merge)(*natural)
        own = merge_bounds(*natural, LogBase.E)
        own = Bounds(out=own.out, lse=own.lse / base.unit)
        tally.spent("oracle", started)
        return Expected(out=out, lse=lse / base.unit, bounds=merge_bounds(*a, *b, base).plus(own))

    def judge_case(self, case: SoftmaxMergeCase, message: str) -> None:
        """Check the result of a case against the definition."""
        first, second = case.draw(self.profile.base)
        self.judge(first, second, message)

    def judge(self, a: Result, b: Result, message: str) -> Result:
        """Check the result of a merge against the definition, and return it.

        Raises:
            Explained: naming what it is instead, if there is a name for it.
            Violation: with the message.
        """
        expected, got = self.expect(a, b), self.call(a, b)
        try:
            check_both(got, expected, message, OF_MERGE)
        except Violation as error:
            cause = self._name(got, a, b, expected)
            if cause:
                raise Explained(cause, error.mismatch) from None
            raise
        return got

    def cause(self, a: Result, b: Result) -> str:
        """Return the name of what a merge gives instead, or an empty string if it has none."""
        return self._name(self.call(a, b), a, b, self.expect(a, b))

    def _name(self, got: Result, a: Result, b: Result, expected: Expected) -> str:
        right, bound = (expected.out, expected.lse), (expected.bounds.out, expected.bounds.lse)
        return merge_explanation(got, (a, b), self.profile.base, right, bound)


def _merged_by_torch(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> Result:
    """Return the merge by torch's functions; zeros if both parts are empty."""
    lse = torch.logaddexp(lse_a, lse_b)
    share = torch.sigmoid(torch.where(lse == -torch.inf, 0.0, lse_a - lse_b))[..., None]
    return share * out_a + (1 - share) * out_b, lse
