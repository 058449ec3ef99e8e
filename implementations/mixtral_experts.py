"""transformers' experts of Mixtral."""

from attnspec.implementations.transformers_experts import mixtral_experts, unavailable
from attnspec.spec.experts import ExpertsImplementation
from attnspec.spec.gated_mlp import GatedMLPProfile, GatePacking

IMPLEMENTATION = ExpertsImplementation(
    name="mixtral_experts",
    function=mixtral_experts,
    profile=GatedMLPProfile(packing=GatePacking.GATE_FIRST),
    unavailable=unavailable,
)
