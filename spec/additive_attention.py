"""The contract of additive attention, and the question on which implementations differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float

from attnspec.spec.operator import OperatorImplementation
from attnspec.spec.profiles import Float64Precision


@dataclass(frozen=True, kw_only=True)
class AdditiveAttentionProfile:
    """The behaviour in which correct additive attentions differ.

    Attributes:
        float64_precision: the type in which float64 is computed.
    """

    float64_precision: Float64Precision = Float64Precision.FLOAT64

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {"float64_precision": Float64Precision}
    """The type of the answer to each question."""


class AdditiveAttention(Protocol):
    """Attention whose scores are computed by a small network, on weights like `torch.nn.Linear`'s.

    `bias` and `mask` are keyword-only, and passed only to an implementation that declares them:
    `bias` (d_inner) is added inside the tanh, `mask` (batch, keys) is true for real states.
    """

    def __call__(
        self,
        query: Float[torch.Tensor, "batch queries d_query"],
        key: Float[torch.Tensor, "batch keys d_key"],
        value: Float[torch.Tensor, "batch keys d_value"],
        w_query: Float[torch.Tensor, "d_inner d_query"],
        w_key: Float[torch.Tensor, "d_inner d_key"],
        w_score: Float[torch.Tensor, " d_inner"],
        **features: Any,
    ) -> Float[torch.Tensor, "batch queries d_value"]:
        """Return the mean of the values of each query, in the storage type of the operands.

        Args:
            query: the states that read, such as those of a decoder.
            key: the states that are read.
            value: the states of which the mean is taken; often the keys.
            w_query: the linear map of the queries, W.
            w_key: that of the keys, U.
            w_score: the weights of the score, v.
            features: those that are declared; a mask leaves at least one state in each text.
        """


@dataclass(frozen=True, kw_only=True)
class AdditiveAttentionImplementation(OperatorImplementation):
    """An additive attention and its claims, as data.

    The feature `bias` says that it takes a bias, `mask` that it takes a mask.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: AdditiveAttention | Callable[..., Any]
    profile: AdditiveAttentionProfile = field(default_factory=AdditiveAttentionProfile)

    operator: ClassVar[str] = "additive_attention"
    FEATURES: ClassVar[frozenset[str]] = frozenset({"bias", "mask"})
