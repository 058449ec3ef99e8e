"""A simulated accelerator: a device of torch whose tensors are held in the memory of the CPU.

As on a GPU, an operation on tensors of the accelerator and of the CPU raises, unless the tensor of
the CPU is a number or an index, and NumPy reads no tensor of the accelerator. Everything else gives
the results of the CPU. So code that creates a tensor on the wrong device is found without a GPU.

It needs the Python backend for torch's extension device, which is experimental. Importing this
module registers the device for the rest of the process, so only a process of its own imports it.
"""

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "simulated"
"""The type of the device."""


class _Backend(_DummyBackendModule):
    """What torch asks of a kind of device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the types of `torch.autocast`, which changes no operation of this device."""
        return [torch.float16, torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())

DEVICE = torch.device(NAME, 0)

_aten = torch.ops.aten
_MOVES = {_aten.copy_.default, _aten._to_copy.default}
"""The operations whose arguments may be on several devices."""

_INDEXED = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
"""The operations that take indices of the CPU, their second argument."""

_OF_HELD = {torch.Tensor.data_ptr, torch.Tensor.untyped_storage, torch.Tensor.tolist}
"""The methods that torch does not have for a class of tensors, answered by the held tensor."""


class SimulatedTensor(torch.Tensor):
    """A tensor of the accelerator.

    Attributes:
        held: the same numbers on the CPU, with the same strides.
    """

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "SimulatedTensor":
        """Wrap a tensor of the CPU."""
        with torch.inference_mode(held.is_inference()):
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=DEVICE,
            )
        made.held = held
        return made

    def __repr__(self) -> str:
        """Return the numbers and the device."""
        return f"{self.held!r} on {DEVICE}"

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None) -> Any:
        """Run a function of torch; results have no more of the class than operations give them."""
        kwargs = kwargs or {}
        if function in _OF_HELD:
            return function(args[0].held)
        if function is torch.Tensor.numpy:
            if not kwargs.get("force"):
                raise TypeError(f"can't convert {DEVICE} device type tensor to numpy")
            return function(args[0].held, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None) -> Any:
        """Run an operation on the CPU, and put its results on the accelerator.

        Raises:
            RuntimeError: if a tensor of the CPU is among the arguments.
        """
        kwargs = dict(kwargs or {})
        if operation not in _MOVES:
            _refuse_mixed(operation, args, kwargs)
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        mine = {id(x.held): x for x in pytree.tree_leaves((args, kwargs)) if _is_mine(x)}
        results = operation(*_held(args), **_held(kwargs))
        if device is not None and torch.device(device).type == "cpu":
            return results
        if operation is _aten.copy_.default and not _is_mine(args[0]):
            return args[0]
        # an operation that writes to an argument returns the argument itself
        return pytree.tree_map_only(
            torch.Tensor, lambda x: mine[id(x)] if id(x) in mine else SimulatedTensor(x), results
        )


def _is_mine(value: Any) -> bool:
    return isinstance(value, SimulatedTensor)


def _held(values: Any) -> Any:
    return pytree.tree_map_only(SimulatedTensor, lambda x: x.held, values)


def _refuse_mixed(operation: Any, args: Any, kwargs: Any) -> None:
    """Refuse a tensor of the CPU beside one of the accelerator."""
    if operation in _INDEXED:
        args = (args[0], *args[2:])
    for each in pytree.tree_leaves((args, kwargs)):
        if isinstance(each, torch.Tensor) and not _is_mine(each) and each.dim() > 0:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{DEVICE} and {each.device}! (in {operation})"
            )


@torch.library.impl("aten::empty.memory_format", NAME)
def _empty(
    size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None
) -> torch.Tensor:
    """Create a tensor of the accelerator: functions such as `torch.zeros` call this one."""
    return SimulatedTensor(torch.empty(size, dtype=dtype, memory_format=memory_format))


@torch.library.impl("aten::empty_strided", NAME)
def _empty_strided(
    size, stride, *, dtype=None, layout=None, device=None, pin_memory=None
) -> torch.Tensor:
    """Create a tensor of the accelerator with some strides."""
    return SimulatedTensor(torch.empty_strided(size, stride, dtype=dtype))


@torch.library.impl("aten::_copy_from", NAME)
def _copy_from(source, target, non_blocking=False) -> torch.Tensor:
    """Copy from one device to another, as `torch.tensor` does without the class's dispatch."""
    _held(target).copy_(_held(source))
    return target
