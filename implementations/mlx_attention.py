"""MLX's `mx.fast.scaled_dot_product_attention`, on a CPU."""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch.utils.dlpack import from_dlpack

from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.frameworks import missing
from attnspec.spec import (
    Attention,
    Case,
    CausalAlignment,
    EmptyRow,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)


def _call(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    sinks: Float[torch.Tensor, " heads"] | None = None,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Hand the tensors over by DLPack, call MLX's function, and hand the output back.

    Raises:
        ValueError: for a mask together with `is_causal`: they are one argument of the function.
    """
    import mlx.core as mx

    if attn_mask is not None and is_causal:
        raise ValueError("MLX takes a mask or the causal one, not both")
    given: dict[str, Any] = {}
    if attn_mask is not None:
        given["mask"] = to_mlx(attn_mask)
    elif is_causal:
        given["mask"] = "causal"
    if sinks is not None:
        given["sinks"] = to_mlx(sinks)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    with mx.stream(mx.cpu):
        out = mx.fast.scaled_dot_product_attention(
            *(to_mlx(tensor) for tensor in (query, key, value)), scale=scale, **given
        )
        # MLX computes a result when it is read
        mx.eval(out)
    return from_dlpack(out)


def to_mlx(tensor: torch.Tensor) -> Any:
    """Return an MLX array with the numbers of a tensor."""
    import mlx.core as mx

    return mx.from_dlpack(tensor.detach().contiguous())


def supports(case: Case) -> str | None:
    """Return the reason why MLX refuses a case, or None."""
    if case.mask is not None and case.is_causal:
        return "MLX takes a mask or the causal one, not both"
    if case.d_head == 0 and case.scale is None:
        return "MLX has no default scale"
    return None


IMPLEMENTATION = Implementation(
    name="mlx_attention",
    attention=cast(Attention, from_grouped_shapes(_call)),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.SINKS}),
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=lambda: missing("mlx"),
    profile=Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        empty_row=EmptyRow.MEAN,
        empty_row_float_mask=EmptyRow.NAN,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
)
