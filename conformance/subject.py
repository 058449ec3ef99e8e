"""A subject: an implementation under judgement, called, timed and compared with its oracle."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float

from attnspec.conformance import tally
from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.inputs import draw
from attnspec.conformance.oracle import Expected, expect
from attnspec.conformance.oracle_gradients import ExpectedGradients, expect_gradients
from attnspec.conformance.sharing import shared
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Implementation

Oracle = Callable[..., Expected]

WRT = ("query", "key", "value")
"""The operands that always have a gradient."""


_EXPECT, _EXPECT_GRADIENTS = shared(expect), shared(expect_gradients)


class Raised(Exception):
    """The implementation raised on a case that it claims; the cause is its own exception."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A call whose output can be differentiated.

    Attributes:
        call: what was asked.
        leaves: the operands that ask for a gradient, by name.
        out: the output, with its graph.
    """

    call: Call
    leaves: dict[str, torch.Tensor]
    out: torch.Tensor


def size(case: Case) -> int:
    """How many products of two numbers a case needs, roughly."""
    channels = case.d_head + case.d_value
    return case.batch * case.heads * case.queries * case.keys * max(channels, 1)


UNITS = (1, 4, 8, 16, 64, 128)
"""What numbers of channels are often multiples of."""


@dataclass
class Subject:
    """An attention implementation and the oracle that judges it.

    Attributes:
        implementation: what it claims.
        oracle: gives the expected result and the bound of a call; never shares code with
            the implementation.
        oracle_gradients: likewise of the gradients.
        largest: the size of the largest case that the oracle can judge in reasonable time; what
            the reference judges has no limit, since it judges long calls by some of their rows.
        device: the device on which cases are drawn.
        importing: a line of code that makes the name `attention` known to a snippet.
        is_bare: true where nobody has said what it claims, and its parameters were read.
        last_call: the call made last, which is the one that a failing law speaks of.
        resembled: the planted bugs that it was last found to look like.
        diagnoses: how often it was compared with the whole catalogue.
        last_grad: the gradient that was handed back through it, and for which operands.
    """

    implementation: Implementation
    oracle: Oracle = _EXPECT
    oracle_gradients: Callable[..., ExpectedGradients] = _EXPECT_GRADIENTS
    largest: float = math.inf
    device: str = "cpu"
    importing: str = ""
    is_bare: bool = False
    last_call: Call | None = field(default=None, init=False)
    last_grad: tuple[torch.Tensor, tuple[str, ...]] | None = field(default=None, init=False)
    resembled: tuple[Any, ...] = field(default=(), init=False)
    diagnoses: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.importing:
            load = f"load({self.name!r}).attention"
            self.importing = f"from attnspec.implementations import load; attention = {load}"

    @property
    def name(self) -> str:
        """The name of the implementation."""
        return self.implementation.name

    def claims(self, *features: Feature) -> bool:
        """True where every one of the features is declared."""
        return self.implementation.features.issuperset(features)

    def refuses(self, case: Case) -> str | None:
        """Why this case is not tried, in words, or `None` where it is."""
        if size(case) > self.largest:
            return "too large for the scalar definition"
        return self.implementation.refuses(case)

    def fit(self, case: Case) -> Case:
        """A case as near to the given one as the implementation claims, or on its device at least.

        A case that is pinned names one device, one storage type and one number of channels; a
        kernel that has others is to be held to what else the case is about.
        """
        claimed = self.implementation.dtypes
        dtype = case.dtype
        if dtype not in claimed:
            dtype = max(claimed, key=lambda each: torch.finfo(each).bits)
        if (case.device, case.dtype) != (self.device, dtype):
            case = case.but(device=self.device, dtype=dtype)
        if self.refuses(case) is None or not self.claims(*case.features):
            return case
        widths = [
            {name: -(-getattr(case, name) // unit) * unit for name in ("d_head", "d_value")}
            for unit in UNITS
        ]
        widest = [dict.fromkeys(each, max(each.values())) for each in widths]
        for change in (*widest[:1], *widths[1:], *widest[1:]):
            if self.refuses(case.but(**change)) is None:
                return case.but(**change)
        return case

    def draw(self, case: Case, **changes: Any) -> Call:
        """The call of a case that the implementation claims.

        Raises:
            NotClaimed: where it refuses the case.
        """
        case = case.but(**changes)
        reason = self.refuses(case)
        if reason is not None:
            raise tally.NotClaimed(reason)
        return draw(case)

    def run(self, call: Call, **options: Any) -> Any:
        """Call the implementation; whatever comes back comes back.

        Args:
            call: what it is asked.
            options: keywords that are passed although they are at their defaults, or that no call
                can hold.

        Raises:
            Raised: where it raises.
        """
        self.last_call, self.last_grad = call, None
        started = time.perf_counter()
        try:
            return self.implementation.attention(
                call.query, call.key, call.value, **call.keywords() | options
            )
        except Exception as error:
            raise Raised(f"{type(error).__name__}: {error}") from error
        finally:
            self._spent("implementation", started)

    def call(self, call: Call) -> Float[torch.Tensor, "batch heads queries d_value"]:
        """Call the implementation and return its output, sound in type, shape and dtype.

        Raises:
            Raised: where it raises.
            Violation: where the output is no tensor of the right shape and dtype.
        """
        out = self.run(call)
        if call.return_lse and isinstance(out, tuple) and len(out) == 2:
            out = out[0]
        return sound(out, call)

    def call_with_lse(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """Call the implementation for its output and log-sum-exp, both sound.

        Args:
            call: with `return_lse`.

        Raises:
            Raised: where it raises.
            Violation: where it does not return a pair of sound tensors.
        """
        pair = self.run(call)
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise Violation(f"return_lse must give (out, lse), got {type(pair).__name__}")
        return sound(pair[0], call), sound_lse(pair[1], call)

    def differentiate(
        self, call: Call, grad_out: torch.Tensor, *, wrt: tuple[str, ...] = WRT
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        """Call the implementation, and hand a gradient back through it.

        Args:
            call: whose operands become leaves, in the layouts that they have.
            grad_out: the incoming gradient, in any layout.
            wrt: the operands whose gradients are asked for.

        Returns:
            The output, and the gradient of each operand; `None` where none came.

        Raises:
            Raised: where it raises, forward or backward.
            Violation: where the output is not sound, or does not depend on its operands.
        """
        recorded = self.record(call, wrt=wrt)
        return recorded.out.detach(), self.hand_back(recorded, grad_out)

    def record(self, call: Call, *, wrt: tuple[str, ...] = WRT) -> "Recorded":
        """Call the implementation with operands that ask for gradients.

        Args:
            call: whose operands become leaves, in the layouts that they have.
            wrt: the operands whose gradients are asked for.

        Raises:
            Raised: where it raises.
            Violation: where the output is not sound, or does not depend on its operands.
        """
        leaves = {name: getattr(call, name).detach().requires_grad_() for name in wrt}
        with torch.enable_grad():
            out = self.call(call.but(**leaves))
        # without keys the output is a constant, and may say so
        if not out.requires_grad and call.key.shape[2]:
            raise Violation("the output must have a gradient: it does not require one")
        return Recorded(call=call, leaves=leaves, out=out)

    def hand_back(
        self, recorded: "Recorded", grad_out: torch.Tensor, *, keep: bool = False
    ) -> dict[str, torch.Tensor | None]:
        """Hand a gradient back through a recorded call.

        Args:
            recorded: the call.
            grad_out: the incoming gradient, in any layout.
            keep: whether another gradient is to follow through the same graph.

        Returns:
            The gradient of each operand that asked for one; `None` where none came.

        Raises:
            Raised: where it raises.
        """
        wrt = tuple(recorded.leaves)
        self.last_call, self.last_grad = recorded.call, (grad_out, wrt)
        if not recorded.out.requires_grad:
            return {name: torch.zeros_like(leaf) for name, leaf in recorded.leaves.items()}
        started = time.perf_counter()
        try:
            found = torch.autograd.grad(
                recorded.out,
                list(recorded.leaves.values()),
                grad_out,
                retain_graph=keep,
                allow_unused=True,
            )
        except Exception as error:
            raise Raised(f"{type(error).__name__}: {error}") from error
        finally:
            self._spent("implementation", started)
        return dict(zip(wrt, found, strict=True))

    def expect_gradients(self, call: Call, grad_out: torch.Tensor) -> ExpectedGradients:
        """What the oracle expects of the gradients, with their bounds."""
        started = time.perf_counter()
        try:
            return self.oracle_gradients(call, grad_out, self.implementation.profile)
        finally:
            self._spent("oracle", started)

    def expect(self, call: Call, **options: Any) -> Expected:
        """What the oracle expects of a call, with its bound."""
        started = time.perf_counter()
        try:
            return self.oracle(call, self.implementation.profile, **options)
        finally:
            self._spent("oracle", started)

    def judge(self, call: Call, out: torch.Tensor, message: str) -> Expected:
        """Hold an output to the oracle, each element within its own bound.

        Raises:
            Violation: naming the worst element.
        """
        expected = self.expect(call)
        check_close(
            out,
            expected.out,
            expected.bound,
            what="out",
            message=message,
            dtype=call.value.dtype,
            may_be_nan=expected.may_be_nan,
        )
        return expected

    def _spent(self, part: str, started: float) -> None:
        running = tally.current()
        if running is not None:
            running.spent(part, time.perf_counter() - started)


def sound(out: Any, call: Call) -> torch.Tensor:
    """Return `out` if it is a tensor of the shape, dtype and device that the contract demands.

    Raises:
        Violation: saying what it is instead.
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


def sound_lse(lse: Any, call: Call) -> torch.Tensor:
    """Return `lse` if it is a tensor of the shape, dtype and device that the contract demands.

    Raises:
        Violation: saying what it is instead.
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
