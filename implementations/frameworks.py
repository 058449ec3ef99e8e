"""Libraries that are no dependency of attnspec: whether they are installed, in which version."""

import importlib.util


def missing(module: str) -> str | None:
    """Return the reason why a library cannot be used here, or None."""
    return None if importlib.util.find_spec(module) else f"no module {module}"
