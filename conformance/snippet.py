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
        if not _is_default(name, value)
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


_DEFAULTS = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}


def _is_default(name: str, value: object) -> bool:
    return name in _DEFAULTS and not isinstance(value, torch.Tensor) and value == _DEFAULTS[name]


def _literal(tensor: torch.Tensor) -> str:
    """Torch code for a tensor, its strides too where they are not those of a fresh one."""
    values = tensor.detach().cpu()
    numbers = values if values.dtype == torch.bool else values.double()
    code = f"torch.tensor({numbers.tolist()}, dtype={tensor.dtype})"
    if values.numel() == 0:
        code = f"torch.empty({tuple(values.shape)}, dtype={tensor.dtype})"
    if tensor.device.type != "cpu":
        code += f".to({str(tensor.device)!r})"
    if values.mT.is_contiguous() and not values.is_contiguous():
        return f"{code}.mT.contiguous().mT"
    return code
