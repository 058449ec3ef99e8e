"""The contract of rotary positions, and the questions on which implementations differ."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float, Int

from attnspec.spec.operator import OperatorImplementation, Working
from attnspec.spec.profiles import Float64Precision


class Pairing(StrEnum):
    """The two channels that are turned together, of d rotated channels."""

    HALF = "half"
    """Channels i and i + d/2: GPT-NeoX, and Llama in transformers."""
    INTERLEAVED = "interleaved"
    """Channels 2i and 2i + 1: RoFormer, GPT-J, and Meta's Llama."""


class AnglePrecision(StrEnum):
    """The type in which angles are computed."""

    WIDEST = "widest"
    """float64 for operands of float64, float32 for others."""
    FLOAT32 = "float32"
    """float32 for all operands."""


class ScalingKind(StrEnum):
    """The rule that changes frequencies for texts longer than those of training."""

    LINEAR = "linear"
    """Every frequency is divided by the factor."""
    DYNAMIC = "dynamic"
    """The base grows with the length of the call."""
    YARN = "yarn"
    """Low frequencies are divided, high ones kept, and cosine and sine grow."""
    LLAMA3 = "llama3"
    """Low frequencies are divided, high ones kept."""


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """A scaling of frequencies; a call gets it as `parameters`, with the keys of transformers.

    Attributes:
        kind: the rule.
        factor: at least 1.
        original_length: tokens of the longest text of training; not used by `linear`.
        beta_fast: turns within the original length above which `yarn` keeps a frequency.
        beta_slow: turns within it below which `yarn` divides a frequency by the factor.
        truncate: whether `yarn` rounds the ends of its ramp to whole pairs, outwards.
        attention_factor: the factor of cosine and sine of `yarn`; None is 0.1 ln(factor) + 1.
        low_freq_factor: turns within the original length below which `llama3` divides a frequency.
        high_freq_factor: turns within it above which `llama3` keeps a frequency.

    Raises:
        ValueError: naming the field that is out of range.
    """

    kind: ScalingKind
    factor: float
    original_length: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor must be finite and at least 1, got {self.factor}")
        if self.kind is not ScalingKind.LINEAR and self.original_length < 1:
            raise ValueError(
                f"original_length must be at least 1 with {self.kind}, got {self.original_length}"
            )
        if not 0 < self.beta_slow < self.beta_fast:
            raise ValueError(
                f"beta_slow must lie between 0 and beta_fast, got {self.beta_slow} and "
                f"{self.beta_fast}"
            )
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor must lie between 0 and high_freq_factor, got "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )

    @property
    def magnitude(self) -> float:
        """The factor of cosine and sine."""
        if self.kind is not ScalingKind.YARN:
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0

    def parameters(self) -> dict[str, Any]:
        """Return the scaling as a call gets it."""
        result: dict[str, Any] = {"rope_type": str(self.kind), "factor": self.factor}
        if self.kind is not ScalingKind.LINEAR:
            result["original_max_position_embeddings"] = self.original_length
        if self.kind is ScalingKind.YARN:
            result |= {
                "beta_fast": self.beta_fast,
                "beta_slow": self.beta_slow,
                "truncate": self.truncate,
            }
            if self.attention_factor is not None:
                result["attention_factor"] = self.attention_factor
        if self.kind is ScalingKind.LLAMA3:
            result |= {
                "low_freq_factor": self.low_freq_factor,
                "high_freq_factor": self.high_freq_factor,
            }
        return result

    @classmethod
    def read(cls, parameters: Mapping[str, Any]) -> "RotaryScaling":
        """Return the scaling of `parameters`.

        Raises:
            ValueError: naming a missing or unknown rule or key, or a value out of range.
        """
        if missing := {"rope_type", "factor"} - parameters.keys():
            raise ValueError(f"a scaling lacks {' and '.join(sorted(missing))}")
        given = dict(parameters)
        kind = given.pop("rope_type")
        if kind not in list(ScalingKind):
            raise ValueError(f"rope_type must be one of {', '.join(ScalingKind)}, got {kind!r}")
        names = {"original_max_position_embeddings": "original_length"}
        known = {
            *("factor", "original_length", "beta_fast", "beta_slow", "truncate"),
            *("attention_factor", "low_freq_factor", "high_freq_factor"),
        }
        values = {names.get(name, name): value for name, value in given.items()}
        if unknown := values.keys() - known:
            raise ValueError(f"unknown parameters of a scaling: {', '.join(sorted(unknown))}")
        return cls(kind=ScalingKind(kind), factor=values.pop("factor"), **values)


@dataclass(frozen=True, kw_only=True)
class RotaryProfile:
    """The declared behaviour of one rotary embedding wherever libraries disagree."""

    pairing: Pairing = Pairing.HALF
    angles: AnglePrecision = AnglePrecision.WIDEST
    working: Working = Working.FLOAT32
    float64_precision: Float64Precision = Float64Precision.FLOAT64

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {
        "pairing": Pairing,
        "angles": AnglePrecision,
        "working": Working,
        "float64_precision": Float64Precision,
    }
    """The fields, with the type of their answers."""


class Rotary(Protocol):
    """A rotary position embedding of queries or keys.

    The keywords are passed only to an implementation that declares their features, and only if
    they differ from the default: the whole head, base 10 000, and no scaling.
    """

    def __call__(
        self,
        x: Float[torch.Tensor, "batch heads length d_head"],
        positions: Int[torch.Tensor, "batch length"],
        *,
        rotary_dim: int = ...,
        base: float = ...,
        scaling: Mapping[str, Any] | None = None,
    ) -> Float[torch.Tensor, "batch heads length d_head"]:
        """Return x, each token turned by its position.

        Args:
            x: queries or keys, in any strides.
            positions: of the tokens, int64, from 0; the same for all heads.
            rotary_dim: even; the channels before it are turned, the others are kept.
            base: greater than 1.
            scaling: `RotaryScaling.parameters`.
        """


@dataclass(frozen=True, kw_only=True)
class RotaryImplementation(OperatorImplementation):
    """A rotary embedding and its claims, as data.

    The feature `partial` is the keyword `rotary_dim`, `base` the keyword of its name; `linear`,
    `dynamic`, `yarn` and `llama3` are scalings.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: Rotary | Callable[..., Any]
    profile: RotaryProfile = field(default_factory=RotaryProfile)

    operator: ClassVar[str] = "rotary"
    FEATURES: ClassVar[frozenset[str]] = frozenset({"partial", "base", *ScalingKind})
