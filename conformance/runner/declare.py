"""Declaring a bare callable: claims are read from its parameters and from a few calls."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnspec.conformance.runner.claims import DTYPES, Claims
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
    "return_lse": Feature.LSE,
}


class TargetError(Exception):
    """A target that cannot be found or is of a wrong kind; the message names it."""


class BrokenTarget(TargetError):
    """A target that exists, but cannot be imported or called."""


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
        TargetError: if the callable accepts no storage type.
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
    parameters = _parameters(attention)
    if parameters is None or "scale" in parameters:
        return True
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def _default_scale_only(case: Case) -> str | None:
    return None if case.scale is None else "it has no parameter scale"


def _accepted(name: str, attention: Callable[..., Any], device: str) -> tuple[torch.dtype, ...]:
    accepted, errors = [], []
    for dtype in DTYPES.values():
        try:
            attention(*(torch.ones(1, 1, 2, 4, dtype=dtype, device=device) for _ in range(3)))
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        else:
            accepted.append(dtype)
    if not accepted:
        raise BrokenTarget(
            f"{name}: refuses ones of shape (1, 1, 2, 4) in every dtype: {errors[0]}"
        )
    return tuple(accepted)


def _parameters(attention: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters by name; `None` if they cannot be read, as of torch's own function."""
    try:
        return inspect.signature(attention).parameters
    except (TypeError, ValueError):
        return None


def _features(attention: Callable[..., Any]) -> frozenset[Feature]:
    parameters = _parameters(attention)
    if parameters is None:
        return frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA})
    return frozenset(_BY_PARAMETER[name] for name in parameters if name in _BY_PARAMETER)
