"""The contract of a gated MLP, and the questions on which implementations differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float

from attnspec.spec.contract import available


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


def any_call(case: Any) -> None:
    """Accept every case: the default of `supports`."""


@dataclass(frozen=True, kw_only=True)
class GatedMLPImplementation:
    """A gated MLP and its claims, as data.

    Attributes:
        name: unique, lower case, words joined by underscores.
        function: the callable.
        features: `bias` if it takes biases.
        dtypes: the storage types that it accepts.
        has_gradients: whether autograd differentiates it.
        profile: its behaviour wherever libraries disagree.
        supports: returns the reason why it refuses a case, or None.
        unavailable: returns the reason why it cannot run on this machine, or None.
    """

    name: str
    function: GatedMLP | Callable[..., Any]
    features: frozenset[str] = frozenset()
    dtypes: tuple[torch.dtype, ...] = (
        *(torch.float64, torch.float32),
        *(torch.float16, torch.bfloat16),
    )
    has_gradients: bool = True
    profile: GatedMLPProfile = field(default_factory=GatedMLPProfile)
    supports: Callable[[Any], str | None] = any_call
    unavailable: Callable[[], str | None] = available

    operator: ClassVar[str] = "gated_mlp"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"{self.name}: function must be callable, got {self.function!r}")
        if not self.dtypes:
            raise ValueError(f"{self.name}: at least one dtype must be claimed")
        if unknown := self.features - {"bias"}:
            raise ValueError(f"{self.name}: unknown features {', '.join(sorted(unknown))}")
