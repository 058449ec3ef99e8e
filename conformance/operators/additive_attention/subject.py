"""Calls of additive attention, and the results that are expected."""

from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, Violation
from attnspec.conformance.operators.additive_attention.bounds import Tensors, backward, forward
from attnspec.conformance.operators.additive_attention.case import AdditiveAttentionCase
from attnspec.conformance.operators.additive_attention.explanation import (
    explanation,
    gradient_explanation,
)
from attnspec.conformance.operators.gated_mlp.subject import Allowed
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.reference.additive_attention import additive_attention
from attnspec.reference.scalar_additive_attention import scalar_additive_attention
from attnspec.spec.additive_attention import (
    AdditiveAttentionImplementation,
    AdditiveAttentionProfile,
)

AXES = ("text", "query", "channel")
"""Names of the axes of an output in a message."""

BY_NAME = ("bias", "mask")
"""The operands that are passed by keyword."""


@dataclass(kw_only=True)
class AdditiveAttentionSubject(OperatorSubject):
    """An additive attention under test."""

    implementation: AdditiveAttentionImplementation

    @property
    def profile(self) -> AdditiveAttentionProfile:
        """The declared answers."""
        return self.implementation.profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which scalar loops judge."""
        return self.implementation.function is additive_attention

    def call(self, tensors: Tensors) -> torch.Tensor:
        """Return the output, checked for type, shape and storage type.

        Raises:
            Raised: if the function raises.
            Violation: if the output has a wrong form.
        """
        return self._checked(self.run(_call(tensors), lambda: self._made(tensors)), tensors)

    def _made(self, tensors: Tensors) -> Any:
        positional = [each for name, each in tensors.items() if name not in BY_NAME]
        by_name = {name: tensors[name] for name in BY_NAME if name in tensors}
        return self.implementation.function(*positional, **by_name)

    def _checked(self, got: Any, tensors: Tensors) -> torch.Tensor:
        query, value = tensors["query"], tensors["value"]
        return checked(got, (*query.shape[:2], value.shape[-1]), query.dtype)

    def gradients(self, tensors: Tensors, grad_out: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the gradients of every tensor but the mask.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the output has a wrong form, or a gradient is missing.
        """
        leaves = {
            name: each if name == "mask" else each.detach().clone().requires_grad_()
            for name, each in tensors.items()
        }
        wrt = tuple(name for name in leaves if name != "mask")
        _, grads = self.differentiate(
            _call(leaves, grad_out=grad_out, wrt=wrt),
            lambda: self._made(leaves),
            lambda got: self._checked(got, leaves),
        )
        for name, grad in grads.items():
            checked(grad, tuple(leaves[name].shape), leaves[name].dtype, f"gradient of {name}")
        return grads

    def expect(self, tensors: Tensors) -> Allowed:
        """Return the exact output, and the distance that is allowed."""
        exact = _exact(tensors)
        if self.is_reference:
            arrays = {name: each.numpy() for name, each in exact.items()}
            value = torch.from_numpy(scalar_additive_attention(**arrays))
        else:
            value = additive_attention(**exact)
        own, oracle = self._enclosed(tensors)
        return Allowed(value=value, bound=own.out.radius + oracle.out.radius)

    def _enclosed(self, tensors: Tensors) -> Any:
        """Return the enclosures of the function and of the oracle, which rounds too."""
        dtype = tensors["query"].dtype
        plain = AdditiveAttentionProfile()
        return forward(tensors, self.profile, dtype), forward(tensors, plain, torch.float64)

    def expect_gradients(self, tensors: Tensors, grad_out: torch.Tensor) -> dict[str, Allowed]:
        """Return the exact gradient of every tensor but the mask, and the distances allowed."""
        own, oracle = self._enclosed(tensors)
        allowed = backward(own, grad_out, self.profile, tensors["query"].dtype)
        of_oracle = backward(oracle, grad_out, AdditiveAttentionProfile(), torch.float64)
        values = {name: each.value for name, each in of_oracle.items()}
        if not self.is_reference:  # of the reference, the closed forms of the bound are the oracle
            exact = _exact(tensors)
            leaves = {name: exact[name].clone().requires_grad_() for name in allowed}
            with torch.enable_grad():
                out = additive_attention(**{**exact, **leaves})
            found = torch.autograd.grad(out, list(leaves.values()), grad_out.double())
            values = dict(zip(leaves, found, strict=True))
        return {
            name: Allowed(value=value, bound=allowed[name].radius + of_oracle[name].radius)
            for name, value in values.items()
        }

    def judge_case(self, case: AdditiveAttentionCase, message: str) -> None:
        """Check the output of a case against the definition."""
        self.judge(case.draw(), message)

    def judge(self, tensors: Tensors, message: str) -> torch.Tensor:
        """Check the output of a call against the definition, and return it.

        Raises:
            Explained: naming what the output is instead, if there is a name for it.
            Violation: with the message.
        """
        expected, got = self.expect(tensors), self.call(tensors)
        try:
            check_close(got, expected.value, expected.bound, what="out", message=message, axes=AXES)
        except Violation as error:
            cause = explanation(got, _exact(tensors), expected)
            if cause:
                raise Explained(cause, error.mismatch) from None
            raise
        return got

    def cause(self, tensors: Tensors) -> str:
        """Return the name of what a call gives instead, or an empty string if it has none."""
        return explanation(self.call(tensors), _exact(tensors), self.expect(tensors))

    def judge_gradients(self, tensors: Tensors, grad_out: torch.Tensor) -> None:
        """Check the gradients of a call against those of the definition.

        Raises:
            Explained: naming what they are instead, if there is a name for it.
            Violation: naming the first that is wrong.
        """
        got, allowed = self.gradients(tensors, grad_out), self.expect_gradients(tensors, grad_out)
        try:
            for name, each in allowed.items():
                check_close(
                    got[name],
                    each.value,
                    each.bound,
                    what=f"gradient of {name}",
                    message=f"the gradient of {name} differs from that of the definition",
                    axes=("text", "position", "channel"),
                )
        except Violation as error:
            cause = gradient_explanation(got, _exact(tensors), grad_out.double(), allowed)
            if cause:
                raise Explained(cause, error.mismatch) from None
            raise


def _exact(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the operands in float64."""
    return {
        name: each if name == "mask" else each.detach().double() for name, each in tensors.items()
    }


def _call(tensors: Tensors, **backward: Any) -> OperatorCall:
    arguments = [name if name not in BY_NAME else f"{name}={name}" for name in tensors]
    return OperatorCall(tensors=tensors, arguments=tuple(arguments), **backward)
