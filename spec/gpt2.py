"""The contract of a GPT-2 implementation: a configuration, a checkpoint, a callable."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """The options of GPT-2 that change its result, under the names of Hugging Face's `GPT2Config`.

    The defaults are those of the released 124M checkpoint. Sizes are counts.

    Source:
        Radford et al. 2019, section 2.3; Hugging Face transformers, `GPT2Config`
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_positions", "n_embd", "n_head"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.n_layer < 0:
            raise ValueError(f"n_layer must not be negative, got {self.n_layer}")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        if self.n_inner is not None and self.n_inner < 1:
            raise ValueError(f"n_inner must be at least 1 or None, got {self.n_inner}")
        if not self.layer_norm_epsilon >= 0:
            raise ValueError(
                f"layer_norm_epsilon must not be negative, got {self.layer_norm_epsilon}"
            )

    @property
    def d_head(self) -> int:
        """Channels of one head."""
        return self.n_embd // self.n_head

    @property
    def d_inner(self) -> int:
        """Channels inside the MLP: `n_inner`, by default four times the model's channels."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner


class ModelFeature(StrEnum):
    """A capability beyond `model(input_ids) -> logits` that a GPT-2 can claim."""

    CACHE = "cache"
    """`model(input_ids, cache=model.empty_cache()) -> (logits, cache)`."""
    PADDING = "padding"
    """`model(input_ids, attention_mask=…, position_ids=…)`."""
    HIDDEN_STATES = "hidden_states"
    """`model(input_ids, output_hidden_states=True) -> (logits, states)`: the embeddings, then the
    residual stream after each block, the last one after the final LayerNorm.

    With a cache, `(logits, cache, states)`; the states are those of the new tokens."""
    BACKWARD = "backward"


Build = Callable[[GPT2Config, Mapping[str, torch.Tensor]], Any]
"""`build(config, state_dict) -> model`. The keys are Hugging Face's with the `transformer.` prefix,
`lm_head.weight` present only if untied; the dtype is the dtype to compute in."""


@dataclass(frozen=True, kw_only=True)
class ModelImplementation:
    """A GPT-2 and its claims, as data."""

    name: str
    build: Build
    features: frozenset[ModelFeature] = frozenset()
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    supports: Callable[[GPT2Config], str | None] = lambda config: None
    unavailable: Callable[[], str | None] = lambda: None
