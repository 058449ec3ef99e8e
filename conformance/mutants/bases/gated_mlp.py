"""A correct gated MLP whose steps mutants replace."""

from typing import Any

import torch
from torch.nn import functional

from attnspec.conformance.mutants.registry import plant
from attnspec.spec.gated_mlp import (
    GatedMLPImplementation,
    GatedMLPProfile,
    GateForm,
    GatePacking,
)


class PlainGatedMLP:
    """A gated MLP in torch's own operations, in any form and packing."""

    profile = GatedMLPProfile()

    def __call__(self, *tensors: torch.Tensor, **biases: torch.Tensor) -> torch.Tensor:
        """Return down(f(gate(x), up(x)))."""
        x, *matrices, down = tensors
        gate, up = self.project(x, matrices, biases)
        return functional.linear(self.combine(gate, up), down, biases.get("down_bias"))

    def project(
        self, x: torch.Tensor, matrices: list[torch.Tensor], biases: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gate and up before their function."""
        if len(matrices) == 2:
            gate, up = matrices
            return (
                functional.linear(x, gate, biases.get("gate_bias")),
                functional.linear(x, up, biases.get("up_bias")),
            )
        return self.split(functional.linear(x, matrices[0], biases.get("gate_up_bias")))

    def split(self, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gate and up of one product."""
        if self.profile.packing is GatePacking.INTERLEAVED:
            return both[..., ::2], both[..., 1::2]
        first, second = both.chunk(2, dim=-1)
        is_first = self.profile.packing is GatePacking.GATE_FIRST
        return (first, second) if is_first else (second, first)

    def combine(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return the function of gate and up."""
        if self.profile.form is GateForm.CLAMPED:
            return self.clamped(gate, up)
        return self.activate(gate) * up

    def clamped(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return the function of gate and up of GPT-OSS."""
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)

    def activate(self, gate: torch.Tensor) -> torch.Tensor:
        """Return the activation of the gate."""
        if self.profile.form is GateForm.GEGLU_TANH:
            return functional.gelu(gate, approximate="tanh")
        functions: dict[GateForm, Any] = {
            GateForm.SWIGLU: functional.silu,
            GateForm.GEGLU_ERF: functional.gelu,
            GateForm.REGLU: torch.relu,
            GateForm.GLU: torch.sigmoid,
        }
        result: torch.Tensor = functions[self.profile.form](gate)
        return result


def correct(
    name: str = "correct",
    form: GateForm = GateForm.SWIGLU,
    packing: GatePacking = GatePacking.SEPARATE,
    base: type[PlainGatedMLP] = PlainGatedMLP,
) -> GatedMLPImplementation:
    """Return the declaration of a gated MLP of one form and packing."""
    function = base()
    function.profile = GatedMLPProfile(form=form, packing=packing)
    return GatedMLPImplementation(
        name=name, function=function, features=frozenset({"bias"}), profile=function.profile
    )


def gated_mlp_mistake(
    identifier: str,
    title: str,
    *,
    killed_by: str,
    form: GateForm = GateForm.SWIGLU,
    packing: GatePacking = GatePacking.SEPARATE,
    source: str = "",
) -> Any:
    """Plant a class as a mutant of this declared form and packing."""

    def register(base: type[PlainGatedMLP]) -> type[PlainGatedMLP]:
        subject = correct(identifier, form, packing, base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register
