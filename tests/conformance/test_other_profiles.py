"""What would hold if something else were declared: told of a case, and of nothing else."""

from dataclasses import replace

import pytest
import torch

from attnspec.conformance.claims import Claims
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Judged
from attnspec.conformance.matrix import asides
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.subject import Subject
from attnspec.conformance.targets import Judgeable, declare
from attnspec.conformance.trials import trials

CLAIMS = Claims.read("mask,causal", "float64")

LAWS = {
    "causal_alignment=lower_right": "the-diagonal-lies-where-the-profile-says",
    "empty_row=mean": "an-empty-row-gives-the-profiles-answer",
    "masked_nonfinite=propagates": "unreadable-nan-and-infinity-follow-the-profile",
}


def of_profile(words):
    """An attention in float64 that follows the contract but for one answer."""

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        queries, keys = scores.shape[-2:]
        visible = torch.ones(queries, keys, dtype=torch.bool)
        if is_causal:
            visible = visible.tril(keys - queries if "lower_right" in words else 0)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            visible = visible & attn_mask
        elif attn_mask is not None:
            visible, scores = visible & (attn_mask != -torch.inf), scores + attn_mask
        scores = scores.masked_fill(~visible, -torch.inf)
        is_empty = ~visible.any(-1, keepdim=True)
        weights = scores.masked_fill(is_empty, 0.0).softmax(-1)
        if "mean" not in words:
            weights = weights.masked_fill(is_empty, 0.0)
        if "propagates" in words:
            return weights @ value
        visible = torch.broadcast_to(visible, weights.shape)[..., None]
        visible = visible | is_empty[..., None] if "mean" in words else visible
        return torch.where(visible, weights[..., None] * value[:, :, None], 0.0).sum(-2)

    return attention


def first_failure(subject, law):
    (trial,) = trials([Judgeable(kind=Judged.ATTENTION, subject=subject)], [law])
    return trial.run(Effort.SMOKE)


@pytest.mark.parametrize("words", LAWS)
def test_an_attention_of_another_profile_is_told_what_to_declare(words):
    attention = of_profile(words)
    record = first_failure(Subject(declare("it", attention, CLAIMS)), LAWS[words])
    assert record.outcome is Outcome.FAILED
    assert record.holds_under == words
    assert f"would hold under {words}" in record.message
    assert Record.from_json(record.to_json()) == record
    declared = replace(CLAIMS, profile=Claims.read(profile=[words]).profile)
    record = first_failure(Subject(declare("it", attention, declared)), LAWS[words])
    assert record.outcome is Outcome.PASSED, record.message


def rounds(query, key, value, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return ((query * scale) @ key.mT).softmax(-1) @ value


def test_rounding_in_the_storage_type_is_told_with_its_level():
    subject = Subject(declare("it", rounds, Claims.read("", "bfloat16")))
    record = first_failure(subject, "every-output-is-within-its-bound")
    assert record.outcome is Outcome.FAILED
    assert record.holds_under.startswith("rounding=")
    (line,) = (each for each in asides([record]) if each.startswith("it: "))
    assert "1 of 1 broken laws would hold" in line
    assert f"--profile {record.holds_under}" in line


def test_several_levels_of_rounding_are_told_as_the_one_that_permits_them_all():
    subject = Subject(declare("it", rounds, Claims.read("", "bfloat16")))
    record = first_failure(subject, "every-output-is-within-its-bound")
    named = ("prescaled", "prescaled", "eager")
    records = [replace(record, holds_under=f"rounding={level}") for level in named]
    records.append(replace(record, holds_under="empty_row=mean"))
    lines = [each for each in asides(records) if each.startswith("it: ")]
    assert [each.partition("--profile ")[2].partition(":")[0] for each in lines] == [
        "rounding=eager",
        "empty_row=mean",
    ]
    assert "3 of 4 broken laws" in lines[0]
    (alone,) = (each for each in asides(records[:2]) if each.startswith("it: "))
    assert "2 of 2" in alone
    assert "rounding=prescaled" in alone


def test_what_is_wrong_under_every_profile_is_told_nothing():
    def wrong(query, key, value, scale=None):
        return rounds(query, key, value, scale) * 1.25

    subject = Subject(declare("it", wrong, Claims.read("", "float64")))
    record = first_failure(subject, "output-equals-the-definition")
    assert record.outcome is Outcome.FAILED
    assert not record.holds_under
    assert not any("--profile" in each for each in asides([record]))


def test_what_judges_no_attention_has_no_other_profile():
    from attnspec.conformance.other_profiles import holds_under

    law = trials([Judgeable(kind=Judged.ATTENTION, subject=Subject(declare("it", rounds)))])[0].law
    assert holds_under(law, object(), None) == ""
    assert torch.is_grad_enabled()
