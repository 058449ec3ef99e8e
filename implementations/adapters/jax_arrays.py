"""Functions of JAX: tensors are handed over and back by DLPack, and gradients join autograd."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch.utils.dlpack import from_dlpack

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.adapters.mask_routing import of_rank_4
from attnspec.implementations.adapters.parameters import limited, options, parameters
from attnspec.implementations.adapters.window import spelled

_TRACED = (float, torch.Tensor)
"""The types of options that compiled code takes; others are constants of it."""


def from_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt an attention of JAX with the signature of `jax.nn.dot_product_attention`.

    Args:
        function: takes query (batch, queries, heads, d_head), key (batch, keys, kv_heads, d_head)
            and value (batch, keys, kv_heads, d_value), and those that it has of `mask` and `bias`
            (each broadcasts to (batch, heads, queries, keys)), `is_causal`, `scale`,
            `local_window_size`, `key_value_seq_lengths` (batch,) in 32 bits and
            `return_residual`, with which it returns the log-sum-exp (batch, queries, heads)
            beside the output.

    Returns:
        An attention of the contract with the function's options and `enable_gqa`. Autograd gets
        the gradients of query, key, value and a float mask from the function's vector-Jacobian
        product.

    Raises:
        TypeError: if the signature of `function` cannot be read.
    """
    bridged = on_tensors(function)
    taken = parameters(function)
    names = (taken & {"is_causal", "scale"}) | {"enable_gqa"}
    if taken & {"mask", "bias"}:
        names |= {"attn_mask"}
    if "local_window_size" in taken:
        names |= {"window"}
    if "key_value_seq_lengths" in taken:
        names |= {"key_lengths"}
    if "return_residual" in taken:
        names |= {"return_lse"}

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
        enable_gqa: bool = False,
        window: tuple[int | None, int | None] | None = None,
        key_lengths: Int[torch.Tensor, " batch"] | None = None,
        return_lse: bool = False,
        **given: Any,
    ) -> Any:
        demand_flag(query, key, enable_gqa=enable_gqa)
        if attn_mask is not None:
            name = "mask" if attn_mask.dtype == torch.bool else "bias"
            if name not in taken:
                raise TypeError(f"the function takes no mask of {attn_mask.dtype}")
            given[name] = of_rank_4(attn_mask)
        if window is not None:
            # no side is longer than the whole sequence
            longest = query.shape[2] + key.shape[2]
            left, right = spelled(window, longest)
            given["local_window_size"] = (left, right)
        if key_lengths is not None:
            given["key_value_seq_lengths"] = key_lengths.to(torch.int32)
        if return_lse:
            given["return_residual"] = True
        moved = (tensor.transpose(1, 2) for tensor in (query, key, value))
        out = bridged(*moved, **given)
        if return_lse:
            out, lse = out
            return out.transpose(1, 2), lse.transpose(1, 2)
        return out.transpose(1, 2)

    return limited(attention, names, function)


def from_jax_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt an attention of JAX with shapes and options as in the contract.

    Args:
        function: takes arrays query (batch, heads, queries, d_head), key (batch, kv_heads, keys,
            d_head) and value (batch, kv_heads, keys, d_value), and options of the contract by
            keyword, an array for each tensor.

    Returns:
        An attention of the contract with the function's options, with gradients.

    Raises:
        TypeError: if the signature of `function` cannot be read.
    """
    return limited(on_tensors(function), options(function), function)


def on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that calls a function of JAX arrays, compiled.

    JAX compiles once for each combination of shapes and storage types, and of options other than
    numbers and tensors. Types of 64 bits are enabled within a call that has a tensor of such a
    type, and nowhere else: some kernels in Pallas raise while they are enabled.

    Args:
        function: takes arrays, and options that are arrays, numbers or constants; returns an array
            or a tuple of arrays.
    """

    @functools.cache
    def compiled(constants: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
        import jax

        def forward(operands: tuple[Any, ...], traced: dict[str, Any]) -> Any:
            return function(*operands, **traced, **dict(constants))

        def backward(operands: Any, traced: Any, cotangents: Any, wanted: tuple[str, ...]) -> Any:
            """Return the gradients of the operands, and of the options named in `wanted`."""
            fixed = {name: array for name, array in traced.items() if name not in wanted}
            moving = {name: traced[name] for name in wanted}
            _, pull = jax.vjp(
                lambda arrays, named: forward(arrays, fixed | named), operands, moving
            )
            return pull(cotangents)

        return jax.jit(forward), jax.jit(backward, static_argnums=3)

    def bridged(*operands: torch.Tensor, **given: Any) -> Any:
        traced = {name: value for name, value in given.items() if isinstance(value, _TRACED)}
        constants = tuple(sorted((n, v) for n, v in given.items() if n not in traced))
        tensors = {n: v for n, v in traced.items() if isinstance(v, torch.Tensor)}
        numbers = {n: v for n, v in traced.items() if n not in tensors}
        forward, backward = compiled(constants)
        return _Bridge.apply(  # type: ignore[no-untyped-call]
            forward, backward, numbers, tuple(tensors), len(operands), *operands, *tensors.values()
        )

    functools.update_wrapper(bridged, function)
    return bridged


class _Bridge(torch.autograd.Function):
    """One call of a compiled function of JAX, and of its vector-Jacobian product."""

    @staticmethod
    def forward(
        ctx: Any,
        forward: Any,
        backward: Any,
        numbers: dict[str, float],
        names: tuple[str, ...],
        operands: int,
        *tensors: torch.Tensor,
    ) -> Any:
        import jax

        ctx.save_for_backward(*tensors)
        ctx.backward, ctx.numbers, ctx.names, ctx.operands = backward, numbers, names, operands
        with jax.enable_x64(_are_wide(tensors)):
            arrays = [to_jax(tensor) for tensor in tensors]
            named = dict(zip(names, arrays[operands:], strict=True))
            result = forward(tuple(arrays[:operands]), {**numbers, **named})
        # JAX computes while Python goes on, and a caller may then overwrite an operand
        result = jax.block_until_ready(result)
        if isinstance(result, tuple):
            return tuple(from_dlpack(array) for array in result)
        return from_dlpack(result)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        import jax

        tensors, operands = ctx.saved_tensors, ctx.operands
        wanted = tuple(
            name
            for name, tensor in zip(ctx.names, tensors[operands:], strict=True)
            if tensor.is_floating_point()
        )
        with jax.enable_x64(_are_wide(tensors)):
            arrays = [to_jax(tensor) for tensor in tensors]
            named = dict(zip(ctx.names, arrays[operands:], strict=True))
            given = tuple(to_jax(each) for each in cotangents)
            of_operands, of_options = ctx.backward(
                tuple(arrays[:operands]),
                {**ctx.numbers, **named},
                given if len(given) > 1 else given[0],
                wanted,
            )
        of_operands, of_options = jax.block_until_ready((of_operands, of_options))
        gradients: list[Any] = [from_dlpack(array) for array in of_operands]
        gradients += [
            from_dlpack(of_options[name]) if name in wanted else None for name in ctx.names
        ]
        return None, None, None, None, None, *gradients


def _are_wide(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Return whether a tensor has numbers of 64 bits, which JAX narrows by default."""
    return any(tensor.dtype.itemsize > 4 for tensor in tensors)


def to_jax(tensor: torch.Tensor) -> Any:
    """Return a JAX array on the memory of a tensor, or on a copy where its strides have gaps."""
    import jax

    return jax.dlpack.from_dlpack(tensor.detach().contiguous())
