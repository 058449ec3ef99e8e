"""The subject of laws about an operator: its implementation, called on the tensors of a case."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.spec.contract import refused_dtype
from attnspec.spec.operator import OperatorImplementation


class OperatorCase(Protocol):
    """The properties that the cases of every operator have."""

    @property
    def dtype(self) -> torch.dtype:
        """The storage type of the operands."""

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""


@dataclass(frozen=True, kw_only=True)
class OperatorCall:
    """One call of an operator, as a failure shows it.

    Attributes:
        tensors: the operands by the names of their parameters.
        arguments: code of all arguments in their order, with the names of tensors.
        differentiated: code of the part of the result that is differentiated; `out` is the result.
        grad_out: the incoming gradient; None without a backward pass.
        wrt: the operands whose gradients are computed.
    """

    tensors: Mapping[str, torch.Tensor]
    arguments: tuple[str, ...]
    differentiated: str = "out"
    grad_out: torch.Tensor | None = None
    wrt: tuple[str, ...] = ()


@dataclass(kw_only=True)
class OperatorSubject:
    """An operator under test.

    Attributes:
        implementation: the declaration.
        import_code: a line that defines the function under the name of its operator.
        last_call: the last call that was made, for the description of a failure.
    """

    implementation: OperatorImplementation
    import_code: str = ""
    last_call: OperatorCall | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """The name of the implementation."""
        return self.implementation.name

    def refuses(self, case: Any) -> str | None:
        """Return the reason why a case is not tried, or None if it is."""
        missing = sorted(case.features - self.implementation.features)
        if missing:
            return f"feature not claimed: {', '.join(missing)}"
        reason = refused_dtype(case.dtype, self.implementation.dtypes)
        without_gradients = not self.implementation.has_gradients
        if reason is None and getattr(case, "backward", False) and without_gradients:
            reason = "gradients are not claimed"
        return reason or self.implementation.supports(case)

    @property
    def widest(self) -> torch.dtype:
        """The widest storage type that is claimed."""
        return max(self.implementation.dtypes, key=lambda dtype: torch.finfo(dtype).bits)

    def fit(self, case: Any) -> Any:
        """Return a case in the widest storage type that is claimed, if its own is not."""
        return case if case.dtype in self.implementation.dtypes else case.but(dtype=self.widest)

    def judge_case(self, case: Any, message: str) -> None:
        """Check the result of a case against the definition.

        Raises:
            Raised: if the function raises.
            Violation: with the message, if the result is wrong.
        """
        raise NotImplementedError

    def demand(self, case: Any) -> None:
        """Check that a case which a law has changed is claimed.

        Raises:
            NotClaimed: with the reason.
        """
        reason = self.refuses(case)
        if reason is not None:
            raise NotClaimed(reason)

    def run(self, call: OperatorCall, make: Callable[[], Any]) -> Any:
        """Make a call, and return its result unchecked.

        Raises:
            Raised: if it raises.
        """
        # as it was made, also if the function writes to its operands
        tensors = {name: copied(tensor) for name, tensor in call.tensors.items()}
        self.last_call = replace(call, tensors=tensors)
        started = time.perf_counter()
        try:
            with tally.watching_lines():
                return make()
        except Exception as error:
            raise Raised(f"{type(error).__name__}: {error}") from error
        finally:
            tally.spent("implementation", started)

    def differentiate(
        self, call: OperatorCall, make: Callable[[], Any], check: Callable[[Any], torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Make a call and back-propagate through it; return the output and each gradient.

        Args:
            call: with an incoming gradient; its operands that `wrt` names are leaves.
            make: makes the call.
            check: returns the output if it has the right form, and raises if not.

        Raises:
            Raised: if it raises, forward or backward.
            Violation: if the output has a wrong form, or an operand gets no gradient.
        """
        out = check(self.run(call, make))
        if not out.requires_grad:
            raise Violation("the output of operands that require gradients requires none")

        def backward() -> Any:
            return torch.autograd.grad(
                out, [call.tensors[name] for name in call.wrt], call.grad_out, allow_unused=True
            )

        grads = dict(zip(call.wrt, self.run(call, backward), strict=True))
        for name, grad in grads.items():
            if grad is None:
                raise Violation(f"{name} has no gradient")
        return out.detach(), grads


LARGEST_COPY = 2**28
"""Bytes of the largest storage that is copied whole, with the memory between its numbers."""


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the values in the same strides, and as far from an aligned address.

    Of numbers that lie far apart in a large storage only they are copied, side by side.
    """
    values = tensor.detach()
    if values.untyped_storage().nbytes() > max(LARGEST_COPY, 8 * values.nbytes):
        return values.clone(memory_format=torch.contiguous_format)
    copy = torch.empty(0, dtype=values.dtype, device=values.device)
    storage = values.untyped_storage().clone()
    return copy.set_(storage, values.storage_offset(), values.shape, values.stride())


def checked(
    got: Any, shape: tuple[int, ...], dtype: torch.dtype, what: str = "out"
) -> torch.Tensor:
    """Return a result if it is a tensor of a given shape and storage type.

    Raises:
        Violation: naming what differs.
    """
    if not isinstance(got, torch.Tensor):
        raise Violation(f"{what} must be a tensor, got {type(got).__name__}")
    if tuple(got.shape) != tuple(shape):
        raise Violation(f"{what} must have shape {tuple(shape)}, got {tuple(got.shape)}")
    if got.dtype != dtype:
        raise Violation(f"{what} must have dtype {dtype}, got {got.dtype}")
    return got
