"""Snippets: a failing call as a few lines that need torch and the implementation alone."""

from typing import Any

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.snippet_tensors import SPELLED, TooLarge, code_of
from attnspec.conformance.subject import Subject
from attnspec.conformance.violation import Mismatch


def snippet(subject: Subject, call: Call, mismatch: Mismatch | None, case: Any = None) -> str:
    """Write code that repeats a call, at most 15 lines.

    A small call is spelled out. Of a larger one the tensors are drawn again, with torch alone, or
    unpacked; where even that takes too much, nothing is written.

    Args:
        subject: whose `importing` line makes the name `attention` known, and whose `last_grad`
            was handed back, if any was.
        call: the call that broke the law.
        mismatch: what was found, for the closing comment.
        case: from which the call was drawn.
    """
    grad_out, wrt = subject.last_grad or (None, ())
    tensors = call.tensors if grad_out is None else call.tensors | {"grad_out": grad_out}
    spell = sum(tensor.numel() for tensor in tensors.values()) <= SPELLED
    try:
        codes = {name: code_of(name, each, case, spell=spell) for name, each in tensors.items()}
    except TooLarge:
        return ""
    imports = "import torch"
    if any("base64" in each for each in codes.values()):
        imports = "import base64, zlib, torch"
    lines = [imports, "from torch import inf, nan", subject.importing, ""]
    for name, code in codes.items():
        lines.append(f"{name} = {code}{'.requires_grad_()' if name in wrt else ''}")
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
