"""The contract of a LayerNorm that is judged on its own, and what implementations differ on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float

from attnspec.spec.operator import OperatorImplementation, Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import RoundingToStorage


class Saved(StrEnum):
    """The type of the numbers that a backward pass keeps, for operands of 16 bits."""

    FLOAT32 = "float32"
    """Mean and root of a row, and the sums of gradients over rows, are kept in float32."""
    STORAGE = "storage"
    """They are rounded to the storage type, the sums after each row."""


@dataclass(frozen=True, kw_only=True)
class LayerNormProfile:
    """The behaviours in which correct LayerNorms differ.

    Attributes:
        rounding: the place at which 16-bit results are rounded.
        working: the type in which the steps are rounded.
        saved: the type of the numbers that a backward pass keeps.
        float64_precision: the type in which float64 is computed.
    """

    rounding: RoundingToStorage = RoundingToStorage.AFTER_GAIN
    working: Working = Working.FLOAT32
    saved: Saved = Saved.FLOAT32
    float64_precision: Float64Precision = Float64Precision.FLOAT64

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {
        "rounding": RoundingToStorage,
        "working": Working,
        "saved": Saved,
        "float64_precision": Float64Precision,
    }
    """The type of the answer to each question."""


class LayerNorm(Protocol):
    """A drop-in for `torch.nn.functional.layer_norm` over the last axis."""

    def __call__(
        self,
        input: Float[torch.Tensor, "*rows channels"],
        normalized_shape: tuple[int],
        weight: Float[torch.Tensor, " channels"],
        bias: Float[torch.Tensor, " channels"],
        eps: float,
    ) -> Float[torch.Tensor, "*rows channels"]:
        """Return each row with mean zero and variance one, then times the gain plus the bias.

        Args:
            input: rows in any strides.
            normalized_shape: the number of channels alone.
            weight: the gains, in the storage type of the rows.
            bias: the shifts, in the storage type of the rows.
            eps: is added to the variance, inside the root; positive.
        """


@dataclass(frozen=True, kw_only=True)
class LayerNormImplementation(OperatorImplementation):
    """A LayerNorm and its claims, as data; it has no features.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: LayerNorm | Callable[..., Any]
    profile: LayerNormProfile = field(default_factory=LayerNormProfile)

    operator: ClassVar[str] = "layer_norm"
    FEATURES: ClassVar[frozenset[str]] = frozenset()
