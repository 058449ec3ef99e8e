"""A packed attention under test: its calls, checked for form and against the oracle."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, Raised, Violation
from attnspec.conformance.isolation.attempt import attempt
from attnspec.conformance.operators.packed.call import PackedCall
from attnspec.conformance.operators.packed.case import GARBAGE
from attnspec.conformance.operators.packed.explanation import Named, explained
from attnspec.conformance.operators.packed.oracle import (
    Rows,
    expect_row_gradients,
    expect_rows,
    padded_profile,
)
from attnspec.conformance.operators.subject import (
    OperatorCall,
    OperatorSubject,
    checked,
    copied,
)
from attnspec.reference.packed import packed_attention
from attnspec.spec.operator import OperatorImplementation
from attnspec.spec.packed import (
    EVERYWHERE,
    EmptySequences,
    LseLayout,
    OutsideRows,
    PackedImplementation,
    PackedProfile,
)

AXES = ("token", "head", "channel")
"""Names of the axes of an output in a message."""

LSE_AXES = ("head", "token")

REFUSED = "raises"
"""The word for an invalid call that raises, as it must."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A result whose form is right.

    Attributes:
        out: the output.
        lse: the log-sum-exp, (heads, total_q); None if it was not requested.
    """

    out: torch.Tensor
    lse: torch.Tensor | None


class PackedBase(OperatorSubject):
    """The common part of the subjects of packed and of paged attention."""

    implementation: OperatorImplementation

    @property
    def profile(self) -> PackedProfile:
        """The declared answers."""
        profile: PackedProfile = self.implementation.profile
        return profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which scalar loops judge."""
        return False

    def refuses(self, case: Any) -> str | None:
        """Return the reason why a case is not tried, or None if it is."""
        undefined = self.profile.empty_sequences is EmptySequences.UNDEFINED
        if case.has_empty_sequences and undefined:
            return "sequences of length zero are not claimed"
        if case.indices not in (None, *self.profile.index_type.dtypes):
            return f"integer type not declared: {str(case.indices).removeprefix('torch.')}"
        return super().refuses(case)

    def expressible(self, case: Any) -> Any:
        """Return a case without a window, groups or log-sum-exp that are not claimed.

        A law that is not about these tries the rest of the case.

        Raises:
            NotClaimed: if the rest is not claimed either, with the reason.
        """
        missing = case.features - self.implementation.features
        changes: dict[str, Any] = {}
        if missing & {"causal", "window"}:
            changes["window"] = EVERYWHERE
        if "gqa" in missing:
            changes["kv_heads"] = case.heads
        if "lse" in missing:
            changes["lse"] = False
        if "append" in missing:
            changes["append"] = False
        changed = case.but(**changes)
        self.demand(changed)
        return changed

    def more_mistakes(self, call: PackedCall) -> Iterable[Named]:
        """Return the mistakes beside those of every packed call."""
        return ()

    def make(self, call: PackedCall) -> Any:
        """Return the unchecked result of a call."""
        return self.implementation.function(*call.positional(), **call.keywords())

    def call(self, call: PackedCall) -> Result:
        """Make a call, and return its result, checked for type, shape and storage type.

        Raises:
            Raised: if the function raises.
            Violation: if a result has a wrong form.
        """
        operator_call = OperatorCall(
            tensors=call.tensors(),
            arguments=call.code(),
            differentiated="out[0]" if call.lse else "out",
        )
        return self.checked(call, self.run(operator_call, lambda: self.make(call)))

    def checked(self, call: PackedCall, result: Any) -> Result:
        """Return a result if its form is right.

        Raises:
            Violation: naming what is wrong.
        """
        shape, lse = tuple(call.query.shape), None
        if call.lse:
            if not (isinstance(result, tuple) and len(result) == 2):
                got = type(result).__name__
                raise Violation(f"a call that asks for the log-sum-exp returned no pair but {got}")
            result, lse = result
            lse = self._checked_lse(lse, call)
        return Result(out=checked(result, shape, call.value.dtype), lse=lse)

    def _checked_lse(self, lse: Any, call: PackedCall) -> torch.Tensor:
        total, heads = call.query.shape[:2]
        is_heads_first = self.profile.lse_layout is LseLayout.HEADS_FIRST
        shape = (heads, total) if is_heads_first else (total, heads)
        if not isinstance(lse, torch.Tensor) or not lse.is_floating_point():
            raise Violation(f"the log-sum-exp must be a floating-point tensor, got {lse!r}")
        if tuple(lse.shape) != shape:
            layout = self.profile.lse_layout
            got = tuple(lse.shape)
            raise Violation(f"the log-sum-exp must have shape {shape} ({layout}), got {got}")
        return lse if is_heads_first else lse.T

    def expect(self, call: PackedCall, page_size: int | None = None) -> list[Rows]:
        """Return the expected rows of each sequence.

        Args:
            call: the call.
            page_size: tokens of a page, if the call was made on other pages than it has.
        """
        gathered, size = call.gathered(), call.page_size if page_size is None else page_size
        rows = []
        for b in range(call.sequences):
            padded = gathered.padded(b)
            queries, keys = padded.query.shape[2], padded.key.shape[2]
            roundings = self.profile.partial_outputs(queries, keys, size)
            profile = padded_profile(self.profile, roundings=roundings)
            rows.append(
                expect_rows(padded, profile, by_scalars=self.is_reference, roundings=roundings)
            )
        return rows

    def judge_case(self, case: Any, message: str) -> None:
        """Check the output of a case against the definition."""
        self.judge(case.draw(self.profile), message)

    def judge(self, call: PackedCall, message: str) -> Result:
        """Check the result of a call against the definition, and return it.

        Raises:
            Violation: with the message, or if the mistake is known, with its name.
        """
        result = self.call(call)
        self.compare(call, result, message)
        return result

    def judge_refused(self, call: PackedCall, problem: str) -> None:
        """Make an invalid call in a process of its own, and check that it raises.

        Raises:
            Violation: if it returns, writes to a pool before it raises, or ends its process.
            NotAvailable: if there can be no such process.
        """
        self.last_call = OperatorCall(tensors=call.tensors(), arguments=call.code())

        def make() -> str:
            before = [each.clone() for each in call.operands.values()]
            try:
                self.make(call)
            except Exception:
                pairs = zip(before, call.operands.values(), strict=True)
                same = [bool(((x == y) | (x.isnan() & y.isnan())).all()) for x, y in pairs]
                return REFUSED if all(same) else "it raises after it has written to a pool"
            return "it returns a result"

        seen = attempt(make)
        if seen != REFUSED:
            raise Violation(f"a call with {problem} is not refused: {seen}")

    def compare_rows(self, call: PackedCall, result: Result, message: str, page_size: int) -> None:
        """Check a result against the definition of a call that was made in another form.

        Args:
            call: the packed call that has the same rows.
            result: of a call on pages.
            message: the meaning of a wrong result.
            page_size: tokens of a page.

        Raises:
            Violation: with the message, or if the mistake is known, with its name.
        """
        try:
            self._compare(call, result, message, page_size)
        except Violation as error:
            cause = explained(call, result.out, padded_profile(self.profile))
            if cause:
                raise Explained(cause, error.mismatch) from None
            raise

    def compare(self, call: PackedCall, result: Result, message: str) -> None:
        """Check a result of a call against the definition.

        Raises:
            Violation: with the message, or if the mistake is known, with its name.
        """
        try:
            self._compare(call, result, message)
        except Violation as error:
            profile = padded_profile(self.profile)
            cause = self._seen_nan(call, result)
            if not cause:
                gathered, more = call.gathered(), self.more_mistakes(call)
                cause = explained(gathered, result.out, profile, more)
            if cause:
                raise Explained(cause, error.mismatch) from None
            raise

    def without_nan(self, call: PackedCall) -> PackedCall:
        """Return the call with numbers in place of NaN in keys and values."""
        pools = {"key": copied(call.key), "value": copied(call.value)}
        for each in pools.values():
            each.nan_to_num_(GARBAGE)
        changed: PackedCall = call.but(**pools)
        return changed

    def _seen_nan(self, call: PackedCall, result: Result) -> str:
        """Return the mistake of a call whose result is NaN, by a call without NaN, or ""."""
        has_nan = bool(call.key.isnan().any() | call.value.isnan().any())
        if not has_nan or not bool(result.out[: int(call.cu_seq_q[-1])].isnan().any()):
            return ""
        failing, clean = self.last_call, self.without_nan(call)
        try:
            got = self.call(clean)
            profile = padded_profile(self.profile)
            cause = explained(clean.gathered(), got.out, profile, self.more_mistakes(clean))
            self._compare(clean, got, "")
        except Violation:
            return cause
        except Raised:
            return ""
        finally:
            self.last_call = failing
        return "NaN that no query may read reaches the result, and other numbers there do not"

    def _compare(
        self, call: PackedCall, result: Result, message: str, page_size: int | None = None
    ) -> None:
        last = 0
        for b, expected in enumerate(self.expect(call, page_size)):
            rows, keys = call.rows(b), call.gathered().key_rows(b)
            last = rows.stop
            lengths = f"{rows.stop - rows.start} queries, {keys.stop - keys.start} keys"
            what = f"of sequence {b} ({lengths})"
            check_close(
                result.out[rows],
                expected.out,
                expected.bound,
                what=f"out {what}",
                message=message,
                may_be_nan=expected.may_be_nan,
                axes=AXES,
            )
            if result.lse is not None:
                check_close(
                    result.lse[:, rows],
                    expected.lse,
                    expected.lse_bound,
                    what=f"log-sum-exp {what}",
                    message=message,
                    axes=LSE_AXES,
                )
        outside = result.out[last:]
        if self.profile.outside_rows is OutsideRows.ZERO:
            check_close(
                outside,
                torch.zeros_like(outside, dtype=torch.float64),
                torch.zeros_like(outside, dtype=torch.float64),
                what="out behind the last sequence",
                message="rows outside all sequences are not zero, as the profile says",
                axes=AXES,
            )


@dataclass(kw_only=True)
class PackedSubject(PackedBase):
    """A packed attention under test."""

    implementation: PackedImplementation

    @property
    def is_reference(self) -> bool:
        """True for the reference, which scalar loops judge."""
        return self.implementation.function is packed_attention

    def gradients(self, call: PackedCall, grad_out: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the gradients of query, key and value.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the output has a wrong form, or a gradient is missing.
        """
        leaves = {name: each.detach().requires_grad_() for name, each in call.operands.items()}
        differentiable = call.but(**leaves, lse=False)
        _, grads = self.differentiate(
            OperatorCall(
                tensors=differentiable.tensors(),
                arguments=differentiable.code(),
                grad_out=grad_out,
                wrt=tuple(leaves),
            ),
            lambda: self.make(differentiable),
            lambda got: checked(got, tuple(call.query.shape), call.value.dtype),
        )
        for name, grad in grads.items():
            checked(grad, tuple(leaves[name].shape), call.value.dtype, f"gradient of {name}")
        return grads

    def judge_gradients(self, call: PackedCall, grad_out: torch.Tensor, message: str) -> None:
        """Check the gradients of a call against those of the definition.

        Gradients of rows outside all sequences are zero, or undefined as their output is.

        Raises:
            Violation: with the message, naming the operand and the sequence.
        """
        got = self.gradients(call, grad_out)
        profile = padded_profile(self.profile)
        last = {"query": 0, "key": 0, "value": 0}
        for b in range(call.sequences):
            expected = expect_row_gradients(
                call.padded(b), grad_out[call.rows(b)], profile, by_formula=self.is_reference
            )
            for name, gradient in expected.items():
                rows = call.rows(b) if name == "query" else call.key_rows(b)
                last[name] = rows.stop
                check_close(
                    got[name][rows],
                    gradient.exact,
                    gradient.bound,
                    what=f"gradient of {name} of sequence {b}",
                    message=message,
                    may_be_nan=gradient.may_be_nan,
                    axes=AXES,
                )
        if self.profile.outside_rows is OutsideRows.ZERO:
            for name, row in last.items():
                outside = got[name][row:]
                zero = torch.zeros_like(outside, dtype=torch.float64)
                check_close(
                    outside,
                    zero,
                    zero,
                    what=f"gradient of {name} behind the last sequence",
                    message="gradients of rows outside all sequences are not zero",
                    axes=AXES,
                )
