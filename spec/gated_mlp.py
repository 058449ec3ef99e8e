"""The contract of a gated MLP, and the questions on which implementations differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float

from attnspec.spec.operator import OperatorImplementation


class GateForm(StrEnum):
    """The function of gate and up whose result the last matrix multiplies."""

    SWIGLU = "swiglu"
    """SiLU of the gate, times up: Llama, Mistral, Qwen, Mixtral."""
    GEGLU_TANH = "geglu_tanh"
    """GELU of the gate in its tanh form, times up: Gemma."""
    GEGLU_ERF = "geglu_erf"
    """The exact GELU of the gate, times up."""
    REGLU = "reglu"
    """ReLU of the gate, times up."""
    GLU = "glu"
    """The logistic function of the gate, times up: the first gated linear unit."""
    CLAMPED = "clamped"
    """Gate at most 7 and up in [-7, 7]; gate times the logistic function of 1.702 gate, times
    up + 1: GPT-OSS."""


class GatePacking(StrEnum):
    """The place of the rows of gate and up."""

    SEPARATE = "separate"
    """Two matrices."""
    GATE_FIRST = "gate_first"
    """One matrix: all rows of gate, then all rows of up."""
    UP_FIRST = "up_first"
    """One matrix: all rows of up, then all rows of gate."""
    INTERLEAVED = "interleaved"
    """One matrix: a row of gate, a row of up, in turn."""


@dataclass(frozen=True, kw_only=True)
class GatedMLPProfile:
    """The declared behaviour of one gated MLP wherever libraries disagree."""

    form: GateForm = GateForm.SWIGLU
    packing: GatePacking = GatePacking.SEPARATE

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {"form": GateForm, "packing": GatePacking}
    """The fields, with the type of their answers."""


class GatedMLP(Protocol):
    """A gated MLP on weights stored like those of `torch.nn.Linear`, output-major.

    If gate and up are packed, the call is ``gated_mlp(x, gate_up, down)``, with `gate_up_bias` for
    both biases. Biases are keyword-only, and passed only to an implementation that declares them.
    """

    def __call__(
        self,
        x: Float[torch.Tensor, "*batch d_model"],
        gate: Float[torch.Tensor, "d_inner d_model"],
        up: Float[torch.Tensor, "d_inner d_model"],
        down: Float[torch.Tensor, "d_model d_inner"],
        **biases: Any,
    ) -> Float[torch.Tensor, "*batch d_model"]:
        """Return down(f(gate(x), up(x))), f being the form of the profile."""


@dataclass(frozen=True, kw_only=True)
class GatedMLPImplementation(OperatorImplementation):
    """A gated MLP and its claims, as data; the feature `bias` says that it takes biases.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: GatedMLP | Callable[..., Any]
    profile: GatedMLPProfile = field(default_factory=GatedMLPProfile)

    operator: ClassVar[str] = "gated_mlp"
    FEATURES: ClassVar[frozenset[str]] = frozenset({"bias"})
