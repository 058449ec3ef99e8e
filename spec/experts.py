"""The contracts of a router and of experts, and the questions on which implementations differ."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float, Int

from attnspec.spec.gated_mlp import GatedMLPProfile
from attnspec.spec.operator import OperatorImplementation
from attnspec.spec.profiles import Float64Precision


class RouterScores(StrEnum):
    """The function that makes scores of the logits."""

    SOFTMAX_ALL = "softmax_all"
    """A softmax over all experts, before the choice: Mixtral, Qwen."""
    SOFTMAX_CHOSEN = "softmax_chosen"
    """A softmax over the logits of the chosen experts, after the choice: GPT-OSS."""
    SIGMOID = "sigmoid"
    """The logistic function of each logit: DeepSeek-V3, Llama 4."""


class RouterTies(StrEnum):
    """The choice between experts of equal logits."""

    ANY = "any"
    LOWEST = "lowest"
    """The expert with the lower index."""


@dataclass(frozen=True, kw_only=True)
class RouterProfile:
    """The declared behaviour of one router wherever libraries disagree.

    A softmax over all experts that is renormalized is the softmax over the chosen ones, up to
    rounding: no experiment tells these two apart.
    """

    scores: RouterScores = RouterScores.SOFTMAX_CHOSEN
    renormalized: bool = False
    """The scores of a token are divided by their sum, after the choice."""
    ties: RouterTies = RouterTies.ANY
    scores_precision: Float64Precision = Float64Precision.FLOAT64
    """The type in which scores are computed from logits of float64."""


class Router(Protocol):
    """A router on a weight stored like that of `torch.nn.Linear`, one row per expert.

    `bias` is keyword-only, and passed only to an implementation that declares it.
    """

    def __call__(
        self,
        x: Float[torch.Tensor, "tokens d_model"],
        weight: Float[torch.Tensor, "experts d_model"],
        top_k: int,
        **bias: Any,
    ) -> tuple[Float[torch.Tensor, "tokens top_k"], Int[torch.Tensor, "tokens top_k"]]:
        """Return the scores and the indices of the chosen experts of each token, in any order."""


class Experts(Protocol):
    """Gated MLPs, of which each token uses those that a router chose.

    Weights are those of `GatedMLP`, stacked. If gate and up are packed, the call is
    ``experts(x, indices, scores, gate_up, down)``. Biases are keyword-only, and so is `shared`, the
    weights of a shared expert by the same names; both are passed only to an implementation that
    declares them.
    """

    def __call__(
        self,
        x: Float[torch.Tensor, "tokens d_model"],
        indices: Int[torch.Tensor, "tokens top_k"],
        scores: Float[torch.Tensor, "tokens top_k"],
        gate: Float[torch.Tensor, "experts d_inner d_model"],
        up: Float[torch.Tensor, "experts d_inner d_model"],
        down: Float[torch.Tensor, "experts d_model d_inner"],
        **features: Any,
    ) -> Float[torch.Tensor, "tokens d_model"]:
        """Return the sum of the chosen experts' results, each times its score."""


@dataclass(frozen=True, kw_only=True)
class RouterImplementation(OperatorImplementation):
    """A router and its claims, as data; the feature `bias` says that it takes a bias.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: Router | Callable[..., Any]
    profile: RouterProfile = field(default_factory=RouterProfile)

    operator: ClassVar[str] = "router"
    FEATURES: ClassVar[frozenset[str]] = frozenset({"bias"})


@dataclass(frozen=True, kw_only=True)
class ExpertsImplementation(OperatorImplementation):
    """A function of experts and its claims, as data.

    The feature `bias` says that it takes biases, `shared` that it takes a shared expert.

    Attributes:
        profile: the behaviour of each expert wherever libraries disagree.
    """

    function: Experts | Callable[..., Any]
    profile: GatedMLPProfile = field(default_factory=GatedMLPProfile)

    operator: ClassVar[str] = "experts"
    FEATURES: ClassVar[frozenset[str]] = frozenset({"bias", "shared"})
