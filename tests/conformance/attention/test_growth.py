"""Pinned cases at the sizes of real calls: what they keep, and the mistakes that they find."""

import random
from typing import Any

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.decoding.session import Append, RollBack, Session
from attnspec.conformance.attention.growth import COST, LENGTHS, WIDEST, grown, grown_cases
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.spec import Case, Feature, Implementation

LAWS = laws.load()
SMALL = Case(batch=2, heads=4, kv_heads=2, queries=5, keys=7, d_head=8, d_value=6)


@pytest.mark.parametrize("seed", range(20))
class TestGrown:
    def test_which_length_and_which_width_is_larger_stays(self, seed):
        large = grown(SMALL, random.Random(seed))
        assert 150 < large.queries < large.keys <= LENGTHS[1]
        assert large.keys >= LENGTHS[0]
        assert (large.d_head, large.d_value) == (64, 48)
        same = SMALL.but(queries=large.queries, keys=large.keys, d_head=64, d_value=48)
        assert large == same

    def test_equal_lengths_stay_equal(self, seed):
        large = grown(SMALL.but(keys=5), random.Random(seed))
        assert LENGTHS[0] <= large.queries == large.keys <= LENGTHS[1]

    def test_a_single_query_stays_one(self, seed):
        large = grown(SMALL.but(queries=1), random.Random(seed))
        assert large.queries == 1
        assert LENGTHS[0] <= large.keys <= LENGTHS[1]

    def test_an_expensive_law_gets_fewer_scores(self, seed):
        large = grown(SMALL.but(batch=3, heads=16), random.Random(seed), cost=20)
        assert large.keys >= LENGTHS[0]
        products = 3 * 16 * large.queries * large.keys * (64 + 48)
        assert 20 * products <= 1.01 * COST

    def test_values_may_need_a_channel_for_each_key(self, seed):
        large = grown(SMALL, random.Random(seed), has_channel_per_key=True)
        assert large.keys <= WIDEST <= 256
        assert large.d_value == large.keys

    def test_a_session_begins_with_a_long_chunk(self, seed):
        steps = (Append(2), RollBack(1), Append(1))
        session = Session(d_head=4, d_value=4, steps=steps)
        large = grown(session, random.Random(seed))
        assert large.steps[1:] == steps[1:]
        assert LENGTHS[0] <= large.steps[0].tokens <= LENGTHS[1]


def test_the_cases_of_a_seed_are_the_same_and_others_differ():
    def draw(seed: int) -> list[Case]:
        pinned = [SMALL, SMALL.but(is_causal=True), SMALL.but(queries=1)]
        return grown_cases("a-law", pinned, seed, 2, cost=1, fit=lambda case: case)

    assert draw(1) == draw(1)
    assert len({tuple(draw(seed)) for seed in range(8)}) > 4


def test_cases_that_are_refused_are_not_returned():
    cases = grown_cases("a-law", [SMALL, SMALL.but(queries=1)], 0, 2, cost=1, fit=lambda case: None)
    assert cases == []


class HidesLittle(Dense):
    """Over 256 keys, a finite float mask adds -5 at most."""

    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return super().add_bias(scores, bias if scores.shape[-1] <= 256 else bias.clamp(min=-5))


class OneBuffer(Dense):
    """Over 256 keys, outputs of one shape share their memory."""

    def __init__(self) -> None:
        self.buffers: dict[Any, torch.Tensor] = {}

    def __call__(self, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        out = super().__call__(query, key, *rest, **options)
        if key.shape[-2] <= 256:
            return out
        return self.buffers.setdefault((out.shape, out.dtype), torch.empty_like(out)).copy_(out)


@pytest.mark.parametrize(
    ("attention", "law"),
    [
        (HidesLittle, "a-large-finite-mask-hides"),
        (OneBuffer, "the-output-has-memory-of-its-own"),
    ],
)
def test_a_mistake_of_long_calls_alone_is_found(attention, law):
    implementation = Implementation(
        name="it",
        attention=attention(),
        features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA}),
        dtypes=(torch.float64, torch.float32),
    )
    outcomes = {
        effort: check(LAWS[law], Subject(implementation), effort, seed=0, repeats=0).outcome
        for effort in (Effort.SMOKE, Effort.STANDARD)
    }
    assert outcomes == {Effort.SMOKE: Outcome.PASSED, Effort.STANDARD: Outcome.FAILED}
