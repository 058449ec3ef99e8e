"""The contract of a GELU that is judged on its own, and what implementations differ on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float

from attnspec.spec.operator import OperatorImplementation, Working
from attnspec.spec.profiles import Float64Precision


class Approximate(StrEnum):
    """The form of GELU, by the words of `torch.nn.functional.gelu`."""

    NONE = "none"
    """The exact form, by erf."""
    TANH = "tanh"
    """GPT-2's approximation by the hyperbolic tangent."""


@dataclass(frozen=True, kw_only=True)
class GELUProfile:
    """The behaviours in which correct GELUs differ.

    Attributes:
        approximate: the form.
        working: the type in which the steps are rounded.
        float64_precision: the type in which float64 is computed.
    """

    approximate: Approximate = Approximate.NONE
    working: Working = Working.FLOAT32
    float64_precision: Float64Precision = Float64Precision.FLOAT64

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {
        "approximate": Approximate,
        "working": Working,
        "float64_precision": Float64Precision,
    }
    """The type of the answer to each question."""


class GELU(Protocol):
    """A drop-in for `torch.nn.functional.gelu`, whose form is an answer of the profile."""

    def __call__(self, input: Float[torch.Tensor, "*shape"]) -> Float[torch.Tensor, "*shape"]:
        """Return the function of each element.

        Args:
            input: any shape, in any strides.
        """


@dataclass(frozen=True, kw_only=True)
class GELUImplementation(OperatorImplementation):
    """A GELU and its claims, as data; it has no features.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: GELU | Callable[..., Any]
    profile: GELUProfile = field(default_factory=GELUProfile)

    operator: ClassVar[str] = "gelu"
    FEATURES: ClassVar[frozenset[str]] = frozenset()
