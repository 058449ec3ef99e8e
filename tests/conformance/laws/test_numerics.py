"""The laws of the error bound: quality warnings, long and large calls, and fresh cases."""

import gc
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from trying import pinned_judged_count

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.strategies import cases
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import (
    NotAvailable,
    QualityWarning,
    Violation,
)
from attnspec.conformance.isolation import memory
from attnspec.conformance.laws.law import Law
from attnspec.conformance.laws.numerics.long import LONG, SEQUENCE, sampled_rows
from attnspec.conformance.laws.tensors.large import FAR, spread_out
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.report.matrix import conforming, print_matrix
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.implementations import load
from attnspec.spec import Case

LAWS, MUTANTS = laws.load(), mutants.load()
LONG_LAW = LAWS["rows-of-a-long-sequence-stay-within-the-bound"]
QUALITY = {
    name: LAWS[name]
    for name in ("the-errors-of-the-output-look-random", "the-errors-of-gradients-look-random")
}
CORRECT = dense("correct", Dense())
EASY = Case(queries=1, keys=1, d_head=2, d_value=2, dtype=torch.float32)


@pytest.mark.parametrize("law", QUALITY.values(), ids=QUALITY.keys())
def test_a_warning_is_kept_apart_and_breaks_nothing(law: Law) -> None:
    (mutant,) = (each for each in MUTANTS.values() if each.killed_by == law.name)
    subject = Subject(mutant.subject)
    with pytest.raises(QualityWarning, match="times as large as independent roundings"):
        law.check(subject, law.pinned[0])
    record = check(law, subject, None)
    assert record.outcome is Outcome.QUALITY_WARNING
    assert conforming([record])
    assert Record.from_json(record.to_json()) == record
    console = Console(record=True, width=200, quiet=False, file=None)
    with console.capture() as shown:
        print_matrix([record], console)
    assert "warn" in shown.get()
    assert record.reason in shown.get()


@pytest.mark.parametrize("law", QUALITY.values(), ids=QUALITY.keys())
def test_errors_of_implementations_that_round_more_are_not_judged(law: Law) -> None:
    assert pinned_judged_count(law, Subject(load("eager"))) == 0
    written = pinned_judged_count(law, Subject(load("sdpa_flash")))
    assert (written > 0) == ("output" in law.name)


def test_rows_are_taken_at_both_ends_and_about_each_power_of_two() -> None:
    rows = sampled_rows(LONG).tolist()
    assert rows == sorted(set(rows))
    assert {0, 131_071, 2047, 2048, 2049, 32_768, 65_535, 65_536, 65_537} <= set(rows)
    assert len(rows) < 100
    assert sampled_rows(EASY).tolist() == [0]


def test_a_wrong_row_of_a_long_sequence_is_named_by_its_number() -> None:
    class LastWrong(Dense):
        def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            out = super().mix(weights, value)
            out[..., -1, :] += 1
            return out

    with pytest.raises(Violation, match="query 2099"):
        LONG_LAW.check(Subject(dense("last", LastWrong())), SEQUENCE)


def test_elements_are_spread_without_touching_memory_between() -> None:
    tensor = torch.randn(2, 2, 3, 4).half()
    for axis in range(3):
        far = spread_out(tensor, axis)
        assert torch.equal(far, tensor)
        assert far.stride(axis) * (tensor.shape[axis] - 1) >= FAR


@pytest.mark.rotating(parts=4)
def test_a_call_that_does_not_fit_is_refused_with_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**31)
    memory.require_memory(2**30, "cpu")
    with pytest.raises(NotAvailable, match=r"needs 3\.0 GiB of memory, 2\.0 GiB are free"):
        memory.require_memory(3 * 2**30, "cpu")
    with pytest.raises(NotAvailable, match=r"needs .* GiB of memory"):
        memory.require_length(lambda n: torch.ones(n, n).sum(), 4096, 131_072, "cpu")
    foreseen = memory.require_length(lambda n: torch.ones(16, n).sum(), 4096, 131_072, "cpu")
    assert foreseen["bytes"] < 2**30
    monkeypatch.setattr(memory, "PATIENCE", 0.0)
    with pytest.raises(NotAvailable, match="would take about 1 minutes"):
        memory.require_length(lambda n: None, 4096, 131_072, "cpu")


def test_garbage_that_goes_while_a_call_runs_does_not_hide_what_it_takes() -> None:
    rubbish: list[object] = [torch.ones(2**25)]
    rubbish.append(rubbish)
    del rubbish

    def run() -> object:
        gc.collect()
        return torch.ones(2**24).sum()

    held, _ = memory.peak_memory(run, "cpu")
    assert held > 2**25


def test_memory_that_the_c_library_keeps_does_not_hide_what_a_call_takes() -> None:
    torch.ones(7_500_000)  # glibc then takes smaller tensors from its heap
    blocks = [torch.ones(2**21) for _ in range(64)]
    apart = [torch.ones(2**21) for _ in range(2)]  # after the blocks: their memory is kept
    del blocks
    held, _ = memory.peak_memory(lambda: torch.ones(2**24).sum(), "cpu")
    assert held > 2**25
    assert apart


def test_missing_memory_is_not_available_and_not_unclaimed() -> None:
    def lacking(subject: Subject, case: Case) -> None:
        raise NotAvailable("needs 64.0 GiB of memory, 2.0 GiB are free")

    law = Law(
        name="lacking",
        clauses=("NUM-14",),
        judges=SubjectKind.ATTENTION,
        check=lacking,
        pinned=(EASY,),
    )
    record = check(law, Subject(CORRECT))
    assert record.outcome is Outcome.NOT_AVAILABLE
    assert "64.0 GiB" in record.reason


def test_large_cases_are_tried_at_effort_thorough_alone() -> None:
    tried: list[Case] = []
    large = EASY.but(keys=2)
    law = Law(
        name="noting",
        clauses=("NUM-14",),
        judges=SubjectKind.ATTENTION,
        check=lambda subject, case: tried.append(case),
        pinned=(EASY,),
        large=(large,),
    )
    for effort in (None, Effort.SMOKE, Effort.STANDARD):
        check(law, Subject(CORRECT), effort)
    assert large not in tried
    check(law, Subject(CORRECT), Effort.THOROUGH)
    assert tried.count(large) == 1


def noting(tried: list[Case], *, fresh: bool, fails: bool = False) -> Law:
    """Return a law that records the cases that it tries."""

    def note(subject: Subject, case: Case) -> None:
        """NUM-3: noted."""
        tried.append(case)
        if fails:
            raise Violation("never right")

    return Law(
        name="noting",
        clauses=("NUM-3",),
        judges=SubjectKind.ATTENTION,
        check=note,
        explore=cases(),
        fresh=fresh,
    )


@pytest.mark.parametrize("fresh", [True, False])
def test_fresh_cases_follow_from_their_seed(fresh: bool) -> None:
    runs = []
    for seed in (1, 1, 2):
        tried: list[Case] = []
        record = check(noting(tried, fresh=fresh), Subject(CORRECT), seed=seed)
        assert record.seed == (seed if fresh else None)
        runs.append(tried)
    assert runs[0] == runs[1]
    assert (runs[0] != runs[2]) == fresh


def test_a_failure_on_a_fresh_case_says_how_to_repeat_it() -> None:
    record = check(noting([], fresh=True, fails=True), Subject(CORRECT))
    assert record.outcome is Outcome.FAILED
    assert record.seed is not None
    assert f"--seed {record.seed}" in record.message
    console = Console(width=200)
    with console.capture() as shown:
        print_matrix([record], console)
    assert f"repeat them with --seed {record.seed}" in shown.get()


def test_long_sequences_are_tried_without_the_causal_flag():
    plain = replace(load("eager"), features=frozenset())
    law = LAWS["rows-of-a-long-sequence-stay-within-the-bound"]
    record = check(law, Subject(plain), None)
    assert record.outcome is Outcome.PASSED
    assert record.examples >= 4
