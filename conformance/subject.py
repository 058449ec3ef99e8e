"""A subject: an implementation under judgement, called, timed and compared with its oracle."""

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
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Implementation

Oracle = Callable[..., Expected]


class Raised(Exception):
    """The implementation raised on a case that it claims; the cause is its own exception."""


def size(case: Case) -> int:
    """How many products of two numbers a case needs, roughly."""
    channels = case.d_head + case.d_value
    return case.batch * case.heads * case.queries * case.keys * max(channels, 1)


@dataclass
class Subject:
    """An attention implementation and the oracle that judges it.

    Attributes:
        implementation: what it claims.
        oracle: gives the expected result and the bound of a call; never shares code with
            the implementation.
        largest: the size of the largest case that the oracle can judge in reasonable time.
        device: the device on which cases are drawn.
        importing: a line of code that makes the name `attention` known to a snippet.
        last_call: the call made last, which is the one that a failing law speaks of.
    """

    implementation: Implementation
    oracle: Oracle = expect
    largest: int = 2**31
    device: str = "cpu"
    importing: str = ""
    last_call: Call | None = field(default=None, init=False)

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

    def run(self, call: Call) -> Any:
        """Call the implementation; whatever comes back comes back.

        Raises:
            Raised: where it raises.
        """
        self.last_call = call
        started = time.perf_counter()
        try:
            return self.implementation.attention(
                call.query, call.key, call.value, **call.keywords()
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
