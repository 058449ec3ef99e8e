"""A float mask whose dtype is not that of the queries, which may be refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from attnspec.conformance.comparison.violation import NotClaimed, Raised
from attnspec.spec import Case


@contextmanager
def may_refuse_mask_dtype(case: Case) -> Iterator[None]:
    """Let a call raise whose mask has a dtype that its queries do not have (MSK-20).

    Raises:
        NotClaimed: in place of what such a call raises.
    """
    try:
        yield
    except Raised:
        if case.mask is None or case.mask.dtype is None:
            raise
        raise NotClaimed("a float mask of another dtype is refused") from None
