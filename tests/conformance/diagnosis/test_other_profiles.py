"""Tests of the profile under which a failing case would hold."""

from dataclasses import replace

import pytest
import torch

from attnspec.conformance import mutants
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.report.matrix import run_notes
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import declare
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import tasks
from attnspec.conformance.subjects.kinds import SubjectKind

CLAIMS = Claims.read("mask,causal", "float64")

LAWS = {
    "causal_alignment=lower_right": "the-diagonal-lies-where-the-profile-says",
    "causal_single_query=ignored": "the-diagonal-lies-where-the-profile-says",
    "empty_row=mean": "an-empty-row-gives-the-declared-output",
    "masked_keys=propagates": "unreadable-nan-and-infinity-follow-the-profile",
    "masked_values=propagates": "unreadable-nan-and-infinity-follow-the-profile",
}


def of_profile(argument):
    """Return an attention in float64 whose profile differs from the default in one answer."""

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        queries, keys = scores.shape[-2:]
        visible = torch.ones(queries, keys, dtype=torch.bool)
        if is_causal and not ("ignored" in argument and queries == 1):
            visible = visible.tril(keys - queries if "lower_right" in argument else 0)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            visible = visible & attn_mask
        elif attn_mask is not None:
            visible, scores = visible & (attn_mask != -torch.inf), scores + attn_mask
        if argument == "masked_keys=propagates":
            scores = scores + torch.zeros_like(scores).masked_fill(~visible, -torch.inf)
        else:
            scores = scores.masked_fill(~visible, -torch.inf)
        is_empty = ~visible.any(-1, keepdim=True)
        weights = scores.masked_fill(is_empty, 0.0).softmax(-1)
        is_float = attn_mask is not None and attn_mask.dtype != torch.bool
        is_mean = "mean" in argument and (is_float or "float" not in argument)
        if not is_mean:
            weights = weights.masked_fill(is_empty, 0.0)
        if argument == "masked_values=propagates":
            return weights @ value
        visible = torch.broadcast_to(visible, weights.shape)[..., None]
        visible = visible | is_empty[..., None] if is_mean else visible
        return torch.where(visible, weights[..., None] * value[:, :, None], 0.0).sum(-2)

    return attention


def first_failure(subject, law):
    (task,) = tasks([LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject)], [law])
    return run_in_process(task, Effort.SMOKE)


@pytest.mark.rotating(parts=2)
@pytest.mark.parametrize("argument", LAWS)
def test_an_attention_of_another_profile_learns_what_to_declare(argument):
    attention = of_profile(argument)
    record = first_failure(Subject(declare("it", attention, CLAIMS)), LAWS[argument])
    assert record.outcome is Outcome.FAILED
    assert record.holds_under == argument
    assert f"would hold under {argument}" in record.message
    assert Record.from_json(record.to_json()) == record
    declared = replace(CLAIMS, profile=Claims.read(profile=[argument]).profile)
    record = first_failure(Subject(declare("it", attention, declared)), LAWS[argument])
    assert record.outcome is Outcome.PASSED, record.message


@pytest.mark.rotating(parts=3)
def test_an_answer_for_one_kind_of_mask_is_learned_step_by_step():
    attention, law = of_profile("empty_row_float_mask=mean"), LAWS["empty_row=mean"]
    learned = []
    for _ in range(3):
        claims = replace(CLAIMS, profile=Claims.read(profile=learned).profile)
        record = first_failure(Subject(declare("it", attention, claims)), law)
        learned += [record.holds_under] if record.holds_under else []
    assert record.outcome is Outcome.PASSED, record.message
    assert learned == ["empty_row=mean", "empty_row_bool_mask=zero"]


@pytest.mark.parametrize(
    ("mutant", "law", "argument"),
    [
        ("GQA-01", "a-head-reads-its-own-group", "grouping=interleaved"),
        (
            "own-softcap-after-bias",
            "softcap-leaves-the-bias-alone",
            "softcap_order=after_bias",
        ),
    ],
)
def test_a_mutant_that_is_right_under_another_answer_learns_it(mutant, law, argument):
    implementation = mutants.load()[mutant].subject
    record = first_failure(Subject(implementation), law)
    assert record.outcome is Outcome.FAILED
    assert record.holds_under == argument
    declared = Claims.read(profile=[argument]).override(implementation)
    assert first_failure(Subject(declared), law).outcome is Outcome.PASSED


def rounds(query, key, value, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return ((query * scale) @ key.mT).softmax(-1) @ value


@pytest.mark.rotating(parts=3)
def test_rounding_in_the_storage_type_is_reported_with_its_level():
    subject = Subject(declare("it", rounds, Claims.read("", "bfloat16")))
    record = first_failure(subject, "every-output-is-within-its-bound")
    assert record.outcome is Outcome.FAILED
    assert record.holds_under.startswith("rounding=")
    (line,) = (line for line in run_notes([record]) if line.startswith("it: "))
    assert "1 of 1 broken laws would hold" in line
    assert f"--profile {record.holds_under}" in line


@pytest.mark.rotating(parts=3)
def test_several_levels_of_rounding_are_reported_as_the_widest():
    subject = Subject(declare("it", rounds, Claims.read("", "bfloat16")))
    record = first_failure(subject, "every-output-is-within-its-bound")
    levels = ("prescaled", "prescaled", "eager")
    records = [replace(record, holds_under=f"rounding={level}") for level in levels]
    records.append(replace(record, holds_under="empty_row=mean"))
    lines = [line for line in run_notes(records) if line.startswith("it: ")]
    assert [line.partition("--profile ")[2].partition(":")[0] for line in lines] == [
        "rounding=eager",
        "empty_row=mean",
    ]
    assert "3 of 4 broken laws" in lines[0]
    (line,) = (line for line in run_notes(records[:2]) if line.startswith("it: "))
    assert "2 of 2" in line
    assert "rounding=prescaled" in line


def test_a_result_wrong_under_every_profile_has_no_other_profile():
    def wrong(query, key, value, scale=None):
        return rounds(query, key, value, scale) * 1.25

    subject = Subject(declare("it", wrong, Claims.read("", "float64")))
    record = first_failure(subject, "output-equals-the-definition")
    assert record.outcome is Outcome.FAILED
    assert not record.holds_under
    assert not any("--profile" in line for line in run_notes([record]))


def test_a_subject_that_is_no_attention_has_no_other_profile():
    from attnspec.conformance.diagnosis.other_profiles import holds_under

    subject = Subject(declare("it", rounds))
    law = tasks([LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject)])[0].law
    assert holds_under(law, object(), None) == ""
    assert torch.is_grad_enabled()
