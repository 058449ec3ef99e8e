"""A law of TEN: options that are passed by position."""

import inspect
from typing import Any

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.subject import Subject, checked_output
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.cases import BIAS, HIDDEN, SMALL, TINIEST
from attnspec.conformance.laws.law import law
from attnspec.spec import Case

DEFAULTS: dict[str, Any] = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
"""The parameters of the contract after query, key and value, in their order."""
OPERANDS = 3


@law(
    "TEN-18",
    pinned=(
        TINIEST,
        TINIEST.but(is_causal=True),
        TINIEST.but(scale=2.0),
        TINIEST.but(mask=HIDDEN),
        SMALL.but(mask=BIAS),
        SMALL.but(kv_heads=1),
        SMALL.but(kv_heads=1, is_causal=True, scale=0.5),
    ),
    cost=5,
)
def law_options_may_be_passed_by_position(subject: Subject, case: Case) -> None:
    """TEN-18: options by position, in the order of the contract, act as by keyword or raise."""
    call = subject.draw(case)
    expected = subject.expect(call)
    names = list(DEFAULTS)
    accepted = 0
    for count in range(1, len(names) + 1):
        if not takes_by_position(subject.implementation.attention, count):
            break
        try:
            out = _call_by_position(subject, call, count)
        except Exception:  # as the `TypeError` of keyword-only parameters
            break
        accepted += 1
        message = f"the output is wrong if {names[count - 1]} and all before it are positional"
        check_oracle(call, checked_output(out, call), expected, message)
    if not accepted:
        raise NotClaimed("takes no option by position")


def takes_by_position(attention: Any, count: int) -> bool:
    """Return whether the first options of the contract may be positional, by their names."""
    try:
        parameters = list(inspect.signature(attention).parameters.values())
    except (TypeError, ValueError):  # as of torch's own function, which is the contract
        return True
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    names = [parameter.name for parameter in parameters if parameter.kind in positional]
    rest = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    given, contract = names[OPERANDS:][:count], list(DEFAULTS)[:count]
    return given == contract[: len(given)] and (rest or len(given) == count)


def _call_by_position(subject: Subject, call: Call, count: int) -> Any:
    """Call the implementation with its first options by position, the others by keyword."""
    subject.last_call, subject.last_grad = call, None
    options = call.keywords()
    leading = [options.pop(name, DEFAULTS[name]) for name in list(DEFAULTS)[:count]]
    operands = call.query, call.key, call.value
    return subject.implementation.attention(*operands, *leading, **options)
