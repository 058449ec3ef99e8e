"""Calls with which the error bound is tried: random sizes and features, nasty contents."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.call import Call

FAMILIES = (
    "normal",
    "small",
    "wide",
    "peaked",
    "huge scores",
    "offset scores",
    "growing scores",
    "tied keys",
    "flat scores",
    "cancelling values",
    "offset values",
    "one-hot values",
    "spiked values",
    "powers of two",
    "subnormal values",
    "large values",
)
"""What the tensors of a call hold."""

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A call, an incoming gradient, and the name of its family."""

    call: Call
    grad: torch.Tensor
    family: str


class _Dice:
    """Random choices that follow from a seed, the same on every machine."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def choose(self, *options: Any) -> Any:
        return options[int(torch.randint(len(options), (), generator=self.generator))]

    def length(self, most: int) -> int:
        """A length from 1 to `most`, spread evenly by its logarithm."""
        return round(math.exp(math.log(most) * float(self.uniform())))

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)


def draw_call(seed: int, dtype: torch.dtype, longest: int = 160) -> Drawn:
    """Draw a call: the same for the same seed on every machine.

    Args:
        seed: any number.
        dtype: the storage type.
        longest: the largest number of keys; lengths are spread evenly by their logarithm.
    """
    dice = _Dice(seed)
    choose = dice.choose
    batch, group, kv_heads = choose(1, 1, 2), choose(1, 1, 1, 2, 3), choose(1, 2)
    keys = dice.length(longest)
    queries = choose(keys, dice.length(min(longest, 4 * keys)))
    d_head = choose(1, 2, 3, 8, 16, 17, 32, 64, 96)
    d_value = choose(d_head, d_head, d_head, 1, 5, 33)
    heads = group * kv_heads
    family = choose(*FAMILIES)
    normals = (
        dice.normal(batch, heads, queries, d_head),
        dice.normal(batch, kv_heads, keys, d_head),
        dice.normal(batch, kv_heads, keys, d_value),
        dice.normal(batch, heads, queries, d_value),
    )
    query, key, value, grad = _contents(dice, family, dtype, *normals)
    mask = _mask(dice, (batch, heads, queries, keys))
    largest = 6e4 if dtype == torch.float16 else torch.finfo(dtype).max

    def store(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clamp(-largest, largest).to(dtype)

    # every other call asks for nothing that a plain library function lacks
    extra = choose(False, True)
    slopes_type = dtype if dtype == torch.float64 else torch.float32
    call = Call(
        query=store(query),
        key=store(key),
        value=store(value),
        attn_mask=mask if mask is None or mask.dtype == torch.bool else mask.to(dtype),
        is_causal=choose(False, False, True),
        scale=choose(None, None, None, 1 / d_head**0.5, 0.3, -0.2, 0.0),
        window=choose(None, None, (3, 3), (keys // 2, None), (None, 0)) if extra else None,
        softcap=choose(None, None, 2.0, 20.0) if extra else None,
        sinks=store(choose(1, 5) * dice.normal(heads)) if extra and choose(False, True) else None,
        alibi_slopes=dice.uniform(heads).to(slopes_type) if extra and choose(False, True) else None,
        return_lse=True,
    )
    return Drawn(call=call, grad=store(grad), family=family)


def _contents(
    dice: _Dice,
    family: str,
    dtype: torch.dtype,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
) -> Tensors:
    """Make the tensors of a family out of normal numbers."""
    keys, d_head, d_value = k.shape[2], k.shape[3], v.shape[3]
    place = torch.arange(keys)
    match family:
        case "small":
            q, k, v, grad = q * 1e-3, k * 1e-3, v * 1e-3, grad * 1e-3
        case "wide":
            a, b, c, d = (10 ** (4.5 * dice.uniform(4) - 3)).unbind()
            q, k, v, grad = q * a, k * b, v * c, grad * d
        case "peaked":
            q = q * 5
        case "huge scores":
            q, k = q * 300**0.5, k * 300**0.5
        case "offset scores":
            q, k = q + dice.choose(-1, 1) * 120 / d_head**0.5, k + 1
        case "growing scores":
            ramp = 6 * (place + 1)[:, None] / keys
            q, k = q * 0.1 + 6 / d_head**0.25, k * 0.1 + ramp / d_head**0.25
        case "tied keys":
            distinct = max(1, keys // 8)
            k = k[:, :, torch.randint(distinct, (keys,), generator=dice.generator)]
        case "flat scores":
            q = q * 0
        case "cancelling values":
            v = 1000 * torch.where(place % 2 == 0, 1.0, -1.0)[:, None] + 0.1 * v
        case "offset values":
            v = v + 100
        case "one-hot values":
            v = torch.zeros_like(v)
            v[:, :, place, 7 * place % d_value] = 1.0
        case "spiked values":
            v[:, :, :: max(2, keys // 3)] *= 1000
        case "powers of two":
            rare = dice.uniform(*v.shape) < min(0.5, 4 / keys)
            v = rare.double() * 2.0 ** dice.choose(-3, 0, 3)
        case "subnormal values":
            v = v * (torch.finfo(dtype).smallest_normal / 4)
        case "large values":
            v = v * (torch.finfo(dtype).max / (4096 if dtype == torch.float16 else 1e6))
    return q, k, v, grad


def _mask(dice: _Dice, whole: tuple[int, int, int, int]) -> torch.Tensor | None:
    """A mask of some kind, broadcast along some axes; some rows of some masks are empty."""
    batch, _, queries, keys = whole
    kind = dice.choose(None, None, "bool", "padding", "float", "bias", "bias")
    shape = dice.choose(whole, whole[2:], (1, 1, queries, keys), (batch, 1, 1, keys), whole[1:])
    if kind is None:
        return None
    if kind == "bias":
        return torch.mul(dice.normal(*shape), dice.choose(0.5, 3, 20))
    seen: torch.Tensor = dice.uniform(*shape) < dice.choose(0.2, 0.7)
    if kind == "padding":
        seen = (torch.arange(keys) < max(1, keys * 2 // 3)).expand(shape)
    if kind == "float":
        return dice.normal(*shape).masked_fill(~seen, -math.inf)
    return seen
