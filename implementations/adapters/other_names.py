"""Kernels whose parameters have other names."""

from collections.abc import Callable
from typing import Any

from attnspec.implementations.adapters.parameters import OPTIONS, limited, options, require


def from_other_names(kernel: Callable[..., Any], **names: str) -> Callable[..., Any]:
    """Adapt a kernel that has other names for parameters of the contract.

    Args:
        kernel: takes query, key and value by position, and options by keyword.
        names: the kernel's name of each parameter that it calls differently, by the contract's
            name: ``is_causal="causal", scale="softmax_scale"``.

    Returns:
        An attention of the contract with these parameters, and those that have the same name.

    Raises:
        TypeError: if the contract or the kernel has no such parameter.
    """
    for name in names:
        if name not in OPTIONS:
            raise TypeError(f"the contract has no option {name}; it has {', '.join(OPTIONS)}")
    require(kernel, *names.values())

    def attention(query: Any, key: Any, value: Any, **given: Any) -> Any:
        renamed = {names.get(name, name): value for name, value in given.items()}
        return kernel(query, key, value, **renamed)

    return limited(attention, options(kernel) | names.keys(), kernel)
