"""Tests of the diagnosis: it names the mutant that a broken function looks like, or none."""

from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.diagnosis.diagnose import TRIES, looks_like_sentence, with_diagnosis
from attnspec.conformance.diagnosis.likeness import attention as likeness
from attnspec.conformance.diagnosis.likeness import outputs
from attnspec.conformance.diagnosis.likeness.attention import FEW, likely_mutants, similar_mutants
from attnspec.conformance.diagnosis.likeness.outputs import (
    REFUSED,
    ComparisonCall,
    OutputCache,
    key_of,
)
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.declare import declare
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import tasks
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import CallMode, Case, EmptyRow, Feature, Implementation, Profile

laws.load()
mutants.load()


def written(mistake):
    """Return a subject whose function is plainly written and has one of several mistakes."""

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        if scale is None:
            scale = query.shape[-1] if mistake == "inverse" else max(query.shape[-1], 1) ** -0.5
        scores = torch.einsum("bhqd,bhkd->bhqk", query.double() * scale, key.double())
        if mistake == "twice":
            scores = scores * scale
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool)
        if is_causal:
            shift = {"leak": 1, "aligned": key.shape[2] - query.shape[2]}.get(mistake, 0)
            visible = visible.tril(shift)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            visible = visible & (~attn_mask if mistake == "polarity" else attn_mask)
        elif attn_mask is not None:
            visible = visible & (attn_mask != -torch.inf)
            scores = scores + attn_mask
        empty = ~visible.any(-1, keepdim=True)
        scores = scores.masked_fill(~visible, -torch.inf).masked_fill(empty, 0.0)
        weights = scores.softmax(-1).masked_fill(empty, 0.0)
        if mistake == "own":
            weights = weights.square()
        return (weights @ value.double()).to(value.dtype)

    return Subject(declare(f"written_{mistake}", attention))


def failed(subject):
    """Return the record of the first law that a subject breaks, as in a run."""
    for task in tasks([LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject)]):
        record = run_in_process(task, Effort.SMOKE)
        if record.outcome is Outcome.FAILED:
            return record
    raise AssertionError("no law is broken")


@pytest.mark.parametrize(
    ("mistake", "mutant"),
    [
        ("polarity", "own-mask-polarity"),
        ("leak", "own-causal-one-too-many"),
        ("twice", "SCL-04"),
        ("aligned", "own-causal-lower-right"),
    ],
)
def test_a_broken_function_looks_like_the_mutant_with_its_mistake(mistake, mutant):
    record = failed(written(mistake))
    assert mutant in record.looks_like, record.message
    assert len(record.looks_like) <= FEW
    assert f"looks like {record.looks_like[0]}, " in record.message
    assert Record.from_json(record.to_json()) == record


def test_a_mistake_of_no_mutant_looks_like_nothing():
    record = failed(written("own"))
    assert record.looks_like == ()
    assert "looks like" not in record.message


def test_a_right_result_looks_like_nothing():
    subject = written("none")
    subject.call(subject.draw(registered()["weights-sum-to-one"].pinned[0]))
    assert likely_mutants(subject) == []
    assert likely_mutants(Subject(dense("dense", Dense()))) == []


def test_mutants_do_not_change_the_failing_call():
    subject = written("own")
    check(registered()["output-equals-the-definition"], subject, None)
    before = {
        name: (tensor.clone(), tensor.stride())
        for name, tensor in subject.last_call.tensors.items()
    }
    likely_mutants(subject)
    for name, tensor in subject.last_call.tensors.items():
        assert torch.equal(tensor, before[name][0])
        assert tensor.stride() == before[name][1]


def test_more_than_a_few_are_not_named():
    mutant = planted()["own-mask-polarity"]
    subject = Subject(mutant.subject)
    check(registered()[mutant.killed_by], subject, None)
    copies = [replace(mutant, id=f"copy-{number}") for number in range(FEW + 1)]
    assert len(likely_mutants(subject, among=copies[:FEW])) == FEW
    assert likely_mutants(subject, among=copies) == []


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", ["own-tile-sum", "own-mask-polarity", "own-group-modulo"])
def test_a_mutant_looks_like_itself_and_without_its_entry_like_nothing(name):
    mutant = planted()[name]
    subject = Subject(mutant.subject)
    check(registered()[mutant.killed_by], subject, None)
    assert [match.id for match in likely_mutants(subject)] == [name]
    assert likely_mutants(subject, without=frozenset({name})) == []


def test_a_subject_that_raises_or_returns_no_tensor_is_not_compared():
    def raises(query, key, value, **options):
        raise RuntimeError("no")

    def nothing(query, key, value, **options):
        return None

    for wrong in (raises, nothing):
        subject = Subject(dense("wrong", wrong))
        check(registered()["weights-sum-to-one"], subject, None)
        assert likely_mutants(subject) == []


@pytest.mark.rotating(parts=4)
def test_a_named_mutant_is_tried_first_and_the_search_ends():
    subject = written("own")
    law = registered()["weights-sum-to-one"]
    for _ in range(TRIES + 2):
        with_diagnosis(check(law, subject, None), subject)
    assert subject.diagnoses == TRIES
    subject = written("polarity")
    first = registered()["true-means-readable"]
    assert with_diagnosis(check(first, subject, None), subject).looks_like
    assert with_diagnosis(check(first, subject, None), subject).looks_like
    assert subject.diagnoses == 1


def strictly_causal(query, key, value, is_causal=False, scale=None):
    """Return attention whose causal mask hides the query's own position, and that selects values.

    The mutant of this mistake multiplies hidden values by zero, so that in a call with a hidden NaN
    their results differ.
    """
    scale = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool)
    visible = visible.tril(-1) if is_causal else visible
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
    return torch.where(visible[..., None], weights[..., None] * value[..., None, :, :], 0.0).sum(-2)


def test_a_law_about_special_calls_is_explained_by_what_ordinary_calls_show():
    law = registered()["unreadable-nan-and-infinity-follow-the-profile"]
    implementation = Implementation(
        name="strict",
        attention=strictly_causal,
        features=frozenset({Feature.CAUSAL}),
        dtypes=(torch.float32,),
    )
    subject = Subject(implementation)
    record = check(law, subject, None)
    assert record.outcome is Outcome.FAILED
    assert with_diagnosis(record, subject).looks_like == ()
    assert with_diagnosis(record, subject, law).looks_like == ("own-causal-strict",)


@pytest.mark.rotating(parts=4)
def test_a_mistake_that_ordinary_calls_do_not_show_is_not_explained_by_them():
    law = registered()["unreadable-nan-and-infinity-follow-the-profile"]
    # right but for NaN, in a function that declares otherwise
    subject = Subject(replace(dense("leaky", Dense()), profile=Profile()))
    record = check(law, subject, None)
    assert record.outcome is Outcome.FAILED
    assert with_diagnosis(record, subject, law).looks_like == ()


@pytest.mark.rotating(parts=4)
def test_a_mutant_that_keeps_a_law_does_not_explain_it():
    law = registered()["unreadable-nan-and-infinity-follow-the-profile"]
    subject = Subject(replace(dense("leaky", Dense()), profile=Profile()))
    record = check(law, subject, None)
    keeps = planted()["SCL-11"]
    assert check(law, Subject(keeps.subject), None).outcome is Outcome.PASSED
    subject.last_diagnosis = (keeps,)
    assert with_diagnosis(record, subject, law).looks_like == ()


def test_the_record_of_a_passed_law_is_unchanged():
    record = Record(subject="s", law="l", clauses=("ATT-1",), outcome=Outcome.PASSED)
    assert with_diagnosis(record, Subject(dense("dense", Dense()))) is record
    assert with_diagnosis(replace(record, outcome=Outcome.FAILED), object()).looks_like == ()


def test_the_sentence_has_the_source_of_a_mutant():
    mutant = planted()["TIL-01"]
    assert (
        looks_like_sentence([mutant])
        == f"looks like TIL-01, {mutant.title}; seen in {mutant.source}"
    )
    assert looks_like_sentence([]) == ""


def test_a_call_with_large_storage_is_not_copied_for_the_catalogue(monkeypatch):
    subject = written("twice")
    failed(subject)
    assert likely_mutants(subject)
    query = subject.last_call.query
    memory = query.new_zeros(2**24)
    far = memory[: query.numel()].view(query.shape).copy_(query)
    subject.last_call = subject.last_call.but(query=far)
    monkeypatch.setattr(mutants, "load", None)
    assert likely_mutants(subject) == []


def test_mutants_do_not_run_a_call_with_too_many_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant = planted()["own-scale-ignored"]
    subject = Subject(mutant.subject)
    subject.call(
        subject.draw(Case(queries=2, keys=likeness.LONGEST + 1, d_head=8, d_value=8, scale=2.0))
    )
    assert not likeness.similar_mutants(subject, among=[mutant])
    monkeypatch.setattr(likeness, "LONGEST", likeness.LONGEST + 1)
    assert likeness.similar_mutants(subject, among=[mutant]) == [mutant]


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize("answer", [EmptyRow.NAN, EmptyRow.MEAN])
@pytest.mark.parametrize(
    ("mistake", "mutant"),
    [("leak", "own-causal-one-too-many"), ("twice", "SCL-04"), ("polarity", "own-mask-polarity")],
)
def test_a_function_with_another_answer_to_empty_rows_looks_like_the_same_mutant(
    answer, mistake, mutant
):
    plain = written(mistake).implementation.attention
    hide = {EmptyRow.NAN: torch.nan, EmptyRow.MEAN: None}[answer]

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        out = plain(query, key, value, attn_mask, is_causal, scale)
        mean = value.mean(2, keepdim=True) if key.shape[2] else value.new_zeros(1)
        is_empty = (out == 0).all(-1, keepdim=True) & bool(key.shape[2])
        return torch.where(is_empty, mean if hide is None else hide, out)

    # whether or not it declares what it answers
    for profile in (Profile(empty_row=answer), Profile()):
        declared = replace(declare(f"{mistake}_{answer}", attention), profile=profile)
        assert mutant in failed(Subject(declared)).looks_like


def test_a_mistake_of_one_type_looks_like_the_mutant_that_has_it_in_all():
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        inner = written("leak" if query.dtype == torch.float32 else "none")
        return inner.implementation.attention(query, key, value, attn_mask, is_causal, scale)

    record = failed(Subject(declare("leaks_in_float32", attention)))
    assert record.looks_like == ("own-causal-one-too-many",)
    assert "float64" in record.passes_in


@pytest.mark.rotating(parts=4)
def test_a_function_whose_empty_rows_alone_are_wrong_looks_like_no_other_answer():
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        inner = written("none").implementation.attention
        out = inner(query, key, value, attn_mask, is_causal, scale)
        is_empty = (out == 0).all(-1, keepdim=True) & bool(key.shape[2])
        return torch.where(is_empty, torch.nan, out)

    assert "own-empty-row-mean" not in failed(Subject(declare("nan", attention))).looks_like


@pytest.mark.rotating(parts=4)
def test_a_mistake_of_another_size_looks_like_nothing():
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        # like a scale of 1/d_head, but for a small part
        if scale is None:
            scale = max(query.shape[-1], 1) ** -0.95
        return written("none").implementation.attention(
            query, key, value, attn_mask, is_causal, scale
        )

    assert failed(Subject(declare("almost", attention))).looks_like == ()


def test_errors_at_the_bound_are_too_small_to_name_a_mutant():
    mutant = planted()["own-scale-without-root"]
    subject = Subject(mutant.subject)
    check(registered()[mutant.killed_by], subject, None)
    assert likeness.similar_mutants(subject, among=[mutant]) == [mutant]
    comparison = likeness._comparison(subject, None, subject.last_call, None, ())
    exact, bound = comparison.exact["out"], comparison.tolerance["out"] / 2
    near = {"out": exact + 1.15 * bound}
    assert likeness._clearly_wrong(near, comparison) == 0
    far = {"out": exact + 50 * bound}
    assert likeness._clearly_wrong(far, comparison) == exact.numel()
    zero = frozenset({EmptyRow.ZERO})
    for distance, count in ((52, exact.numel()), (80, None)):
        other = {"out": exact + distance * bound}
        assert likeness._common_mistakes(far, other, comparison, zero) == count


def test_small_wrong_elements_are_enough_for_a_diagnosis():
    mutant = planted()["own-grad-narrow-keys"]
    subject = Subject(mutant.subject)
    # a float16 gradient, whose larger elements have larger bounds
    record = check(registered()["options-combine"], subject, None, seed=0, repeats=0)
    assert record.outcome is Outcome.FAILED
    assert likely_mutants(subject) == [mutant]


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", ["own-scale-ignored", "STR-06"])
def test_cached_outputs_do_not_change_the_diagnosis(name):
    subject, cache = Subject(planted()[name].subject), OutputCache()
    twins = [planted()[twin] for twin in ("own-model-scale-ignored", "own-flat-index")]
    among = [*list(planted().values())[::20], planted()[name], *twins]
    failed(subject)
    named = [match.id for match in similar_mutants(subject, among=among)]
    assert name in named
    for _ in range(2):  # with an empty cache, then with a full one
        matches = similar_mutants(subject, among=among, cache=cache)
        assert sorted(match.id for match in matches) == sorted(named)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("own-long-statistics-of-a-thread", CallMode.OTHER_THREAD),
        ("own-long-statistics-overwritten", CallMode.TWO_BACKWARDS),
    ],
)
def test_outputs_are_compared_in_the_mode_of_a_call(name, mode):
    case = Case(queries=610, keys=3, d_head=2, d_value=2, dtype=torch.float32, mode=mode)
    call, grad_out = draw(case), torch.ones(1, 1, 610, 2)
    grads = [
        outputs.outputs_of(planted()[name].subject, ComparisonCall(None, each, grad_out, WRT, {}))
        for each in (call, call.but(mode=CallMode.PLAIN))
    ]
    assert torch.equal(grads[0]["out"], grads[1]["out"])
    assert not torch.allclose(grads[0]["query"], grads[1]["query"])


def test_equal_outputs_are_stored_once_and_claims_are_respected():
    cache, right = OutputCache(), [planted()[name] for name in ("own-mask-cached", "NUM-09")]
    case = Case(queries=2, keys=3, d_head=2, d_value=2)
    call = draw(case)
    subject = Subject(right[0].subject)
    tolerance = {"out": subject.expect(call).bound}
    comparison = ComparisonCall(case, call, None, (), tolerance)
    (key, first), (other_key, second) = (cache.outputs_of_mutant(m, comparison) for m in right)
    assert key == other_key
    assert first is second
    window = case.but(window=(1, 0))
    unclaimed = ComparisonCall(window, draw(window), None, (), tolerance)
    assert cache.outputs_of_mutant(right[0], unclaimed) == (REFUSED, None)


def test_a_mutant_runs_a_call_once_for_all_subjects(monkeypatch):
    original, names = outputs.outputs_of, []

    def recording(implementation, comparison):
        names.append(implementation.name)
        return original(implementation, comparison)

    monkeypatch.setattr(outputs, "outputs_of", recording)
    cache, mutant = OutputCache(), planted()["own-lse-sum"]
    case = Case(queries=2, keys=3, d_head=2, d_value=2)
    for each in (case, case, case.but(return_lse=True)):
        cache.outputs_of_mutant(mutant, ComparisonCall(each, draw(each), None, (), {}))
    assert names == [mutant.subject.name] * 2


def test_outputs_without_numbers_equal_themselves_only():
    meta = {"out": torch.zeros(2, device="meta")}
    assert key_of(meta, "one") == "one" != key_of(meta, "two")
    nan = {"out": torch.tensor([torch.nan])}
    assert key_of(nan, "") == key_of({"out": nan["out"].clone()}, "")
    assert key_of(nan, "") != key_of({"lse": nan["out"]}, "")
    assert key_of(nan, "") != key_of({"out": nan["out"].double()}, "")
