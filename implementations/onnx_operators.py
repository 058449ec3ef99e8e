"""Operators of ONNX, each as a model of one node that is made for the options of a call."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int

from attnspec.implementations.adapters.numpy_arrays import to_torch

CACHED = 256
"""Sessions that are kept; the options of a node are part of its model."""

FLOATS = ("scale", "softcap")
"""Attributes that are floats: a model with a whole number for one is invalid."""

MICROSOFT = "com.microsoft"
"""The domain of the operators that `onnxruntime` adds to the standard."""


def run(
    runtime: str,
    operator: str,
    inputs: Mapping[str, torch.Tensor | None],
    *,
    domain: str = "",
    opset: int = 23,
    outputs: tuple[str, ...] = ("out",),
    **attributes: Any,
) -> torch.Tensor:
    """Run a model of one node, and return its first output.

    Args:
        runtime: `onnxruntime`, or `onnx` for the reference evaluator.
        operator: the operator of the node.
        inputs: the node's inputs in their order; `None` for one that is left out.
        domain: the domain of the operator.
        opset: the version of the standard's operators.
        outputs: names of the node's outputs; a kernel may compute less if some are left out.
        attributes: the attributes of the node; `None` for one that is left out.
    """
    given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    declared = tuple(
        (name, None if tensor is None else (_dtype(tensor), tensor.dim()))
        for name, tensor in inputs.items()
    )
    set_attributes = tuple(
        (name, float(value) if name in FLOATS else value)
        for name, value in attributes.items()
        if value is not None
    )
    session = _session(runtime, operator, declared, domain, opset, outputs, set_attributes)
    feeds = {name: tensor.detach().contiguous().numpy() for name, tensor in given.items()}
    return to_torch(session.run(list(outputs), feeds)[0])


def attention_on_cache(runtime: str, *, full_axes: int) -> Callable[..., torch.Tensor]:
    """Return the standard's `Attention`, version 24, whose keys are a cache with lengths.

    Args:
        runtime: as in `run`.
        full_axes: how many of a mask's last axes must be whole: its keys, or its queries and keys.

    Returns:
        An attention of the contract without `enable_gqa`, under the alignment `lower_right`. A call
        without `key_lengths` has all keys of the cache.
    """

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        *,
        softcap: float | None = None,
        key_lengths: Int[torch.Tensor, " batch"] | None = None,
    ) -> Float[torch.Tensor, "batch heads queries d_value"]:
        if attn_mask is not None:
            whole = (query.shape[2], key.shape[2])[-full_axes:]
            attn_mask = attn_mask.expand(*attn_mask.shape[:-full_axes], *whole)
        if key_lengths is None:
            key_lengths = torch.full((key.shape[0],), key.shape[2])
        inputs = {
            **{"Q": query, "K": key, "V": value, "attn_mask": attn_mask},
            **{"past_key": None, "past_value": None},
            "nonpad_kv_seqlen": key_lengths.long(),
        }
        return run(
            runtime,
            "Attention",
            inputs,
            opset=24,
            is_causal=int(is_causal) or None,
            scale=scale,
            softcap=softcap,
        )

    return attention


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=CACHED)
def _session(
    runtime: str,
    operator: str,
    inputs: tuple[tuple[str, tuple[str, int] | None], ...],
    domain: str,
    opset: int,
    outputs: tuple[str, ...],
    attributes: tuple[tuple[str, Any], ...],
) -> Any:
    """Return an object that runs the model of one node."""
    import numpy
    from onnx import helper

    names = [name if kind is not None else "" for name, kind in inputs]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(operator, names, list(outputs), domain=domain, **dict(attributes))
    values = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(numpy.dtype(kind[0])),
            [f"{name}_{axis}" for axis in range(kind[1])],
        )
        for name, kind in inputs
        if kind is not None
    ]
    kind_of_outputs = values[0].type.tensor_type.elem_type
    declared = [helper.make_tensor_value_info(name, kind_of_outputs, None) for name in outputs]
    model = helper.make_model(
        helper.make_graph([node], operator, values, declared),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)],
        ir_version=11,
    )
    if runtime == "onnx":
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(model)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # each session would keep the memory of its largest call
    options.enable_cpu_mem_arena = False
    # an error is raised, and need not be printed as well
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def joined(tensor: torch.Tensor) -> torch.Tensor:
    """Return (batch, length, heads · channels) of (batch, heads, length, channels)."""
    batch, heads, length, channels = tensor.shape
    return tensor.transpose(1, 2).reshape(batch, length, heads * channels)


def split(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return (batch, heads, length, channels) of (batch, length, heads · channels)."""
    batch, length, width = tensor.shape
    return tensor.reshape(batch, length, heads, width // heads).transpose(1, 2)
