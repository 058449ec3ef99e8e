"""Cases that a mistake is out of reach of: passed over only where what runs is the same code."""

from dataclasses import replace

import pytest
import torch

import attnspec.conformance.mutants  # noqa: F401  (registers them)
from attnspec.conformance import kills as trial
from attnspec.conformance.law import Judged, Law
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.record import Outcome
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.conformance.within_reach import Known, Trials
from attnspec.spec import Case, Extra, Feature

SMALL = Case(batch=1, heads=1, kv_heads=1, queries=2, keys=3, d_head=2, d_value=2)
PLAIN, CAUSAL = SMALL.but(scale=0.5), SMALL.but(is_causal=True)


class Transposed(Dense):
    def causal(self, queries, keys):
        return super().causal(queries, keys).flip(0)


class Halved(Dense):
    def scale(self, query, value, scale):
        return 0.5


class AlsoTransposed(Transposed):
    pass


class Calls:
    """A law of a few cases that notes on which it is tried."""

    def __init__(self, *cases):
        self.tried = []
        self.law = Law(
            name="calls",
            clauses=("ATT-1",),
            judges=Judged.ATTENTION,
            check=self.check,
            pinned=cases,
        )

    def check(self, subject, case):
        """All is well where a causal call shows the first query no more than the first key."""
        self.tried.append((subject.name, case))
        call = subject.draw(case)
        if case.scale == 7.0:
            raise NotClaimed("no seven")
        found = subject.call(call)
        if case.is_causal and not torch.equal(found[0, 0, 0], call.value[0, 0, 0]):
            raise Violation("more than the first key")


def on(law, known, *kinds, **claims):
    """What becomes of a law on some attentions, one after the other."""
    told = []
    for kind in kinds:
        implementation = dense(kind.__name__.lower(), kind())
        told.append(Trials(Subject(replace(implementation, **claims)), known).on(law)[0])
    return told


@pytest.fixture
def known():
    return Known()


def test_a_case_out_of_reach_is_tried_once(known):
    calls = Calls(PLAIN, CAUSAL)
    first, second, third = on(calls.law, known, Transposed, AlsoTransposed, Halved)
    assert first.outcome is second.outcome is Outcome.FAILED
    assert first.case == second.case
    assert third.outcome is Outcome.PASSED
    assert calls.tried == [
        ("transposed", PLAIN),
        ("transposed", CAUSAL),
        ("alsotransposed", CAUSAL),
        ("halved", PLAIN),
        ("halved", CAUSAL),
    ]


def test_a_case_that_is_passed_over_counts_as_tried(known):
    calls = Calls(PLAIN, SMALL, CAUSAL)
    (alone,) = on(calls.law, Known(), AlsoTransposed)
    _, after = on(calls.law, known, Transposed, AlsoTransposed)
    assert (after.examples, after.dtypes, after.case) == (alone.examples, alone.dtypes, alone.case)


def test_a_law_out_of_reach_is_known_whole(known):
    calls = Calls(PLAIN, SMALL)
    first, second = on(calls.law, known, Transposed, AlsoTransposed)
    assert len(calls.tried) == 2
    assert (first.outcome, first.examples) == (second.outcome, second.examples)
    assert (first.subject, second.subject) == ("transposed", "alsotransposed")


def test_a_law_that_says_nothing_is_asked_again(known):
    calls = Calls(SMALL.but(scale=7.0))
    for record in on(calls.law, known, Transposed, AlsoTransposed):
        assert record.outcome is Outcome.NOT_CLAIMED
    assert len(calls.tried) == 2


@pytest.mark.parametrize(
    "claims",
    [
        {"features": frozenset({Feature.CAUSAL})},
        {"dtypes": (torch.float32,)},
        {"supports": lambda case: None},
        {"extras": frozenset({Extra.COMPILE})},
    ],
)
def test_all_is_tried_where_other_claims_bring_other_cases(known, claims):
    calls = Calls(PLAIN)
    on(calls.law, known, Transposed)
    on(calls.law, known, AlsoTransposed, **claims)
    assert len(calls.tried) == 2


def test_the_time_of_what_is_passed_over_is_counted(known):
    calls = Calls(PLAIN, SMALL)
    subjects = [Subject(dense(each.__name__, each())) for each in (Transposed, AlsoTransposed)]
    first, second = (Trials(each, known).on(calls.law)[1] for each in subjects)
    assert first == second > 0


IDS = (
    "own-window-sides-swapped",
    "own-window-zero-is-none",
    "own-grad-mask-mean",
    "own-grad-mask-alone",
)
NAMES = (
    "output-equals-the-definition",
    "a-window-shows-exactly-its-keys",
    "gradients-are-those-of-the-definition",
    "the-gradient-of-a-mask-is-summed-where-it-broadcasts",
)


def test_what_is_passed_over_changes_no_verdict(monkeypatch):
    laws = {name: law for name, law in trial._laws().items() if name in NAMES}
    monkeypatch.setattr(trial, "_laws", lambda: laws)
    monkeypatch.setattr(trial, "_styles", lambda subject: {})
    monkeypatch.setattr(trial, "_likeness", lambda *_: ((), ()))

    def told(id, known):
        monkeypatch.setattr(trial, "Trials", lambda subject: Trials(subject, known))
        found = trial.kills(planted()[id])
        return found.pinned, found.survived, found.silent, found.examples

    alone = [told(id, Known()) for id in IDS]
    together = Known()
    assert [told(id, together) for id in IDS] == alone
