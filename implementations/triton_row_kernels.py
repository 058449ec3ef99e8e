"""RMSNorm and rotary positions in Triton, forward and backward, written to be read.

A *program* (a thread block on a GPU) owns one row: the channels of a token for RMSNorm, a head of a
token for rotary positions. All its channels lie in one tile, whose width is a power of two, and the
channels beyond the row are masked. Each program writes results of its own, so that no sum depends
on the order in which programs run: the gradient of the gain is one row for each program, which
torch adds in float32.

Triton's interpreter runs the same code with NumPy, on a CPU, if `TRITON_INTERPRET=1` is set before
this module is imported. It has no bfloat16 (`triton_kernels`), so that there tensors of bfloat16
are converted to float32 before a kernel and back behind it, which changes no number.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from attnspec.implementations.triton_kernels import readable

WIDEST = 8192
"""The largest number of channels of a row that one tile holds."""


@triton.jit
def _rms_forward(x, weight, out, scales, channels, epsilon, WIDTH: tl.constexpr):
    """Write gain times row over root mean square, and the reciprocal root.

    Args:
        x: (rows, channels), contiguous.
        weight: (channels,).
        out: (rows, channels); a result.
        scales: (rows,); a result, in float32.
        channels: the number of channels.
        epsilon: is added to the mean square.
        WIDTH: the channels of a tile, a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH)
    inside = place < channels
    values = tl.load(x + row * channels + place, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / channels + epsilon)
    tl.store(out + row * channels + place, values * scale * gain, mask=inside)
    tl.store(scales + row, scale)


@triton.jit
def _rms_backward(x, weight, scales, grad_out, grad_x, parts, channels, WIDTH: tl.constexpr):
    """Write the gradient of a row, and the part of the gain's gradient that comes from it.

    Args:
        x: (rows, channels), contiguous, and likewise `grad_out`, `grad_x` and `parts`.
        weight: (channels,).
        scales: (rows,), from the forward pass.
        grad_out: the incoming gradient.
        grad_x: a result.
        parts: a result, in float32; its sum over rows is the gradient of the gain.
        channels: the number of channels.
        WIDTH: the channels of a tile, a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH)
    inside = place < channels
    values = tl.load(x + row * channels + place, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_out + row * channels + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scales + row)
    normalized = values * scale
    wide = grad * gain
    overlap = tl.sum(wide * normalized, 0) / channels
    tl.store(grad_x + row * channels + place, (wide - normalized * overlap) * scale, mask=inside)
    tl.store(parts + row * channels + place, grad * normalized, mask=inside)


class RMSNorm(torch.autograd.Function):
    """Gain times row over root mean square."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return the output; `x` is (rows, channels), contiguous."""
        values, gain = readable(x, weight)
        rows, channels = x.shape
        out, scales = torch.empty_like(values), x.new_empty(rows, dtype=torch.float32)
        width = triton.next_power_of_2(channels)
        if rows:
            _rms_forward[(rows,)](values, gain, out, scales, channels, epsilon, WIDTH=width)
        ctx.save_for_backward(x, weight, scales)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Return the gradients of rows and gain."""
        saved_x, saved_weight, scales = ctx.saved_tensors
        x, weight, grad_out = readable(saved_x, saved_weight, grads[0].contiguous())
        rows, channels = x.shape
        grad_x, parts = torch.empty_like(x), torch.empty_like(x, dtype=torch.float32)
        if rows:
            width = triton.next_power_of_2(channels)
            _rms_backward[(rows,)](
                x, weight, scales, grad_out, grad_x, parts, channels, WIDTH=width
            )
        return grad_x.to(saved_x.dtype), parts.sum(0).to(saved_weight.dtype), None


@triton.jit
def _turn(x, positions, frequencies, out, heads, pairs, sign, WIDTH: tl.constexpr):
    """Turn the pairs of one head of one token; channels i and i + `pairs` are a pair.

    Args:
        x: (tokens, heads, 2 * pairs), contiguous, and likewise `out`.
        positions: (tokens,), in float32.
        frequencies: (pairs,), in float32.
        out: a result.
        heads: the number of heads.
        pairs: the number of pairs.
        sign: 1, or -1 to turn back.
        WIDTH: the pairs of a tile, a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH)
    inside = place < pairs
    position = tl.load(positions + row // heads)
    angle = position * tl.load(frequencies + place, mask=inside, other=0.0)
    cosine, sine = tl.cos(angle), sign * tl.sin(angle)
    start = row * 2 * pairs
    first = tl.load(x + start + place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + start + pairs + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start + place, first * cosine - second * sine, mask=inside)
    tl.store(out + start + pairs + place, second * cosine + first * sine, mask=inside)


def _turned(
    x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor, sign: float
) -> torch.Tensor:
    tokens, heads, d_head = x.shape
    (values,) = readable(x)
    out = torch.empty_like(values)
    if tokens * heads:
        width = triton.next_power_of_2(d_head // 2)
        _turn[(tokens * heads,)](
            values, positions, frequencies, out, heads, d_head // 2, sign, WIDTH=width
        )
    return out.to(x.dtype)


class Rotary(torch.autograd.Function):
    """Each head of each token turned by its position."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor
    ) -> torch.Tensor:
        """Return the output; `x` is (tokens, heads, d_head), contiguous."""
        ctx.save_for_backward(positions, frequencies)
        return _turned(x, positions, frequencies, 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Return the gradient of x: the incoming one, turned back."""
        positions, frequencies = ctx.saved_tensors
        return _turned(grads[0].contiguous(), positions, frequencies, -1.0), None, None
