"""Laws of rotary positions: correct ones pass in every profile, each mutant is killed."""

import contextlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance import laws, mutants
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.mutants.bases.rotary import PlainRotary, correct
from attnspec.conformance.operators.rotary.case import RotaryCase
from attnspec.conformance.operators.rotary.subject import RotarySubject
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.reference.operator_implementations import ROTARY
from attnspec.reference.rotary import rotary
from attnspec.spec.operator import Working
from attnspec.spec.rotary import (
    AnglePrecision,
    Pairing,
    RotaryImplementation,
    RotaryProfile,
)

LAWS = {name: law for name, law in laws.load().items() if law.judges == "rotary"}
MUTANTS = {
    name: mutant
    for name, mutant in mutants.load().items()
    if isinstance(mutant.subject, RotaryImplementation)
}
PROFILES = [
    RotaryProfile(pairing=pairing, angles=angles, working=working)
    for pairing in Pairing
    for angles in AnglePrecision
    for working in Working
]


class Float32Angles(PlainRotary):
    """A correct rotary embedding whose angles are float32 for every type."""

    def powers(self, width, base, dtype):
        return super().powers(width, base, torch.float32)


def subject_of(profile):
    base = Float32Angles if profile.angles is AnglePrecision.FLOAT32 else PlainRotary
    return RotarySubject(implementation=correct("it", profile, base))


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_a_correct_rotary_passes_and_the_pass_is_evidence(profile, name):
    law, subject = LAWS[name], subject_of(profile)
    cases = [case for case in law.pinned if subject.refuses(case) is None]
    assert len(cases) == len(law.pinned)
    assert judged_count(law, subject, cases) == len(cases)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=25)
@given(data=st.data())
def test_correct_rotaries_pass_drawn_cases(name, data):
    law = LAWS[name]
    if law.explore is None:
        return
    subject = subject_of(data.draw(st.sampled_from(PROFILES)))
    case = data.draw(law.explore(subject))
    with contextlib.suppress(NotClaimed):
        law.check(subject, case)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("pairing", Pairing)
def test_the_reference_passes(pairing, name):
    """Angles of 50 decimal digits judge it."""

    def interleaved(x, positions, **keywords):
        return rotary(x, positions, **keywords, pairing=Pairing.INTERLEAVED)

    implementation = ROTARY
    if pairing is Pairing.INTERLEAVED:
        profile = RotaryProfile(pairing=pairing)
        implementation = replace(ROTARY, function=interleaved, profile=profile)
    subject, law = RotarySubject(implementation=implementation), LAWS[name]
    cases = [case for case in law.pinned if subject.refuses(case) is None]
    assert bool(cases) == ("ROT-15" not in law.clauses)  # the reference claims no 16 bits
    assert judged_count(law, subject, cases) == len(cases)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    subject, law = RotarySubject(implementation=mutant.subject), LAWS[mutant.killed_by]
    with pytest.raises(Violation):
        judged_count(law, subject, law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


CAUSES = {
    "own-rotary-other-pairing": "pairs are interleaved: the profile says half",
    "own-rotary-written-as-halves": "pairs are read as interleaved and written as half",
    "own-rotary-angles-of-halves": "the two channels of a pair are turned by different angles",
    "own-rotary-sign": "pairs are turned the other way: the sine has the wrong sign",
    "own-rotary-no-minus": "the second channel of a pair is added to the first without a minus",
    "own-rotary-swapped": "cosine and sine are swapped",
    "own-rotary-frequencies-of-head": "frequencies are those of all channels of a head",
    "own-rotary-whole-head": "the whole head is turned",
    "own-rotary-last-channels": "the last channels of a head are turned, not the first",
    "own-rotary-base": "the base is 10000, not 500",
    "own-rotary-backward-sign": "the backward pass turns forward",
    "own-rotary-no-gradient": "no gradient flows to the turned channels",
    "own-rotary-linear-times": "frequencies are multiplied by the factor of linear, not divided",
    "own-rotary-dynamic-fixed": "dynamic scales by a fixed length, not by that of the call",
    "own-rotary-yarn-factor": "cosine and sine are not multiplied by the attention factor",
    "own-rotary-llama3-forgotten": "the scaling llama3 is forgotten",
    "own-rotary-llama3-factor": "the factor of llama3 is 8, not 32",
    "own-rotary-bfloat16-angles": "angles have the accuracy of bfloat16, in which positions 256",
    "own-rotary-bfloat16-positions": "angles have the accuracy of bfloat16, in which positions 256",
    "own-rotary-float32-angles": "angles have the accuracy of float32",
    "own-rotary-steps-rounded": "cosine, sine and products are rounded to 16 bits: the profile",
    "own-rotary-positions-ignored": "positions are ignored: tokens are turned by their place",
    "own-rotary-first-sequence": "every sequence is turned by the positions of the first",
    "own-rotary-not-restarted": "positions are counted on from the first of each sequence",
    "own-rotary-from-one": "positions are one too large",
    "own-rotary-cache-offset": "a single token is turned as the first",
    "own-rotary-twice": "tokens are turned twice",
    "own-rotary-in-place": "the call overwrites x, so that a second call turns it twice",
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_failure_leads_with_the_cause(name):
    mutant = MUTANTS[name]
    law, subject = LAWS[mutant.killed_by], RotarySubject(implementation=mutant.subject)
    with pytest.raises(Violation) as caught:
        judged_count(law, subject, law.pinned)
    assert str(caught.value).startswith(CAUSES[name])


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize(
    "name",
    ["own-rotary-sign", "own-rotary-positions-ignored", "own-rotary-other-pairing"],
)
def test_each_law_that_a_mistake_breaks_names_it(name):
    subject = RotarySubject(implementation=MUTANTS[name].subject)
    records = [check(law, subject, None) for law in LAWS.values()]
    failed = [record for record in records if record.outcome is Outcome.FAILED]
    assert len(failed) > 3
    # of a single token, the place in the call is the first
    names = (CAUSES[name], "a single token is turned as the first")
    assert not [record for record in failed if not record.cause.startswith(names)]


def test_keywords_of_features_that_are_not_claimed_are_not_passed():
    def plain(x, positions):
        return rotary(x, positions)

    implementation = RotaryImplementation(name="plain", function=plain)
    subject = RotarySubject(implementation=replace(implementation, dtypes=ROTARY.dtypes))
    for law in LAWS.values():
        cases = [case for case in law.pinned if subject.refuses(case) is None]
        assert not law.needs or not cases, law.name
        judged_count(law, subject, cases)


def test_a_result_of_another_type_is_refused():
    def wide(x, positions):
        return rotary(x, positions).double()

    subject = RotarySubject(implementation=RotaryImplementation(name="wide", function=wide))
    with pytest.raises(Violation, match=r"out must have dtype torch\.float32, got torch\.float64"):
        subject.judge_case(RotaryCase(dtype=torch.float32), "wrong")
