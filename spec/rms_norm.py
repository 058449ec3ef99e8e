"""The contract of an RMSNorm, and the questions on which implementations differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float

from attnspec.spec.operator import OperatorImplementation, Working
from attnspec.spec.profiles import Float64Precision


class Gain(StrEnum):
    """The factor of a normalized channel, for a learned number *g*."""

    FACTOR = "factor"
    """*g* itself: 1 changes nothing."""
    ONE_PLUS = "one_plus"
    """*1 + g*: 0 changes nothing, as in Gemma."""


class RoundingToStorage(StrEnum):
    """The place at which a 16-bit result is rounded."""

    AFTER_GAIN = "after_gain"
    """Once, at the end."""
    BEFORE_GAIN = "before_gain"
    """The normalized row is rounded, and its product with the gain again, as in Llama."""


@dataclass(frozen=True, kw_only=True)
class RMSNormProfile:
    """The behaviours in which correct RMSNorms differ.

    Attributes:
        gain: the factor by which a learned number multiplies.
        rounding: the place at which 16-bit results are rounded.
        working: the type in which the steps are rounded.
        float64_precision: the type in which float64 is computed.
    """

    gain: Gain = Gain.FACTOR
    rounding: RoundingToStorage = RoundingToStorage.AFTER_GAIN
    working: Working = Working.FLOAT32
    float64_precision: Float64Precision = Float64Precision.FLOAT64

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {
        "gain": Gain,
        "rounding": RoundingToStorage,
        "working": Working,
        "float64_precision": Float64Precision,
    }
    """The type of the answer to each question."""


class RMSNorm(Protocol):
    """A drop-in for `torch.nn.functional.rms_norm` over the last axis."""

    def __call__(
        self,
        input: Float[torch.Tensor, "*rows channels"],
        normalized_shape: tuple[int],
        weight: Float[torch.Tensor, " channels"],
        eps: float,
    ) -> Float[torch.Tensor, "*rows channels"]:
        """Return each row divided by its root mean square, channel by channel times the gain.

        Args:
            input: rows in any strides.
            normalized_shape: the number of channels alone.
            weight: the learned numbers, in the storage type of the rows.
            eps: is added to the mean square, inside the root; positive.
        """


@dataclass(frozen=True, kw_only=True)
class RMSNormImplementation(OperatorImplementation):
    """An RMSNorm and its claims, as data; it has no features.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: RMSNorm | Callable[..., Any]
    profile: RMSNormProfile = field(default_factory=RMSNormProfile)

    operator: ClassVar[str] = "rms_norm"
    FEATURES: ClassVar[frozenset[str]] = frozenset()
