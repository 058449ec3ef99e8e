"""Calls for the soundness of the error bound: random sizes and features, difficult values."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.attention.call import Call

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
    "subnormal gradients",
    "large values",
)
"""Families of values of the tensors of a call."""

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class DrawnCall:
    """A call, an incoming gradient and the name of the family of values."""

    call: Call
    grad: torch.Tensor
    family: str


class _Choices:
    """A source of random choices that follow from a seed, the same on every machine."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def choose(self, *options: Any) -> Any:
        """Choose an option, each with equal probability."""
        return options[int(torch.randint(len(options), (), generator=self.generator))]

    def length(self, longest: int) -> int:
        """Draw a length from 1 to `longest`, uniform in its logarithm."""
        return round(math.exp(math.log(longest) * float(self.uniform())))

    def normal(self, *shape: int) -> torch.Tensor:
        """Draw standard normal numbers."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Draw uniform numbers from 0 to 1."""
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)


def draw_call(seed: int, dtype: torch.dtype, longest: int = 160) -> DrawnCall:
    """Draw a call, the same for the same seed on every machine.

    Args:
        seed: any number.
        dtype: the storage type.
        longest: the largest number of keys; lengths are uniform in their logarithm.
    """
    choices = _Choices(seed)
    choose = choices.choose
    batch, group, kv_heads = choose(1, 1, 2), choose(1, 1, 1, 2, 3, 16), choose(1, 2)
    keys = choices.length(longest)
    queries = choose(keys, choices.length(min(longest, 4 * keys)))
    d_head = choose(1, 2, 3, 8, 16, 17, 32, 64, 96)
    d_value = choose(d_head, d_head, d_head, 1, 5, 33)
    heads = group * kv_heads
    family = choose(*FAMILIES)
    normals = (
        choices.normal(batch, heads, queries, d_head),
        choices.normal(batch, kv_heads, keys, d_head),
        choices.normal(batch, kv_heads, keys, d_value),
        choices.normal(batch, heads, queries, d_value),
    )
    query, key, value, grad = _contents(choices, family, dtype, *normals)
    mask = _mask(choices, (batch, heads, queries, keys))
    largest = 6e4 if dtype == torch.float16 else torch.finfo(dtype).max

    def store(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clamp(-largest, largest).to(dtype)

    # every other call needs no option that a plain library function lacks
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
        sinks=store(choose(1, 5) * choices.normal(heads))
        if extra and choose(False, True)
        else None,
        alibi_slopes=choices.uniform(heads).to(slopes_type)
        if extra and choose(False, True)
        else None,
        return_lse=True,
    )
    return DrawnCall(call=call, grad=store(grad), family=family)


def _contents(
    choices: _Choices,
    family: str,
    dtype: torch.dtype,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
) -> Tensors:
    """Transform normal numbers into the tensors of a family."""
    keys, d_head, d_value = k.shape[2], k.shape[3], v.shape[3]
    position = torch.arange(keys)
    match family:
        case "small":
            q, k, v, grad = q * 1e-3, k * 1e-3, v * 1e-3, grad * 1e-3
        case "wide":
            a, b, c, d = (10 ** (4.5 * choices.uniform(4) - 3)).unbind()
            q, k, v, grad = q * a, k * b, v * c, grad * d
        case "peaked":
            q = q * 5
        case "huge scores":
            q, k = q * 300**0.5, k * 300**0.5
        case "offset scores":
            q, k = q + choices.choose(-1, 1) * 120 / d_head**0.5, k + 1
        case "growing scores":
            ramp = 6 * (position + 1)[:, None] / keys
            q, k = q * 0.1 + 6 / d_head**0.25, k * 0.1 + ramp / d_head**0.25
        case "tied keys":
            distinct = max(1, keys // 8)
            k = k[:, :, torch.randint(distinct, (keys,), generator=choices.generator)]
        case "flat scores":
            q = q * 0
        case "cancelling values":
            v = 1000 * torch.where(position % 2 == 0, 1.0, -1.0)[:, None] + 0.1 * v
        case "offset values":
            v = v + 100
        case "one-hot values":
            v = torch.zeros_like(v)
            v[:, :, position, 7 * position % d_value] = 1.0
        case "spiked values":
            v[:, :, :: max(2, keys // 3)] *= 1000
        case "powers of two":
            rare = choices.uniform(*v.shape) < min(0.5, 4 / keys)
            v = rare.double() * 2.0 ** choices.choose(-3, 0, 3)
        case "subnormal values":
            v = v * (torch.finfo(dtype).smallest_normal / 4)
        case "subnormal gradients":
            grad = grad * (torch.finfo(dtype).smallest_normal / 4)
        case "large values":
            v = v * (torch.finfo(dtype).max / (4096 if dtype == torch.float16 else 1e6))
    return q, k, v, grad


def _mask(choices: _Choices, whole: tuple[int, int, int, int]) -> torch.Tensor | None:
    """Draw a mask of random kind and shape, or none; some rows may be empty."""
    batch, _, queries, keys = whole
    kind = choices.choose(None, None, "bool", "padding", "float", "bias", "bias")
    shape = choices.choose(whole, whole[2:], (1, 1, queries, keys), (batch, 1, 1, keys), whole[1:])
    if kind is None:
        return None
    if kind == "bias":
        return torch.mul(choices.normal(*shape), choices.choose(0.5, 3, 20))
    visible: torch.Tensor = choices.uniform(*shape) < choices.choose(0.2, 0.7)
    if kind == "padding":
        visible = (torch.arange(keys) < max(1, keys * 2 // 3)).expand(shape)
    if kind == "float":
        return choices.normal(*shape).masked_fill(~visible, -math.inf)
    return visible
