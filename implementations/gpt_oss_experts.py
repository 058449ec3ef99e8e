"""transformers' experts of GPT-OSS."""

from attnspec.implementations.transformers_experts import gpt_oss_experts, unavailable
from attnspec.spec.experts import ExpertsImplementation
from attnspec.spec.gated_mlp import GatedMLPProfile, GateForm, GatePacking

IMPLEMENTATION = ExpertsImplementation(
    name="gpt_oss_experts",
    function=gpt_oss_experts,
    features=frozenset({"bias"}),
    profile=GatedMLPProfile(form=GateForm.CLAMPED, packing=GatePacking.INTERLEAVED),
    unavailable=unavailable,
)
