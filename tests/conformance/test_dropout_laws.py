"""The laws of DRP: right dropout passes them, each planted bug is caught by those it names."""

from dataclasses import replace

import pytest
import torch

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.check import check
from attnspec.conformance.law import registered
from attnspec.conformance.laws.dropout import DROPPING, _pairs
from attnspec.conformance.laws.dropout_sides import TINIEST, kept, seeded, showing
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.record import Outcome
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.implementations import load
from attnspec.reference.implementation import REFERENCE
from attnspec.spec import Feature, Implementation

LAWS = {name: law for name, law in registered().items() if law.clauses[0].startswith("DRP-")}
MUTANTS = {name: each for name, each in planted().items() if LAWS.keys() & set(each.kills)}


def claiming(name: str, attention: Dense) -> Implementation:
    return replace(dense(name, attention), features=frozenset(Feature))


RIGHT = {
    "dense": claiming("dense", Dense()),
    "tiled": claiming("tiled", Tiled()),
    "reference": REFERENCE,
    "eager": load("eager"),
    "sdpa_math": load("sdpa_math"),
    "sdpa": load("sdpa"),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_right_dropout_passes(law, right):
    record = check(law, Subject(right), None)
    missing = law.needs - right.features
    known = any(each.law == law.name for each in right.deviations)
    assert record.outcome in (
        (Outcome.NOT_CLAIMED,) if missing else (Outcome.PASSED, *[Outcome.NOT_CLAIMED] * known)
    ), record.message
    if not missing and not known:
        assert record.examples >= 0.7 * len(law.pinned)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_right_without_dropout_and_killed_by_what_it_names(mutant):
    subject = Subject(mutant.subject)
    registered()["output-equals-the-definition"].check(subject, TINIEST)
    for name in mutant.kills:
        # repeated, six weights of random fates are now and then alike by chance
        record = check(registered()[name], subject, None, repeats=0)
        assert record.outcome is Outcome.FAILED, f"{name}: {record.outcome} {record.reason}"


def test_laws_of_chance_do_not_fail_on_many_seeds():
    subject = Subject(RIGHT["dense"])
    for name in ("weights-are-dropped-independently", "calls-drop-independently"):
        case = LAWS[name].pinned[0]
        for seed in range(20):
            LAWS[name].check(subject, case.but(seed=seed, batch=2))


def test_what_is_kept_is_seen():
    subject = Subject(RIGHT["dense"])
    call = showing(subject, DROPPING)
    with seeded(DROPPING):
        out = subject.call(call)
    keep, exact, bound = kept(subject, call, out)
    assert 0.3 < keep[..., :7].double().mean() < 0.7
    assert bool(keep[..., 7:].all())
    assert bool(((out - exact).abs() <= bound)[keep].all())
    assert not bool(out[~keep].any())


def test_more_keys_than_channels_show_nothing():
    with pytest.raises(NotClaimed, match="more keys than channels"):
        showing(Subject(RIGHT["dense"]), DROPPING.but(keys=9))


def test_seeds_leave_the_generator_alone():
    before = torch.get_rng_state()
    with seeded(DROPPING):
        torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())


def test_no_weight_is_in_two_pairs_of_a_kind():
    places = torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8)
    for told, one, two in _pairs(places):
        both = [*one.flatten().tolist(), *two.flatten().tolist()]
        assert len(both) == len(set(both)), told
