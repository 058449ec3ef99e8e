"""A correct router and correct experts whose steps mutants replace."""

from typing import Any

import torch
from torch.nn import functional

from attnspec.conformance.mutants.bases.gated_mlp import PlainGatedMLP
from attnspec.conformance.mutants.registry import plant
from attnspec.spec.experts import (
    ExpertsImplementation,
    RouterImplementation,
    RouterProfile,
    RouterScores,
)
from attnspec.spec.gated_mlp import GatedMLPProfile, GateForm, GatePacking


class PlainRouter:
    """A router in torch's own operations, of any profile."""

    profile = RouterProfile()

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        top_k: int,
        *,
        bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and indices."""
        logits = functional.linear(x, weight, bias)
        indices = self.choose(logits, top_k)
        return self.normalize(self.score(logits, indices)), indices

    def choose(self, logits: torch.Tensor, top_k: int) -> torch.Tensor:
        """Return the experts of the largest logits, the lowest first among equals."""
        return logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]

    def score(self, logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Return the scores before they are renormalized."""
        if self.profile.scores is RouterScores.SOFTMAX_CHOSEN:
            return torch.softmax(logits.gather(-1, indices), -1)
        is_softmax = self.profile.scores is RouterScores.SOFTMAX_ALL
        every = torch.softmax(logits, -1) if is_softmax else torch.sigmoid(logits)
        return every.gather(-1, indices)

    def normalize(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores divided by their sum, if the profile says so."""
        return scores / scores.sum(-1, keepdim=True) if self.profile.renormalized else scores


def correct_router(
    name: str = "correct",
    profile: RouterProfile | None = None,
    base: type[PlainRouter] = PlainRouter,
) -> RouterImplementation:
    """Return the declaration of a router of one profile."""
    function = base()
    function.profile = profile or RouterProfile()
    return RouterImplementation(
        name=name, function=function, features=frozenset({"bias"}), profile=function.profile
    )


def router_mistake(
    identifier: str,
    title: str,
    *,
    killed_by: str,
    profile: RouterProfile | None = None,
    source: str = "",
) -> Any:
    """Plant a class as a mutant of this declared profile."""

    def register(base: type[PlainRouter]) -> type[PlainRouter]:
        subject = correct_router(identifier, profile, base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register


class PlainExperts:
    """Experts in a loop over those that are hit, in any form and packing."""

    profile = GatedMLPProfile()

    def __call__(
        self,
        x: torch.Tensor,
        indices: torch.Tensor,
        scores: torch.Tensor,
        *weights: torch.Tensor,
        shared: dict[str, torch.Tensor] | None = None,
        **biases: torch.Tensor,
    ) -> torch.Tensor:
        """Return the sum over the chosen experts of each token."""
        out = torch.zeros_like(x)
        for expert in range(len(weights[0])):
            token, place = self.group(indices, expert)
            own = {name: bias[expert] for name, bias in biases.items()}
            part = self.expert(x[token], [weight[expert] for weight in weights], own)
            out = out.index_add(0, token, self.weigh(part, scores[token, place, None]))
        return self.share(out, x, scores, shared)

    def group(self, indices: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of an expert, and its places in their choices."""
        token, place = torch.where(indices == expert)
        return token, place

    def expert(
        self, x: torch.Tensor, weights: list[torch.Tensor], biases: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the result of one expert."""
        mlp = PlainGatedMLP()
        mlp.profile = self.profile
        return mlp(x, *weights, **biases)

    def weigh(self, part: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the result of an expert times its scores."""
        return (part * scores).to(part.dtype)

    def share(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        scores: torch.Tensor,
        shared: dict[str, torch.Tensor] | None,
    ) -> torch.Tensor:
        """Add the result of a shared expert."""
        return out if shared is None else out + self.expert(x, in_order(shared), {})


def in_order(shared: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the weights of a shared expert in the order of a call."""
    return [shared[name] for name in ("gate", "up", "gate_up", "down") if name in shared]


def correct_experts(
    name: str = "correct",
    form: GateForm = GateForm.SWIGLU,
    packing: GatePacking = GatePacking.SEPARATE,
    base: type[PlainExperts] = PlainExperts,
) -> ExpertsImplementation:
    """Return the declaration of experts of one form and packing."""
    function = base()
    function.profile = GatedMLPProfile(form=form, packing=packing)
    return ExpertsImplementation(
        name=name,
        function=function,
        features=frozenset({"bias", "shared"}),
        profile=function.profile,
    )


def experts_mistake(identifier: str, title: str, *, killed_by: str, source: str = "") -> Any:
    """Plant a class as a mutant."""

    def register(base: type[PlainExperts]) -> type[PlainExperts]:
        subject = correct_experts(identifier, base=base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register
