"""The laws of DRP: how they read the weights that were kept, and how rarely chance fails them."""

from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.dropout.weights import distant_pairs
from attnspec.conformance.laws.helpers.dropout import (
    DROPOUT,
    call_showing_weights,
    kept_weights,
    seeded,
)
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.registry import planted
from attnspec.spec import EmptyRow, Feature, MaskPattern

LAWS = laws.load()
mutants.load()
CORRECT = replace(dense("correct", Dense()), features=frozenset(Feature))


def test_laws_of_chance_do_not_fail_on_many_seeds():
    subject = Subject(CORRECT)
    for name in ("weights-are-dropped-independently", "calls-drop-independently"):
        case = LAWS[name].pinned[0]
        for seed in range(20):
            LAWS[name].check(subject, case.but(seed=seed, batch=2))


def test_kept_weights_are_told_from_dropped_ones():
    subject = Subject(CORRECT)
    call = call_showing_weights(subject, DROPOUT)
    with seeded(DROPOUT):
        out = subject.call(call)
    keep, exact, bound = kept_weights(subject, call, out)
    assert 0.3 < keep[..., :7].double().mean() < 0.7
    assert bool(keep[..., 7:].all())
    assert bool(((out - exact).abs() <= bound)[keep].all())
    assert not bool(out[~keep].any())


class MeanOfWeights(Dense):
    """Give a row that reads nothing equal weights, which are dropped like others."""

    def softmax(self, scores, visible):
        empty = ~visible.any(-1, keepdim=True)
        return torch.where(empty, 1 / scores.shape[-1], super().softmax(scores, visible))


class MeanWithoutWeights(MeanOfWeights):
    """Give a row that reads nothing the mean of the values, of which nothing is dropped."""

    def drop(self, weights, dropout_p):
        is_mean = (weights == 1 / weights.shape[-1]).all(-1, keepdim=True)
        return torch.where(is_mean, weights, super().drop(weights, dropout_p))


@pytest.mark.parametrize(
    ("attention", "holds"),
    [
        (MeanOfWeights(), True),
        (MeanWithoutWeights(), True),
        (planted()["own-dropout-mean-not-scaled"].subject.attention, False),
    ],
)
def test_the_mean_of_an_empty_row_is_dropped_like_weights_or_not_at_all(attention, holds):
    profile = replace(CORRECT.profile, empty_row=EmptyRow.MEAN)
    subject = Subject(replace(CORRECT, attention=attention, profile=profile))
    law = LAWS["a-weight-is-dropped-or-scaled-up"]
    outcomes = []
    for case in law.pinned:
        if case.mask is not None and case.mask.pattern is MaskPattern.EMPTY_ROWS:
            try:
                law.check(subject, case)
            except Violation:
                outcomes.append(False)
            else:
                outcomes.append(True)
    assert len(outcomes) == 2
    assert all(outcomes) is holds


def test_more_keys_than_channels_are_not_judged():
    with pytest.raises(NotClaimed, match="more keys than channels"):
        call_showing_weights(Subject(CORRECT), DROPOUT.but(keys=9))


def test_seeds_leave_the_generator_alone():
    before = torch.get_rng_state()
    with seeded(DROPOUT):
        torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())


def test_no_weight_is_in_two_pairs_of_a_kind():
    places = torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8)
    for name, left, right in distant_pairs(places):
        pairs = [*left.flatten().tolist(), *right.flatten().tolist()]
        assert len(pairs) == len(set(pairs)), name


def test_a_subject_that_drops_nothing_is_told_so():
    class Ignoring(Dense):
        def drop(self, weights, dropout_p):
            return weights

    ignoring = Subject(replace(CORRECT, attention=Ignoring()))
    law = LAWS["backward-drops-the-same-weights-as-forward"]
    with pytest.raises(Violation, match="the forward pass drops nothing"):
        law.check(ignoring, law.pinned[0])
