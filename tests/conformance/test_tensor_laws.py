"""The laws of TEN: right attention passes them, each planted bug is caught by those it names."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from trying import pinned_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.law import Law, registered
from attnspec.conformance.laws.tensors import _overlap, _restored, _self_overlaps, _state
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Counters, Extra, Feature, Implementation, Layout, chapter_text
from attnspec.spec.clauses import parse

LAWS = {name: law for name, law in registered().items() if law.clauses[0].startswith("TEN-")}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, Implementation) and LAWS.keys() & set(mutant.kills)
}
EASY = Case(queries=6, keys=3, d_head=2, d_value=2, dtype=torch.float32)
"""One head, contiguous, the first call of a process."""


class Counting(Dense):
    """Count the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        finished: torch.Tensor = super().finish(out, value)
        return finished


class Strict(Tiled):
    """Refuse what a loop over tiles would not notice."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: object
    ) -> torch.Tensor:
        if key.shape[2] != value.shape[2]:
            raise ValueError("keys and values must be equal in number")
        out: torch.Tensor = super().__call__(query, key, value, **options)  # type: ignore[arg-type]
        return out


def _claiming(name: str, attention: Dense) -> Implementation:
    """A right attention that claims all options, and what it can do beside."""
    features = frozenset(Feature) - {Feature.DROPOUT}
    return replace(dense(name, attention), features=features, extras=frozenset({Extra.VMAP}))


COUNTING = Counting()
BASES = {
    "dense": replace(
        _claiming("dense", COUNTING), counters=lambda: Counters(kernel_calls=COUNTING.calls)
    ),
    "tiled": _claiming("tiled", Strict()),
}


@pytest.fixture(autouse=True)
def _clean_process() -> Iterator[None]:
    with _restored():
        yield


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
def test_right_attention_passes_and_leaves_the_process_alone(
    base: Implementation, law: Law
) -> None:
    if not law.needs <= base.features | base.extras:
        return
    before = _state()
    said = pinned_on(law, Subject(base))
    assert _state() == before
    counts = base.counters is not None or law.name != "the-kernel-that-the-name-promises-ran"
    assert said == (len(law.pinned) if counts else 0)


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        pytest.param(mutant, name, id=f"{id}-{name}")
        for id, mutant in MUTANTS.items()
        for name in mutant.kills
        if name in LAWS
    ],
)
def test_mutant_is_killed_by_the_pinned_cases_of_each_law_it_names(
    mutant: Mutant, law: str
) -> None:
    with pytest.raises((Violation, Raised)):
        pinned_on(registered()[law], Subject(mutant.subject))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutant_is_right_on_an_easy_input(mutant: Mutant) -> None:
    subject = Subject(mutant.subject)
    call = subject.draw(EASY)
    expected = subject.expect(call)
    out = subject.run(call)
    if mutant.id == "own-weights-returned":
        out = out[0]
    if mutant.id == "own-heads-last":
        out = out.transpose(1, 2)
    assert ((out.double() - expected.out).abs() <= expected.bound).all()


def test_every_law_kills_a_mutant() -> None:
    assert set(LAWS) <= {name for mutant in MUTANTS.values() for name in mutant.kills}


def test_chapter_and_laws_name_each_other() -> None:
    chapter = parse("tensors", chapter_text("tensors"))
    named = {law: each.id for each in chapter for law in each.held_by}
    assert named == {law.check.__name__: law.clauses[0] for law in LAWS.values()}


def test_what_a_faulty_call_changes_is_put_back() -> None:
    before = _state()
    with _restored():
        torch.rand(1)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_float32_matmul_precision("medium")
        changed = _state()
    assert sum(changed[name] != was for name, was in before.items()) == 5
    assert _state() == before


def test_shared_memory_is_told_from_memory_of_its_own() -> None:
    whole = torch.zeros(4, 4)
    assert _overlap(whole, whole[1:])
    assert not _overlap(whole, whole.clone())
    assert not _overlap(whole[:0], whole)
    assert _self_overlaps(whole[:1].expand(3, 4))
    assert not _self_overlaps(whole[:1].expand(1, 4).mT)


def test_layouts_that_are_refused_are_not_tried() -> None:
    def supports(case: Case) -> str | None:
        laid = {case.layouts.query, case.layouts.key, case.layouts.value}
        return "no slices" if Layout.SLICED in laid else None

    def attention(*operands: torch.Tensor, **options: object) -> torch.Tensor:
        assert all(each.storage_offset() == 0 for each in operands)
        out: torch.Tensor = Dense()(*operands, **options)  # type: ignore[arg-type]
        return out

    law = LAWS["memory-layout-means-nothing"]
    careful = replace(dense("careful", attention), supports=supports)
    assert pinned_on(law, Subject(careful)) == len(law.pinned)
    with pytest.raises(Raised):
        pinned_on(law, Subject(replace(careful, supports=lambda case: None)))
