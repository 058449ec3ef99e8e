"""Reports to draw in tests: every outcome once, and strings that nobody should trust."""

import pytest
import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.comparison.violation import Errors
from attnspec.conformance.diagnosis.failure.error_map import failure_picture
from attnspec.conformance.report.file import Report
from attnspec.conformance.report.record import UNTRIED, Outcome, Record
from attnspec.conformance.report.run import Run
from attnspec.spec import Profile

HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror=alert(1)> \x1b[31mred\x1b[0m"
    " | a | *b* `c` [d](javascript:e) & &amp; \u202eesrever\u202c \ud800 [red]markup[/] {{ 7 * 7 }}"
    " $x$ <!-- @someone https://example.org"
)
"""What an implementation could call itself, or say when it raises."""

RUN = Run(
    attnspec="0.1.0",
    spec="0.1.0",
    torch="2.13.0",
    python="3.11.7",
    machine="Linux x86_64",
    date="2026-11-21T10:00:00+00:00",
    effort="smoke",
    seed=7,
    targets=("eager", HOSTILE),
    trials=12,
    seconds=12.5,
    ended="complete",
)

CLAUSES = {
    Outcome.PASSED: "ATT-1",
    Outcome.QUALITY_WARNING: "NUM-17",
    Outcome.FAILED: "MSK-1",
    Outcome.ERRORED: "ATT-2",
    Outcome.FLAKY: "ATT-3",
    Outcome.INTERNAL_ERROR: "ATT-5",
    Outcome.NOT_DECIDED: "ACT-1",
    Outcome.NOT_CLAIMED: "MSK-15",
    Outcome.NOT_AVAILABLE: "GRD-1",
    Outcome.EXPECTED_FAILURE: "ATT-12",
    Outcome.UNEXPECTED_PASS: "ATT-9",
}
WORDS = {Outcome.FLAKY: "it flaked"}


def drawn() -> dict:
    """A picture of a causal call of 5 × 7, one element of it off."""
    call = Call(
        query=torch.zeros(2, 3, 5, 4),
        key=torch.zeros(2, 3, 7, 4),
        value=torch.zeros(2, 3, 7, 4),
        is_causal=True,
    )
    matrix = torch.full((5, 4), 0.25)
    matrix[3, 2], matrix[4, 0], matrix[0, 0] = 30.0, torch.inf, 0.0
    errors = Errors(
        what="out",
        matrix=matrix,
        measure="error / bound",
        axes=("query", "channel"),
        worst=(3, 2),
        leading={"batch": 1, "head": 2},
    )
    found = failure_picture(errors, call, Profile())
    assert found is not None
    return found


def record(outcome: Outcome, subject: str = "eager", **changes) -> Record:
    """A record of an outcome, with all that goes with it."""
    has_message = outcome is not Outcome.PASSED and outcome not in UNTRIED
    law = f"law-{outcome}".replace(" ", "-")
    values = {
        "reason": WORDS.get(outcome, f"because {outcome}") if outcome is not Outcome.PASSED else "",
        "message": f"Law      {law}: its sentence.\nand more" if has_message else "",
        "case": "batch=2 heads=3 queries=5 keys=7" if has_message else "",
        "sizes": ("keys: fails at 7, passes at 6 and 8",) if has_message else (),
        "snippet": "import torch\nprint(torch.zeros(2) < 1)" if has_message else "",
        "examples": 3,
        "worst": 0.5,
        "seconds": {"total": 0.25},
        "link": "https://example.org/thread" if outcome is Outcome.EXPECTED_FAILURE else "",
    }
    if outcome is Outcome.FAILED:
        mismatch = {
            "what": "out",
            "where": "batch 1, head 2, query 3, channel 2",
            "expected": "0.5",
            "got": "0.75",
            "bound": "1e-07",
            "wrong": "2 of 20 elements wrong",
        }
        numbers = "out at batch 1, head 2, query 3, channel 2: expected 0.5, got 0.75"
        values |= {"reason": f"the future moves it: {numbers}", "mismatch": mismatch}
        values |= {"stage": "block 0, attention: mask"}
        values |= {"picture": drawn(), "worst": float("inf")}
    values |= {"law": law, "clauses": (CLAUSES[outcome],)}
    return Record(subject=subject, outcome=outcome, **values | changes)


@pytest.fixture(scope="session")
def hostile() -> str:
    """What an implementation could call itself, or say when it raises."""
    return HOSTILE


@pytest.fixture(scope="session")
def make_record():
    """A function from an outcome, a subject and changes to a record with all that goes with it."""
    return record


@pytest.fixture(scope="session")
def broken_run() -> Report:
    """Every outcome, and one failure of a subject whose every string is hostile."""
    stranger = Record(
        subject=HOSTILE,
        law=HOSTILE,
        clauses=("MSK-1",),
        outcome=Outcome.ERRORED,
        reason=HOSTILE,
        message=HOSTILE,
        case=HOSTILE,
        sizes=(HOSTILE,),
        stage=HOSTILE,
        snippet=f"```\n{HOSTILE}\n````",
        link="javascript:alert(1)",
        mismatch=dict.fromkeys(("what", "where", "expected", "got", "bound", "wrong"), HOSTILE),
        picture={"errors": {"cells": [[HOSTILE]]}, "visible": "no"},
        device=HOSTILE,
        looks_like=(HOSTILE,),
        figures={HOSTILE: 1.0},
    )
    return Report(run=RUN, records=(*(record(each) for each in Outcome), stranger))
