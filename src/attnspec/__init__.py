"""A specification of attention and GPT-2 that runs, and the suite that holds implementations to it."""

from attnspec._version import __version__

__all__ = ["__version__"]
