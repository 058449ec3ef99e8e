"""Laws of paged attention: correct ones pass under each profile, each mutant is killed."""

import contextlib
import importlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.paged import PROFILE, PlainPaged, correct
from attnspec.conformance.mutants.bases.parts import InParts
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.paged.case import PagedCase, Places
from attnspec.conformance.operators.paged.engine.player import Player
from attnspec.conformance.operators.paged.engine.serving import (
    Add,
    Decode,
    Evict,
    Extend,
    Fork,
    Free,
    RollBack,
    Serving,
    State,
    states,
)
from attnspec.conformance.operators.paged.subject import PagedSubject
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Budget, Effort
from attnspec.conformance.runner.explore import explore
from attnspec.reference.operator_implementations import PAGED
from attnspec.spec.packed import PACKED_FEATURES, EmptySequences, IndexType, Merging, RoundedParts
from attnspec.spec.paged import PagedImplementation
from attnspec.spec.profiles import MaskedNonfinite

for _chapter in ("appending", "reading", "refusals", "in_regimes", "parts"):
    importlib.import_module(f"attnspec.conformance.laws.paged.{_chapter}")
    importlib.import_module(f"attnspec.conformance.mutants.paged.{_chapter}")
LAWS = {name: law for name, law in registered().items() if law.judges == "paged"}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, PagedImplementation)
}
ENGINE = "an-engine-serves-every-sequence-as-if-it-were-alone"


class ReadsWholePages(PlainPaged):
    """A paged attention that multiplies the rest of the last page by zero."""

    def sequence(self, b, query, key, value):
        out, lse = super().sequence(b, query, key, value)
        rest = torch.arange(self.used[b], -(-self.used[b] // self.page_size) * self.page_size)
        return out + self.pools["value"][self.slots(b, rest)].sum() * 0, lse


class Splits(PlainPaged):
    """A paged attention that merges parts of the keys by their log-sum-exps, in float32."""

    def sequence(self, b, query, key, value):
        self.last = len(key)
        bounds = range(0, len(key), max(-(-len(key) // 5), 1))
        if len(bounds) < 2 or self.sinks is not None:
            return super().sequence(b, query, key, value)
        wide = query.dtype if query.dtype == torch.float64 else torch.float32
        outs, sums = [], []
        for begin in bounds:
            self.begin_of_part, end = begin, begin + bounds.step
            out, lse = super().sequence(
                b, query.to(wide), *(x[begin:end].to(wide) for x in (key, value))
            )
            outs.append(out)
            sums.append(lse)
        self.begin_of_part = 0
        lse = torch.stack(sums).logsumexp(0)
        weights = [(each - lse).exp().where(lse != -torch.inf, 0).T[..., None] for each in sums]
        merged = sum(out * weight for out, weight in zip(outs, weights, strict=True))
        return merged.to(query.dtype), lse

    begin_of_part = 0

    def after(self, b, queries, keys):
        first = self.begin_of_part - (self.last if hasattr(self, "last") else keys)
        return torch.arange(keys) + first - (torch.arange(queries) - queries)[:, None]


class InPairs(InParts, PlainPaged):
    merging = Merging.PAIRS


REGIMES = "paged-attention-is-right-in-every-two-regimes"
SUBJECTS = {
    "splits": correct("it", Splits),
    "rounded parts": correct(
        "it",
        InPairs,
        replace(PROFILE, partial_outputs=RoundedParts(size=16, merging=Merging.PAIRS)),
    ),
    "plain": correct("plain"),
    "without append": replace(correct("it"), features=PACKED_FEATURES),
    "pages of 16": replace(correct("it"), page_sizes=(16,)),
    "batch invariant": correct("it", profile=replace(PROFILE, batch_invariant=True)),
    "int64 tables": correct("it", profile=replace(PROFILE, index_type=IndexType.INT64)),
    "spreads nan": correct(
        "it", ReadsWholePages, replace(PROFILE, unwritten=MaskedNonfinite.PROPAGATES)
    ),
    "no empty sequences": correct(
        "it", profile=replace(PROFILE, empty_sequences=EmptySequences.UNDEFINED)
    ),
}


def subject_of(implementation):
    return PagedSubject(implementation=implementation)


@pytest.mark.rotating(parts=7)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_correct_paged_attention_passes_and_the_pass_is_evidence(subject, name):
    law, judged = LAWS[name], subject_of(SUBJECTS[subject])
    if law.needs - judged.implementation.features:
        return
    cases = [case for case in map(judged.fit, law.pinned) if judged.refuses(case) is None]
    has_all = len(cases) == len(law.pinned) or (subject, name) == ("without append", REGIMES)
    assert has_all or subject == "no empty sequences"
    assert judged_count(law, judged, cases) == len(cases) > 0


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(
    "subject", ["plain", "splits", "rounded parts", "spreads nan", "without append"]
)
def test_correct_paged_attentions_pass_drawn_cases(subject, name):
    law, judged = LAWS[name], subject_of(SUBJECTS[subject])
    if law.needs - judged.implementation.features:
        return
    record = check(law, judged, Effort.SMOKE, seed=0)
    assert record.outcome is Outcome.PASSED, record.message


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", LAWS)
def test_the_reference_passes(name):
    """Scalar loops judge it."""
    law, judged = LAWS[name], subject_of(PAGED)
    assert judged.is_reference
    small = [case for case in law.pinned if max(case.keys) <= 64]
    assert judged_count(law, judged, [judged.fit(case) for case in small]) == len(small) > 0 or (
        name == "decoding-on-unequal-lengths-is-exact"
    )


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    with pytest.raises((Violation, Raised)):
        judged_count(
            LAWS[mutant.killed_by], subject_of(mutant.subject), LAWS[mutant.killed_by].pinned
        )


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("own-paged-column", "the column of the table is one too large"),
        ("own-paged-neighbour", "each sequence reads the pages of the next one"),
        ("own-paged-last-page", "the last page is read to its end, past the length"),
        ("own-paged-append-not-read", "new tokens are not attended"),
        ("PGD-02", "positions count from the capacity of the table, not from seqused_k"),
        ("PGD-03", "pages are taken to lie side by side"),
        ("PGD-05", "NaN that no query may read reaches the result"),
        ("PGD-06", "NaN that no query may read reaches the result"),
    ],
)
def test_a_failure_leads_with_the_cause(name, cause):
    mutant = MUTANTS[name]
    record = check(LAWS[mutant.killed_by], subject_of(mutant.subject), None)
    assert record.cause.startswith(cause), record.message


def test_the_snippet_of_a_failure_repeats_it():
    mutant = MUTANTS["own-paged-column"]
    subject = subject_of(mutant.subject)
    subject.import_code = (
        "from attnspec.conformance.mutants.bases.paged import PlainPaged; paged = PlainPaged()"
    )
    names = {}
    exec(check(LAWS[mutant.killed_by], subject, None).snippet.replace("print(out)", "pass"), names)
    assert not names["out"].isnan().any()


@settings(max_examples=40)
@given(data=st.data())
def test_pages_that_are_shared_hold_equal_keys(data):
    case = PagedCase(
        queries=(1, 1, 1),
        keys=tuple(data.draw(st.integers(1, 20)) for _ in range(3)),
        places=data.draw(st.sampled_from(Places)),
        page_size=data.draw(st.integers(1, 5)),
        seed=data.draw(st.integers(0, 99)),
    )
    call = case.draw(PROFILE)
    gathered = call.gathered()
    assert not gathered.key.isnan().any()
    pages = [
        row[: -(-length // case.page_size)].tolist()
        for row, length in zip(call.block_table, call.lengths(), strict=True)
    ]
    flat = [page for row in pages for page in row]
    is_shared = len(flat) > len(set(flat))
    assert not is_shared or case.places in (Places.SHARED, Places.TWICE)


def test_an_engine_is_printed_as_a_script():
    serving = Serving(steps=(Add(5), Fork(0), Extend(1, 2), Decode((0, 1)), Evict(0), Add(0)))
    assert str(serving) == (
        "dtype=float64 pages of 4; add a sequence of 5 tokens, then fork sequence 0, then prefill "
        "2 more tokens of sequence 1, then decode a token of sequences 0, 1, then evict sequence "
        "0, then bring the evicted sequence back"
    )


def test_an_engine_counts_its_sequences():
    steps = (Add(5), Add(2), Fork(0), RollBack(2, 3), Free(0), Evict(1), Add(0), Decode((0, 1)))
    assert states(Serving(steps=steps))[-1] == State((3, 3))


@pytest.mark.parametrize(
    "step", [Decode((0,)), Fork(0), RollBack(0, 1), Free(0), Evict(0), Add(0), Extend(0, 1)]
)
def test_a_step_without_its_sequence_is_refused(step):
    with pytest.raises(ValueError, match="cannot"):
        Serving(steps=(step,))


def test_an_engine_shares_pages_until_it_writes():
    player = Player(subject_of(correct()), Serving(steps=(Add(6), Fork(0), Decode((1,)))))
    player.play("wrong")
    parent, child = player.sequences
    assert parent.pages[0] == child.pages[0]
    assert parent.pages[1] != child.pages[1]
    assert player.owners[parent.pages[0]] == 2


def test_an_engine_takes_back_its_pages():
    steps = (Add(9), Fork(0), Decode((0, 1)), RollBack(0, 8), Free(1), Evict(0), Add(0), Free(0))
    player = Player(subject_of(correct()), Serving(steps=steps))
    player.play("wrong")
    assert not any(player.owners)
    assert sorted(player.free) == list(range(len(player.owners)))


class ForgetsAForkedPage(PlainPaged):
    """A mistake of appending: a new token is also written to a page of another sequence."""

    def append(self, b, key, value):
        super().append(b, key, value)
        tokens = torch.tensor([self.used[b] - 1])
        column, slot = tokens // self.page_size, tokens % self.page_size
        if self.sequences > 1:
            other = self.table[(b + 1) % self.sequences][column].long()
            self.pools["key"][other, slot] = key[-1:]


def test_the_machine_shrinks_to_a_short_script():
    law, subject = LAWS[ENGINE], subject_of(correct("it", ForgetsAForkedPage))
    failed = []

    def attempt(serving):
        try:
            law.check(subject, serving)
        except Violation:
            failed.append(serving)
            raise

    budget = Budget(examples=25, shrinking=60.0, derandomised=True)
    with pytest.raises(Violation):
        explore(attempt, law.explore(subject), budget, cost=1.0)
    assert str(failed[-1]).count("then") <= 3
    assert "decode" in str(failed[-1])


def test_an_engine_whose_page_size_is_not_claimed_is_not_served():
    subject = subject_of(SUBJECTS["pages of 16"])
    with pytest.raises(NotClaimed, match="page size"):
        Player(subject, Serving(steps=(Add(1),), page_size=4)).play("wrong")


def test_a_call_that_appends_has_keys_for_its_queries():
    with pytest.raises(ValueError, match="at least as many keys"):
        PagedCase(queries=(3, 1), keys=(2, 1), append=True)
    with contextlib.suppress(NotClaimed):
        subject_of(correct()).judge_case(PagedCase(queries=(2,), keys=(2,), append=True), "wrong")
