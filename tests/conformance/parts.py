"""Parts of long tests: each run takes those of the day, and `ATTNSPEC_PARTS` selects others."""

import datetime
import os

VARIABLE = "ATTNSPEC_PARTS"
"""Numbers separated by commas, or `all`."""


def fix_the_day() -> str:
    """Select the parts of today, unless some are selected, and return the selection.

    The processes of a run inherit it, so that they agree if the day changes between them.
    """
    today = datetime.datetime.now(datetime.UTC).toordinal()
    return os.environ.setdefault(VARIABLE, str(today))


def selected(count: int) -> list[int]:
    """Return the selected ones of a number of parts, counted from zero."""
    selection = fix_the_day()
    if selection == "all":
        return list(range(count))
    return sorted({int(number) % count for number in selection.split(",")})
