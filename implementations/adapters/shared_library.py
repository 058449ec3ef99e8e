"""Functions of a shared library with C's calling convention, through `ctypes`."""

import ctypes
from collections.abc import Callable, Collection
from os import PathLike, fspath
from typing import Any

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.adapters.parameters import limited

_OPTIONS = ("attn_mask", "is_causal", "enable_gqa", "return_lse")
"""The options that the C function may take; it always takes the scale."""


def from_shared_library(
    library: str | PathLike[str] | ctypes.CDLL,
    function: str = "attention",
    *,
    dtypes: Collection[torch.dtype] = (torch.float32,),
    options: Collection[str] = ("is_causal", "enable_gqa"),
) -> Callable[..., Any]:
    """Adapt a C function of a shared library.

    The function is ``int f(q, q_stride, k, k_stride, v, v_stride, out, size, …, scale)``:

    - `q`, `k`, `v`: pointers to the first element of query (batch, heads, queries, d_head), key
      (batch, kv_heads, keys, d_head) and value (batch, kv_heads, keys, d_value), each followed by
      its four strides in elements, as `int64_t`;
    - `out`: a pointer to (batch, heads, queries, d_value), contiguous, to be written;
    - `size`: seven `int64_t`: batch, heads, queries, d_head, keys, kv_heads, d_value;
    - …: for each of `options`, in this order: `attn_mask`, a pointer to a bool mask and its four
      strides, in bytes (both null without a mask); `is_causal`, an `int`; `return_lse`, a pointer
      to (batch, heads, queries) in float32, contiguous, to be written (null if not wanted);
    - `scale`: a `float`.

    It returns 0, or another number if it refuses the call.

    Args:
        library: a path, or a loaded library.
        function: the name of the function.
        dtypes: the storage types that it reads; all operands have the same.
        options: those of `attn_mask`, `is_causal`, `enable_gqa` and `return_lse` that it takes.

    Returns:
        An attention of the contract with `scale` and these options, without gradients. It raises
        `ValueError` for operands that the function would misread, and if it refuses a call.

    Raises:
        OSError: if the library cannot be loaded.
        AttributeError: if it has no such function.
        TypeError: if an option is not one of the four.
    """
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise TypeError(f"no option {', '.join(unknown)}; there are {', '.join(_OPTIONS)}")
    loaded = library if isinstance(library, ctypes.CDLL) else ctypes.CDLL(fspath(library))
    called = loaded[function]
    called.restype = ctypes.c_int

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Bool[torch.Tensor, "..."] | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
    ) -> Any:
        _demand_readable(query, key, value, dtypes)
        demand_flag(query, key, enable_gqa=enable_gqa)
        batch, heads, queries, d_head = query.shape
        _, kv_heads, keys, d_value = value.shape
        out = value.new_empty(batch, heads, queries, d_value)
        arguments: list[Any] = []
        for tensor in (query, key, value):
            arguments += [_pointer(tensor), _integers(*tensor.stride())]
        sizes = _integers(batch, heads, queries, d_head, keys, kv_heads, d_value)
        arguments += [_pointer(out), sizes]
        if "attn_mask" in options:
            arguments += _mask(attn_mask, (batch, heads, queries, keys))
        if "is_causal" in options:
            arguments.append(ctypes.c_int(is_causal))
        lse = torch.empty(batch, heads, queries)
        if "return_lse" in options:
            arguments.append(_pointer(lse) if return_lse else None)
        scale = (d_head or 1) ** -0.5 if scale is None else scale
        status = called(*arguments, ctypes.c_float(scale))
        if status:
            raise ValueError(f"{function} refuses the call: it returned {status}")
        return (out, lse) if return_lse else out

    return limited(attention, {"scale", *options}, called)


def _demand_readable(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dtypes: Collection[torch.dtype]
) -> None:
    """Refuse operands that a C function would read beyond their ends or in another type.

    Raises:
        ValueError: naming the operand.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4 or tensor.dtype not in dtypes or tensor.device.type != "cpu":
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ValueError(
                f"{name} must be {known} of rank 4 on the CPU, "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
            )
        if tensor.dtype != query.dtype:
            raise ValueError(f"{name} must be of query's type, got {tensor.dtype}")
    batch, _, _, d_head = query.shape
    expected = (batch, value.shape[1], value.shape[2], d_head)
    if key.shape != expected or value.shape[0] != batch:
        raise ValueError(
            f"query, key and value do not fit together: {tuple(query.shape)}, "
            f"{tuple(key.shape)}, {tuple(value.shape)}"
        )


def _mask(mask: torch.Tensor | None, shape: tuple[int, ...]) -> list[Any]:
    """Return the pointer to a bool mask and its strides after broadcasting.

    Raises:
        ValueError: if it is no bool mask on the CPU that broadcasts to the scores.
    """
    if mask is None:
        return [None, None]
    if mask.dtype != torch.bool or mask.device.type != "cpu":
        raise ValueError(f"attn_mask must be bool on the CPU, got {mask.dtype} on {mask.device}")
    try:
        full = mask.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"attn_mask of shape {tuple(mask.shape)} does not broadcast to {shape}"
        ) from None
    return [_pointer(full), _integers(*full.stride())]


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _integers(*values: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)
