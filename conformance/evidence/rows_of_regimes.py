"""Evidence: stores the rows with which the design of NUM-18 begins, so that it is found sooner.

Contributors run `python -m attnspec.conformance.evidence.rows_of_regimes` after a change of the
regimes. Nothing but the time of a run and the choice of its cases depends on the stored rows.
"""

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


def main() -> None:
    """Write the rows; those stored before are not read."""
    plans = [regimes.Plan(EVERYTHING, earlier=(), backward=each) for each in (False, True)]
    rows = [row for plan in plans for row in plan.combined]
    write_atomically(regimes.STORED, regimes.to_json(rows))


if __name__ == "__main__":
    main()
