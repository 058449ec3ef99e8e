"""Snippets: a failing call as a few lines that need torch and the implementation alone."""

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.subject import Subject
from attnspec.conformance.violation import Mismatch

LARGEST = 400
"""Numbers that a snippet spells out; a larger call cannot be read anyway."""


def snippet(subject: Subject, call: Call, mismatch: Mismatch | None) -> str:
    """Write code that repeats a call, at most 15 lines; empty where its tensors are too large.

    Args:
        subject: whose `importing` line makes the name `attention` known.
        call: the call that broke the law.
        mismatch: what was found, for the closing comment.
    """
    if sum(tensor.numel() for tensor in call.tensors.values()) > LARGEST:
        return ""
    lines = ["import torch", "from torch import inf, nan", subject.importing, ""]
    lines += [f"{name} = {_literal(tensor)}" for name, tensor in call.tensors.items()]
    given = {
        name: name if isinstance(value, torch.Tensor) else repr(value)
        for name, value in call.keywords().items()
    }
    arguments = ["query", "key", "value", *(f"{name}={value}" for name, value in given.items())]
    lines += [f"out = attention({', '.join(arguments)})"]
    if mismatch is not None:
        lines += [
            f"print(out)  # {mismatch.where}: expected {mismatch.expected}, got {mismatch.got}"
        ]
    else:
        lines += ["print(out)"]
    return "\n".join(lines)


def _literal(tensor: torch.Tensor) -> str:
    """Torch code for a tensor, its strides too where they are not those of a fresh one."""
    values = tensor.detach().cpu()
    code = f"torch.tensor({_numbers(values)}, dtype={tensor.dtype})"
    if values.numel() == 0:
        code = f"torch.empty({tuple(values.shape)}, dtype={tensor.dtype})"
    if tensor.device.type != "cpu":
        code += f".to({str(tensor.device)!r})"
    if values.mT.is_contiguous() and not values.is_contiguous():
        return f"{code}.mT.contiguous().mT"
    return code


def _numbers(values: torch.Tensor) -> str:
    """The numbers as nested lists, with no more digits than it takes to get the same bits."""
    if values.dim():
        return f"[{', '.join(map(_numbers, values))}]"
    if values.dtype in (torch.bool, torch.float64):
        return str(values.item())
    exact = values if values.dtype != torch.bfloat16 else values.float()
    return str(exact.numpy())
