"""Declaring a bare callable: claims are read from its parameters and from a few calls."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.subject import checked_output
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.isolation.memory import is_exhausted
from attnspec.conformance.runner.claims import DTYPES, Claims
from attnspec.conformance.runner.first_call import announce, call_of_attention, cause_of
from attnspec.spec import Case, Feature, Implementation
from attnspec.spec.contract import any_case

_BY_PARAMETER = {
    "attn_mask": Feature.MASK,
    "is_causal": Feature.CAUSAL,
    "enable_gqa": Feature.GQA,
    "window": Feature.WINDOW,
    "softcap": Feature.SOFTCAP,
    "sinks": Feature.SINKS,
    "alibi_slopes": Feature.ALIBI,
    "key_lengths": Feature.KEY_LENGTHS,
    "query_offset": Feature.QUERY_OFFSET,
    "return_lse": Feature.LSE,
}

OPTIONS = (*_BY_PARAMETER, "scale", "dropout_p")
"""The names of the options that calls set."""


class TargetError(Exception):
    """A target that cannot be found or is of a wrong kind; the message names it."""


class BrokenTarget(TargetError):
    """A target that exists, but cannot be imported or called."""


class BrokenCall(BrokenTarget):
    """A target that is imported, and whose first call fails; the message is a verdict."""


NO_CLAIMS = Claims()


def declare(
    name: str,
    attention: Callable[..., Any],
    claims: Claims = NO_CLAIMS,
    device: str = "cpu",
) -> Implementation:
    """Make the declaration of a bare callable.

    Args:
        name: the name of the subject.
        attention: the callable.
        claims: the user's claims, which override those read from parameters and calls.
        device: the device on which it is called.

    Raises:
        BrokenCall: if the callable accepts no storage type.
    """
    accepted = claims.dtypes or _accepted(name, attention, device)
    suggested = Implementation(
        name=name,
        attention=attention,
        features=_features(attention),
        dtypes=accepted,
        devices=(torch.device(device).type,),
        supports=any_case if _takes_scale(attention) else _default_scale_only,
    )
    return claims.override(suggested)


def _takes_scale(attention: Callable[..., Any]) -> bool:
    parameters = parameters_of(attention)
    if parameters is None or "scale" in parameters:
        return True
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def _default_scale_only(case: Case) -> str | None:
    return None if case.scale is None else "it has no parameter scale"


def _accepted(name: str, attention: Callable[..., Any], device: str) -> tuple[torch.dtype, ...]:
    """Return the storage types in which the first call does not raise.

    Raises:
        BrokenCall: if it raises in all, or if memory runs out.
    """
    accepted, failures = [], []
    for dtype in DTYPES.values():
        try:
            _call_on_ones(attention, dtype, device)
        except (Exception, SystemExit) as error:
            cause = cause_of(error)
            failures.append(call_of_attention(dtype).failure(name, cause))
            if is_exhausted(cause):
                raise BrokenCall(failures[-1]) from None
        else:
            accepted.append(dtype)
    if not accepted:
        raise BrokenCall(failures[0])
    return tuple(accepted)


def check_first_call(
    name: str, attention: Callable[..., Any], dtypes: Iterable[torch.dtype], device: str
) -> None:
    """Call an attention once in each storage type, and check the kind of its result.

    Args:
        name: the name of the subject.
        attention: the callable.
        dtypes: the storage types that it claims.
        device: the device on which it is called.

    Raises:
        BrokenCall: if a call raises, or if its result is no tensor of the right shape and dtype.
    """
    for dtype in dtypes:
        try:
            result, call = _call_on_ones(attention, dtype, device)
            checked_output(result, call)
        except Violation as error:
            raise BrokenCall(call_of_attention(dtype).failure(name, str(error))) from None
        except (Exception, SystemExit) as error:
            raise BrokenCall(call_of_attention(dtype).failure(name, cause_of(error))) from None


def _call_on_ones(
    attention: Callable[..., Any], dtype: torch.dtype, device: str
) -> tuple[Any, Call]:
    """Call an attention on ones, and return its unchecked result and the call."""
    query, key, value = (torch.ones(1, 1, 2, 4, dtype=dtype, device=device) for _ in range(3))
    call = Call(query=query, key=key, value=value)
    announce(call_of_attention(dtype))
    result = attention(call.query, call.key, call.value)
    announce(None)
    return result, call


def parameters_of(attention: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters by name; `None` if they cannot be read, as of torch's own function."""
    try:
        return inspect.signature(attention).parameters
    except (TypeError, ValueError):
        return None


def unset_parameters(attention: Callable[..., Any]) -> list[str]:
    """Return the names of parameters after the operands that no call sets."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = list((parameters_of(attention) or {}).values())[3:]
    return [each.name for each in parameters if each.kind in kinds and each.name not in OPTIONS]


def _features(attention: Callable[..., Any]) -> frozenset[Feature]:
    parameters = parameters_of(attention)
    if parameters is None:
        return frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA})
    return frozenset(_BY_PARAMETER[name] for name in parameters if name in _BY_PARAMETER)
