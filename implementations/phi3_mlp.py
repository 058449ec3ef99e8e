"""transformers' gated MLP of Phi-3."""

from attnspec.implementations.transformers_experts import phi3_mlp, unavailable
from attnspec.spec.gated_mlp import GatedMLPImplementation, GatedMLPProfile, GatePacking

IMPLEMENTATION = GatedMLPImplementation(
    name="phi3_mlp",
    function=phi3_mlp,
    profile=GatedMLPProfile(packing=GatePacking.GATE_FIRST),
    unavailable=unavailable,
)
