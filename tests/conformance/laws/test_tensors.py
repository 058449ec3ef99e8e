"""The laws of TEN: how they observe memory, state, threads and compiled calls."""

import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from trying import pinned_judged_count

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Raised
from attnspec.conformance.diagnosis.undeclared_features import with_undeclared_features
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.laws.helpers.threads import interleaved_threads
from attnspec.conformance.laws.tensors.extras import call_mapped, compile_afresh, run_compiled
from attnspec.conformance.laws.tensors.results import (
    global_state,
    self_overlaps,
    share_storage,
)
from attnspec.conformance.laws.tensors.state import (
    WITH_OPTIONS,
    cases_of_other_kinds,
    changed_calls,
)
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.bases.lengths import Ragged
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.report.record import BROKEN, Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.effort import Effort
from attnspec.reference.implementation import REFERENCE
from attnspec.spec import Case, Extra, Feature, Implementation, Layout

F32 = torch.float32
LAWS = laws.load()
AT_ONCE = LAWS["concurrent-calls-are-independent"]
SMALL = Case(batch=2, heads=2, kv_heads=2, queries=3, keys=5, d_head=4, d_value=4, dtype=F32)


def test_state_changed_by_a_faulty_call_is_restored() -> None:
    before = global_state()
    with restored_state():
        torch.rand(1)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_float32_matmul_precision("medium")
        changed = global_state()
    assert sum(changed[name] != was for name, was in before.items()) == 5
    assert global_state() == before


def test_shared_memory_is_told_from_memory_of_its_own() -> None:
    whole = torch.zeros(4, 4)
    assert share_storage(whole, whole[1:])
    assert not share_storage(whole, whole.clone())
    assert not share_storage(whole[:0], whole)
    assert self_overlaps(whole[:1].expand(3, 4))
    assert not self_overlaps(whole[:1].expand(1, 4).mT)


def test_layouts_that_are_refused_are_not_tried() -> None:
    def supports(case: Case) -> str | None:
        laid = {case.layouts.query, case.layouts.key, case.layouts.value}
        with_offset = {Layout.SLICED, Layout.UNALIGNED, Layout.PACKED, Layout.PACKED_HEADS}
        return "no slices" if laid & with_offset else None

    def attention(*operands: torch.Tensor, **options: object) -> torch.Tensor:
        assert all(each.storage_offset() == 0 for each in operands)
        out: torch.Tensor = Dense()(*operands, **options)  # type: ignore[arg-type]
        return out

    law = LAWS["memory-layout-changes-nothing"]
    careful = replace(dense("careful", attention), supports=supports)
    claimed = [case for case in law.pinned if case.features <= careful.features]
    assert pinned_judged_count(law, Subject(careful)) == len(claimed)
    with pytest.raises(Raised):
        pinned_judged_count(law, Subject(replace(careful, supports=lambda case: None)))


LAYOUT_LAW = "memory-layout-changes-nothing"
OF_LAYOUTS = [
    mutant
    for mutant in mutants.load().values()
    # STR-07 is wrong for heads of one channel, which none of the few shapes has
    if mutant.killed_by == LAYOUT_LAW and mutant.id != "STR-07"
]


@pytest.mark.parametrize("mutant", OF_LAYOUTS, ids=lambda mutant: mutant.id)
def test_layouts_in_few_calls_kill_the_same_mutants(mutant: Mutant) -> None:
    """A kernel that compiles for each layout meets the layouts of all its operands together."""
    compiling = replace(mutant.subject, compiles_each_shape=True)
    assert check(LAWS[LAYOUT_LAW], Subject(compiling)).outcome in BROKEN


@pytest.mark.slow
def test_the_reference_fails_the_extras_that_it_does_not_declare() -> None:
    assert not REFERENCE.extras
    laws_of_extras = {
        Extra.COMPILE: LAWS["a-compiled-call-equals-a-plain-call"],
        Extra.OPCHECK: LAWS["custom-operators-pass-opcheck"],
    }
    for extra, law in laws_of_extras.items():
        declared = replace(REFERENCE, extras=frozenset({extra}))
        assert check(law, Subject(declared)).outcome is not Outcome.PASSED


class Forgiving(Ragged):
    """An attention that is correct on valid arguments and gives zeros for others."""

    def __call__(self, *operands: Any, **options: Any) -> Any:
        try:
            return super().__call__(*operands, **options)
        except (IndexError, RuntimeError, ValueError):
            return torch.zeros_like(operands[0])


VALIDATION = sorted(
    law.name
    for law in LAWS.values()
    if law.judges == "attention" and Feature.VALIDATES in law.needs
)


def test_the_clause_of_validation_lists_every_law_that_needs_the_claim() -> None:
    assert [name for name in VALIDATION if "TEN-20" not in LAWS[name].clauses] == []
    assert len(VALIDATION) == 6


@pytest.mark.parametrize("name", VALIDATION)
def test_invalid_arguments_raise_only_if_that_is_claimed(name: str) -> None:
    features = frozenset(Feature) - {Feature.VALIDATES}
    forgiving = replace(dense("forgiving", Forgiving()), features=features)
    law = LAWS[name]
    record = check(law, Subject(forgiving), Effort.SMOKE)
    assert record.outcome is Outcome.NOT_CLAIMED
    assert record.reason == "feature not claimed: validates"
    assert not with_undeclared_features(law, Subject(forgiving), record).undeclared
    words = ",".join(sorted(Feature))
    claiming = Claims.read(features=words).override(forgiving)
    record = check(law, Subject(claiming), Effort.SMOKE)
    assert record.outcome is Outcome.FAILED
    assert "is accepted: the output is" in record.message


def test_an_attention_that_forgives_invalid_arguments_is_correct_on_others() -> None:
    features = frozenset(Feature) - {Feature.VALIDATES}
    forgiving = Subject(replace(dense("forgiving", Forgiving()), features=features))
    for name in ("output-equals-the-definition", "softcap-bounds-the-scaled-scores"):
        assert check(LAWS[name], forgiving, Effort.SMOKE).outcome is Outcome.PASSED


def test_each_option_is_changed_and_taken_away() -> None:
    subject = Subject(REFERENCE)
    changed = {
        change for case in WITH_OPTIONS for change in changed_calls(subject, case, draw(case))
    }
    assert {
        "the window to (0, 2)",
        "the window to None",
        "softcap to 0.5",
        "softcap to None",
        "the sinks' contents",
        "the sinks' presence",
        "the slopes' contents",
        "the slopes' presence",
        "return_lse",
    } <= changed
    plain = Subject(dense("plain", Dense()))
    assert not {change for change in changed_calls(plain, SMALL, draw(SMALL)) if "sinks" in change}


def test_calls_of_another_kind_have_the_same_sizes() -> None:
    kinds = cases_of_other_kinds(SMALL)
    assert len(kinds) == 6
    for other in kinds.values():
        assert other != SMALL
        assert draw(other).query.shape == draw(SMALL).query.shape


def test_the_interleaving_of_threads_is_restored() -> None:
    interval = sys.getswitchinterval()
    with interleaved_threads():
        assert sys.getswitchinterval() < interval
        torch.backends.cuda.enable_math_sdp(False)
    assert sys.getswitchinterval() == interval
    assert torch.backends.cuda.math_sdp_enabled()


def test_a_thread_that_raises_is_reported_at_once() -> None:
    main = threading.main_thread()

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        if threading.current_thread() is not main and operands[0].sum() > 0:
            raise ValueError("not here")
        return Dense()(*operands, **options)

    record = check(AT_ONCE, Subject(dense("raising", attention)), Effort.SMOKE)
    assert record.outcome is Outcome.ERRORED
    assert "not here" in record.reason
    assert record.seconds["total"] < 30


def test_compiled_code_of_one_case_is_not_that_of_another() -> None:
    graphs = []

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        graphs.append(torch.compiler.is_compiling())
        out: torch.Tensor = Dense()(query, key, value)
        return out

    subject = Subject(dense("counting", attention))
    call = draw(SMALL)
    for _ in range(2):
        run_compiled(subject, compile_afresh(attention), call)
    assert graphs == [True, True]


def test_errors_of_torch_are_reported_in_one_line() -> None:
    def branching(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value if query.sum() > 0 else key

    subject = Subject(Implementation(name="branching", attention=branching))
    with pytest.raises(Raised, match=r"under torch\.compile: Unsupported: .*") as caught:
        run_compiled(subject, compile_afresh(branching), draw(SMALL))
    assert "\n" not in str(caught.value)
    with pytest.raises(Raised, match="under vmap over query: RuntimeError"):
        call_mapped(subject, [draw(SMALL), draw(SMALL.but(seed=1))], {"query": 0})


def test_dropout_is_no_matter_of_state() -> None:
    assert all(Feature.DROPOUT not in case.features for case in (*WITH_OPTIONS, *AT_ONCE.pinned))
