"""A short way to plant a class that gets one step of a correct attention wrong."""

from collections.abc import Callable

from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import plant


def mistake(
    id: str, title: str, *, kills: tuple[str, ...], source: str = ""
) -> Callable[[type[Dense]], type[Dense]]:
    """Plant the decorated class, which overrides the one step that it gets wrong.

    Args:
        id: of the public report it repeats, or a name of its own.
        title: the mistake in words.
        kills: the names of laws that fail on it.
        source: the public thread that reported it, where there is one.

    Returns:
        A decorator that returns the class itself.
    """

    def register(base: type[Dense]) -> type[Dense]:
        name = id.lower().replace("-", "_")
        plant(id=id, title=title, subject=dense(name, base()), kills=kills, source=source)
        return base

    return register
