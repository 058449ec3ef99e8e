"""Snippets: a failing call as a few lines that need only torch and the implementation."""

from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.modes import (
    DEFAULTS,
    IN_A_THREAD,
    MANY_THREADS,
    THREADS,
    TorchState,
)
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Mismatch
from attnspec.conformance.diagnosis.failure.tensor_code import TooLarge, code_of
from attnspec.spec import CallMode


def snippet(subject: Subject, call: Call, mismatch: Mismatch | None, case: Any = None) -> str:
    """Return code of at most 15 lines that repeats a call.

    The tensors of a small call are written out. Larger tensors are drawn again, with torch alone.

    Args:
        subject: the subject; its `import_code` line defines `attention`, and its `last_grad` is the
            incoming gradient of the call, if any.
        call: the call that broke the law.
        mismatch: the worst element, for the comment at the end.
        case: the case that the call was drawn from.

    Returns:
        The code; an empty string if a tensor is too large to write out and was not drawn.
    """
    grad_out, wrt = subject.last_grad or (None, ())
    tensors = call.tensors if grad_out is None else call.tensors | {"grad_out": grad_out}
    is_small = sum(tensor.numel() for tensor in tensors.values()) <= SMALL
    try:
        codes = {
            name: code_of(name, tensor, case, is_literal=is_small)
            for name, tensor in tensors.items()
        }
    except TooLarge:
        return ""
    lines = ["import torch", "from torch import inf, nan", subject.import_code, ""]
    placed = "{}"
    if call.mode in IN_A_THREAD:
        lines.insert(0, "from concurrent.futures import ThreadPoolExecutor")
        state = _OF_THE_THREAD.get(call.mode, ())
        lines += [*state, ""] if state else []
        placed = f"ThreadPoolExecutor(1).submit({'inside, ' if state else ''}lambda: {{}}).result()"
    is_served = call.mode is CallMode.SERVING
    lines += ["with torch.inference_mode():"] if is_served else []
    for name, code in codes.items():
        made_tensor = f"{name} = {code}{'.requires_grad_()' if name in wrt else ''}"
        lines.append(f"    {made_tensor}" if is_served else made_tensor)
    options = {
        name: name if isinstance(value, torch.Tensor) else repr(value)
        for name, value in call.keywords().items()
    }
    arguments = ["query", "key", "value", *(f"{name}={value}" for name, value in options.items())]
    before, after = _around(subject.last_state)
    forward = f"attention({', '.join(arguments)})"
    made = [f"out = {placed.format(forward)}"]
    printed = "out"
    if (dtype := subject.last_state.autocast) is not None:
        device = call.query.device.type
        made = [f"with torch.autocast({device!r}, dtype={dtype}):", f"    {made[0]}"]
    if grad_out is not None and call.mode is CallMode.LAYERS:
        # operands that are no leaves, and the next layer
        names = ", ".join(wrt)
        lines.append(f"[{names}] = [each[:] for each in ({names},)]")
        following = f"attention({', '.join(['-query', *arguments[1:]])})"
        made += [following, "with torch.no_grad():", f"    {following}"]
    if grad_out is not None:
        out = "out[0]" if call.return_lse else "out"
        inputs = f"[{', '.join(wrt)}]"
        if call.mode is CallMode.TWO_BACKWARDS:
            made.append(f"torch.autograd.grad({out}, {inputs}, -grad_out, retain_graph=True)")
        backward = f"torch.autograd.grad({out}, {inputs}, grad_out)"
        made.append(f"gradients = {placed.format(backward)}")
        printed = "gradients"
    lines += before
    for line in _IN[call.mode]:
        lines += [line.format(each) for each in made] if "{}" in line else [line]
    lines += after
    return "\n".join([*lines, f"print({printed}){comment_on(mismatch, 'out')}"])


def comment_on(mismatch: Mismatch | None, printed: str) -> str:
    """Return a comment with the expected and the returned number of the worst element, if any.

    Args:
        mismatch: the worst element.
        printed: the tensor that is printed, which the comment need not name.
    """
    if mismatch is None:
        return ""
    where = mismatch.where if mismatch.what == printed else f"{mismatch.what}, {mismatch.where}"
    return f"  # {where}: expected {mismatch.expected}, got {mismatch.got}"


def _around(state: TorchState) -> tuple[list[str], list[str]]:
    """Return the lines that enter a state of torch, and those that leave it."""
    before, after = [], []
    if state.default_dtype != torch.float32:
        before.append(f"torch.set_default_dtype({state.default_dtype})")
        after.append("torch.set_default_dtype(torch.float32)")
    if state.product_precision != "highest":
        before.append(f'torch.set_float32_matmul_precision("{state.product_precision}")')
        after.append('torch.set_float32_matmul_precision("highest")')
    if state.is_deterministic:
        before.append("torch.use_deterministic_algorithms(True, warn_only=True)")
        after.append("torch.use_deterministic_algorithms(False)")
    return before, after


_DETERMINISTIC = (
    "torch.use_deterministic_algorithms(True, warn_only=True)",
    "{}",
    "torch.use_deterministic_algorithms(False)",
)

_IN: dict[CallMode, tuple[str, ...]] = {
    CallMode.PLAIN: ("{}",),
    CallMode.NO_GRAD: ("with torch.no_grad():", "    {}"),
    CallMode.INFERENCE: ("with torch.inference_mode():", "    {}"),
    **{
        mode: (
            f"torch.set_default_dtype({dtype})",
            "{}",
            "torch.set_default_dtype(torch.float32)",
        )
        for mode, dtype in DEFAULTS.items()
    },
    CallMode.DETERMINISTIC: _DETERMINISTIC,
    CallMode.LAYERS: ("{}",),
    CallMode.OTHER_THREAD: ("{}",),
    CallMode.TWO_BACKWARDS: ("{}",),
    CallMode.THREADS: (f"torch.set_num_threads({THREADS})", "{}", "torch.set_num_threads(1)"),
    CallMode.SERVING: ("{}",),
    CallMode.TRAINING: _DETERMINISTIC,
}
"""The lines that make a call in a mode, and its backward pass."""

_OF_THE_THREAD: dict[CallMode, tuple[str, ...]] = {
    CallMode.SERVING: (
        "def inside(make):",
        f"    torch.set_num_threads({MANY_THREADS})",
        "    with torch.inference_mode():",
        "        return make()",
    ),
    CallMode.TRAINING: (
        "def inside(make):",
        f"    torch.set_num_threads({MANY_THREADS})",
        "    return make()",
    ),
}
"""A function that makes a call in the state of its thread."""

SMALL = 400
"""Maximum number of elements of a call whose tensors become literals."""
