"""Libraries that are no dependency of attnspec: which are missing, and calls that compile none."""

import functools
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import torch

_STANCE = threading.Lock()
"""Held while torch compiles nothing, which concerns all threads."""


def missing(module: str) -> str | None:
    """Return the reason why a library cannot be used here, or None."""
    return None if importlib.util.find_spec(module) else f"no module {module}"


def uncompiled(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention in whose calls torch traces and compiles nothing.

    `flex_attention` is traced anew for each shape, which takes thirty times as long as the call.
    transformers compiles it and its block masks: torch compiles eight variants of each, and runs
    them uncompiled for a call that needs another one, so that what a call meets would depend on all
    calls before it.
    """

    @functools.wraps(attention)
    def plain(*operands: Any, **options: Any) -> Any:
        with _STANCE, torch.compiler.set_stance("force_eager"):
            return attention(*operands, **options)

    return plain
