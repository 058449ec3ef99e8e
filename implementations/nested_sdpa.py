"""torch's `scaled_dot_product_attention` on nested tensors of jagged layout.

Each batch element is a sequence of its own length. A bool mask that hides the last keys of a batch
element from all its queries shortens its keys; the function takes no other mask.
"""

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch.nn.functional import scaled_dot_product_attention

from attnspec.spec import (
    Attention,
    Case,
    Feature,
    Implementation,
    MaskKind,
    MaskPattern,
    MaskShape,
    Profile,
    Rounding,
    RoundingLevel,
)


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch heads keys d_head"],
    value: Float[torch.Tensor, "batch heads keys d_value"],
    attn_mask: Bool[torch.Tensor, "batch 1 1 keys"] | None = None,
    scale: float | None = None,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Nest the batch elements, call torch's function, and join the outputs.

    Raises:
        ValueError: for a mask other than a padding mask.
    """
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    lengths = torch.full((batch,), keys)
    if attn_mask is not None:
        lengths = _lengths(attn_mask, batch, keys)
    of_query = torch.full((batch,), queries)
    out = scaled_dot_product_attention(
        _nested(query, of_query), _nested(key, lengths), _nested(value, lengths), scale=scale
    )
    # the gradient of a product is a tensor of its own: torch 2.13 reads one with strides or an
    # offset as if it had none (docs/findings.md)
    joined = out.transpose(1, 2).values() * 1
    return joined.reshape(batch, queries, *joined.shape[1:]).transpose(1, 2)


def _nested(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return a nested tensor (batch, heads, length, channels) of the first rows of each element."""
    read = torch.arange(x.shape[2]) < lengths[:, None]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.nested.nested_tensor_from_jagged(
        x.transpose(1, 2)[read],
        offsets,
        min_seqlen=int(lengths.min()),
        max_seqlen=int(lengths.max()),
    ).transpose(1, 2)


def _lengths(mask: torch.Tensor, batch: int, keys: int) -> torch.Tensor:
    """Return the number of keys that each batch element reads.

    Raises:
        ValueError: if the mask is no padding mask.
    """
    if mask.dtype != torch.bool or mask.shape != (batch, 1, 1, keys):
        raise ValueError(f"attn_mask must be bool (batch, 1, 1, keys), got {tuple(mask.shape)}")
    lengths = mask.flatten(1).sum(1)
    if not torch.equal(mask.flatten(1), torch.arange(keys) < lengths[:, None]):
        raise ValueError("attn_mask must hide the last keys of each batch element and no other")
    return lengths


def supports(case: Case) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if min(case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value) == 0:
        return "nested tensors of jagged layout are not empty"
    if case.mask is not None and (
        case.mask.kind is not MaskKind.BOOL
        or case.mask.pattern is not MaskPattern.PADDING
        or case.mask.shape is not MaskShape.KEYS
    ):
        return "a nested tensor says how long each sequence is, and no other mask"
    return None


IMPLEMENTATION = Implementation(
    name="nested_sdpa",
    attention=cast(Attention, attention),
    features=frozenset({Feature.MASK, Feature.BACKWARD}),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    # torch's math path for nested tensors scales both operands, multiplies them and takes the
    # softmax in their own type
    profile=Profile(rounding=Rounding(level=RoundingLevel.EAGER)),
)
