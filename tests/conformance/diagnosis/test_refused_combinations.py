"""Tests of combinations that a bare callable refuses: not claimed, unless declared."""

import pytest
import torch

from attnspec.conformance.api import check_attention, subject_of
from attnspec.conformance.comparison.violation import Raised
from attnspec.conformance.diagnosis.refused_combinations import refused_combination
from attnspec.conformance.laws.law import registered
from attnspec.conformance.report.matrix import run_notes
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.plan import plan
from attnspec.conformance.runner.task import TypedClaims

SDPA = torch.nn.functional.scaled_dot_product_attention
LAWS = ["mask-and-causal-flag-both-apply", "true-means-readable"]


def with_combination(action):
    """Return an attention that calls `action` for a mask together with the causal flag."""

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        if attn_mask is not None and is_causal:
            action()
        return SDPA(query, key, value, attn_mask, 0.0, is_causal, scale=scale)

    return attention


def refuses():
    raise NotImplementedError("a mask or the flag, not both")


def is_mistaken():
    raise NameError("name 'visble' is not defined")


def records_by_law(attention, **claims):
    records = check_attention(attention, laws=LAWS, effort="smoke", **claims)
    return {record.law: record for record in records}


def test_a_refused_combination_is_not_claimed_and_reported():
    records = records_by_law(with_combination(refuses))
    refused, other = (records[name] for name in LAWS)
    assert refused.outcome is Outcome.NOT_CLAIMED
    assert refused.reason == (
        "it refuses together attn_mask and is_causal: "
        "NotImplementedError: a mask or the flag, not both"
    )
    assert other.outcome is Outcome.PASSED
    (line,) = (line for line in run_notes([refused, other]) if line.startswith("not claimed"))
    assert "attn_mask and is_causal" in line


def test_explicitly_claimed_features_must_work_together():
    record = records_by_law(with_combination(refuses), features=["mask", "causal"])[LAWS[0]]
    assert record.outcome is Outcome.ERRORED
    assert "not both" in record.reason


def test_a_name_error_is_no_refusal():
    assert records_by_law(with_combination(is_mistaken))[LAWS[0]].outcome is Outcome.ERRORED


def test_an_argument_that_fails_alone_is_no_refused_combination():
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        if attn_mask is not None:
            raise RuntimeError("no masks")
        return SDPA(query, key, value, None, 0.0, is_causal, scale=scale)

    records = records_by_law(attention)
    assert {record.outcome for record in records.values()} == {Outcome.ERRORED}


def test_only_a_call_that_raised_is_a_refusal():
    subject = subject_of(with_combination(refuses), None, [torch.float64], "cpu")
    assert refused_combination(subject, Raised("nothing was called")) is None
    assert refused_combination(object(), Raised("no attention")) is None


def test_torchs_own_attention_claims_no_mask_together_with_the_flag():
    subject = subject_of(SDPA, None, [torch.float32], "cpu")
    law = registered()["mask-and-causal-flag-both-apply"]
    record = check(law, subject, Effort.SMOKE)
    assert record.outcome in (Outcome.PASSED, Outcome.NOT_CLAIMED)
    assert any("attn_mask and is_causal" in reason for reason in record.refused)


@pytest.mark.parametrize("features", [None, "mask,causal"])
def test_a_plan_keeps_whether_features_are_explicit(features):
    target = "torch.nn.functional:scaled_dot_product_attention"
    words = TypedClaims(features=features, dtypes="float32")
    (target_plan,) = plan([target], words, "cpu", limit=60.0, memory=None)
    assert target_plan.claims.features == features
    assert target_plan.load().subject.is_bare == (features is None)
