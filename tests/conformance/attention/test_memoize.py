"""Results that laws share: equal arguments are computed once, others separately."""

import weakref

import pytest
import torch

from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.memoize import FACTOR, FEW, LARGEST, memoize, memoize_oracle
from attnspec.conformance.attention.oracle import expect
from attnspec.spec import Case, EmptyRow, Mask, Profile, Rounding, RoundingLevel

CASE = Case(batch=2, heads=2, kv_heads=1, queries=3, keys=5, d_head=4, d_value=4, mask=Mask())


class Counting:
    """An oracle that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, call, profile, **options):
        self.calls += 1
        return expect(call, profile, **options)


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def oracle(counting):
    counting.__name__ = "counting"
    return memoize_oracle(counting)


def test_equal_numbers_are_computed_once(oracle, counting):
    first = oracle(draw(CASE), Profile())
    again = oracle(draw(CASE), Profile())
    assert counting.calls == 1
    assert again is first
    assert torch.equal(first.out, expect(draw(CASE), Profile()).out)


def test_memory_does_not_matter_but_numbers_do(oracle, counting):
    call = draw(CASE)
    strided = call.but(query=call.query.mT.contiguous().mT)
    assert oracle(call, Profile()) is oracle(strided, Profile())
    call.query[0, 0, 0, 0] += 1
    assert not torch.equal(oracle(call, Profile()).out, oracle(strided, Profile()).out)
    assert counting.calls == 2


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 0.25},
        {"is_causal": True},
        {"window": (1, 0)},
        {"softcap": 2.0},
        {"sinks": torch.zeros(2, dtype=torch.float64)},
        {"alibi_slopes": torch.ones(2, dtype=torch.float64)},
        {"attn_mask": torch.ones(3, 5, dtype=torch.bool)},
        {"return_lse": True},
    ],
    ids=lambda change: "-".join(change),
)
def test_each_argument_is_part_of_the_key(oracle, counting, change):
    oracle(draw(CASE), Profile())
    oracle(draw(CASE).but(**change), Profile())
    oracle(draw(CASE.but(mask=None)), Profile())
    assert counting.calls == 3


@pytest.mark.parametrize(
    "profile",
    [
        Profile(empty_row=EmptyRow.NAN),
        Profile(rounding=Rounding(level=RoundingLevel.EAGER)),
        Profile(rounding=Rounding(exp_error=64.0)),
    ],
)
def test_each_profile_is_part_of_the_key(oracle, counting, profile):
    oracle(draw(CASE), Profile())
    oracle(draw(CASE), profile)
    assert counting.calls == 2


def test_dtype_and_shape_are_part_of_the_key(oracle, counting):
    call = draw(CASE.but(mask=None, d_head=1, d_value=1, queries=4, keys=4, kv_heads=2))
    zeros = torch.zeros(2, 2, 4, 1, dtype=torch.float16)
    oracle(call.but(query=zeros, key=zeros, value=zeros), Profile())
    zeros = zeros.bfloat16()
    oracle(call.but(query=zeros, key=zeros, value=zeros), Profile())
    zeros = zeros.mT.contiguous()
    oracle(call.but(query=zeros, key=zeros, value=zeros), Profile())
    assert counting.calls == 3


def test_rows_are_part_of_the_key(oracle, counting):
    whole = oracle(draw(CASE), Profile())
    sampled = oracle(draw(CASE), Profile(), rows=torch.tensor([0, 2]))
    assert counting.calls == 2
    assert torch.equal(sampled.out, whole.out[:, :, [0, 2]])


def square(scores):
    side = int(scores**0.5) + 1
    return Case(queries=side, keys=side, d_head=1, d_value=1, dtype=torch.float32)


def test_a_large_call_is_not_kept(oracle, counting):
    for _ in range(2):
        oracle(draw(square(FACTOR * LARGEST)), Profile())
    assert counting.calls == 2


def test_few_calls_between_are_kept(oracle, counting):
    case = square(LARGEST)
    for seed in (*range(FEW), *range(FEW)):
        oracle(draw(case.but(seed=seed)), Profile())
    assert counting.calls == FEW
    oracle(draw(case.but(seed=FEW)), Profile())
    oracle(draw(case), Profile())
    assert counting.calls == FEW + 2


def test_an_error_is_not_kept(counting):
    def fails(call, profile):
        counting.calls += 1
        raise ValueError("no")

    oracle = memoize_oracle(fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            oracle(draw(CASE), Profile())
    assert counting.calls == 2


def test_arguments_of_a_kept_result_are_not_kept():
    total = memoize(lambda weights: weights["w"].sum(), kept=4)
    weight = torch.ones(3)
    alive = weakref.ref(weight)
    assert total({"w": weight}) == 3
    del weight
    assert alive() is None
    assert total({"w": torch.ones(3)}) == 3
