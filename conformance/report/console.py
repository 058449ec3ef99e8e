"""Consoles that print names and messages as they are."""

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """Return a console of rich that takes no word between colons for an emoji.

    A target such as `norms.py:llama` ends in one where a colon follows it.

    Args:
        options: those of `rich.console.Console`.
    """
    return Console(emoji=False, **options)
