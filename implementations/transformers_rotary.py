"""Calls of the rotary embeddings of transformers' models: their modules and their functions.

A module is made for each call. With `dynamic` it would keep the frequencies of the longest call so
far, so that a later call had another result.
"""

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

LARGEST = 32_767
"""The largest position of the table that is made for GPT-J, whose own has 2048 rows."""


def unavailable() -> str | None:
    """Return the reason why transformers cannot be imported, or None."""
    return None if find_spec("transformers") else "no module transformers"


def module_rotary(model: str, name: str) -> Callable[..., Any]:
    """Return a rotary embedding of a model that has a module for cosine and sine."""

    def rotary(
        x: torch.Tensor,
        positions: torch.Tensor,
        *,
        rotary_dim: int | None = None,
        base: float = 10_000.0,
        scaling: Mapping[str, Any] | None = None,
    ) -> Any:
        d_head = x.shape[-1]
        parameters = {"rope_type": "default", "rope_theta": base, **(scaling or {})}
        # the library rounds the product with d_head down; GPT-NeoX turns a quarter by default
        turned_share = 1.0 if rotary_dim is None else (rotary_dim + 0.5) / d_head
        parameters["partial_rotary_factor"] = turned_share
        if parameters["rope_type"] == "dynamic":
            # the original length is that of the configuration
            longest = parameters.pop("original_max_position_embeddings")
        else:
            original = parameters.get("original_max_position_embeddings", 2048)
            longest = int(original * parameters.get("factor", 1))
        folder = f"transformers.models.{model}"
        config = getattr(import_module(f"{folder}.configuration_{model}"), f"{name}Config")
        code = import_module(f"{folder}.modeling_{model}")
        made = config(
            hidden_size=d_head,
            num_attention_heads=1,
            max_position_embeddings=longest,
            rope_parameters=parameters,
        )
        cosine, sine = getattr(code, f"{name}RotaryEmbedding")(made)(x, positions)
        turned, _ = code.apply_rotary_pos_emb(x, x, cosine, sine)
        return turned

    return rotary


def gptj_rotary(x: torch.Tensor, positions: torch.Tensor, *, rotary_dim: int | None = None) -> Any:
    """Call GPT-J's functions, which read a table and take (batch, length, heads, channels)."""
    code = import_module("transformers.models.gptj.modeling_gptj")
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    sine, cosine = _table(width)[positions].to(x.dtype).chunk(2, dim=-1)
    heads_last = x.transpose(1, 2)
    turned = code.apply_rotary_pos_emb(heads_last[..., :width], sine, cosine)
    return torch.cat([turned, heads_last[..., width:]], dim=-1).transpose(1, 2)


@functools.lru_cache(maxsize=4)
def _table(width: int) -> Any:
    code = import_module("transformers.models.gptj.modeling_gptj")
    return code.create_sinusoidal_positions(LARGEST + 1, width)


def beyond_the_table(case: Any) -> str | None:
    """Return the reason why a case is refused, if a law may pass the end of GPT-J's table."""
    reached = int(case.positions().max()) + 2048
    return f"the table ends at position {LARGEST}" if reached > LARGEST else None
