"""transformers' gated MLP of Llama."""

from attnspec.implementations.transformers_experts import separate_mlp, unavailable
from attnspec.spec.gated_mlp import GatedMLPImplementation

IMPLEMENTATION = GatedMLPImplementation(
    name="llama_mlp",
    function=separate_mlp("llama", "LlamaMLP", "LlamaConfig", "silu"),
    features=frozenset({"bias"}),
    unavailable=unavailable,
)
