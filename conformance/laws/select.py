"""Select laws by shell patterns of their names, clauses or families."""

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from attnspec.conformance import laws
from attnspec.conformance.laws.law import Law


def select_laws(patterns: Sequence[str]) -> list[Law]:
    """Return the laws that match shell patterns; without a pattern, all.

    Raises:
        ValueError: if a pattern matches no law, naming the pattern.
    """
    registered = list(laws.load().values())
    for pattern in patterns:
        if not any(_matches(law, pattern) for law in registered):
            names = {name for law in registered for name in _names(law)}
            raise ValueError(
                f"no law or clause matches {pattern!r}{suggestion_for(pattern, sorted(names))}"
            )
    if not patterns:
        return registered
    return [law for law in registered if any(_matches(law, pattern) for pattern in patterns)]


def _matches(law: Law, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for name in _names(law))


def _names(law: Law) -> list[str]:
    return [law.name, *law.clauses, *(clause.partition("-")[0] for clause in law.clauses)]


def suggestion_for(word: str, words: Iterable[str]) -> str:
    """Return a suggestion of the known word most like an unknown one; empty if none is alike."""
    public = [known for known in words if not known.startswith("_")]
    matches = difflib.get_close_matches(word, public, 3)
    if not matches:
        return ""
    # swapped letters are a likelier slip than another letter
    best = max(matches, key=lambda known: sorted(known) == sorted(word))
    return f" (did you mean {best!r}?)"
