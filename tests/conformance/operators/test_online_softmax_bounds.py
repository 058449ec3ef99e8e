"""The bounds of an online softmax: rounding stays inside, small mistakes do not."""

import pytest
import torch

from attnspec.conformance.mutants.bases.online_softmax import correct_merge, correct_softmax
from attnspec.conformance.operators.online_softmax.bounds import bounds
from attnspec.conformance.operators.online_softmax.case import (
    OnlineSoftmaxCase,
    Scores,
    SoftmaxMergeCase,
)
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.spec.online_softmax import Kept, OnlineSoftmaxProfile

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def shares(got, expected, change=1.0):
    """The largest share of each bound that a result uses, with one element changed by a factor."""
    used = []
    for one, two, bound in zip(
        got,
        (expected.out, expected.lse),
        (expected.bounds.out, expected.bounds.lse),
        strict=True,
    ):
        changed = one.double().clone()
        changed.view(-1)[-1] *= change
        distance = torch.where(changed == two, 0.0, changed - two).abs()
        used.append(float(torch.where(bound == 0, distance, distance / bound).max()))
    return used


@pytest.mark.parametrize("scores", [Scores.NORMAL, Scores.GROWING, Scores.LAST])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_element_off_by_a_twentieth_exceeds_the_bound(dtype, scores):
    subject = subject_of_operator(correct_softmax())
    case = OnlineSoftmaxCase(queries=3, keys=33, dtype=dtype, scores=scores)
    operands = case.draw()
    got, expected = subject.call(*operands), subject.expect(*operands)
    assert max(shares(got, expected)) <= 1
    assert min(shares(got, expected, 1.05)) > 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_merged_element_off_by_a_twentieth_exceeds_the_bound(dtype):
    subject = subject_of_operator(correct_merge())
    parts = SoftmaxMergeCase(rows=(5,), d_value=7, dtype=dtype, seed=1).draw(subject.profile.base)
    got, expected = subject.call(*parts), subject.expect(*parts)
    assert max(shares(got, expected)) <= 1
    assert min(shares(got, expected, 1.05)) > 1


def test_a_bound_is_tight_in_float32():
    """Within a factor of some hundreds: one that a wrong formula passes is no bound."""
    subject = subject_of_operator(correct_softmax())
    operands = OnlineSoftmaxCase(queries=64, keys=8, d_value=8, dtype=torch.float32).draw()
    assert min(shares(subject.call(*operands), subject.expect(*operands))) > 0.005


def test_a_sum_that_overflows_is_promised_nothing():
    scores, values = OnlineSoftmaxCase(keys=8, scores=Scores.LARGE).draw()
    assert bounds(scores, values, OnlineSoftmaxProfile(keeps=Kept.SUM)).out.isinf().all()
    assert bounds(scores, values, OnlineSoftmaxProfile()).out.isfinite().all()


def test_a_log_sum_exp_that_is_kept_widens_the_bound():
    scores, values = OnlineSoftmaxCase(keys=8).draw()
    kept = bounds(scores, values, OnlineSoftmaxProfile(keeps=Kept.LOG_SUM_EXP))
    plain = bounds(scores, values, OnlineSoftmaxProfile())
    assert bool((kept.out > plain.out).all())
    assert float((kept.out / plain.out).max()) < 20
