"""Evidence: stores the rows with which the design of NUM-18 begins, so that it is found sooner.

Contributors run `python -m attnspec.conformance.evidence.rows_of_regimes` after a change of the
regimes. Nothing but the time of a run and the choice of its cases depends on the stored rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from attnspec.conformance.laws.helpers import regimes
from attnspec.conformance.laws.helpers.claims import DesignClaims
from attnspec.conformance.report.file import write_atomically
from attnspec.spec import Feature

EVERYTHING = DesignClaims(
    features=frozenset(Feature),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=lambda case: None,
    device="cpu",
)


EQUAL_WIDTHS = replace(
    EVERYTHING,
    supports=lambda case: None if case.d_head == case.d_value else "d_head is not d_value",
)
"""The claims of a kernel whose values are as wide as its keys, as those of most are."""

WIDTHS = ("d_head", "d_value")
"""The axes on which rows are changed for a kernel that refuses them."""


def main() -> None:
    """Write the rows of both claims; those stored before are not read."""
    rows = [row for backward in (False, True) for row in _rows(backward)]
    write_atomically(regimes.STORED, regimes.to_json(rows))


def _rows(backward: bool) -> Iterator[Mapping[str, regimes.Choice]]:
    """Yield the rows for all claims, then what equal widths need beside them."""
    rows = regimes.Plan(EVERYTHING, earlier=(), backward=backward).combined
    yield from rows
    known = {_without_widths(row) for row in rows}
    for row in regimes.Plan(EQUAL_WIDTHS, earlier=rows, backward=backward).combined:
        if _without_widths(row) not in known:
            yield row


def _without_widths(row: Mapping[str, regimes.Choice]) -> tuple[regimes.Choice, ...]:
    return tuple(choice for axis, choice in row.items() if axis not in WIDTHS)


if __name__ == "__main__":
    main()
