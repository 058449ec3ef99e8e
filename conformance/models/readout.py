"""Readouts: weights with which the logits of a whole GPT-2 show the output of one of its parts.

A black box shows logits only. A readout has a tied head whose last `n_embd` rows are the identity,
so the last `n_embd` logits are the final LayerNorm's output itself (products with 0 and 1 are
exact). Its projections are zero, so a block adds nothing to the residual stream until a law
sets the weights of a branch. The head is tied because every GPT-2 has a tied head.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Float64, Int

from attnspec.conformance.attention.values import generator
from attnspec.conformance.models.case import ModelCase, normal, shapes
from attnspec.conformance.models.oracle import Allowed
from attnspec.conformance.models.subject import build, logits_of
from attnspec.spec import GPT2Config, ModelImplementation


@dataclass(frozen=True, kw_only=True)
class Readout:
    """A model of one block that shows the residual stream in its logits, and its input tokens.

    Attributes:
        config: one block, tied.
        weights: the weights described above, in the dtype to compute in.
        input_ids: ids of the rows of the embeddings.
    """

    config: GPT2Config
    weights: dict[str, torch.Tensor]
    input_ids: Int[torch.Tensor, "batch length"]

    def but(self, **weights: torch.Tensor) -> "Readout":
        """Return the same readout with other weights, in block 0 (`mlp__c_fc__bias`) or outside."""
        changed = dict(self.weights)
        for key, weight in weights.items():
            changed[_name(key)] = weight.to(changed[_name(key)])
        return replace(self, weights=changed)

    @property
    def stream(self) -> Float64[torch.Tensor, "batch length n_embd"]:
        """The residual stream after the embeddings."""
        positions = self.weights["transformer.wpe.weight"][: self.input_ids.shape[1]]
        return self.weights["transformer.wte.weight"][self.input_ids].double() + positions.double()

    def read(self, subject: ModelImplementation) -> Float[torch.Tensor, "batch length n_embd"]:
        """Return the final LayerNorm's output, as the model computes it."""
        model = build(subject, self.config, self.weights)
        return logits_of(model, self.input_ids, self.weights)[..., -self.config.n_embd :]

    @property
    def tolerance(self) -> Float64[torch.Tensor, "batch length n_embd"]:
        """The distance allowed between `read` and a computation in float64."""
        return Allowed(self.config, self.weights, self.input_ids).logits[..., -self.config.n_embd :]


def _name(key: str) -> str:
    short = key.replace("__", ".")
    inside = short.startswith(("ln_1", "ln_2", "attn", "mlp"))
    return f"transformer.h.0.{short}" if inside else f"transformer.{short}"


def make_readout(
    rows: Float64[torch.Tensor, "rows n_embd"],
    case: ModelCase,
    *,
    input_ids: Int[torch.Tensor, "batch length"] | None = None,
    **config: Any,
) -> Readout:
    """Return a readout whose embeddings hold `rows`, which must be exact in the dtype of the case.

    Args:
        rows: the embeddings of tokens 0, 1, 2, ...
        case: gives dtype, epsilon, the tokens, and the heads if they divide the channels.
        input_ids: the tokens; by default the case's.
        config: fields of the configuration to set.
    """
    count, width = rows.shape
    if input_ids is None:
        input_ids = torch.randint(
            count, (case.batch, case.length), generator=generator(case.seed, "ids")
        )
    defaults = {
        "vocab_size": count + width,
        "n_positions": max(case.n_positions, input_ids.shape[1]),
        "n_embd": width,
        "n_layer": 1,
        "n_head": case.n_head if width % case.n_head == 0 else 1,
        "layer_norm_epsilon": case.layer_norm_epsilon,
    }
    full_config = GPT2Config(**defaults | config)
    weights = {
        name: torch.full(shape, float(".ln_" in name and "weight" in name), dtype=case.dtype)
        for name, shape in shapes(full_config).items()
    }
    weights["transformer.wte.weight"] = torch.cat([rows, torch.eye(width)]).to(case.dtype)
    return Readout(config=full_config, weights=weights, input_ids=input_ids)


def coarse_rows(case: ModelCase, purpose: str = "rows") -> Float64[torch.Tensor, "rows n_embd"]:
    """Return normal rows in steps of 1/256, exact in sums with integers and small multiples."""
    width = max(case.n_embd, 2)
    return (normal(case.seed, purpose, case.vocab_size, width) * 256).round() / 256


def normalized(
    stream: Float64[torch.Tensor, "... n_embd"], epsilon: float
) -> Float64[torch.Tensor, "... n_embd"]:
    """Return (x − mean)/√(variance + ε), straight from the formula, in float64."""
    centred = stream - stream.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()


def contrast(channels: int) -> Float64[torch.Tensor, "1 n_embd"]:
    """Return one row of zeros that ends in 1 and −1: its mean is zero and its variance known."""
    row = torch.zeros(1, channels + 2, dtype=torch.float64)
    row[0, -2:] = torch.tensor([1.0, -1.0], dtype=torch.float64)
    return row


PINNED = tuple(
    ModelCase(
        n_head=n_head, d_head=d_head, vocab_size=rows, batch=batch, length=length, n_positions=6,
        layer_norm_epsilon=epsilon, dtype=dtype, seed=seed,
    )
    for seed, (n_head, d_head, rows, batch, length, epsilon) in enumerate(
        [(1, 2, 3, 1, 1, 1e-5), (2, 3, 4, 1, 4, 1e-5), (1, 5, 6, 2, 5, 1e-3), (3, 4, 5, 3, 3, 0.25)]
    )
    for dtype in (torch.float64, torch.float32)
)  # fmt: skip
"""Cases for laws that use readouts, smallest first."""
