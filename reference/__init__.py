"""The reference: a GPT-2 that is read top to bottom, and the definition of attention inside it.

Start with `gpt2` in `model` and `attention` in `attention`. In the order in which data flows:
`tokenizer`, `embedding`, `block` (`layer_norm`, `heads`, `attention` with `masks`, `mlp` with
`activation`), `model`, `loss`, `generation`. `cache` holds the keys and values of earlier tokens,
`weights` reads checkpoints, `implementation` puts attention under the contract, and
`scalar_attention` defines it a second time.
"""

from attnspec.reference.generation import generate
from attnspec.reference.implementation import REFERENCE, scaled_dot_product_attention
from attnspec.reference.model import GPT2, MODEL, build
from attnspec.reference.weights import load

__all__ = [
    "GPT2",
    "MODEL",
    "REFERENCE",
    "build",
    "generate",
    "load",
    "scaled_dot_product_attention",
]
