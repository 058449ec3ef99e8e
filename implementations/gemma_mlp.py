"""transformers' gated MLP of Gemma."""

from attnspec.implementations.transformers_experts import separate_mlp, unavailable
from attnspec.spec.gated_mlp import GatedMLPImplementation, GatedMLPProfile, GateForm

IMPLEMENTATION = GatedMLPImplementation(
    name="gemma_mlp",
    function=separate_mlp("gemma", "GemmaMLP", "GemmaConfig", "gelu_pytorch_tanh"),
    profile=GatedMLPProfile(form=GateForm.GEGLU_TANH),
    unavailable=unavailable,
)
