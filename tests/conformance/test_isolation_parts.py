"""The parts of isolation: processes, their limits, what is undeclared, and who knows the test."""

import json
import os
import time

import pytest
import torch

from attnspec.conformance.check import check
from attnspec.conformance.claims import Claims
from attnspec.conformance.effort import Effort
from attnspec.conformance.errand_runner import SHORTEST, ErrandRunner
from attnspec.conformance.isolation import Lost, Process
from attnspec.conformance.law import Judged, registered
from attnspec.conformance.matrix import asides
from attnspec.conformance.planned import Planned, Words, errands
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.subject import Subject
from attnspec.conformance.targets import Judgeable, declare
from attnspec.conformance.trials import trials

SDPA = torch.nn.functional.scaled_dot_product_attention


def answer(question, tell):
    if question.get("exits") is not None:
        tell(b"n", b"noted")
        os._exit(question["exits"])
    while question.get("sleeps"):
        time.sleep(1)
    print("never seen by whoever asks")
    return json.dumps({"pid": os.getpid()})


@pytest.fixture
def process():
    found = Process(answer)
    yield found
    found.end()


def test_a_process_answers_until_it_ends(process, capfd):
    first, second = (json.loads(process.ask({}, 60))["pid"] for _ in range(2))
    assert first == second != os.getpid()
    with pytest.raises(Lost, match="exit status 3") as lost:
        process.ask({"exits": 3}, 60)
    assert lost.value.notes == {b"n": b"noted"}
    assert not lost.value.hung
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert capfd.readouterr() == ("", "")


def test_a_process_that_hangs_says_where(process):
    with pytest.raises(Lost, match=r"timed out after 0\.5 s") as lost:
        process.ask({"sleeps": True}, 0.5)
    assert lost.value.hung
    assert "in answer" in lost.value.wrote


def test_after_a_few_hangs_the_limit_shrinks_and_never_vanishes():
    runner = ErrandRunner(effort=Effort.SMOKE, seed=None, limit=300.0)
    limits = []
    for _ in range(12):
        limits.append(runner._limit("it"))
        runner._hangs["it"] += 1
    assert limits[:4] == [300, 300, 150, 75]
    assert limits[-1] == SHORTEST
    assert runner._limit("another") == 300


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_law_is_tried_whichever_way_a_process_starts(method):
    planned = Planned(target="sdpa", name="sdpa", words=Words(), device="cpu")
    (errand,) = errands([planned], ["weights-sum-to-one"])
    runner = ErrandRunner(effort=Effort.SMOKE, seed=None, limit=120.0, method=method)
    record = runner.run(errand)
    runner.end()
    assert record.outcome is Outcome.PASSED, record.message


def tried(attention, law, **said):
    claims = Claims.read(said.get("features", ""), "float32")
    subject = Subject(declare("it", attention, claims))
    (trial,) = trials([Judgeable(kind=Judged.ATTENTION, subject=subject)], [law])
    return trial.run(Effort.SMOKE)


def window_law():
    names = [law.name for law in registered().values() if law.clauses[0] == "MSK-15"]
    return names[0]


def test_a_feature_that_is_accepted_and_wrong_is_reported_though_nobody_claims_it():
    def swallows(query, key, value, scale=None, **rest):
        return SDPA(query, key, value, scale=scale)

    record = tried(swallows, window_law())
    assert record.outcome is Outcome.NOT_CLAIMED
    assert record.undeclared.startswith("window: accepted, and wrong: ")
    assert Record.from_json(record.to_json()) == record
    (line,) = (each for each in asides([record]) if each.startswith("undeclared"))
    assert "it does not claim window" in line


def test_a_feature_that_is_refused_or_right_is_not_reported():
    def refuses(query, key, value, scale=None):
        return SDPA(query, key, value, scale=scale)

    assert not tried(refuses, window_law()).undeclared
    from attnspec.implementations import load

    assert not tried(load("eager").attention, window_law()).undeclared


def test_what_is_wrong_before_a_feature_is_asked_for_is_not_blamed_on_the_feature():
    def strict(query, key, value, is_causal=False, scale=None):
        hidden = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(0)
        mask = ~hidden if is_causal else None
        return SDPA(query, key, value, mask, scale=scale)

    record = tried(strict, "the-causal-flag-equals-its-triangle", features="causal")
    assert record.outcome is Outcome.NOT_CLAIMED
    assert not record.undeclared


def test_what_only_an_extra_would_take_is_not_tried():
    asked = []

    def listens(query, key, value, scale=None, **rest):
        asked.append(rest)
        return SDPA(query, key, value, scale=scale, **rest)

    subject = Subject(declare("it", listens, Claims.read("", "float32")))
    law = registered()["a-compiled-call-gives-the-same"]
    (trial,) = trials([Judgeable(kind=Judged.ATTENTION, subject=subject)], [law.name])
    record = trial.run(Effort.SMOKE)
    assert record.outcome is Outcome.NOT_CLAIMED
    assert not asked
    assert not record.undeclared


def test_what_knows_the_inputs_of_the_test_is_found_by_fresh_ones():
    seen, is_open = set(), True

    def knows(query, key, value, scale=None):
        digest = hash(tuple(query.flatten().tolist()))
        if not is_open and digest not in seen:
            return SDPA(query, key, value, scale=scale) + 1
        seen.add(digest)
        return SDPA(query, key, value, scale=scale)

    subject = Subject(declare("it", knows, Claims.read("", "float32")))
    laws = registered()
    fixed, fresh = laws["weights-sum-to-one"], laws["every-output-is-within-its-bound"]
    assert fresh.fresh
    outcomes = {}
    for is_open, seed in ((True, 1), (False, 2)):
        for law in (fixed, fresh):
            outcomes[law.name, is_open] = check(law, subject, Effort.SMOKE, seed).outcome
    assert outcomes.pop((fresh.name, False)) is Outcome.FAILED
    assert set(outcomes.values()) == {Outcome.PASSED}
