"""Combinations of arguments that a bare callable accepts one by one and refuses together.

The claims of a bare callable are read from its signature. A parameter counts as claimed, so it is
an error if it does not work. But a signature does not say that two parameters work together: a
function that raises for both, and for neither alone, has refused the combination.
"""

from typing import Any

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.tally import REFUSED_COMBINATION
from attnspec.conformance.comparison.violation import Raised
from attnspec.conformance.isolation.state import restored_state

REFUSALS = (NotImplementedError, ValueError, RuntimeError, AssertionError)
"""Exceptions that count as a refusal; others count as mistakes."""

DEFAULTS: dict[str, Any] = {
    "attn_mask": None,
    "is_causal": False,
    "window": None,
    "softcap": None,
    "sinks": None,
    "alibi_slopes": None,
    "key_lengths": None,
    "query_offset": None,
    "return_lse": False,
}
"""Arguments with the default that requests no feature."""


def refused_combination(subject: Any, error: BaseException) -> str | None:
    """Return the reason if a bare callable raised because it refuses arguments together.

    Args:
        subject: the subject whose `last_call` raised; declared subjects state their refusals.
        error: the exception.

    Returns:
        The reason, with the arguments; None if the exception is no such refusal.
    """
    if not (isinstance(subject, Subject) and subject.is_bare and isinstance(error, Raised)):
        return None
    call = subject.last_call
    if call is None or not isinstance(error.__cause__, REFUSALS):
        return None
    arguments = [name for name in DEFAULTS if name in call.keywords()]
    if len(arguments) < 2 or _runs(subject, call):
        return None
    needed = [name for name in arguments if _runs(subject, call.but(**{name: DEFAULTS[name]}))]
    if len(needed) < 2:
        return None
    return f"{REFUSED_COMBINATION}{' and '.join(needed)}: {error}"


def _runs(subject: Subject, call: Call) -> bool:
    try:
        with restored_state():
            subject.implementation.attention(call.query, call.key, call.value, **call.keywords())
    except Exception:
        return False
    return True
