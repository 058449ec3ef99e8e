"""Functions of NumPy arrays, on the memory of the tensors."""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from attnspec.implementations.adapters.parameters import limited, options


def from_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt an attention of NumPy, or of any library that takes and returns NumPy's arrays.

    Args:
        function: takes arrays query (batch, heads, queries, d_head), key (batch, kv_heads, keys,
            d_head) and value (batch, kv_heads, keys, d_value), and options of the contract by
            keyword, an array for each tensor. Arrays have the strides of the tensors.

    Returns:
        An attention of the contract with the function's options, without gradients. It raises
        `TypeError` for storage types that NumPy lacks, such as bfloat16.

    Raises:
        TypeError: if the signature of `function` cannot be read.
    """

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **given: Any
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        operands = (to_numpy(tensor) for tensor in (query, key, value))
        arrays = {
            name: to_numpy(option) if isinstance(option, torch.Tensor) else option
            for name, option in given.items()
        }
        result = function(*operands, **arrays)
        if isinstance(result, tuple):
            return tuple(to_torch(each) for each in result)
        return to_torch(result)

    return limited(attention, options(function), function)


def to_numpy(tensor: torch.Tensor) -> Any:
    """Return a read-only array on the memory of a tensor.

    Raises:
        TypeError: if NumPy has no such storage type.
    """
    array = tensor.detach().numpy()
    array.flags.writeable = False
    return array


def to_torch(array: Any) -> torch.Tensor:
    """Return a tensor on the memory of an array, or on a copy if it may not be written."""
    array = numpy.asarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
