"""A specification of attention and GPT-2 that runs, and a suite that holds others to it."""

from attnspec._version import __version__

__all__ = ["__version__"]
