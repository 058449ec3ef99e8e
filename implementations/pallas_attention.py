"""JAX's flash attention in Pallas for GPUs, `mha`, run on a CPU by Pallas's interpreter.

The interpreter runs the kernels' tiles as XLA code for each shape. It cannot show: products in
TensorFloat-32, races between tiles, sizes of tiles that a GPU lacks memory for (and it takes sizes
that are no power of two, which a GPU refuses), and speed. A load behind the end of a tensor gives
NaN; a GPU loads what lies there.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.jax_arrays import from_jax_arrays
from attnspec.implementations.frameworks import missing
from attnspec.implementations.known_bugs import deviations
from attnspec.spec import (
    Attention,
    Case,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
    Values,
)

TILE = 16
"""Queries and keys in one tile, for lengths that it divides: short ones have several tiles."""

LONGEST_TILE = 128
"""Queries and keys in the default tile of `mha`: the most that are one tile of another length."""


def tile(length: int) -> int:
    """Return the size of a tile that divides a length."""
    return length if length % TILE else TILE


@functools.cache
def _adapted(is_causal: bool, scale: float, return_lse: bool) -> Callable[..., Any]:
    """Return an attention of tensors: options are constants of the kernels."""
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    def attention(query: Any, key: Any, value: Any) -> Any:
        queries, keys = query.shape[2], key.shape[2]
        tiles = tile(queries), tile(keys)
        # its backward pass takes as many tiles of queries as of keys
        is_square = queries // tiles[0] == keys // tiles[1]
        backward = tiles if is_square else (queries, keys)
        out = mha(
            *(array.swapaxes(1, 2) for array in (query, key, value)),
            segment_ids=None,
            sm_scale=scale,
            causal=is_causal,
            block_sizes=BlockSizes(*tiles, *backward, *backward),
            interpret=True,
            return_residuals=return_lse,
        )
        if return_lse:
            # its log-sum-exp is to base 2
            return out[0].swapaxes(1, 2), out[1] * math.log(2)
        return out.swapaxes(1, 2)

    return from_jax_arrays(attention)


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch heads keys d_head"],
    value: Float[torch.Tensor, "batch heads keys d_head"],
    attn_mask: None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    return_lse: bool = False,
) -> Any:
    """Attend by the kernels.

    Args:
        query: float32, float16 or bfloat16, like key and value.
        key: as many heads as `query`: the kernels read others behind the end of the tensor.
        value: one row per key, with as many channels.
        attn_mask: must be None.
        dropout_p: must be 0.
        is_causal: a query reads the keys up to its own position.
        scale: multiplies the scores; ``d_head ** -0.5`` by default.
        return_lse: return the log-sum-exp too, in float32 and without gradients.

    Raises:
        ValueError: for options that the kernels do not have, and other numbers of heads.
    """
    if attn_mask is not None or dropout_p:
        raise ValueError("mha has no mask but the causal one, and no dropout")
    if key.shape[1] != query.shape[1] or value.shape[1] != query.shape[1]:
        raise ValueError("mha needs as many heads of keys and values as of queries")
    if scale is None:
        scale = query.shape[3] ** -0.5
    return _adapted(bool(is_causal), float(scale), return_lse)(query, key, value)


def supports(case: Case) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if min(case.batch, case.heads, case.queries, case.keys, case.d_head) == 0:
        return "mha takes no empty tensor"
    if case.d_head != case.d_value:
        return "mha needs d_value = d_head"
    if max(tile(case.queries), tile(case.keys)) > LONGEST_TILE:
        return f"a length above {LONGEST_TILE} must be a multiple of the tile, {TILE}"
    if case.is_causal and case.queries > case.keys:
        # docs/findings/pallas.md
        return "mha loads behind the last key in a causal call with more queries than keys"
    if case.return_lse and case.backward:
        return "mha has no gradients where it returns the log-sum-exp"
    return None


OVERFLOWING = Case(
    dtype=torch.float16, backward=True, values=Values.CANCELLATION, seed=57, d_head=8, d_value=8
)
"""Values of 1000 whose gradients come from a large incoming gradient, selected by the seed."""


def overflows(case: Case) -> bool:
    """Return whether the sum of output times incoming gradient may leave float16."""
    is_large = case.values in (Values.CANCELLATION, Values.POSITIVE)
    return case.backward and case.dtype is torch.float16 and is_large


IMPLEMENTATION = Implementation(
    name="pallas_attention",
    attention=cast(Attention, attention),
    features=frozenset({Feature.CAUSAL, Feature.LSE, Feature.BACKWARD}),
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=lambda: missing("jax"),
    # its backward pass rounds the product of output and incoming gradient to 16 bits as well, for
    # which the bound of a fused kernel has room: docs/findings/pallas.md
    profile=Profile(masked_values=MaskedNonfinite.PROPAGATES),
    compiles_each_shape=True,
    deviations=deviations(
        (
            *("gradients-equal-the-definition", "every-gradient-is-within-its-bound"),
            "gradients-in-every-two-regimes-equal-the-definition",
        ),
        reason="in float16 the backward pass multiplies the output and its incoming gradient in"
        " float16, so that gradients are NaN where a product exceeds 65 504 (seen in jax 0.10.2)",
        link="docs/findings/pallas.md#a-difference-in-16-bits",
        applies=overflows,
        example=OVERFLOWING,
    ),
)
