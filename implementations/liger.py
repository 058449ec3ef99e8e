"""Liger's kernels in Triton as operators, on a CUDA device.

The claims follow their sources (liger-kernel 0.8.5); they have not been tried on a device.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from attnspec.implementations.cuda import no_device
from attnspec.implementations.frameworks import missing

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def unavailable() -> str | None:
    """Return why Liger cannot run here, or None."""
    return missing("liger_kernel") or no_device()


def _function(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(
        import_module("liger_kernel.transformers.functional"), name
    )
    return function


def rms_norm(
    input: torch.Tensor, normalized_shape: tuple[int], weight: torch.Tensor, eps: float
) -> Any:
    """Call `liger_rms_norm` as Llama's module does.

    By default it writes its gradient into the incoming one, which a caller may still need.
    """
    return _function("liger_rms_norm")(input, weight, eps, casting_mode="llama", in_place=False)


def layer_norm(
    input: torch.Tensor,
    normalized_shape: tuple[int],
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
) -> Any:
    """Call `liger_layer_norm`."""
    return _function("liger_layer_norm")(input, weight, bias, eps)


def rotary(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10_000.0) -> Any:
    """Call `liger_rope`, which turns queries and keys, in their own memory.

    It is given copies, and cosine and sine in float32.
    """
    d_head = x.shape[-1]
    pairs = torch.arange(0, d_head, 2, device=x.device, dtype=torch.float32)
    angles = positions[..., None].float() * base ** (-pairs / d_head)
    angles = torch.cat([angles, angles], -1)
    turned, _ = _function("liger_rope")(x.clone(), x.detach().clone(), angles.cos(), angles.sin())
    return turned


def gated_mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Any:
    """Call `liger_swiglu` between the maps of torch, as Liger's SwiGLU module does."""
    linear = torch.nn.functional.linear
    return linear(_function("liger_swiglu")(linear(x, gate), linear(x, up)), down)
