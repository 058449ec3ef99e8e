"""Probes: weights that turn a whole GPT-2 into a window on one of its parts.

A black box shows logits only. A probe has a tied head whose last `n_embd` rows are the identity,
so the last `n_embd` logits are the final LayerNorm's output itself (products with 0 and 1 are
exact), and projections of zero, so that a block adds nothing to the residual stream until a law
opens a branch. The head is tied because every GPT-2 has a tied one.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Float64, Int

from attnspec.conformance.model_case import ModelCase, normal, shapes
from attnspec.conformance.model_judge import Allowed, ask, build
from attnspec.conformance.values import generator
from attnspec.spec import GPT2Config, ModelImplementation


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A model, the tokens to show it, and the stream that they make.

    Attributes:
        config: one block, tied.
        weights: as said above, in the dtype to compute in.
        input_ids: ids of the rows that were given.
    """

    config: GPT2Config
    weights: dict[str, torch.Tensor]
    input_ids: Int[torch.Tensor, "batch length"]

    def but(self, **weights: torch.Tensor) -> "Probe":
        """The same probe with other weights, in block 0 (`mlp__c_fc__bias`) or outside."""
        changed = dict(self.weights)
        for key, each in weights.items():
            changed[_name(key)] = each.to(changed[_name(key)])
        return replace(self, weights=changed)

    @property
    def stream(self) -> Float64[torch.Tensor, "batch length n_embd"]:
        """What the embeddings put into the residual stream."""
        places = self.weights["transformer.wpe.weight"][: self.input_ids.shape[1]]
        return self.weights["transformer.wte.weight"][self.input_ids].double() + places.double()

    def read(self, subject: ModelImplementation) -> Float[torch.Tensor, "batch length n_embd"]:
        """The final LayerNorm's output, as the model computes it."""
        model = build(subject, self.config, self.weights)
        return ask(model, self.input_ids, self.weights)[..., -self.config.n_embd :]

    @property
    def gate(self) -> Float64[torch.Tensor, "batch length n_embd"]:
        """How far a reading may be from a float64 reckoning."""
        return Allowed(self.config, self.weights, self.input_ids).logits[..., -self.config.n_embd :]


def _name(key: str) -> str:
    short = key.replace("__", ".")
    inside = short.startswith(("ln_1", "ln_2", "attn", "mlp"))
    return f"transformer.h.0.{short}" if inside else f"transformer.{short}"


def probe(
    rows: Float64[torch.Tensor, "rows n_embd"],
    case: ModelCase,
    *,
    input_ids: Int[torch.Tensor, "batch length"] | None = None,
    **config: Any,
) -> Probe:
    """Make a probe whose embeddings hold `rows`, which must be exact in the dtype of the case.

    Args:
        rows: what tokens 0, 1, 2, ... put into the stream.
        case: gives dtype, epsilon, heads where they divide the channels, and the tokens.
        input_ids: other tokens than the case's.
        config: fields of the configuration to set.
    """
    count, width = rows.shape
    if input_ids is None:
        input_ids = torch.randint(
            count, (case.batch, case.length), generator=generator(case.seed, "ids")
        )
    given = {
        "vocab_size": count + width,
        "n_positions": max(case.n_positions, input_ids.shape[1]),
        "n_embd": width,
        "n_layer": 1,
        "n_head": case.n_head if width % case.n_head == 0 else 1,
        "layer_norm_epsilon": case.layer_norm_epsilon,
    }
    built = GPT2Config(**given | config)
    weights = {
        name: torch.full(shape, float(".ln_" in name and "weight" in name), dtype=case.dtype)
        for name, shape in shapes(built).items()
    }
    weights["transformer.wte.weight"] = torch.cat([rows, torch.eye(width)]).to(case.dtype)
    return Probe(config=built, weights=weights, input_ids=input_ids)


def coarse_rows(case: ModelCase, purpose: str = "rows") -> Float64[torch.Tensor, "rows n_embd"]:
    """Normal rows in steps of 1/256: sums with moderate integers and small multiples are exact."""
    width = max(case.n_embd, 2)
    return (normal(case.seed, purpose, case.vocab_size, width) * 256).round() / 256


def normalized(
    stream: Float64[torch.Tensor, "... n_embd"], epsilon: float
) -> Float64[torch.Tensor, "... n_embd"]:
    """(x − mean)/√(variance + ε) straight from the formula, in float64."""
    centred = stream - stream.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()


def contrast(channels: int) -> Float64[torch.Tensor, "1 n_embd"]:
    """One row of zeros that ends in 1 and −1: its mean is zero and its spread is known."""
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
"""Cases for laws that use probes, smallest first."""
