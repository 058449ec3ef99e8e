"""Code of drawings: the formulas that draw the tensors of a case, in torch alone."""

import math
from collections.abc import Iterator

import torch

from attnspec.conformance.attention.inputs import attention_mask
from attnspec.conformance.attention.values import (
    FAR,
    PERIOD,
    RAMPS,
    common_score,
    level,
    needle_factor,
    seed_of,
    sign,
    spread,
    uneven,
)
from attnspec.spec import Case, MaskKind, MaskPattern, MaskShape, Values
from attnspec.spec.case import BIASES


def drawings_of(name: str, shape: tuple[int, ...], case: Case) -> Iterator[str]:
    """Yield torch code that may have drawn a tensor of a case, before rounding to its dtype.

    Args:
        name: the tensor's name in the call.
        shape: its shape.
        case: the case that the call was drawn from.
    """
    if name == "attn_mask":
        yield from _masks(case)
        return
    normal = _normal(case, name, shape)
    yield normal
    if len(shape) != 4:
        return
    keys, channels = shape[-2:]
    family = case.values
    if family is Values.PEAKED and name == "query":
        yield f"4 * {normal}"
    if family in FAR and name in ("query", "key"):
        middle, noise = spread(case, common_score(case))[0 if name == "query" else 1]
        yield f"{middle!r} + {noise!r} * {normal}"
    if family in RAMPS and name in ("query", "key"):
        high = level(case, RAMPS[family])
        ramp = f"torch.linspace(0, 1, {keys}, dtype=torch.float64)[:, None]"
        first = repr(high) if name == "query" else f"{sign(case) * high!r} * {ramp}"
        yield f"{first} + 0.1 * {normal}"
    if family is Values.ONE_HOT and name == "query":
        yield f"3 * {normal}"
    if family is Values.ONE_HOT and name == "value" and channels:
        eye = f"torch.eye({channels}, dtype=torch.float64)"
        yield f"{eye}[torch.arange({keys}) % {channels}].expand({shape}).contiguous()"
    if family is Values.INTEGERS:
        factor, largest = (4, 8) if name == "value" else (2, 2)
        yield f"{normal}.mul({factor}).round().clamp({-largest}, {largest})"
    if family is Values.TIES and name == "key":
        yield f"{normal}[..., torch.arange({keys}) % {max(1, keys // 4)}, :]"
    if family is Values.CANCELLATION and name == "value":
        ones = f"torch.where(torch.arange({keys}) % 2 == 0, 1.0, -1.0).to(torch.float64)"
        yield f"1000.0 * {ones}[:, None] + {normal}"
    if family is Values.NEEDLES and name == "query":
        yield f"{_needles(case)} + 0.05 * {normal}"
    if family is Values.UNEVEN and name == "query":
        yield f"{uneven(case)[0]} * ({_needles(case)} + 0.05 * {normal})"
    if family is Values.UNEVEN and name == "key":
        yield f"{uneven(case)[1]} * {normal}"
    if family is Values.TINY:
        yield f"1e-3 * {normal}"
    if family is Values.PLATEAU and name in ("query", "key"):
        high = level(case, math.log(max(case.keys, 2)))
        peak = f"(torch.arange({keys}) == {keys // 3})[:, None] * {sign(case) * high!r}"
        yield f"{high!r} + 0.01 * {normal}" if name == "query" else f"0.01 * {normal} + {peak}"
    if family is Values.POSITIVE and name == "value":
        yield f"32 + 8 * {normal}.abs()"
    if family is Values.DENORMAL and name == "value":
        yield f"{normal} * {torch.finfo(case.dtype).smallest_normal / 8!r}"


def _needles(case: Case) -> str:
    """Return the code of the keys that the queries of a case point at, times their factor."""
    queries, keys, shape = case.queries, case.keys, (case.heads, case.queries)
    keys_drawn = _normal(case, "key", (case.batch, case.kv_heads, keys, case.d_head))
    head = f"torch.arange({case.heads})[:, None] // {max(1, case.heads // max(1, case.kv_heads))}"
    generator = f"torch.Generator().manual_seed({seed_of(case.seed, 'needles')})"
    places = f"0 * i, 0 * i + {keys - 1}, i, i + 1, i + {keys - queries}, i + {keys - queries + 1}"
    needles = (
        f"(r := torch.randint({8 * max(keys, 1)}, {shape}, generator={generator}), "
        f"i := torch.arange({queries}).expand({shape}), "
        f"torch.stack([{places}, i // 64 * 64 - 1, r // 8])"
        f".gather(0, r[None] % 8)[0].clamp(0, {max(keys - 1, 0)}))[-1]"
    )
    return f"{needle_factor(case)!r} * {keys_drawn}[:, {head}, {needles}]"


def _normal(case: Case, purpose: str, shape: tuple[int, ...]) -> str:
    generator = f"torch.Generator().manual_seed({seed_of(case.seed, purpose)})"
    numbers = math.prod(shape)
    if numbers <= PERIOD:
        return f"torch.randn({shape}, generator={generator}, dtype=torch.float64)"
    drawn = f"torch.randn({PERIOD}, generator={generator}, dtype=torch.float64)"
    return f"{drawn}.repeat({-(-numbers // PERIOD)})[:{numbers}].view({shape})"


_CUTS = {
    MaskShape.FULL: "",
    MaskShape.HEADS: "[:1]",
    MaskShape.BATCH: "[:, :1]",
    MaskShape.KEYS: "[:, :1, :1]",
    MaskShape.KEYS_OF_HEADS: "[:, :, :1]",
    MaskShape.QUERIES: "[:, :1].any(-1, keepdim=True)",
    MaskShape.RANK_3: "[0]",
    MaskShape.RANK_2: "[0, 0]",
}
"""Code that cuts a mask out of one of shape (batch, heads, queries, keys)."""


def _masks(case: Case) -> Iterator[str]:
    """Yield the code of the mask of a case: bool, or a bias with minus infinity at hidden keys."""
    mask = case.mask
    if mask is None:
        return
    full = (max(case.batch, 1), max(case.heads, 1), case.queries, case.keys)
    visible = f"({_visible(case, mask.pattern, full)}).expand({full}){_CUTS[mask.shape]}"
    if mask.kind is MaskKind.BOOL:
        yield f"{visible}.contiguous()"
        return
    shape = tuple(attention_mask(case, mask).shape)
    bias = f"torch.zeros({shape})"
    if mask.pattern in BIASES:
        bias = f"(2 * {_normal(case, 'bias', shape)})"
    if mask.pattern is MaskPattern.LARGE_BIAS:
        yield f"25 * ({bias} + 2 * {bias}.sign())"
        return
    hides = mask.pattern is not MaskPattern.BIAS
    yield f"{bias}.masked_fill(~({visible}), -inf)" if hides else bias


def _visible(case: Case, pattern: MaskPattern, full: tuple[int, ...]) -> str:
    """Return the code of the keys that queries may read, broadcastable to the full shape."""
    batch, _, queries, keys = full
    query, key = f"torch.arange({queries})[:, None]", f"torch.arange({keys})"
    generator = f"torch.Generator().manual_seed({seed_of(case.seed, 'mask')})"
    drawn = f"(torch.rand({full}, generator={generator}) < 0.7)"
    element = f"torch.arange({batch})[:, None, None, None]"
    hidden = f"1 + ({element} + {case.seed}) % {max(keys - 1, 1)}"
    length, third = 2 + case.seed % 3, keys // 3
    return {
        MaskPattern.BIAS: "torch.tensor(True)",
        MaskPattern.LARGE_BIAS: "torch.tensor(True)",
        MaskPattern.CAUSAL: f"{key} <= {query}",
        MaskPattern.PADDING: f"{key} < {keys} - ({hidden})",
        MaskPattern.LEFT_PADDING: f"{key} >= {hidden}",
        MaskPattern.DOCUMENTS: f"{query} // {length} == {key} // {length}",
        MaskPattern.MIDDLE: f"({key} < {third}) | ({key} >= {keys - third}) | ({third} == 0)",
        MaskPattern.ELEMENT: f"{element} > 0",
        MaskPattern.RANDOM: f"{drawn} | ({key} == {query} % {max(keys, 1)})",
        MaskPattern.BIASED: f"{drawn} | ({key} == {query} % {max(keys, 1)})",
        MaskPattern.EMPTY_ROWS: f"{drawn} & ({query} % 3 != 0)",
        MaskPattern.HALF: f"(({key} >= {keys // 2}) == ({element} % 2 == 0)) | ({keys} == 1)",
    }[pattern]
