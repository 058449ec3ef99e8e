"""The laws of the error bound: right attention passes, each planted bug is caught or warned of."""

import gc
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from trying import pinned_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance import memory
from attnspec.conformance.check import check
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Judged, Law, registered
from attnspec.conformance.laws.numerics_long import LONG, SEQUENCE, sampled
from attnspec.conformance.laws.tensors_large import FAR, spread
from attnspec.conformance.matrix import conforming, print_matrix
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.explicit import Explicit
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.strategies import cases
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.tally import NotAvailable
from attnspec.conformance.violation import QualityWarning, Violation
from attnspec.implementations import load
from attnspec.spec import Case, Feature, Implementation

BOUND = [
    law
    for law in registered().values()
    if law.check.__module__ == "attnspec.conformance.laws.numerics_bound"
]
LONG_LAW = registered()["rows-of-a-long-sequence-stay-within-the-bound"]
FAR_LAW = registered()["elements-far-apart-are-found"]
QUALITY = {
    name: registered()[name]
    for name in ("the-errors-of-the-output-look-random", "the-errors-of-gradients-look-random")
}
LAWS = {law.name: law for law in (*BOUND, LONG_LAW, FAR_LAW, *QUALITY.values())}
MUTANTS = {name: each for name, each in planted().items() if LAWS.keys() & set(each.kills)}
EVERYTHING = frozenset(Feature) - {Feature.DROPOUT}
BASES = {
    "dense": replace(dense("dense", Dense()), features=EVERYTHING),
    "tiled": replace(dense("tiled", Tiled()), features=EVERYTHING),
    "explicit": replace(dense("explicit", Explicit()), features=EVERYTHING),
    "eager": load("eager"),
    "sdpa_flash": load("sdpa_flash"),
}
EASY = Case(queries=1, keys=1, d_head=2, d_value=2, dtype=torch.float32)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
def test_right_attention_passes(base: Implementation, law: Law) -> None:
    said = pinned_on(law, Subject(base))
    if base.name in ("dense", "tiled", "explicit"):
        assert said == len(law.pinned)
    elif law.name not in QUALITY:
        assert bool(said) == (law.needs <= base.features)


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        pytest.param(mutant, name, id=f"{id}-{name}")
        for id, mutant in MUTANTS.items()
        for name in mutant.kills
        if name in LAWS
    ],
)
def test_mutant_is_killed_by_each_law_it_names(mutant: Mutant, law: str) -> None:
    with pytest.raises((Violation, Raised)):
        pinned_on(registered()[law], Subject(mutant.subject))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutant_is_right_on_an_easy_input(mutant: Mutant) -> None:
    subject = Subject(mutant.subject)
    call = subject.draw(EASY)
    subject.judge(call, subject.call(call), "wrong")


@pytest.mark.parametrize("law", QUALITY.values(), ids=QUALITY.keys())
def test_a_warning_is_kept_apart_and_breaks_nothing(law: Law) -> None:
    (mutant,) = (each for each in MUTANTS.values() if law.name in each.kills)
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
def test_what_rounds_more_is_not_looked_at(law: Law) -> None:
    assert pinned_on(law, Subject(load("eager"))) == 0
    written = pinned_on(law, Subject(load("sdpa_flash")))
    assert (written > 0) == ("output" in law.name)


def test_rows_are_taken_at_both_ends_and_about_each_power_of_two() -> None:
    rows = sampled(LONG).tolist()
    assert rows == sorted(set(rows))
    assert {0, 131_071, 2047, 2048, 2049, 32_768, 65_535, 65_536, 65_537} <= set(rows)
    assert len(rows) < 100
    assert sampled(EASY).tolist() == [0]


def test_a_wrong_row_of_a_long_sequence_is_named_by_its_number() -> None:
    class LastWrong(Dense):
        def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            out = super().mix(weights, value)
            out[..., -1, :] += 1
            return out

    with pytest.raises(Violation, match="query 2099"):
        LONG_LAW.check(Subject(dense("last", LastWrong())), SEQUENCE)


def test_elements_are_spread_without_touching_what_lies_between() -> None:
    given = torch.randn(2, 2, 3, 4).half()
    for axis in range(3):
        far = spread(given, axis)
        assert torch.equal(far, given)
        assert far.stride(axis) * (given.shape[axis] - 1) >= FAR


def test_a_call_that_does_not_fit_is_refused_with_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free", lambda device: 2**31)
    memory.demand(2**30, "cpu")
    with pytest.raises(NotAvailable, match=r"needs 3\.0 GiB of memory, 2\.0 GiB are free"):
        memory.demand(3 * 2**30, "cpu")
    with pytest.raises(NotAvailable, match=r"needs .* GiB of memory"):
        memory.demand_length(lambda n: torch.ones(n, n).sum(), 4096, 131_072, "cpu")
    foreseen = memory.demand_length(lambda n: torch.ones(16, n).sum(), 4096, 131_072, "cpu")
    assert foreseen["bytes"] < 2**30
    monkeypatch.setattr(memory, "PATIENCE", 0.0)
    with pytest.raises(NotAvailable, match="would take about 1 minutes"):
        memory.demand_length(lambda n: None, 4096, 131_072, "cpu")


def test_garbage_that_goes_while_a_call_runs_does_not_hide_what_it_takes() -> None:
    rubbish: list[object] = [torch.ones(2**25)]
    rubbish.append(rubbish)
    del rubbish

    def run() -> object:
        gc.collect()
        return torch.ones(2**24).sum()

    held, _ = memory.peak(run, "cpu")
    assert held > 2**25


def test_what_the_machine_lacks_is_no_claim_that_is_missing() -> None:
    def lacking(subject: Subject, case: Case) -> None:
        raise NotAvailable("needs 64.0 GiB of memory, 2.0 GiB are free")

    law = Law(
        name="lacking", clauses=("NUM-14",), judges=Judged.ATTENTION, check=lacking, pinned=(EASY,)
    )
    record = check(law, Subject(BASES["dense"]))
    assert record.outcome is Outcome.NOT_AVAILABLE
    assert "64.0 GiB" in record.reason


def test_large_cases_are_tried_at_effort_thorough_alone() -> None:
    tried: list[Case] = []
    large = EASY.but(keys=2)
    law = Law(
        name="noting",
        clauses=("NUM-14",),
        judges=Judged.ATTENTION,
        check=lambda subject, case: tried.append(case),
        pinned=(EASY,),
        large=(large,),
    )
    for effort in (None, Effort.SMOKE, Effort.STANDARD):
        check(law, Subject(BASES["dense"]), effort)
    assert large not in tried
    check(law, Subject(BASES["dense"]), Effort.THOROUGH)
    assert tried[-1] == large


def noting(tried: list[Case], *, fresh: bool, fails: bool = False) -> Law:
    """A law that writes down what it is tried on."""

    def note(subject: Subject, case: Case) -> None:
        """NUM-3: noted."""
        tried.append(case)
        if fails:
            raise Violation("never right")

    return Law(
        name="noting",
        clauses=("NUM-3",),
        judges=Judged.ATTENTION,
        check=note,
        explore=cases(),
        fresh=fresh,
    )


@pytest.mark.parametrize("fresh", [True, False])
def test_fresh_cases_follow_from_their_seed(fresh: bool) -> None:
    runs = []
    for seed in (1, 1, 2):
        tried: list[Case] = []
        record = check(noting(tried, fresh=fresh), Subject(BASES["dense"]), seed=seed)
        assert record.seed == (seed if fresh else None)
        runs.append(tried)
    assert runs[0] == runs[1]
    assert (runs[0] != runs[2]) == fresh


def test_a_failure_on_a_fresh_case_says_how_to_repeat_it() -> None:
    record = check(noting([], fresh=True, fails=True), Subject(BASES["dense"]))
    assert record.outcome is Outcome.FAILED
    assert record.seed is not None
    assert f"--seed {record.seed}" in record.message
    console = Console(width=200)
    with console.capture() as shown:
        print_matrix([record], console)
    assert f"repeat them with --seed {record.seed}" in shown.get()
