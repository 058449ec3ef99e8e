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
        subject: whose `importing` line makes the name `attention` known, and whose `last_grad`
            was handed back, if any was.
        call: the call that broke the law.
        mismatch: what was found, for the closing comment.
    """
    grad_out, wrt = subject.last_grad or (None, ())
    tensors = call.tensors if grad_out is None else call.tensors | {"grad_out": grad_out}
    if sum(tensor.numel() for tensor in tensors.values()) > LARGEST:
        return ""
    lines = ["import torch", "from torch import inf, nan", subject.importing, ""]
    for name, tensor in tensors.items():
        lines.append(f"{name} = {_literal(tensor)}{'.requires_grad_()' if name in wrt else ''}")
    given = {
        name: name if isinstance(value, torch.Tensor) else repr(value)
        for name, value in call.keywords().items()
    }
    arguments = ["query", "key", "value", *(f"{name}={value}" for name, value in given.items())]
    lines.append(f"out = attention({', '.join(arguments)})")
    shown = "out"
    if grad_out is not None:
        out = "out[0]" if call.return_lse else "out"
        lines.append(f"gradients = torch.autograd.grad({out}, [{', '.join(wrt)}], grad_out)")
        shown = "gradients"
    found = ""
    if mismatch is not None:
        found = f"  # {mismatch.where}: expected {mismatch.expected}, got {mismatch.got}"
        found = found if mismatch.what == "out" else found.replace("# ", f"# {mismatch.what}, ", 1)
    return "\n".join([*lines, f"print({shown}){found}"])


def _literal(tensor: torch.Tensor) -> str:
    """Torch code for a tensor, its strides too where they are not those of a fresh one."""
    values = tensor.detach().cpu()
    code = f"torch.tensor({_numbers(values)}, dtype={tensor.dtype})"
    if values.numel() == 0:
        code = f"torch.empty({tuple(values.shape)}, dtype={tensor.dtype})"
    if tensor.device.type != "cpu":
        code += f".to({str(tensor.device)!r})"
    if values.dim() > 1 and values.mT.is_contiguous() and not values.is_contiguous():
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
