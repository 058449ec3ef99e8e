"""The parameters of an adapted function: those of the contract that its kernel takes."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

OPERANDS = ("query", "key", "value")

OPTIONS: dict[str, Any] = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
    "window": None,
    "softcap": None,
    "sinks": None,
    "alibi_slopes": None,
    "key_lengths": None,
    "query_offset": None,
    "return_lse": False,
}
"""The optional parameters of the contract, in its order, with the value that has no effect."""

_POSITIONAL = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def parameters(kernel: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters that a kernel declares.

    A parameter ``**kwargs`` has no part in it: a kernel may accept a name and ignore it.

    Raises:
        TypeError: if its signature cannot be read.
    """
    try:
        declared = inspect.signature(kernel).parameters.values()
    except (TypeError, ValueError):
        raise TypeError(
            f"{kernel!r} has no signature that Python can read: wrap it in a function that names "
            "its parameters"
        ) from None
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return frozenset(each.name for each in declared if each.kind not in variable)


def options(kernel: Callable[..., Any]) -> frozenset[str]:
    """Return the optional parameters of the contract that a kernel declares.

    Raises:
        TypeError: if its signature cannot be read.
    """
    return parameters(kernel) & OPTIONS.keys()


def require(kernel: Callable[..., Any], *names: str) -> None:
    """Refuse a kernel without some parameters.

    Raises:
        TypeError: if a parameter is missing; names it and those that the kernel declares.
    """
    declared = parameters(kernel)
    missing = [name for name in names if name not in declared]
    if missing:
        known = ", ".join(sorted(declared))
        raise TypeError(f"the kernel has no parameter {', '.join(missing)}; it has {known}")


def limited(
    attention: Callable[..., Any], names: Collection[str], kernel: Callable[..., Any]
) -> Callable[..., Any]:
    """Give a function the contract's signature, restricted to some options.

    Args:
        attention: takes the operands, and each option as a keyword.
        names: the options that it keeps.
        kernel: the adapted kernel, from which the result takes its name.

    Returns:
        A function that raises `TypeError` for every other option.
    """
    empty = inspect.Parameter.empty
    either, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    declared = [inspect.Parameter(name, either, default=empty) for name in OPERANDS]
    # a positional option after one that is missing would change its place
    is_contiguous = True
    for name, default in OPTIONS.items():
        if name in names:
            kind = either if is_contiguous and name in _POSITIONAL else keyword
            declared.append(inspect.Parameter(name, kind, default=default))
        else:
            is_contiguous = False
    signature = inspect.Signature(declared)

    @functools.wraps(attention)
    def adapted(*arguments: Any, **given: Any) -> Any:
        bound = signature.bind(*arguments, **given)
        return attention(**bound.arguments)

    adapted.__signature__ = signature  # type: ignore[attr-defined]
    adapted.__name__ = adapted.__qualname__ = getattr(kernel, "__name__", type(kernel).__name__)
    return adapted
