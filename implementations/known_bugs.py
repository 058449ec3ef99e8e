"""Bugs that several laws find: one deviation for each law."""

from collections.abc import Callable, Iterable

from attnspec.spec import Case, Deviation


def has_keys(case: Case) -> bool:
    """Return whether there are keys to read, or to hide."""
    return case.keys > 0


def deviations(
    laws: Iterable[str],
    *,
    reason: str,
    link: str,
    applies: Callable[[Case], bool],
    example: Case,
) -> tuple[Deviation, ...]:
    """Return a deviation for each of the laws that a bug breaks.

    Args:
        laws: the names of the laws.
        reason: as in `Deviation`, and so on.
        link: likewise.
        applies: likewise.
        example: likewise; it breaks each of the laws.
    """
    return tuple(
        Deviation(law=law, reason=reason, link=link, applies=applies, example=example)
        for law in laws
    )
