"""An attention function in C, as the specification calls it.

Built beside this file by `cc -O2 -shared -fPIC -o libattention.so attention.c -lm`.
"""

import ctypes
from pathlib import Path

import torch

from attnspec.spec import Feature, Implementation

library = ctypes.CDLL(str(Path(__file__).with_name("libattention.so")))
library.attention.restype = ctypes.c_int


def pointer(tensor):
    """Return the address of the first element of a tensor."""
    return ctypes.c_void_p(tensor.data_ptr())


def integers(*values):
    """Make a C array."""
    return (ctypes.c_int64 * len(values))(*values)


def attention(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    """Refuse calls that the C function would misread, and pass pointers and strides."""
    operands = {"query": query, "key": key, "value": value}
    for name, tensor in operands.items():
        if tensor.dim() != 4 or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(f"{name} must be float32 of rank 4 on the CPU")
    batch, heads, queries, d_head = query.shape
    _, kv_heads, keys, d_value = value.shape
    if key.shape != (batch, kv_heads, keys, d_head) or value.shape[0] != batch:
        raise ValueError("key and value must fit together, and the query")
    if heads != kv_heads and not enable_gqa:
        raise ValueError("query and key differ in heads without enable_gqa")
    scale = (d_head or 1) ** -0.5 if scale is None else scale
    out = torch.empty(batch, heads, queries, d_value)
    arguments = []
    for tensor in operands.values():
        arguments += pointer(tensor), integers(*tensor.stride())
    sizes = integers(batch, heads, queries, d_head, keys, kv_heads, d_value)
    if library.attention(*arguments, pointer(out), sizes, int(is_causal), ctypes.c_float(scale)):
        raise ValueError(f"{heads} heads do not share {kv_heads} key/value heads")
    return out


IN_C = Implementation(
    name="in_c",
    attention=attention,
    features=frozenset({Feature.CAUSAL, Feature.GQA}),
    dtypes=(torch.float32,),
)
