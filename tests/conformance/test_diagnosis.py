"""The diagnosis: it names the planted bug that a broken function shares, and otherwise nothing."""

from dataclasses import replace

import pytest
import torch

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance import answers, likeness
from attnspec.conformance.answers import REFUSED, Answered, Question, key_of
from attnspec.conformance.check import check
from attnspec.conformance.diagnosis import TRIES, diagnosed, sentence
from attnspec.conformance.inputs import draw
from attnspec.conformance.law import Judged, registered
from attnspec.conformance.likeness import FEW, alike, resembles
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.subject import Subject
from attnspec.conformance.targets import Judgeable, declare
from attnspec.conformance.trials import trials
from attnspec.spec import Case


def written(mistake):
    """A function such as anyone writes, in the storage type, with one of some mistakes."""

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
    """The record of the first law that a subject breaks, tried as in a run."""
    for trial in trials([Judgeable(kind=Judged.ATTENTION, subject=subject)]):
        record = trial.run("smoke")
        if record.outcome is Outcome.FAILED:
            return record
    raise AssertionError("no law is broken")


@pytest.mark.parametrize(
    ("mistake", "bug"),
    [
        ("polarity", "own-mask-polarity"),
        ("leak", "own-causal-one-too-many"),
        ("twice", "SCL-04"),
        ("aligned", "own-causal-lower-right"),
    ],
)
def test_a_function_of_somebody_else_looks_like_the_bug_that_it_shares(mistake, bug):
    record = failed(written(mistake))
    assert bug in record.looks_like, record.message
    assert len(record.looks_like) <= FEW
    assert f"looks like {record.looks_like[0]}, " in record.message
    assert Record.from_json(record.to_json()) == record


def test_a_bug_that_is_not_in_the_catalogue_looks_like_nothing():
    record = failed(written("own"))
    assert record.looks_like == ()
    assert "looks like" not in record.message


def test_a_call_that_is_answered_right_looks_like_nothing():
    subject = written("none")
    subject.call(subject.draw(registered()["weights-sum-to-one"].pinned[0]))
    assert resembles(subject) == []
    assert resembles(Subject(dense("dense", Dense()))) == []


def test_the_failing_call_is_what_it_was_after_all_mutants_had_it():
    subject = written("own")
    check(registered()["output-equals-the-definition"], subject, None)
    before = {
        name: (each.clone(), each.stride()) for name, each in subject.last_call.tensors.items()
    }
    resembles(subject)
    for name, each in subject.last_call.tensors.items():
        assert torch.equal(each, before[name][0])
        assert each.stride() == before[name][1]


def test_more_than_a_few_are_not_named():
    bug = planted()["own-mask-polarity"]
    subject = Subject(bug.subject)
    check(registered()[bug.kills[0]], subject, None)
    copies = [replace(bug, id=f"copy-{number}") for number in range(FEW + 1)]
    assert len(resembles(subject, among=copies[:FEW])) == FEW
    assert resembles(subject, among=copies) == []


@pytest.mark.parametrize("name", ["own-tile-sum", "own-mask-polarity", "own-group-modulo"])
def test_a_mutant_is_itself_and_without_its_entry_nothing(name):
    bug = planted()[name]
    subject = Subject(bug.subject)
    check(registered()[bug.kills[0]], subject, None)
    assert [each.id for each in resembles(subject)] == [name]
    assert resembles(subject, without=frozenset({name})) == []


def test_a_subject_that_raises_or_answers_with_no_tensor_is_not_compared():
    def raises(query, key, value, **options):
        raise RuntimeError("no")

    def nothing(query, key, value, **options):
        return None

    for wrong in (raises, nothing):
        subject = Subject(dense("wrong", wrong))
        check(registered()["weights-sum-to-one"], subject, None)
        assert resembles(subject) == []


def test_a_bug_that_was_named_is_tried_first_and_the_search_ends():
    subject = written("own")
    law = registered()["weights-sum-to-one"]
    for _ in range(TRIES + 2):
        diagnosed(check(law, subject, None), subject)
    assert subject.diagnoses == TRIES
    subject = written("polarity")
    first = registered()["true-means-readable"]
    assert diagnosed(check(first, subject, None), subject).looks_like
    assert diagnosed(check(first, subject, None), subject).looks_like
    assert subject.diagnoses == 1


def test_what_passed_is_returned_as_it_is():
    record = Record(subject="s", law="l", clauses=("ATT-1",), outcome=Outcome.PASSED)
    assert diagnosed(record, Subject(dense("dense", Dense()))) is record
    assert diagnosed(replace(record, outcome=Outcome.FAILED), object()).looks_like == ()


def test_the_sentence_names_where_a_bug_was_seen():
    bug = planted()["TIL-01"]
    assert sentence([bug]) == f"looks like TIL-01, {bug.title}; seen in {bug.source}"
    assert sentence([]) == ""


def test_a_call_in_a_large_memory_is_not_copied_for_the_catalogue(monkeypatch):
    subject = written("twice")
    failed(subject)
    assert resembles(subject)
    query = subject.last_call.query
    memory = query.new_zeros(2**24)
    far = memory[: query.numel()].view(query.shape).copy_(query)
    subject.last_call = subject.last_call.but(query=far)
    monkeypatch.setattr(likeness, "planted", None)
    assert resembles(subject) == []


def test_no_call_is_put_to_the_catalogue_that_takes_too_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant = planted()["own-scale-ignored"]
    subject = Subject(mutant.subject)
    subject.call(
        subject.draw(Case(queries=2, keys=likeness.LONGEST + 1, d_head=8, d_value=8, scale=2.0))
    )
    assert not likeness.alike(subject, among=[mutant])
    monkeypatch.setattr(likeness, "LONGEST", likeness.LONGEST + 1)
    assert likeness.alike(subject, among=[mutant]) == [mutant]


def test_what_is_wrong_in_small_elements_alone_is_wrong():
    mutant = planted()["own-grad-narrow-keys"]
    subject = Subject(mutant.subject)
    # a gradient of float16, whose larger elements may be off by more
    record = check(registered()["options-combine"], subject, None, seed=0, repeats=0)
    assert record.outcome is Outcome.FAILED
    assert resembles(subject) == [mutant]


@pytest.mark.parametrize("name", ["own-scale-ignored", "STR-06"])
def test_what_mutants_answered_before_changes_no_likeness(name):
    subject, memory = Subject(planted()[name].subject), Answered()
    twins = [planted()[each] for each in ("own-model-scale-ignored", "own-flat-index")]
    among = [*list(planted().values())[::20], planted()[name], *twins]
    failed(subject)
    named = [each.id for each in alike(subject, among=among)]
    assert name in named
    for _ in range(2):  # as the answers are learned, then by heart
        assert sorted(each.id for each in alike(subject, among=among, answered=memory)) == sorted(
            named
        )


def test_equal_answers_are_kept_once_and_claims_are_respected():
    memory, right = Answered(), [planted()[name] for name in ("own-mask-cached", "NUM-09")]
    case = Case(queries=2, keys=3, d_head=2, d_value=2)
    call = draw(case)
    subject = Subject(right[0].subject)
    slack = {"out": subject.expect(call).bound}
    ask = memory.to(Question(case, call, None, (), slack))
    (one, answer), (two, other) = map(ask, right)
    assert one == two
    assert answer is other
    window = case.but(window=(1, 0))
    unclaimed = Question(window, draw(window), None, (), slack)
    assert memory.to(unclaimed)(right[0]) == (REFUSED, None)


def test_a_mutant_that_takes_no_mistaken_step_answers_as_its_base(monkeypatch):
    plain, heard = answers.answer, []

    def noted(implementation, question):
        heard.append(implementation.name)
        return plain(implementation, question)

    monkeypatch.setattr(answers, "answer", noted)
    pair = [planted()[name] for name in ("own-lse-sum", "own-lse-negated")]
    case = Case(queries=2, keys=3, d_head=2, d_value=2)
    for ask in (answers.asked, Answered().to):
        (one, answer), (two, other) = map(ask(Question(case, draw(case), None, (), {})), pair)
        assert one == two
        assert answer is other
        wrong = case.but(return_lse=True)
        (one, answer), (two, other) = map(ask(Question(wrong, draw(wrong), None, (), {})), pair)
        assert one != two
        assert not torch.equal(answer["lse"], other["lse"])
    names = [mutant.subject.name for mutant in pair]
    assert heard == [names[0], *names] * 2


def test_an_answer_that_holds_no_numbers_equals_itself_alone():
    meta = {"out": torch.zeros(2, device="meta")}
    assert key_of(meta, "one") == "one" != key_of(meta, "two")
    nan = {"out": torch.tensor([torch.nan])}
    assert key_of(nan, "") == key_of({"out": nan["out"].clone()}, "")
    assert key_of(nan, "") != key_of({"lse": nan["out"]}, "")
    assert key_of(nan, "") != key_of({"out": nan["out"].double()}, "")
