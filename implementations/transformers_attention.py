"""Attention functions of Hugging Face's transformers, called as its models call them.

A model makes its masks by the function that is registered beside the attention: the causal mask,
and a bool mask that is common to all heads. A query is the last of the keys, so a causal diagonal
is aligned at the lower right. A float mask of rank 4 goes to the attention as it is.
"""

import functools
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.attention_interface import from_attention_interface
from attnspec.implementations.adapters.parameters import limited
from attnspec.implementations.frameworks import missing
from attnspec.spec import Case, MaskKind, MaskShape

OF_ALL_HEADS = (MaskShape.BATCH, MaskShape.KEYS, MaskShape.QUERIES, MaskShape.RANK_2)
"""The shapes of masks that a model can make."""


def unavailable() -> str | None:
    """Return the reason why transformers cannot be used here, or None."""
    return missing("transformers")


def as_model_calls(model: str, name: str, *, names: Collection[str]) -> Callable[..., Any]:
    """Return an attention of transformers, which is imported when it is first called.

    Args:
        model: the model, such as `gpt2`, whose own function `eager` is.
        name: `eager`, `sdpa` or `flex_attention`.
        names: the options of the contract that it takes; `enable_gqa` if the module of the model
            knows its groups of heads.
    """

    @functools.cache
    def adapted() -> Callable[..., Any]:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        modeling = import_module(f"transformers.models.{model}.modeling_{model}")
        return from_attention_interface(
            ALL_ATTENTION_FUNCTIONS.get_interface(name, modeling.eager_attention_forward),
            mask_interface=ALL_MASK_ATTENTION_FUNCTIONS[name],
            grouped="enable_gqa" in names,
        )

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        **options: Any,
    ) -> Float[torch.Tensor, "batch heads queries d_value"]:
        out: torch.Tensor = adapted()(query, key, value, **options)
        return out

    return limited(attention, names, attention)


def supports(case: Case) -> str | None:
    """Return the reason why no model makes a call like a case, or None."""
    if case.is_causal and case.queries > case.keys:
        return "a model has no fewer keys than queries"
    if case.mask is None:
        return None
    if case.mask.kind is MaskKind.BOOL and case.mask.shape not in OF_ALL_HEADS:
        return "the masks of a model are common to all heads"
    if case.mask.kind is MaskKind.FLOAT and case.is_causal:
        return "a float mask replaces the causal mask of a model"
    return None
