"""Combinations that a bare callable refuses: not claimed, unless somebody has said so."""

import pytest
import torch

from attnspec.conformance.api import check_attention, subject_of
from attnspec.conformance.check import check
from attnspec.conformance.combination import refused_combination
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import registered
from attnspec.conformance.matrix import asides
from attnspec.conformance.planned import Words, plan
from attnspec.conformance.record import Outcome
from attnspec.conformance.subject import Raised

SDPA = torch.nn.functional.scaled_dot_product_attention
LAWS = ["mask-and-causal-flag-both-apply", "true-means-readable"]


def of(how):
    """An attention that does something else where a mask meets the causal flag."""

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        if attn_mask is not None and is_causal:
            how()
        return SDPA(query, key, value, attn_mask, 0.0, is_causal, scale=scale)

    return attention


def refuses():
    raise NotImplementedError("a mask or the flag, not both")


def is_mistaken():
    raise NameError("name 'visble' is not defined")


def tried(attention, **said):
    records = check_attention(attention, laws=LAWS, effort="smoke", **said)
    return {each.law: each for each in records}


def test_what_is_refused_together_is_not_claimed_and_told():
    records = tried(of(refuses))
    refused, other = (records[name] for name in LAWS)
    assert refused.outcome is Outcome.NOT_CLAIMED
    assert refused.reason == (
        "it refuses together attn_mask and is_causal: "
        "NotImplementedError: a mask or the flag, not both"
    )
    assert other.outcome is Outcome.PASSED
    (line,) = (each for each in asides([refused, other]) if each.startswith("not claimed"))
    assert "attn_mask and is_causal" in line


def test_what_is_claimed_in_so_many_words_must_work_together():
    record = tried(of(refuses), features=["mask", "causal"])[LAWS[0]]
    assert record.outcome is Outcome.ERRORED
    assert "not both" in record.reason


def test_a_mistake_is_no_refusal():
    assert tried(of(is_mistaken))[LAWS[0]].outcome is Outcome.ERRORED


def test_an_argument_that_does_not_work_alone_is_no_combination():
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        if attn_mask is not None:
            raise RuntimeError("no masks")
        return SDPA(query, key, value, None, 0.0, is_causal, scale=scale)

    records = tried(attention)
    assert {each.outcome for each in records.values()} == {Outcome.ERRORED}


def test_nothing_that_runs_or_is_declared_is_a_refusal():
    subject = subject_of(of(refuses), None, [torch.float64], "cpu")
    assert refused_combination(subject, Raised("nothing was called")) is None
    assert refused_combination(object(), Raised("no attention")) is None


def test_torchs_own_attention_claims_no_mask_together_with_the_flag():
    subject = subject_of(SDPA, None, [torch.float32], "cpu")
    law = registered()["mask-and-causal-flag-both-apply"]
    record = check(law, subject, Effort.SMOKE)
    assert record.outcome in (Outcome.PASSED, Outcome.NOT_CLAIMED)
    assert any("attn_mask and is_causal" in each for each in record.refused)


@pytest.mark.parametrize("features", [None, "mask,causal"])
def test_a_plan_keeps_who_said_what_is_claimed(features):
    target = "torch.nn.functional:scaled_dot_product_attention"
    words = Words(features=features, dtypes="float32")
    (found,) = plan([target], words, "cpu", limit=60.0, memory=None)
    assert found.words.features == features
    assert found.load().subject.is_bare == (features is None)
