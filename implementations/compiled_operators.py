"""`torch.compile` of hand-written operators: one graph, dynamic shapes, code by inductor.

torch specializes compiled code to sizes 0 and 1, to equal sizes and to strides. Here a compiled
function receives contiguous tensors whose sizes are two at least, padded with zeros, so that there
is one variant per storage type, with and without gradients; each is compiled before its first use
on sizes that all differ. A sum over more than 4 096 channels has code of its own, and is compiled
when it is met. More variants than `VARIANTS` are an error.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int

VARIANTS = 16
"""The limit of variants that torch compiles; to exceed it is an error here."""


class Core:
    """A function of tensors that is compiled on first use.

    Attributes:
        runs: how often compiled code has run in this process.
    """

    def __init__(self, formula: Callable[..., torch.Tensor], floating: int, *shapes: Any) -> None:
        """Keep the function without compiling it.

        Args:
            formula: the function.
            floating: the number of its first arguments that are differentiated.
            shapes: the shape of each of these in the call on which it is compiled, then the
                further arguments of that call.
        """
        self._formula, self._floating, self._shapes = formula, floating, shapes
        self._compiled: Callable[..., torch.Tensor] | None = None
        self._primed: set[tuple[torch.dtype, bool]] = set()
        self.runs = 0

    def __call__(self, *arguments: torch.Tensor) -> torch.Tensor:
        """Run the compiled function."""
        floating = arguments[: self._floating]
        has_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in floating)
        variant = (arguments[0].dtype, has_gradient)
        if variant not in self._primed:
            self._prime(*variant)
            self._primed.add(variant)
        self.runs += 1
        return self._enter(arguments, has_gradient)

    def _enter(self, arguments: tuple[torch.Tensor, ...], has_gradient: bool) -> torch.Tensor:
        if self._compiled is None:
            self._compiled = torch.compile(self._formula, dynamic=True, fullgraph=True)
        # torch also specializes to the arguments that require a gradient, and to leaves of the
        # graph: here all require one, or none, and none is a leaf
        with torch.set_grad_enabled(has_gradient):
            floating = [
                (x if x.requires_grad or not has_gradient else x.detach().requires_grad_()).clone()
                for x in arguments[: self._floating]
            ]
        limits = {"recompile_limit": VARIANTS, "fail_on_recompile_limit_hit": True}
        with (
            torch._dynamo.config.patch(limits),
            torch.set_grad_enabled(has_gradient),
            warnings.catch_warnings(),
        ):
            # the compiler warns of its own imports and of arguments that are no leaves, whenever
            # it compiles a variant, which a caller cannot change
            warnings.simplefilter("ignore")
            return self._compiled(*floating, *arguments[self._floating :])

    def _prime(self, dtype: torch.dtype, has_gradient: bool) -> None:
        """Compile a variant, so that torch assumes no equal sizes."""
        floating = [torch.ones(shape, dtype=dtype) for shape in self._shapes[: self._floating]]
        out = self._enter((*floating, *self._shapes[self._floating :]), has_gradient)
        if has_gradient:
            with warnings.catch_warnings():
                # the backward pass is compiled here, with the warnings that `_enter` ignores
                warnings.simplefilter("ignore")
                out.sum().backward()


def padded(x: torch.Tensor) -> torch.Tensor:
    """Pad every size to two at least with zeros, which no result uses, and make it contiguous."""
    widths = [width for size in reversed(x.shape) for width in (0, max(0, 2 - size))]
    if any(widths):
        x = torch.nn.functional.pad(x, widths)
    return x.contiguous()


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _rms_norm(
    rows: Float[torch.Tensor, "rows channels"],
    weight: Float[torch.Tensor, " channels"],
    count: Float[torch.Tensor, ""],
    epsilon: Float[torch.Tensor, ""],
) -> Float[torch.Tensor, "rows channels"]:
    """Return gain times rows over their root mean square, `count` being that of the channels."""
    wide = rows.to(_wide(rows.dtype))
    mean_square = wide.square().sum(-1, keepdim=True) / count.to(wide.dtype)
    out = wide * torch.rsqrt(mean_square + epsilon.to(wide.dtype)) * weight.to(wide.dtype)
    return out.to(rows.dtype)


def _rotary(
    x: Float[torch.Tensor, "tokens heads two pairs"],
    positions: Int[torch.Tensor, " tokens"],
    count: Float[torch.Tensor, ""],
    base: Float[torch.Tensor, ""],
) -> Float[torch.Tensor, "tokens heads two pairs"]:
    """Turn each pair of channels, the first of them in one half and the second in the other."""
    wide = _wide(x.dtype)
    pair = torch.arange(x.shape[-1], device=x.device).to(wide)
    frequencies = base.to(wide) ** (-pair / count.to(wide))
    angles = (positions.to(wide)[:, None] * frequencies)[:, None]
    cosine, sine = angles.cos(), angles.sin()
    first, second = x[:, :, 0].to(wide), x[:, :, 1].to(wide)
    turned = torch.stack([first * cosine - second * sine, second * cosine + first * sine], 2)
    return turned.to(x.dtype)


def _gated_mlp(
    x: Float[torch.Tensor, "tokens d_model"],
    gate: Float[torch.Tensor, "d_inner d_model"],
    up: Float[torch.Tensor, "d_inner d_model"],
    down: Float[torch.Tensor, "d_model d_inner"],
) -> Float[torch.Tensor, "tokens d_model"]:
    """Return down(silu(gate(x)) · up(x))."""
    return (torch.nn.functional.silu(x @ gate.mT) * (x @ up.mT)) @ down.mT


def _number(value: float) -> Float[torch.Tensor, ""]:
    """Return a number as a tensor, of which code is compiled for all values."""
    return torch.tensor(value, dtype=torch.float64)


# torch specializes to one tensor in two places, so that each number is a tensor of its own
RMS_NORM = Core(_rms_norm, 2, (3, 5), (5,), _number(5.0), _number(1.0))
ROTARY = Core(_rotary, 1, (3, 5, 2, 7), torch.arange(3), _number(7.0), _number(10.0))
GATED_MLP = Core(_gated_mlp, 4, (3, 5), (7, 5), (7, 5), (5, 7))


def rms_norm(
    input: torch.Tensor, normalized_shape: tuple[int], weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Call the compiled RMSNorm by torch's signature."""
    rows, channels = input.reshape(-1, input.shape[-1]), input.shape[-1]
    out = RMS_NORM(padded(rows), padded(weight), _number(channels), _number(eps))
    return out[: rows.shape[0], :channels].reshape(input.shape)


def rotary(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10_000.0) -> torch.Tensor:
    """Call the compiled rotary embedding, which turns the whole head."""
    batch, heads, length, d_head = x.shape
    tokens = x.transpose(1, 2).reshape(batch * length, heads, 2, d_head // 2)
    places = padded(positions.reshape(-1))
    out = ROTARY(padded(tokens), places, _number(d_head / 2), _number(base))
    out = out[: batch * length, :heads, :, : d_head // 2]
    return out.reshape(batch, length, heads, d_head).transpose(1, 2)


def gated_mlp(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Call the compiled SwiGLU."""
    tokens = x.reshape(-1, x.shape[-1])
    out = GATED_MLP(padded(tokens), padded(gate), padded(up), padded(down))
    return out[: tokens.shape[0], : x.shape[-1]].reshape(x.shape)
