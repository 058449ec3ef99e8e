"""ONNX models, which `onnxruntime` or the reference evaluator of `onnx` runs on a CPU."""

from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import Any

import torch

from attnspec.implementations.adapters.numpy_arrays import to_torch
from attnspec.implementations.adapters.parameters import OPERANDS, OPTIONS, limited

OPERAND_NAMES = {"query": "Q", "key": "K", "value": "V"}
"""The names that the standard gives the inputs of its operator `Attention`."""


def from_onnx(
    model: Any, *, inputs: Mapping[str, str] | None = None, lse: str | None = None
) -> Callable[..., Any]:
    """Adapt an ONNX model of one attention.

    Args:
        model: a path, the bytes of a model, an `onnx.ModelProto`, a session of `onnxruntime`, or a
            `ReferenceEvaluator` of `onnx`. A path, bytes or a model run in a new session of
            `onnxruntime`. Its first output is the attention's (batch, heads, queries, d_value).
        inputs: the model's name of the input for each argument of the contract; by default the
            contract's own names, with `Q`, `K` and `V` for the operands if the model has these.
            Flags and numbers are inputs without axes.
        lse: the model's output with the log-sum-exp (batch, heads, queries), if it has one.

    Returns:
        An attention of the contract with the options that are inputs of the model, without
        gradients.

    Raises:
        TypeError: if the model lacks an operand or a named input or output, or if the contract has
            no such argument.
    """
    session = _session(model)
    declared = _inputs(session)
    if inputs is None:
        is_standard = set(OPERAND_NAMES.values()) <= declared.keys()
        inputs = {name: name for name in OPTIONS if name in declared}
        inputs |= OPERAND_NAMES if is_standard else {name: name for name in OPERANDS}
    for name, of_model in inputs.items():
        if name not in OPERANDS and name not in OPTIONS:
            raise TypeError(f"the contract has no argument {name}")
        if of_model not in declared:
            raise TypeError(f"the model has no input {of_model}; it has {', '.join(declared)}")
    if absent := [name for name in OPERANDS if name not in inputs]:
        raise TypeError(f"give the model's input for {', '.join(absent)}")
    outputs = _outputs(session)
    if lse is not None and lse not in outputs:
        raise TypeError(f"the model has no output {lse}; it has {', '.join(outputs)}")
    names = inputs
    if unnamed := sorted(set(declared) - set(names.values())):
        raise TypeError(f"the model needs the input {', '.join(unnamed)}, which no argument gives")

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        return_lse: bool = False,
        **given: Any,
    ) -> Any:
        given |= dict(zip(OPERANDS, (query, key, value), strict=True))
        feeds = {
            of_model: _array(given.get(name, OPTIONS.get(name)), name, declared[of_model])
            for name, of_model in names.items()
        }
        wanted = [outputs[0], *([lse] if return_lse and lse is not None else [])]
        results = [to_torch(array) for array in session.run(wanted, feeds)]
        return tuple(results) if return_lse else results[0]

    options = {name for name in names if name not in OPERANDS}
    if lse is not None:
        options |= {"return_lse"}
    return limited(attention, options, type(session))


def _session(model: Any) -> Any:
    """Return an object that runs a model, as it is or in a new session of `onnxruntime`."""
    if hasattr(model, "run"):
        return model
    import onnxruntime

    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    source = fspath(model) if isinstance(model, str | PathLike) else model
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])


def _inputs(session: Any) -> dict[str, str]:
    """Return the inputs of a session in their order, with their types where these are known."""
    if hasattr(session, "get_inputs"):
        return {each.name: each.type for each in session.get_inputs()}
    return dict.fromkeys(session.input_names, "")


def _outputs(session: Any) -> list[str]:
    if hasattr(session, "get_outputs"):
        return [each.name for each in session.get_outputs()]
    return list(session.output_names)


def _array(value: Any, name: str, kind: str) -> Any:
    """Return the array of an argument.

    Raises:
        ValueError: if the model needs an argument that a call leaves out.
    """
    import numpy

    if value is None:
        raise ValueError(f"the model needs {name}")
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().numpy()
    if isinstance(value, bool):
        return numpy.array(value)
    return numpy.array(value, dtype={"tensor(double)": "float64"}.get(kind, "float32"))
