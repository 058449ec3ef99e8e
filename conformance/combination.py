"""Combinations: what a bare callable takes one by one and refuses together.

Nobody has declared what it claims; its parameters were read. A parameter is taken at its word, and
where it does not work, that is an error. That two of them work together is said by no signature: a
function that raises for both, and for neither alone, has refused the combination as it should.
"""

from typing import Any

from attnspec.conformance.call import Call
from attnspec.conformance.process import restored
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.tally import TOGETHER

REFUSALS = (NotImplementedError, ValueError, RuntimeError, AssertionError)
"""With what a function refuses; other exceptions come of mistakes."""

WITHOUT: dict[str, Any] = {
    "attn_mask": None,
    "is_causal": False,
    "window": None,
    "softcap": None,
    "sinks": None,
    "alibi_slopes": None,
    "return_lse": False,
}
"""Arguments, each with the value that asks for nothing."""


def refused_combination(subject: Any, error: BaseException) -> str | None:
    """Say which arguments a bare callable refuses together, where that is why it raised.

    Args:
        subject: whose `last_call` raised; one that is declared has said what it refuses.
        error: what came of it.
    """
    if not (isinstance(subject, Subject) and subject.is_bare and isinstance(error, Raised)):
        return None
    call = subject.last_call
    if call is None or not isinstance(error.__cause__, REFUSALS):
        return None
    given = [name for name in WITHOUT if name in call.keywords()]
    if len(given) < 2 or _runs(subject, call):
        return None
    needed = [name for name in given if _runs(subject, call.but(**{name: WITHOUT[name]}))]
    if len(needed) < 2:
        return None
    return f"{TOGETHER}{' and '.join(needed)}: {error}"


def _runs(subject: Subject, call: Call) -> bool:
    try:
        with restored():
            subject.implementation.attention(call.query, call.key, call.value, **call.keywords())
    except Exception:
        return False
    return True
