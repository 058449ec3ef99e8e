"""Snippets of operators: a failing call as a few lines that need only torch and the function."""

from attnspec.conformance.attention.import_code import import_code_of
from attnspec.conformance.comparison.violation import Mismatch
from attnspec.conformance.diagnosis.failure.snippet import SMALL, comment_on
from attnspec.conformance.diagnosis.failure.tensor_code import code_of
from attnspec.conformance.operators.subject import OperatorSubject


def operator_snippet(subject: OperatorSubject, mismatch: Mismatch | None) -> str:
    """Return code that repeats the last call of an operator.

    Args:
        subject: the subject; its `import_code` defines the name of the operator, and is found by
            the function if it is empty.
        mismatch: the worst element, for the comment at the end.

    Returns:
        The code; an empty string without a call, or if the tensors are too large to write out.
    """
    call, operator = subject.last_call, subject.implementation.operator
    if call is None:
        return ""
    tensors = dict(call.tensors)
    if call.grad_out is not None:
        tensors["grad_out"] = call.grad_out
    if sum(tensor.numel() for tensor in tensors.values()) > SMALL:
        return ""
    imported = subject.import_code or import_code_of(subject.implementation.function, operator)
    lines = ["import torch", "from torch import inf, nan", imported, ""]
    for name, tensor in tensors.items():
        code = code_of(name, tensor, None, is_literal=True)
        lines.append(f"{name} = {code}{'.requires_grad_()' if name in call.wrt else ''}")
    lines.append(f"out = {operator}({', '.join(call.arguments)})")
    printed = "out"
    if call.grad_out is not None:
        operands = f"{call.differentiated}, [{', '.join(call.wrt)}], grad_out"
        lines.append(f"gradients = torch.autograd.grad({operands}, allow_unused=True)")
        printed = "gradients"
    return "\n".join([*lines, f"print({printed}){comment_on(mismatch, 'out')}"])
