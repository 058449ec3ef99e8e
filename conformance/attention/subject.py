"""A subject: an implementation under test, called, timed and compared with its oracle."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.describe import cases_of, with_contiguous_operands
from attnspec.conformance.attention.few_shapes import with_few_shapes
from attnspec.conformance.attention.given_sizes import GivenSizes
from attnspec.conformance.attention.import_code import import_code_of
from attnspec.conformance.attention.inputs import draw, size
from attnspec.conformance.attention.layers import make_on_leaves
from attnspec.conformance.attention.memoize import memoize_oracle
from attnspec.conformance.attention.modes import TorchState, run_in
from attnspec.conformance.attention.oracle import Expected, check_oracle, expect
from attnspec.conformance.attention.oracle_gradients import ExpectedGradients, expect_gradients
from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.spec import CallMode, Case, CausalAlignment, Feature, Implementation, Layouts

Oracle = Callable[..., Expected]

WRT = ("query", "key", "value")
"""The operands that always have a gradient."""

_EXPECT, _EXPECT_GRADIENTS = memoize_oracle(expect), memoize_oracle(expect_gradients)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A call whose output can be differentiated.

    Attributes:
        call: the call.
        leaves: the operands that require a gradient, by name.
        out: the output, with its graph.
    """

    call: Call
    leaves: dict[str, torch.Tensor]
    out: torch.Tensor


UNITS = (1, 4, 8, 16, 64, 128)
"""Divisors of the channel counts that kernels often require."""


@dataclass
class Subject:
    """An attention implementation and the oracle that judges it.

    Attributes:
        implementation: the function, and its claims.
        oracle: gives the expected result and the bound of a call; never shares code with
            the implementation.
        oracle_gradients: likewise of the gradients.
        largest: the size of the largest case that the oracle can judge in reasonable time;
            infinity for the reference, which judges some rows of a long call.
        device: the device on which cases are drawn.
        import_code: a line of code that defines the name `attention` in a snippet; by default one
            that loads a registered implementation, or imports the function.
        is_bare: true if its claims were read from its parameters, not declared.
        sizes: those that a user gives, at which it is called beside all others.
        seed: of the calls at these sizes.
        last_call: the most recent call, to which the message of a failing law refers.
        last_state: the settings of torch around that call.
        last_diagnosis: the mutants (planted bugs) that the last diagnosis named.
        diagnoses: the number of comparisons with the whole catalogue of mutants.
        last_grad: the most recent incoming gradient, and the operands that it was for.
    """

    implementation: Implementation
    oracle: Oracle = _EXPECT
    oracle_gradients: Callable[..., ExpectedGradients] = _EXPECT_GRADIENTS
    largest: float = math.inf
    device: str = "cpu"
    import_code: str = ""
    is_bare: bool = False
    sizes: tuple[GivenSizes, ...] = ()
    seed: int = 0
    last_call: Call | None = field(default=None, init=False)
    last_grad: tuple[torch.Tensor, tuple[str, ...]] | None = field(default=None, init=False)
    last_state: TorchState = field(default=TorchState(), init=False)
    last_diagnosis: tuple[Any, ...] = field(default=(), init=False)
    diagnoses: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.import_code:
            return
        from attnspec import implementations

        if self.name in implementations.attention_names():
            load = f"load({self.name!r}).attention"
            self.import_code = f"from attnspec.implementations import load; attention = {load}"
        else:
            self.import_code = import_code_of(self.implementation.attention, "attention")

    @property
    def name(self) -> str:
        """The name of the implementation."""
        return self.implementation.name

    @property
    def widest(self) -> torch.dtype:
        """The widest storage type that is claimed."""
        return max(self.implementation.dtypes, key=lambda dtype: torch.finfo(dtype).bits)

    def claims(self, *features: Feature) -> bool:
        """Return whether all of the features are declared."""
        return self.implementation.features.issuperset(features)

    def refuses(self, case: Case) -> str | None:
        """Return the reason why a case is not tried, or None if it is."""
        if size(case) > self.largest:
            return "too large for the scalar definition"
        return self.implementation.refuses(case)

    def fit(self, case: Case) -> Case:
        """Return the claimed case that is nearest to a given one, at least on the right device.

        A pinned case names one device, one storage type and one number of channels. A kernel that
        supports others is tested on the remaining properties of the case.
        """
        if self.implementation.compiles_each_shape:
            case = with_few_shapes(case)
        claimed = self.implementation.dtypes
        dtype = case.dtype
        if dtype not in claimed:
            dtype = max(claimed, key=lambda candidate: torch.finfo(candidate).bits)
        if (case.device, case.dtype) != (self.device, dtype):
            case = case.but(device=self.device, dtype=dtype)
        if self.refuses(case) is None or not self.claims(*case.features):
            return case
        widths = [
            {name: -(-getattr(case, name) // unit) * unit for name in ("d_head", "d_value")}
            for unit in UNITS
        ]
        equal_widths = [dict.fromkeys(width, max(width.values())) for width in widths]
        for change in (*equal_widths[:1], *widths[1:], *equal_widths[1:]):
            if self.refuses(case.but(**change)) is None:
                return case.but(**change)
        return case

    def draw(self, case: Case, **changes: Any) -> Call:
        """Return the call of a case that the implementation claims.

        Raises:
            NotClaimed: if it refuses the case.
        """
        case = case.but(**changes)
        reason = self.refuses(case)
        if reason is not None:
            raise NotClaimed(reason)
        return draw(case)

    def claimed(self, call: Call) -> Call:
        """Return a call that the implementation claims: the given one, or with contiguous tensors.

        A law that changes the call of a case may arrive at one that the implementation refuses.

        Raises:
            NotClaimed: if it refuses both, with its reason.
        """
        implementation = self.implementation
        cases = cases_of(call, implementation.profile.causal_alignment)
        reasons = [reason for case in cases if (reason := implementation.refuses(case))]
        if not reasons:
            return call
        contiguous = [case.but(layouts=Layouts()) for case in cases]
        if all(implementation.refuses(case) is None for case in contiguous):
            return with_contiguous_operands(call)
        raise NotClaimed(reasons[0])

    def run(self, call: Call, **options: Any) -> Any:
        """Call the implementation and return its result unchecked.

        Args:
            call: the arguments.
            options: keywords that are passed although they are at their defaults, or that no call
                can hold.

        Raises:
            NotClaimed: if the implementation declares to refuse such a call.
            Raised: if it raises.
        """
        return self._run(self.claimed(call), options)

    def run_improper(self, call: Call) -> Any:
        """Make a call that must raise, which no declaration can claim, and return its result.

        Raises:
            Raised: if it raises.
        """
        return self._run(call, {})

    def _run(self, call: Call, options: dict[str, Any]) -> Any:
        self.last_call, self.last_grad = call, None
        self.last_state = TorchState.current(call.query.device.type)
        started = time.perf_counter()

        def attend() -> Any:
            with tally.watching_lines():
                return self.implementation.attention(
                    call.query, call.key, call.value, **call.keywords() | options
                )

        try:
            return run_in(call.mode, attend)
        except Exception as error:
            raise Raised(f"{type(error).__name__}: {error}") from error
        finally:
            tally.spent("implementation", started)

    def call(self, call: Call) -> Float[torch.Tensor, "batch heads queries d_value"]:
        """Call the implementation and return its output, checked for type, shape and dtype.

        Raises:
            Raised: if it raises.
            Violation: if the output is no tensor of the right shape and dtype.
        """
        out = self.run(call)
        if call.return_lse and isinstance(out, tuple) and len(out) == 2:
            out = out[0]
        return checked_output(out, call)

    @property
    def is_aligned(self) -> bool:
        """True if the causal flag lets the last query read the last key."""
        return self.implementation.profile.causal_alignment is CausalAlignment.LOWER_RIGHT

    def call_with_lse(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """Call the implementation and return its output and log-sum-exp, both checked.

        Args:
            call: with `return_lse`.

        Raises:
            Raised: if it raises.
            Violation: if it returns no pair of tensors of the right shapes and dtypes.
        """
        pair = self.run(call)
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise Violation(f"return_lse must return (out, lse), got {type(pair).__name__}")
        return checked_output(pair[0], call), checked_lse(pair[1], call)

    def differentiate(
        self, call: Call, grad_out: torch.Tensor, *, wrt: tuple[str, ...] = WRT
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        """Call the implementation, and back-propagate a gradient through it.

        Args:
            call: the call; its operands become leaves, in the layouts that they have.
            grad_out: the incoming gradient, in any layout.
            wrt: the operands whose gradients are computed.

        Returns:
            The output, and the gradient of each operand; None for one without a gradient.

        Raises:
            Raised: if it raises, forward or backward.
            Violation: if the output has a wrong type, shape or dtype, or requires no gradient.
        """
        recorded = self.record(call, wrt=wrt)
        if call.mode is CallMode.TWO_BACKWARDS:
            try:
                self.backpropagate(recorded, -grad_out, keep=True)
                return recorded.out.detach(), self.backpropagate(recorded, grad_out)
            except Raised:
                # it keeps no graph, as GRD-15 allows
                recorded = self.record(call.but(mode=CallMode.PLAIN), wrt=wrt)
        return recorded.out.detach(), self.backpropagate(recorded, grad_out)

    def record(self, call: Call, *, wrt: tuple[str, ...] = WRT) -> "Recorded":
        """Call the implementation with operands that require gradients.

        Args:
            call: the call; its operands become leaves, in the layouts that they have, or views of
                leaves in a layer of a model.
            wrt: the operands whose gradients are computed.

        Raises:
            Raised: if it raises.
            Violation: if the output has a wrong type, shape or dtype, or requires no gradient.
        """
        leaves = {name: getattr(call, name).detach().requires_grad_() for name in wrt}
        with torch.enable_grad():
            out = make_on_leaves(self.call, call, leaves)
        # without keys the output is a constant, which needs no gradient
        if not out.requires_grad and call.key.shape[2]:
            raise Violation("the output must require a gradient")
        return Recorded(call=call, leaves=leaves, out=out)

    def backpropagate(
        self, recorded: "Recorded", grad_out: torch.Tensor, *, keep: bool = False
    ) -> dict[str, torch.Tensor | None]:
        """Back-propagate a gradient through a recorded call, in the mode of the call.

        Args:
            recorded: the call.
            grad_out: the incoming gradient, in any layout.
            keep: whether to keep the graph for another gradient.

        Returns:
            The gradient of each operand that requires one; None for one without a gradient.

        Raises:
            Raised: if it raises.
        """
        wrt = tuple(recorded.leaves)
        self.last_call, self.last_grad = recorded.call, (grad_out, wrt)
        if not recorded.out.requires_grad:
            return {name: torch.zeros_like(leaf) for name, leaf in recorded.leaves.items()}
        started = time.perf_counter()

        def back_propagate() -> tuple[torch.Tensor | None, ...]:
            with tally.watching_lines():
                return torch.autograd.grad(
                    recorded.out,
                    list(recorded.leaves.values()),
                    grad_out,
                    retain_graph=keep,
                    allow_unused=True,
                )

        try:
            gradients = run_in(recorded.call.mode, back_propagate)
        except Exception as error:
            raise Raised(f"{type(error).__name__}: {error}") from error
        finally:
            tally.spent("implementation", started)
        return dict(zip(wrt, gradients, strict=True))

    def expect_gradients(
        self, call: Call, grad_out: torch.Tensor, **options: Any
    ) -> ExpectedGradients:
        """Return the oracle's gradients of a call, with their bounds."""
        started = time.perf_counter()
        try:
            return self.oracle_gradients(call, grad_out, self.implementation.profile, **options)
        finally:
            tally.spent("oracle", started)

    def expect(self, call: Call, **options: Any) -> Expected:
        """Return the oracle's result of a call, with its bound."""
        started = time.perf_counter()
        try:
            return self.oracle(call, self.implementation.profile, **options)
        finally:
            tally.spent("oracle", started)

    def judge(self, call: Call, out: torch.Tensor, message: str) -> Expected:
        """Check an output against the oracle, each element within its own bound.

        Raises:
            Violation: if an element exceeds its bound; names the worst one.
        """
        expected = self.expect(call)
        check_oracle(call, out, expected, message)
        return expected


def checked_output(out: Any, call: Call) -> torch.Tensor:
    """Return `out` if it is a tensor of the shape, dtype and device that the contract demands.

    Raises:
        Violation: if it is not; names the difference.
    """
    if not isinstance(out, torch.Tensor):
        raise Violation(f"the output must be a tensor, got {type(out).__name__}")
    shape = (*call.query.shape[:-1], call.value.shape[-1])
    if tuple(out.shape) != shape:
        raise Violation(f"the output must have shape {shape}, got {tuple(out.shape)}")
    if out.dtype != call.value.dtype:
        raise Violation(f"the output must have dtype {call.value.dtype}, got {out.dtype}")
    if out.device != call.value.device:
        raise Violation(f"the output must be on {call.value.device}, got {out.device}")
    return out


def checked_lse(lse: Any, call: Call) -> torch.Tensor:
    """Return `lse` if it is a tensor of the shape, dtype and device that the contract demands.

    Raises:
        Violation: if it is not; names the difference.
    """
    if not isinstance(lse, torch.Tensor):
        raise Violation(f"the log-sum-exp must be a tensor, got {type(lse).__name__}")
    shape = tuple(call.query.shape[:3])
    if tuple(lse.shape) != shape:
        raise Violation(f"the log-sum-exp must have shape {shape}, got {tuple(lse.shape)}")
    wide = torch.float64 if call.value.dtype == torch.float64 else torch.float32
    if lse.dtype not in (wide, torch.float64):
        raise Violation(f"the log-sum-exp must have dtype {wide} or wider, got {lse.dtype}")
    if lse.device != call.value.device:
        raise Violation(f"the log-sum-exp must be on {call.value.device}, got {lse.device}")
    return lse
