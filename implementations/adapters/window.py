"""Other spellings of the window."""

from collections.abc import Callable
from typing import Any

from attnspec.implementations.adapters.parameters import limited, options, require


def from_window_size(
    kernel: Callable[..., Any], *, name: str = "window_size", unbounded: int | None = -1
) -> Callable[..., Any]:
    """Adapt a kernel whose window is a pair of the numbers of keys to the left and to the right.

    Args:
        kernel: takes query, key and value as the contract does, and options by keyword.
        name: the kernel's name of the pair.
        unbounded: the number that means no bound on a side: -1 in FlashAttention.

    Returns:
        An attention of the contract with the kernel's options and `window`.

    Raises:
        TypeError: if the kernel has no parameter of this name.
    """
    require(kernel, name)

    def attention(query: Any, key: Any, value: Any, window: Any = None, **given: Any) -> Any:
        if window is not None:
            given[name] = spelled(window, unbounded)
        return kernel(query, key, value, **given)

    return limited(attention, options(kernel) | {"window"}, kernel)


def spelled(
    window: tuple[int | None, int | None], unbounded: int | None
) -> tuple[int | None, int | None]:
    """Return a window of the contract with another word for a side without a bound.

    Raises:
        ValueError: if a side is negative, which the kernel would read as no bound.
    """
    if any(side is not None and side < 0 for side in window):
        raise ValueError(f"window must have sides that are not negative, got {window}")
    left, right = (unbounded if side is None else side for side in window)
    return left, right


def from_sliding_window(
    kernel: Callable[..., Any], *, name: str = "sliding_window"
) -> Callable[..., Any]:
    """Adapt a causal kernel whose window is one number: the keys that a query reads, itself too.

    Args:
        kernel: takes query, key and value as the contract does, and options by keyword, among them
            `is_causal`.
        name: the kernel's name of the number.

    Returns:
        An attention of the contract with the kernel's options and `window`, which raises
        `ValueError` for a window that lets a query read later keys.

    Raises:
        TypeError: if the kernel has no `is_causal`, or no parameter of this name.
    """
    require(kernel, name, "is_causal")

    def attention(
        query: Any,
        key: Any,
        value: Any,
        is_causal: bool = False,
        window: tuple[int | None, int | None] | None = None,
        **given: Any,
    ) -> Any:
        if window is not None:
            left, right = spelled(window, None)
            if not (is_causal or right == 0) and window != (None, None):
                raise ValueError(
                    f"the kernel's window has no later keys: give is_causal, or a right side of 0, "
                    f"not {right}"
                )
            is_causal = is_causal or right == 0
            if left is not None:
                given[name] = left + 1
        return kernel(query, key, value, is_causal=is_causal, **given)

    return limited(attention, options(kernel) | {"window"}, kernel)
