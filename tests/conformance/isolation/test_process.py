"""Processes, their limits, undeclared features, and subjects that memorize the tests' inputs."""

import json
import os
import signal
import time

import pytest
import torch

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.isolation.process import Process, ProcessLost
from attnspec.conformance.laws.law import registered
from attnspec.conformance.report.matrix import run_notes
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import declare
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.in_workers import SHORTEST, TaskRunner
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import PlannedSubject, TypedClaims, tasks
from attnspec.conformance.subjects.kinds import SubjectKind

SDPA = torch.nn.functional.scaled_dot_product_attention


def handle(request, send_note):
    if request.get("exits") is not None:
        send_note(b"n", b"noted")
        os._exit(request["exits"])
    while request.get("sleeps"):
        time.sleep(1)
    print("never seen by the parent process")
    return json.dumps({"pid": os.getpid()})


@pytest.fixture
def process():
    started = Process(handle)
    yield started
    started.end()


def test_a_process_replies_until_it_ends(process, capfd):
    first, second = (json.loads(process.call({}, 60))["pid"] for _ in range(2))
    assert first == second != os.getpid()
    with pytest.raises(ProcessLost, match="exit status 3") as lost:
        process.call({"exits": 3}, 60)
    assert lost.value.notes == {b"n": b"noted"}
    assert not lost.value.hung
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert capfd.readouterr() == ("", "")


def test_a_process_that_hangs_writes_its_stack_trace(process):
    with pytest.raises(ProcessLost, match=r"timed out after 0\.5 s") as lost:
        process.call({"sleeps": True}, 0.5)
    assert lost.value.hung
    assert "in handle" in lost.value.output


def kill_itself(request, send_note):
    os.kill(os.getpid(), signal.SIGSEGV)
    send_note(b"n", b"it went on")


@pytest.mark.parametrize("_", range(8))
def test_a_process_that_sends_itself_a_signal_ends_at_once(_):
    process = Process(kill_itself)
    with pytest.raises(ProcessLost, match="died by SIGSEGV") as lost:
        process.call({}, 20)
    assert lost.value.notes == {}


def set_a_handler(request, send_note):
    return str(signal.signal(signal.SIGTERM, lambda number, frame: None) is signal.SIG_DFL)


def test_code_that_sets_a_handler_of_a_signal_raises_nothing():
    started = Process(set_a_handler)
    assert started.call({}, 60) == "True"
    started.end()
    assert signal.signal.__module__ == "signal"  # here nothing has changed


def sum_in_threads(request, send_note):
    torch.set_num_threads(request["threads"])
    return str(torch.ones(2**20).exp().sum().item() > 0)


def test_a_process_can_use_several_threads_after_its_parent_did():
    before = torch.get_num_threads()
    try:
        # both ways in which torch divides work: by OpenMP, and in products
        torch.set_num_threads(2)
        torch.ones(2**20).exp()
        torch.ones(1000, 1000) @ torch.ones(1000, 1000)
        process = Process(sum_in_threads)
    finally:
        torch.set_num_threads(before)
    try:
        assert [process.call({"threads": number}, 20) for number in (1, 2, 5)] == ["True"] * 3
    finally:
        process.end()


def test_after_a_few_hangs_the_limit_shrinks_and_never_vanishes():
    runner = TaskRunner(effort=Effort.SMOKE, seed=None, limit=300.0)
    limits = []
    for _ in range(12):
        limits.append(runner._limit("it"))
        runner._hangs["it"] += 1
    assert limits[:4] == [300, 300, 150, 75]
    assert limits[-1] == SHORTEST
    assert runner._limit("another") == 300


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_law_is_tried_with_every_start_method(method):
    planned = PlannedSubject(target="sdpa", name="sdpa", claims=TypedClaims(), device="cpu")
    (task,) = tasks([planned], ["weights-sum-to-one"])
    runner = TaskRunner(effort=Effort.SMOKE, seed=None, limit=120.0, method=method)
    record = runner.run(task)
    runner.end()
    assert record.outcome is Outcome.PASSED, record.message


def tried(attention, law, **said):
    claims = Claims.read(said.get("features", ""), "float32")
    subject = Subject(declare("it", attention, claims))
    (task,) = tasks([LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject)], [law])
    return run_in_process(task, Effort.SMOKE)


def window_law():
    names = [law.name for law in registered().values() if law.clauses[0] == "MSK-15"]
    return names[0]


def test_an_unclaimed_feature_that_is_accepted_and_wrong_is_reported():
    def swallows(query, key, value, scale=None, **rest):
        return SDPA(query, key, value, scale=scale)

    record = tried(swallows, window_law())
    assert record.outcome is Outcome.NOT_CLAIMED
    assert record.undeclared.startswith("window: accepted, but wrong: ")
    assert Record.from_json(record.to_json()) == record
    (line,) = (each for each in run_notes([record]) if each.startswith("undeclared"))
    assert "it does not claim window" in line


def test_a_feature_that_is_refused_or_right_is_not_reported():
    def refuses(query, key, value, scale=None):
        return SDPA(query, key, value, scale=scale)

    assert not tried(refuses, window_law()).undeclared
    from attnspec.implementations import load

    assert not tried(load("eager").attention, window_law()).undeclared


def test_an_error_without_the_feature_is_not_attributed_to_the_feature():
    def strict(query, key, value, is_causal=False, scale=None):
        hidden = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(0)
        mask = ~hidden if is_causal else None
        return SDPA(query, key, value, mask, scale=scale)

    record = tried(strict, "the-causal-flag-equals-its-triangle", features="causal")
    assert record.outcome is Outcome.NOT_CLAIMED
    assert not record.undeclared


def test_a_law_of_an_unclaimed_extra_is_not_tried():
    received = []

    def listens(query, key, value, scale=None, **rest):
        received.append(rest)
        return SDPA(query, key, value, scale=scale, **rest)

    subject = Subject(declare("it", listens, Claims.read("", "float32")))
    law = registered()["a-compiled-call-equals-a-plain-call"]
    (task,) = tasks([LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject)], [law.name])
    record = run_in_process(task, Effort.SMOKE)
    assert record.outcome is Outcome.NOT_CLAIMED
    assert not received
    assert not record.undeclared


def test_a_subject_that_memorizes_the_inputs_is_found_by_fresh_ones():
    seen, is_open = set(), True

    def memorizes(query, key, value, scale=None):
        digest = hash(tuple(query.flatten().tolist()))
        if not is_open and digest not in seen:
            return SDPA(query, key, value, scale=scale) + 1
        seen.add(digest)
        return SDPA(query, key, value, scale=scale)

    subject = Subject(declare("it", memorizes, Claims.read("", "float32")))
    laws = registered()
    fixed, fresh = laws["weights-sum-to-one"], laws["every-output-is-within-its-bound"]
    assert fresh.fresh
    outcomes = {}
    for is_open, seed in ((True, 1), (False, 2)):
        for law in (fixed, fresh):
            outcomes[law.name, is_open] = check(law, subject, Effort.SMOKE, seed).outcome
    assert outcomes.pop((fresh.name, False)) is Outcome.FAILED
    assert set(outcomes.values()) == {Outcome.PASSED}
