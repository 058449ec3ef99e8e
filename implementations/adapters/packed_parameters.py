"""The parameters of an adapted packed or paged function: those that its kernel takes."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

import torch
from jaxtyping import Int

from attnspec.spec.packed import CAUSAL, EVERYWHERE, UNBOUNDED

OPTIONS: dict[str, Any] = {
    "return_aux": None,
    "scale": None,
    "window_size": EVERYWHERE,
    "enable_gqa": False,
    "softcap": None,
    "sinks": None,
    "alibi_slopes": None,
    "new_key": None,
    "new_value": None,
}
"""The optional parameters of a packed and of a paged attention, with the value without effect."""

_POSITIONAL = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k")
_PAGED = ("seqused_k", "block_table")


def limited_packed(
    attention: Callable[..., Any],
    names: Collection[str],
    kernel: Callable[..., Any],
    *,
    paged: bool = False,
) -> Callable[..., Any]:
    """Give a function the signature of packed attention, restricted to some options.

    Args:
        attention: takes the operands, and each option as a keyword.
        names: the options that it keeps.
        kernel: the adapted kernel, from which the result takes its name.
        paged: whether it takes `seqused_k` and `block_table`.

    Returns:
        A function that raises `TypeError` for every other option.
    """
    either, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    declared = [inspect.Parameter(name, either) for name in _POSITIONAL]
    declared += [inspect.Parameter(name, keyword) for name in (_PAGED if paged else ())]
    declared += [
        inspect.Parameter(name, keyword, default=default)
        for name, default in OPTIONS.items()
        if name in names
    ]
    signature = inspect.Signature(declared)

    @functools.wraps(attention)
    def adapted(*arguments: Any, **given: Any) -> Any:
        bound = signature.bind(*arguments, **given)
        return attention(**bound.arguments)

    adapted.__signature__ = signature  # type: ignore[attr-defined]
    adapted.__name__ = adapted.__qualname__ = getattr(kernel, "__name__", type(kernel).__name__)
    return adapted


def demand_group_flag(query: torch.Tensor, key: torch.Tensor, given: dict[str, Any]) -> None:
    """Refuse grouped heads unless the flag is set, and take the flag out of the options.

    Raises:
        ValueError: if the numbers of heads differ without the flag.
    """
    is_given = given.pop("enable_gqa", False)
    heads, kv_heads = query.shape[1], key.shape[-2]
    if heads != kv_heads and not is_given:
        raise ValueError(f"{heads} query heads, {kv_heads} key/value heads: set enable_gqa")


def asks_for_lse(given: dict[str, Any]) -> bool:
    """Return whether the log-sum-exp is requested, and take the request out of the options."""
    request = given.pop("return_aux", None)
    return request is not None and bool(request.lse)


def causal_and_left(window_size: tuple[int, int]) -> tuple[bool, int]:
    """Return a window as a causal flag and the number of keys to the left, -1 for all.

    Raises:
        ValueError: for a bound among the later keys, which a kernel of this form cannot have.
    """
    left, right = window_size
    if right not in (UNBOUNDED, CAUSAL[1]):
        raise ValueError(f"the kernel's window has no bound among later keys: {window_size}")
    return right == CAUSAL[1], left


def demand_causal(window_size: tuple[int, int], cu_seq_q: Int[torch.Tensor, " n"]) -> int:
    """Return the keys to the left of a window, for a kernel that is always causal.

    Raises:
        ValueError: if the causal diagonal would hide a key that the call reads.
    """
    is_causal, left = causal_and_left(window_size)
    if not is_causal and int(cu_seq_q.diff().max()) > 1:
        raise ValueError(f"the kernel is causal: window_size must end in 0, got {window_size}")
    return left


def offsets_of(
    lengths: Int[torch.Tensor, " sequences"], dtype: torch.dtype = torch.int32
) -> Int[torch.Tensor, " sequences_plus_1"]:
    """Return the cumulative lengths, from 0 on."""
    first = torch.zeros(1, dtype=dtype, device=lengths.device)
    return torch.cat([first, lengths.cumsum(0).to(dtype)])


def with_rows_outside(query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the rows of all sequences, and zeros for the queries behind the last one."""
    missing = len(query) - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows


def lse_with_rows_outside(query: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Return a log-sum-exp (heads, tokens) with minus infinity behind the last sequence."""
    missing = len(query) - lse.shape[1]
    padding = lse.new_full((lse.shape[0], missing), -torch.inf)
    return torch.cat([lse, padding], dim=1) if missing else lse
