"""Kernels that take bool and float masks by different parameters, or in full rank alone."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.parameters import limited, options, require


def from_mask_routing(
    kernel: Callable[..., Any],
    *,
    bool_mask: str | None = None,
    float_mask: str | None = None,
    true_hides: bool = False,
    is_expanded: bool = False,
) -> Callable[..., Any]:
    """Adapt a kernel that takes masks of one kind, or of each kind by a parameter of its own.

    Args:
        kernel: takes query, key and value as the contract does, and options by keyword.
        bool_mask: the kernel's name of a bool mask; `None` if it takes none.
        float_mask: the kernel's name of a mask that is added to the scores; `None` likewise. It may
            be the same name.
        true_hides: true if a true element of the kernel's bool mask hides a key.
        is_expanded: true if the kernel takes masks (batch, heads, queries, keys) alone. Otherwise
            a mask has rank 4, and axes of size 1 broadcast.

    Returns:
        An attention of the contract with the kernel's options and `attn_mask`, which raises
        `TypeError` for a mask of a kind that the kernel does not take.

    Raises:
        TypeError: if the kernel has no such parameter, or if no name is given.
    """
    names = {name for name in (bool_mask, float_mask) if name is not None}
    if not names:
        raise TypeError("give bool_mask, float_mask, or both")
    require(kernel, *names)

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
        **given: Any,
    ) -> Any:
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            name = bool_mask if is_bool else float_mask
            if name is None:
                raise TypeError(f"the kernel takes no mask of {attn_mask.dtype}")
            mask = of_rank_4(attn_mask)
            if is_expanded:
                mask = mask.expand(*query.shape[:3], key.shape[2])
            given[name] = ~mask if is_bool and true_hides else mask
        return kernel(query, key, value, **given)

    return limited(attention, options(kernel) - names | {"attn_mask"}, kernel)


def of_rank_4(mask: torch.Tensor) -> torch.Tensor:
    """Return a view of a mask with leading axes of size 1 up to rank 4."""
    return mask[(None,) * (4 - mask.dim())]
