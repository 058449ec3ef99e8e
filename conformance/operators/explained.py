"""Causes of relations that fail: the mistake of one of their calls, if it has a name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attnspec.conformance.comparison.violation import Explained, Raised, Violation
from attnspec.conformance.operators.subject import OperatorSubject


@contextmanager
def explained_by(
    subject: OperatorSubject, cause: Callable[..., str], *calls: tuple[Any, ...]
) -> Iterator[None]:
    """Name the cause of a relation that fails, which only says that two results disagree.

    Args:
        subject: whose last call a failure shows, and which stays that of the relation.
        cause: returns the name of the mistake of a call, or an empty string.
        calls: the arguments of `cause` for each call of the relation.

    Raises:
        Explained: naming the mistake of the first call that has one.
        Violation: that of the relation, if there is no name.
    """
    try:
        yield
    except Explained:
        raise
    except Violation as error:
        last = subject.last_call
        for arguments in calls:
            try:
                name = cause(*arguments)
            except (Raised, Violation):
                name = ""
            subject.last_call = last
            if name:
                raise Explained(name, error.mismatch) from None
        raise
