"""Tensors in snippets: written out, drawn again as the case draws them, or packed.

Each way is tried on the tensor at hand, and taken only where it gives the same bits.
"""

import base64
import zlib
from collections.abc import Iterator
from typing import Any

import torch

from attnspec.conformance.values import level, seed_of, sign, spread
from attnspec.spec import Case, Values

SPELLED = 400
"""Numbers that a snippet spells out at most."""

PACKED = 4000
"""Letters that a packed tensor may take."""

PATCHED = 64
"""Numbers that may differ from those drawn, as where a law poisons some."""

LONGEST = 2**24
"""Numbers of the largest tensor that is drawn again to compare it."""

_NAMES = {"torch": torch, "inf": torch.inf, "nan": torch.nan}


class TooLarge(Exception):
    """A tensor that cannot be written in a line that anybody would paste."""


def code_of(name: str, tensor: torch.Tensor, case: Any, *, spell: bool) -> str:
    """Torch code that gives a tensor, its bits and its strides.

    Args:
        name: what the call calls it.
        tensor: on any device.
        case: that the call was drawn from, as far as that is known.
        spell: whether its numbers may be written out.

    Raises:
        TooLarge: where no way is short enough.
    """
    values = tensor.detach().cpu()
    once = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for size, stride in zip(values.shape, values.stride(), strict=True)
    )
    inner = values[once]
    if spell or inner.numel() <= 8:
        code = _spelled(inner)
    else:
        code = _drawn(name, values, once, case) or _packed(inner)
    code = _laid_out(code, inner)
    if tensor.device.type != "cpu":
        code += f".to({str(tensor.device)!r})"
    return code if inner.shape == values.shape else f"{code}.expand({tuple(values.shape)})"


def _spelled(values: torch.Tensor) -> str:
    if values.numel() == 0:
        return f"torch.empty({tuple(values.shape)}, dtype={values.dtype})"
    return f"torch.tensor({_numbers(values)}, dtype={values.dtype})"


def _numbers(values: torch.Tensor) -> str:
    """The numbers as nested lists, with no more digits than it takes to get the same bits."""
    if values.dim():
        return f"[{', '.join(map(_numbers, values))}]"
    if values.dtype in (torch.bool, torch.float64):
        return str(values.item())
    exact = values if values.dtype != torch.bfloat16 else values.float()
    return str(exact.numpy())


def _drawn(name: str, values: torch.Tensor, once: tuple[slice, ...], case: Any) -> str:
    """Code that draws a tensor again; nothing where none of the ways in use drew it."""
    if not isinstance(case, Case) or values.dtype == torch.bool or values.numel() > LONGEST:
        return ""
    index = ", ".join(":1" if each.stop else ":" for each in once)
    cut = f"[{index}].contiguous()" if any(each.stop for each in once) else ""
    for source in _sources(name, values, case):
        code = f"({source}){cut}.to({values.dtype})"
        found, wanted = eval(code, dict(_NAMES)), values[once]
        if found.shape != wanted.shape:
            continue
        places = _differs(found, wanted).flatten().nonzero()[:, 0]
        if not len(places):
            return code
        if len(places) <= PATCHED:
            numbers = _spelled(wanted.flatten()[places])
            patch = f".index_copy(0, torch.tensor({places.tolist()}), {numbers})"
            return f"{code}.flatten(){patch}.view({tuple(wanted.shape)})"
    return ""


def _sources(name: str, values: torch.Tensor, case: Case) -> Iterator[str]:
    """What may have drawn a tensor of a case, in float64: the family of its values, then others."""
    shape = tuple(values.shape)
    seed = seed_of(case.seed, name)
    generator = f"torch.Generator().manual_seed({seed})"
    normal = f"torch.randn({shape}, generator={generator}, dtype=torch.float64)"
    yield normal
    if len(shape) != 4:
        return
    keys, channels = shape[-2:]
    family = case.values
    if family is Values.PEAKED and name == "query":
        yield f"4 * {normal}"
    if family in (Values.NEGATIVE, Values.OFFSET) and name in ("query", "key"):
        score = -60.0
        if family is Values.OFFSET:
            far = 800.0 if case.dtype == torch.float64 else 120.0
            score = far if case.seed % 2 == 0 else -far
        middle, noise = spread(case, score)[0 if name == "query" else 1]
        yield f"{middle!r} + {noise!r} * {normal}"
    if family is Values.GROWING and name in ("query", "key"):
        high = level(case, 40.0)
        ramp = f"torch.linspace(0, 1, {keys}, dtype=torch.float64)[:, None]"
        first = repr(high) if name == "query" else f"{sign(case) * high!r} * {ramp}"
        yield f"{first} + 0.1 * {normal}"
    if family is Values.ONE_HOT and name == "query":
        yield f"3 * {normal}"
    if family is Values.ONE_HOT and name == "value" and channels:
        eye = f"torch.eye({channels}, dtype=torch.float64)"
        yield f"{eye}[torch.arange({keys}) % {channels}].expand({shape})"
    if family is Values.INTEGERS:
        by, most = (4, 8) if name == "value" else (2, 2)
        yield f"{normal}.mul({by}).round().clamp({-most}, {most})"
    if family is Values.TIES and name == "key":
        yield f"{normal}[..., torch.arange({keys}) % {max(1, keys // 4)}, :]"
    if family is Values.CANCELLATION and name == "value":
        ones = f"torch.where(torch.arange({keys}) % 2 == 0, 1.0, -1.0).to(torch.float64)"
        yield f"1000.0 * {ones}[:, None] + {normal}"
    if family is Values.TINY:
        yield f"1e-3 * {normal}"
    if family is Values.DENORMAL and name == "value":
        yield f"{normal} * {torch.finfo(case.dtype).smallest_normal / 8!r}"


def _packed(values: torch.Tensor) -> str:
    """The bytes of a tensor, compressed."""
    bits = values.contiguous().view(torch.uint8) if values.numel() else values
    packed = base64.b85encode(zlib.compress(bytes(bits.flatten().tolist()), 9)).decode()
    if len(packed) > PACKED:
        raise TooLarge(f"{values.numel()} numbers")
    unpacked = f"zlib.decompress(base64.b85decode({packed!r}))"
    shape = tuple(values.shape)
    return f"torch.frombuffer(bytearray({unpacked}), dtype={values.dtype}).view({shape})"


def _laid_out(code: str, values: torch.Tensor) -> str:
    """The same numbers at other strides, where those are not the usual ones."""
    if values.is_contiguous() and values.storage_offset() == 0:
        return code
    if values.dim() > 1 and values.mT.is_contiguous():
        return f"{code}.mT.contiguous().mT"
    if values.is_contiguous():
        return code
    reach = sum(
        (size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True)
    )
    offset = values.storage_offset()
    between = "True" if values.dtype == torch.bool else "nan"
    memory = f"torch.full(({offset + reach + 1},), {between}, dtype={values.dtype})"
    view = f"{memory}.as_strided({tuple(values.shape)}, {values.stride()}, {offset})"
    return f"{view}.copy_({code})"


def _differs(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Where two tensors do not have the same bits, but for the bits of a NaN."""
    same = (one == two) & (one.signbit() == two.signbit())
    return ~(same | (one.isnan() & two.isnan()))
