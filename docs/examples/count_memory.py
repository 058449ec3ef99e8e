"""Count the numbers that a function of tensors holds at once, and its exponentials and products."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Counting(TorchDispatchMode):
    """Counts what is computed inside a `with` block.

    Attributes:
        held: the largest number of elements that results of operations held at once.
        exponentials: the number of exponentials.
        products: the number of multiplications in products of matrices.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.exponentials = self.products = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation of torch, and count it."""
        given = {_storage(each) for each in args if isinstance(each, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.exp.default:
            self.exponentials += result.numel()
        if func is torch.ops.aten.mm.default:
            self.products += args[0].numel() * args[1].shape[1]
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor) and _storage(each) not in given:
                storage = each.untyped_storage()
                size = storage.nbytes() // each.element_size()
                self._alive[storage._cdata] = StorageWeakRef(storage), size
        self._alive = {
            address: (reference, size)
            for address, (reference, size) in self._alive.items()
            if not reference.expired()
        }
        self.held = max(self.held, sum(size for _, size in self._alive.values()))
        return result


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
