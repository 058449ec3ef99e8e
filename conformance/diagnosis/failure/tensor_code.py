"""Code of tensors: torch expressions that make a tensor again, bit by bit, for people to read."""

import math
from typing import Any

import torch

from attnspec.conformance.attention.layouts import is_unaligned
from attnspec.conformance.diagnosis.failure.drawing_code import drawings_of
from attnspec.spec import Case

MOST_WRITTEN = 200
"""Maximum number of elements, or of rows, that a line of code lists."""

MOST_PATCHED = 64
"""Maximum number of elements that may differ from those drawn, such as NaNs that a law sets."""

LARGEST_DRAWN = 2**24
"""Maximum number of elements of a tensor that is drawn again for comparison."""

_NAMES = {"torch": torch, "inf": torch.inf, "nan": torch.nan}


class TooLarge(Exception):
    """A tensor is too large to be written out, and no known code draws it."""


def code_of(name: str, tensor: torch.Tensor, case: Any, *, is_literal: bool) -> str:
    """Return readable torch code that makes a tensor with the same bits and strides.

    Its numbers are written out, or drawn again by the formula of the case, with the elements that
    a law has changed, or in the order of rows in which a law has put them.

    Args:
        name: name of the tensor in the call.
        tensor: on any device.
        case: the case that the call was drawn from, if it is known.
        is_literal: whether the code may contain all numbers.

    Raises:
        TooLarge: if none of these is possible.
    """
    values = tensor.detach().cpu()
    unexpanded = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for size, stride in zip(values.shape, values.stride(), strict=True)
    )
    inner = values[unexpanded]
    if is_literal or inner.numel() <= 8:
        code = literal(inner)
    else:
        code = _drawn(name, values, unexpanded, case) or _rows(name, inner, case)
        code = code or _repeated(inner)
    code = _with_strides(code, inner)
    if tensor.device.type != "cpu":
        code += f".to({str(tensor.device)!r})"
    return code if inner.shape == values.shape else f"{code}.expand({tuple(values.shape)})"


def literal(values: torch.Tensor) -> str:
    """Return code with all numbers of a tensor, whatever its size."""
    if values.numel() == 0:
        return f"torch.empty({tuple(values.shape)}, dtype={values.dtype})"
    dtype = "" if values.dtype == torch.int64 else f", dtype={values.dtype}"
    return f"torch.tensor({_numbers(values)}{dtype})"


def _numbers(values: torch.Tensor) -> str:
    """Return the numbers as nested lists, with as few digits as give the same bits."""
    if values.dim():
        return f"[{', '.join(map(_numbers, values))}]"
    if values.dtype in (torch.bool, torch.float64) or not values.is_floating_point():
        return str(values.item())
    number = values.item()
    if values.dtype != torch.bfloat16 or number == 0:
        return str(number if number == 0 else values.numpy())
    texts = (f"{number:.{digits}g}" for digits in range(1, 10))
    return next(
        (text for text in texts if torch.tensor(float(text), dtype=values.dtype) == values),
        str(number),
    )


def _drawn(name: str, values: torch.Tensor, unexpanded: tuple[slice, ...], case: Any) -> str:
    """Return code that draws a tensor again, or "" if no known code draws it."""
    if not isinstance(case, Case) or values.numel() > LARGEST_DRAWN:
        return ""
    index = ", ".join(":1" if part.stop else ":" for part in unexpanded)
    cut = f"[{index}].contiguous()" if any(part.stop for part in unexpanded) else ""
    for source in drawings_of(name, tuple(values.shape), case):
        whole = eval(source, dict(_NAMES))
        if whole.dim() != values.dim():
            continue  # a law has expanded a mask of lower rank
        code = f"({source}){cut}.to({values.dtype})"
        drawn, expected = whole[unexpanded].to(values.dtype), values[unexpanded]
        if drawn.shape != expected.shape:
            continue
        places = _differs(drawn, expected).flatten().nonzero()[:, 0]
        if not len(places):
            return code
        if len(places) <= MOST_PATCHED:
            numbers = literal(expected.flatten()[places])
            patch = f".index_copy(0, torch.tensor({places.tolist()}), {numbers})"
            return f"{code}.flatten(){patch}.view({tuple(expected.shape)})"
    return ""


def _rows(name: str, values: torch.Tensor, case: Any) -> str:
    """Return code that takes rows of a drawn tensor, or "" if they are not all among them.

    A law may permute, repeat or leave out the heads, queries or keys of a call.
    """
    if not isinstance(case, Case) or values.dim() != 4 or name not in ("query", "key", "value"):
        return ""
    shape = {
        "query": (case.batch, case.heads, case.queries, case.d_head),
        "key": (case.batch, case.kv_heads, case.keys, case.d_head),
        "value": (case.batch, case.kv_heads, case.keys, case.d_value),
    }[name]
    rows = values.flatten(0, 2)
    if len(rows) > MOST_WRITTEN or rows.shape[1] != shape[-1] or not math.prod(shape):
        return ""
    for source in drawings_of(name, shape, case):
        code = f"({source}).to({values.dtype}).flatten(0, 2)"
        places = {tuple(row): place for place, row in enumerate(eval(code, dict(_NAMES)).tolist())}
        found = [places.get(tuple(row), -1) for row in rows.tolist()]
        if min(found) >= 0:
            return f"{code}[{found}].view({tuple(values.shape)})"
    return ""


def _repeated(values: torch.Tensor) -> str:
    """Return code that writes out a tensor without the axes along which it is constant.

    Raises:
        TooLarge: if that leaves too many numbers.
    """
    part = values
    for axis in range(values.dim()):
        first = part.narrow(axis, 0, 1)
        if not bool(_differs(part, first.expand_as(part)).any()):
            part = first
    if part.numel() > MOST_WRITTEN:
        raise TooLarge(f"{values.numel()} numbers")
    code = literal(part)
    shape = tuple(values.shape)
    return code if part.shape == values.shape else f"{code}.expand({shape}).contiguous()"


LARGEST_FILLED = 2**24
"""Numbers between those of a tensor that a snippet fills; more take gigabytes."""


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
    length = offset + last + 1
    filler = "nan" if values.is_floating_point() else "True"
    memory = f"torch.full(({length},), {filler}, dtype={values.dtype})"
    if length > LARGEST_FILLED:
        memory = f"torch.empty({length}, dtype={values.dtype})"  # memory that nothing touches
    view = f"{memory}.as_strided({tuple(values.shape)}, {values.stride()}, {offset})"
    return f"{view}.copy_({code})"


def _differs(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Return where the bits of two tensors differ; all NaNs are equal."""
    same = (one == two) & (one.signbit() == two.signbit())
    return ~(same | (one.isnan() & two.isnan()))
