"""A paged attention under test: its calls, and the pools after them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.operators.packed.call import PackedCall
from attnspec.conformance.operators.packed.explanation import Named
from attnspec.conformance.operators.packed.subject import PackedBase, Result
from attnspec.conformance.operators.paged.call import PagedCall
from attnspec.conformance.operators.paged.explanation import paged_mistakes
from attnspec.conformance.operators.subject import copied
from attnspec.reference.paged import paged_attention
from attnspec.spec.paged import PagedImplementation


@dataclass(kw_only=True)
class PagedSubject(PackedBase):
    """A paged attention under test."""

    implementation: PagedImplementation

    @property
    def is_reference(self) -> bool:
        """True for the reference, which scalar loops judge."""
        return self.implementation.function is paged_attention

    def refuses(self, case: Any) -> str | None:
        """Return the reason why a case is not tried, or None if it is."""
        sizes = self.implementation.page_sizes
        if sizes is not None and case.page_size not in sizes:
            return f"page size not claimed: {case.page_size}"
        return super().refuses(case)

    def fit(self, case: Any) -> Any:
        """Return a case in a storage type and a page size that are claimed."""
        case, sizes = super().fit(case), self.implementation.page_sizes
        return case if sizes is None or case.page_size in sizes else case.but(page_size=sizes[0])

    def call(self, call: PackedCall) -> Result:
        """Make a call on copies of the pools, and return its result, checked for its form."""
        assert isinstance(call, PagedCall)
        return self.call_in_place(_copied(call))

    def call_in_place(self, call: PagedCall) -> Result:
        """Make a call, which may write to the pools, and return its result, checked for its form.

        Raises:
            Raised: if the function raises.
            Violation: if a result has a wrong form.
        """
        return super().call(call)

    def judge_in_place(self, call: PagedCall, message: str) -> None:
        """Make a call on the very pools, not on copies, and check its result.

        Raises:
            Violation: with the message, or if the mistake is known, with its name.
        """
        self.compare(call, self.call_in_place(call), message)

    def more_mistakes(self, call: PackedCall) -> Iterator[Named]:
        """Return the mistakes with pages that a wrong result may show."""
        return paged_mistakes(call) if isinstance(call, PagedCall) else iter(())

    def judge_pools(self, call: PagedCall, message: str) -> None:
        """Make a call, and check that the pools hold the new tokens and are else unchanged.

        Raises:
            Violation: with the message, naming the first slot that differs.
        """
        expected, made = call.written(), _copied(call)
        self.call_in_place(made)
        for name, before, right, got in zip(
            ("key", "value"), (call.key, call.value), expected, (made.key, made.value), strict=True
        ):
            wrong = ~_same(got, right).flatten(2).all(-1)
            if bool(wrong.any()):
                page, slot = (int(each) for each in wrong.nonzero()[0])
                is_new = not bool(_same(right[page, slot], before[page, slot]).all())
                what = "does not hold its new token" if is_new else "was written"
                raise Violation(f"{message}: slot {slot} of page {page} of {name} {what}")


def _copied(call: PagedCall) -> PagedCall:
    """Return the call with pools of its own, in the same strides."""
    own: PagedCall = call.but(key=copied(call.key), value=copied(call.value))
    return own


def _same(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return where two tensors hold the same number, or both NaN."""
    return (x == y) | (x.isnan() & y.isnan())
