"""Calls of drawn sizes: each is as large as is affordable, and together they reach every size."""

import itertools
import random

import pytest
import torch

from attnspec.conformance.attention.frontier import LARGEST, frontier_calls
from attnspec.conformance.attention.launches import WIDTHS, WORK, is_affordable, work_of
from attnspec.spec import Feature

BASIC = frozenset({Feature.CAUSAL, Feature.GQA})
DTYPES = (torch.float32, torch.bfloat16)
SHARE = 0.5 * WORK


def calls(count=200, claimed=BASIC, backward=False, seed=0, **options):
    drawn = frontier_calls(
        claimed, DTYPES, random.Random(seed), backward=backward, work=SHARE, **options
    )
    return list(itertools.islice(drawn, count))


def sizes_of(case):
    return {
        "queries": case.queries,
        "keys": case.keys,
        "kv_heads": case.kv_heads,
        "group": case.heads // case.kv_heads,
        "batch": case.batch,
    }


@pytest.mark.parametrize("backward", [False, True])
def test_most_calls_are_as_large_as_is_affordable(backward):
    cases = calls(backward=backward)
    # a length is rounded down to a tile, and fewer keys may be judged by more heads
    assert all(is_affordable(case, 1.02 * SHARE) for case in cases)
    assert all(case.backward is backward for case in cases)
    limited = [case for case in cases if work_of(case) > 0.9 * SHARE]
    # others reach a limit of memory, or have few sizes that may be larger than one
    assert len(limited) > 0.6 * len(cases)


@pytest.mark.parametrize("backward", [False, True])
def test_each_size_is_met_from_one_to_its_largest(backward):
    cases = calls(600, backward=backward)
    for name in ("kv_heads", "group", "batch", "queries"):
        met = {sizes_of(case)[name] for case in cases}
        assert min(met) == 1
        assert max(met) >= LARGEST[name] - (1024 if name == "queries" else 0)
        assert len(met) > 20
    assert max(case.keys for case in cases) > (4096 if backward else 12_000)
    assert {(case.d_head, case.d_value) for case in cases} >= {(64, 64), (128, 128), (576, 512)}
    assert all(any((c.d_head, c.d_value) in widths for widths in WIDTHS) for c in cases)


def test_lengths_lie_at_tiles_and_beside_them_and_are_equal_by_turns():
    cases = [case for case in calls() if case.keys > 512]
    assert {case.keys % 64 for case in cases} >= {0, 1, 63}
    square = [case for case in calls() if case.queries == case.keys]
    assert len(calls()) // 3 <= len(square) < len(calls()) // 2
    assert any(case.keys > 512 for case in square)


def test_types_options_and_modes_take_turns():
    claimed = BASIC | {Feature.MASK, Feature.SINKS, Feature.LSE}
    cases = calls(claimed=claimed)
    assert {case.dtype for case in cases} == set(DTYPES)
    assert {feature for case in cases for feature in case.features} == claimed
    assert len(cases) // 3 < sum(not case.features - BASIC for case in cases)
    assert len({case.mode for case in cases}) > 5
    assert len({case.layouts for case in cases}) > 10


def test_what_is_not_claimed_is_left_out():
    plain = calls(claimed=frozenset())
    assert all(case.heads == case.kv_heads and not case.is_causal for case in plain)
    assert all(not case.features for case in plain)


def test_the_causal_flag_hides_most_keys_of_no_call():
    cases = calls()
    assert any(case.is_causal and case.queries == case.keys > 1 for case in cases)
    assert all(case.queries >= case.keys for case in cases if case.is_causal)
    aligned = calls(is_aligned=True)
    assert any(case.is_causal and case.queries < case.keys for case in aligned)


def test_another_seed_draws_other_calls():
    assert calls() == calls()
    assert not set(calls()) & set(calls(seed=1))
