"""The version of the package; the specification has its own, in `attnspec.spec`."""

__version__ = "0.1.0"
