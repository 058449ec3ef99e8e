"""Calls of a router, and the choices and scores that are allowed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.models.bounds.enclosure import Enclosure
from attnspec.conformance.operators.experts import bounds
from attnspec.conformance.operators.gated_mlp.subject import Allowed
from attnspec.conformance.operators.precision import Precision
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.spec.experts import RouterImplementation, RouterProfile
from attnspec.spec.profiles import Float64Precision

Tensors = Mapping[str, torch.Tensor]
"""`x`, `weight`, and `bias` if there is one."""

AXES = ("token", "choice")
"""Names of the axes in a message."""


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A result of a router.

    Attributes:
        scores: of each choice.
        indices: the experts of each token.
    """

    scores: torch.Tensor
    indices: torch.Tensor


@dataclass(kw_only=True)
class RouterSubject(OperatorSubject):
    """A router under test.

    Its choice is checked against every choice that rounded logits explain, and its scores against
    the definition for the choice that it made.
    """

    implementation: RouterImplementation

    @property
    def profile(self) -> RouterProfile:
        """The declared answers."""
        return self.implementation.profile

    def call(self, tensors: Tensors, top_k: int) -> Routed:
        """Return scores and indices, checked for type, shape and range.

        Raises:
            Raised: if the function raises.
            Violation: if the result has a wrong form, or an expert is chosen twice.
        """
        call = _call(tensors, top_k)
        return self._checked(self.run(call, lambda: self._made(tensors, top_k)), tensors, top_k)

    def _made(self, tensors: Tensors, top_k: int) -> Any:
        bias = {"bias": tensors["bias"]} if "bias" in tensors else {}
        return self.implementation.function(tensors["x"], tensors["weight"], top_k, **bias)

    def _checked(self, result: Any, tensors: Tensors, top_k: int) -> Routed:
        if not (isinstance(result, tuple) and len(result) == 2):
            raise Violation(f"a router returns (scores, indices), got {type(result).__name__}")
        scores, indices = result
        shape = (len(tensors["x"]), top_k)
        if not isinstance(indices, torch.Tensor) or indices.is_floating_point():
            raise Violation("the indices must be a tensor of integers")
        if tuple(indices.shape) != shape:
            raise Violation(f"the indices must have shape {shape}, got {tuple(indices.shape)}")
        count = len(tensors["weight"])
        if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < count):
            raise Violation(f"an index lies outside [0, {count})")
        if bool((indices.sort(-1).values.diff(dim=-1) == 0).any()):
            raise Violation("an expert is chosen twice for one token")
        if not isinstance(scores, torch.Tensor) or not scores.is_floating_point():
            raise Violation("the scores must be a tensor of floating-point numbers")
        return Routed(scores=checked(scores, shape, scores.dtype, "scores"), indices=indices.long())

    def gradients(
        self, tensors: Tensors, top_k: int, grad_out: torch.Tensor
    ) -> tuple[Routed, dict[str, torch.Tensor]]:
        """Return the result, and the gradients of every tensor.

        The operands have the strides that they are given with.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the result has a wrong form, or a gradient is missing.
        """
        leaves = {name: each.detach().requires_grad_() for name, each in tensors.items()}
        kept: list[Routed] = []

        def check(result: Any) -> torch.Tensor:
            kept.append(self._checked(result, tensors, top_k))
            return kept[0].scores

        call = _call(leaves, top_k, grad_out=grad_out, wrt=tuple(leaves))
        _, grads = self.differentiate(call, lambda: self._made(leaves, top_k), check)
        for name, grad in grads.items():
            checked(grad, tuple(leaves[name].shape), leaves[name].dtype, f"gradient of {name}")
        return kept[0], grads

    def precision(self, tensors: Tensors) -> Precision:
        """Return the roundings of the storage type."""
        return Precision.of(tensors["x"].dtype)

    def check_choice(self, tensors: Tensors, routed: Routed, message: str) -> None:
        """Check that rounded logits explain the choice of every token.

        Raises:
            Violation: naming a token whose choice they do not explain.
        """
        allowed = self.allowed_choices(tensors, routed.indices)
        if not bool(allowed.all()):
            token = int((~allowed).nonzero()[0])
            enclosed = self.logits(tensors)
            top = enclosed.value[token].topk(routed.indices.shape[-1]).indices.tolist()
            raise Violation(
                f"{message}: token {token} has experts {routed.indices[token].tolist()}, "
                f"and its largest logits are those of {top}"
            )

    def allowed_choices(self, tensors: Tensors, indices: torch.Tensor) -> torch.Tensor:
        """Return whether rounded logits explain the choice of each token."""
        precision = self.precision(tensors)
        compared = bounds.compared(self.logits(tensors), self.profile, precision)
        return bounds.is_allowed(compared, indices)

    def logits(self, tensors: Tensors) -> Enclosure:
        """Enclose the logits."""
        return bounds.logits(
            tensors["x"], tensors["weight"], tensors.get("bias"), self.precision(tensors)
        )

    def expect(
        self, tensors: Tensors, indices: torch.Tensor, profile: RouterProfile | None = None
    ) -> Allowed:
        """Return the exact scores of a choice, and the distance allowed."""
        profile = profile or self.profile
        exact = RouterProfile(scores=profile.scores, renormalized=profile.renormalized)
        own, oracle = (
            bounds.scores(
                bounds.logits(tensors["x"], tensors["weight"], tensors.get("bias"), precision),
                indices,
                answers,
                precision,
            ).chosen
            for precision, answers in (
                (self.precision(tensors), self._precise(profile, tensors)),
                (Precision.of(torch.float64), exact),  # the oracle rounds too
            )
        )
        return Allowed(value=own.value, bound=own.radius + oracle.radius)

    def _precise(self, profile: RouterProfile, tensors: Tensors) -> RouterProfile:
        """Return a profile whose scores are computed in float32 only for float64."""
        if tensors["x"].dtype == torch.float64:
            return profile
        return RouterProfile(
            scores=profile.scores,
            renormalized=profile.renormalized,
            ties=profile.ties,
            scores_precision=Float64Precision.FLOAT64,
        )

    def expect_gradients(
        self, tensors: Tensors, indices: torch.Tensor, grad_out: torch.Tensor
    ) -> dict[str, Allowed]:
        """Return the exact gradients for a choice, and the distances allowed."""
        both = []
        for precision in (self.precision(tensors), Precision.of(torch.float64)):
            enclosed = bounds.logits(
                tensors["x"], tensors["weight"], tensors.get("bias"), precision
            )
            profile = self._precise(self.profile, tensors)
            given = bounds.scores(enclosed, indices, profile, precision)
            both.append(
                bounds.router_backward(
                    tensors["x"], tensors["weight"], given, indices, grad_out, profile, precision
                )
            )
        return {
            name: Allowed(
                value=both[0][name].value, bound=both[0][name].radius + both[1][name].radius
            )
            for name in tensors
        }

    def judge_case(self, case: Any, message: str) -> None:
        """Check choice and scores of a case."""
        self.judge(case.draw(), case.top_k, message)

    def judge(self, tensors: Tensors, top_k: int, message: str) -> Routed:
        """Check choice and scores of a call, and return them."""
        routed = self.call(tensors, top_k)
        self.check_choice(tensors, routed, message)
        expected = self.expect(tensors, routed.indices)
        check_close(
            routed.scores,
            expected.value,
            expected.bound,
            what="scores",
            message=message,
            axes=AXES,
        )
        return routed


def _call(tensors: Tensors, top_k: int, **backward: Any) -> OperatorCall:
    bias = ("bias=bias",) if "bias" in tensors else ()
    arguments = ("x", "weight", str(top_k), *bias)
    return OperatorCall(tensors=tensors, arguments=arguments, differentiated="out[0]", **backward)
