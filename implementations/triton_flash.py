"""Flash attention in Triton: the claims of the kernels of `triton_kernels`."""

import os
from importlib.metadata import version
from typing import cast

import numpy as np
import torch
from jaxtyping import Float

from attnspec.implementations.arguments import check
from attnspec.implementations.cuda import ACCUMULATOR, no_device
from attnspec.implementations.frameworks import missing
from attnspec.spec import (
    Attention,
    Case,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
    Rounding,
)

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
"""Whether Triton's interpreter is to run the kernels, on a CPU."""

WIDEST_HEAD = 256
"""Channels that a tile may have, for its memory."""

MOST_PAIRS = 300
"""Pairs of tiles in a call of the interpreter: a pair takes 4 ms, and 12 ms with gradients."""

TILE = 16
"""Queries and keys in one tile of the interpreter."""


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    attn_mask: None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_lse: bool = False,
) -> (
    Float[torch.Tensor, "batch heads queries d_value"]
    | tuple[
        Float[torch.Tensor, "batch heads queries d_value"],
        Float[torch.Tensor, "batch heads queries"],
    ]
):
    """Attend by the kernels.

    Args:
        query: float32, float16 or bfloat16, like key and value.
        key: as many heads as `query`, or with `enable_gqa` a divisor of them.
        value: one row per key.
        attn_mask: must be None.
        dropout_p: must be 0.
        is_causal: a query reads the keys up to its own position.
        scale: multiplies the scores; ``d_head ** -0.5`` by default.
        enable_gqa: let groups of query heads share a key/value head.
        return_lse: return the log-sum-exp too, in float32.

    Raises:
        ValueError: if shapes or types do not fit, or for an option that the kernels do not have.
    """
    check(query, key, value, attn_mask, enable_gqa=enable_gqa)
    if attn_mask is not None:
        raise ValueError("attn_mask must be None: the kernels have no mask but the causal one")
    if dropout_p:
        raise ValueError(f"dropout_p must be 0, got {dropout_p}")
    if query.dtype not in DTYPES:
        raise ValueError(f"query must be float32, float16 or bfloat16, got {query.dtype}")
    d_head, d_value = query.shape[3], value.shape[3]
    if max(d_head, d_value) > WIDEST_HEAD:
        raise ValueError(f"at most {WIDEST_HEAD} channels, got {d_head} and {d_value}")
    # imported here: it needs Triton
    from attnspec.implementations.triton_kernels import FlashAttention

    if scale is None:
        scale = d_head**-0.5 if d_head else 1.0
    results: tuple[torch.Tensor, torch.Tensor] = FlashAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, float(scale), bool(is_causal)
    )
    return results if return_lse else results[0]


def interpreter_fails() -> str | None:
    """Return the reason why Triton's interpreter cannot run loops of kernels, or None.

    Before version 3.7, it converts the bound of a loop, an array with one element, by `int`, which
    NumPy refuses since version 2.4.
    """
    installed = tuple(int(each) for each in version("triton").split(".")[:2])
    if installed >= (3, 7):
        return None
    try:
        int(np.zeros(1))
    except TypeError:
        return (
            f"the interpreter of Triton {version('triton')} fails in loops with NumPy "
            f"{np.__version__}: install triton>=3.7"
        )
    return None


def without_triton() -> str | None:
    """Return the reason why no kernel can run on this machine, or None."""
    without_device = no_device()
    if missing("triton") or IS_INTERPRETED or without_device is None:
        return missing("triton")
    return f"{without_device}, and TRITON_INTERPRET=1 is not set"


def unavailable() -> str | None:
    """Return the reason why the kernels cannot run on this machine, or None."""
    return without_triton() or (interpreter_fails() if IS_INTERPRETED else None)


def supports(case: Case) -> str | None:
    """Return the reason why the kernels refuse a case, or None."""
    if max(case.d_head, case.d_value) > WIDEST_HEAD:
        return f"a tile holds at most {WIDEST_HEAD} channels"
    pairs = case.batch * case.heads * -(-case.queries // TILE) * -(-case.keys // TILE)
    if IS_INTERPRETED and pairs > MOST_PAIRS:
        return f"the interpreter would take {pairs} pairs of tiles, more than {MOST_PAIRS}"
    return None


DTYPES = (torch.float32, torch.float16, torch.bfloat16)

IMPLEMENTATION = Implementation(
    name="triton_flash",
    attention=cast(Attention, attention),
    features=frozenset(
        {Feature.CAUSAL, Feature.GQA, Feature.LSE, Feature.BACKWARD, Feature.VALIDATES}
    ),
    dtypes=DTYPES,
    devices=("cpu",) if IS_INTERPRETED else ("cuda",),
    supports=supports,
    unavailable=unavailable,
    profile=Profile(
        # 0 · NaN is NaN: a weight of zero does not block NaN in a value.
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(accumulator=None if IS_INTERPRETED else ACCUMULATOR),
    ),
)
