"""Snippets: a failing call as a few lines that need only torch and the implementation."""

import base64
import math
import zlib
from collections.abc import Iterator
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.layouts import is_unaligned
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import RAMPS, level, seed_of, sign, spread
from attnspec.conformance.comparison.violation import Mismatch
from attnspec.spec import CallMode, Case, Values


def snippet(subject: Subject, call: Call, mismatch: Mismatch | None, case: Any = None) -> str:
    """Return code of at most 15 lines that repeats a call.

    The tensors of a small call are literals. Larger tensors are drawn again, with torch alone, or
    stored as compressed bytes.

    Args:
        subject: the subject; its `import_code` line defines `attention`, and its `last_grad` is the
            incoming gradient of the call, if any.
        call: the call that broke the law.
        mismatch: the worst element, for the comment at the end.
        case: the case that the call was drawn from.

    Returns:
        The code; an empty string if a tensor is too large for all of these.
    """
    grad_out, wrt = subject.last_grad or (None, ())
    tensors = call.tensors if grad_out is None else call.tensors | {"grad_out": grad_out}
    is_small = sum(tensor.numel() for tensor in tensors.values()) <= SMALL
    try:
        codes = {
            name: code_of(name, tensor, case, is_literal=is_small)
            for name, tensor in tensors.items()
        }
    except TooLarge:
        return ""
    imports = "import torch"
    if any("base64" in code for code in codes.values()):
        imports = "import base64, zlib, torch"
    lines = [imports, "from torch import inf, nan", subject.import_code, ""]
    for name, code in codes.items():
        lines.append(f"{name} = {code}{'.requires_grad_()' if name in wrt else ''}")
    options = {
        name: name if isinstance(value, torch.Tensor) else repr(value)
        for name, value in call.keywords().items()
    }
    arguments = ["query", "key", "value", *(f"{name}={value}" for name, value in options.items())]
    lines += [line.format(f"out = attention({', '.join(arguments)})") for line in _IN[call.mode]]
    printed = "out"
    if grad_out is not None:
        out = "out[0]" if call.return_lse else "out"
        lines.append(f"gradients = torch.autograd.grad({out}, [{', '.join(wrt)}], grad_out)")
        printed = "gradients"
    comment = ""
    if mismatch is not None:
        where = mismatch.where if mismatch.what == "out" else f"{mismatch.what}, {mismatch.where}"
        comment = f"  # {where}: expected {mismatch.expected}, got {mismatch.got}"
    return "\n".join([*lines, f"print({printed}){comment}"])


_IN: dict[CallMode, tuple[str, ...]] = {
    CallMode.PLAIN: ("{}",),
    CallMode.NO_GRAD: ("with torch.no_grad():", "    {}"),
    CallMode.INFERENCE: ("with torch.inference_mode():", "    {}"),
    CallMode.DEFAULT_FLOAT64: (
        "torch.set_default_dtype(torch.float64)",
        "{}",
        "torch.set_default_dtype(torch.float32)",
    ),
    CallMode.DETERMINISTIC: (
        "torch.use_deterministic_algorithms(True, warn_only=True)",
        "{}",
        "torch.use_deterministic_algorithms(False)",
    ),
}
"""The lines that make a call in a mode."""

SMALL = 400
"""Maximum number of elements of a call whose tensors become literals."""

LONGEST_TEXT = 4000
"""Maximum length of a compressed tensor in characters."""

MOST_PATCHED = 64
"""Maximum number of elements that may differ from those drawn, such as NaNs that a law sets."""

LARGEST_DRAWN = 2**24
"""Maximum number of elements of a tensor that is drawn again for comparison."""

_NAMES = {"torch": torch, "inf": torch.inf, "nan": torch.nan}


class TooLarge(Exception):
    """A tensor is too large for a line of code that people can paste."""


def code_of(name: str, tensor: torch.Tensor, case: Any, *, is_literal: bool) -> str:
    """Return torch code that makes a tensor with the same bits and strides.

    Args:
        name: name of the tensor in the call.
        tensor: on any device.
        case: the case that the call was drawn from, if it is known.
        is_literal: whether the code may contain all numbers.

    Raises:
        TooLarge: if the code would be too long.
    """
    values = tensor.detach().cpu()
    unexpanded = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for size, stride in zip(values.shape, values.stride(), strict=True)
    )
    inner = values[unexpanded]
    if is_literal or inner.numel() <= 8:
        code = _literal(inner)
    else:
        code = _drawn(name, values, unexpanded, case) or _compressed(inner)
    code = _with_strides(code, inner)
    if tensor.device.type != "cpu":
        code += f".to({str(tensor.device)!r})"
    return code if inner.shape == values.shape else f"{code}.expand({tuple(values.shape)})"


def _literal(values: torch.Tensor) -> str:
    if values.numel() == 0:
        return f"torch.empty({tuple(values.shape)}, dtype={values.dtype})"
    return f"torch.tensor({_numbers(values)}, dtype={values.dtype})"


def _numbers(values: torch.Tensor) -> str:
    """Return the numbers as nested lists, with as few digits as give the same bits."""
    if values.dim():
        return f"[{', '.join(map(_numbers, values))}]"
    if values.dtype in (torch.bool, torch.float64):
        return str(values.item())
    exact = values if values.dtype != torch.bfloat16 else values.float()
    return str(exact.numpy())


def _drawn(name: str, values: torch.Tensor, unexpanded: tuple[slice, ...], case: Any) -> str:
    """Return code that draws a tensor again, or "" if no known code draws it."""
    if not isinstance(case, Case) or values.dtype == torch.bool or values.numel() > LARGEST_DRAWN:
        return ""
    index = ", ".join(":1" if part.stop else ":" for part in unexpanded)
    cut = f"[{index}].contiguous()" if any(part.stop for part in unexpanded) else ""
    for source in _sources(name, values, case):
        code = f"({source}){cut}.to({values.dtype})"
        drawn, expected = eval(code, dict(_NAMES)), values[unexpanded]
        if drawn.shape != expected.shape:
            continue
        places = _differs(drawn, expected).flatten().nonzero()[:, 0]
        if not len(places):
            return code
        if len(places) <= MOST_PATCHED:
            numbers = _literal(expected.flatten()[places])
            patch = f".index_copy(0, torch.tensor({places.tolist()}), {numbers})"
            return f"{code}.flatten(){patch}.view({tuple(expected.shape)})"
    return ""


def _sources(name: str, values: torch.Tensor, case: Case) -> Iterator[str]:
    """Yield code, in float64, that may have drawn a tensor of a case, by its family of values."""
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
    if family in RAMPS and name in ("query", "key"):
        high = level(case, RAMPS[family])
        ramp = f"torch.linspace(0, 1, {keys}, dtype=torch.float64)[:, None]"
        first = repr(high) if name == "query" else f"{sign(case) * high!r} * {ramp}"
        yield f"{first} + 0.1 * {normal}"
    if family is Values.ONE_HOT and name == "query":
        yield f"3 * {normal}"
    if family is Values.ONE_HOT and name == "value" and channels:
        eye = f"torch.eye({channels}, dtype=torch.float64)"
        yield f"{eye}[torch.arange({keys}) % {channels}].expand({shape})"
    if family is Values.INTEGERS:
        factor, largest = (4, 8) if name == "value" else (2, 2)
        yield f"{normal}.mul({factor}).round().clamp({-largest}, {largest})"
    if family is Values.TIES and name == "key":
        yield f"{normal}[..., torch.arange({keys}) % {max(1, keys // 4)}, :]"
    if family is Values.CANCELLATION and name == "value":
        ones = f"torch.where(torch.arange({keys}) % 2 == 0, 1.0, -1.0).to(torch.float64)"
        yield f"1000.0 * {ones}[:, None] + {normal}"
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


def _compressed(values: torch.Tensor) -> str:
    """Return code with the compressed bytes of a tensor."""
    bits = values.contiguous().view(torch.uint8) if values.numel() else values
    text = base64.b85encode(zlib.compress(bytes(bits.flatten().tolist()), 9)).decode()
    if len(text) > LONGEST_TEXT:
        raise TooLarge(f"{values.numel()} numbers")
    unpacked = f"zlib.decompress(base64.b85decode({text!r}))"
    shape = tuple(values.shape)
    return f"torch.frombuffer(bytearray({unpacked}), dtype={values.dtype}).view({shape})"


def _with_strides(code: str, values: torch.Tensor) -> str:
    """Extend code so that its tensor has the strides and offset of `values`."""
    if values.is_contiguous() and not is_unaligned(values):
        return code
    if values.dim() > 1 and values.mT.is_contiguous() and not values.is_contiguous():
        return f"{code}.mT.contiguous().mT"
    last = sum(
        (size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True)
    )
    offset = values.storage_offset()
    filler = "True" if values.dtype == torch.bool else "nan"
    memory = f"torch.full(({offset + last + 1},), {filler}, dtype={values.dtype})"
    view = f"{memory}.as_strided({tuple(values.shape)}, {values.stride()}, {offset})"
    return f"{view}.copy_({code})"


def _differs(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Return where the bits of two tensors differ; all NaNs are equal."""
    same = (one == two) & (one.signbit() == two.signbit())
    return ~(same | (one.isnan() & two.isnan()))
