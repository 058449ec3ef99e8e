"""Sizes that a user gives: how they are read, and the calls that have them."""

import random

import pytest
import torch

from attnspec.conformance.attention.given_sizes import GROUPS, GivenSizes, calls_at
from attnspec.spec import Feature, Layouts

BASIC = frozenset({Feature.CAUSAL, Feature.GQA})
DTYPES = (torch.float32, torch.bfloat16)
PREFILL = "heads=6,kv_heads=2,d_head=16,queries=70-200"
DECODING = "batch=2-5,heads=6,kv_heads=2,d_head=16,queries=1,keys=40-300"


def groups(text, claimed=BASIC, refuses=lambda case: None, backward=False, seed=0, **options):
    sizes, dice = GivenSizes.read(text), random.Random(seed)
    drawn = calls_at(sizes, claimed, DTYPES, refuses, dice, backward=backward, **options)
    return [group for together in drawn for group in together]


def calls(text, **options):
    return [case for group in groups(text, **options) for case in group]


def test_what_is_not_given_follows_from_the_rest():
    sizes = GivenSizes.read("heads=32, d_head=128, keys=1-4096")
    assert (sizes.batch, sizes.kv_heads, sizes.d_value) == ((1, 1), 32, 128)
    assert (sizes.queries, sizes.keys) == (None, (1, 4096))
    assert GivenSizes.read(str(sizes)) == sizes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("heads=3", "lack d_head, queries or keys"),
        ("", "lack heads, d_head, queries or keys"),
        ("heads=6,kv_heads=4,keys=4,d_head=3", "6 heads are no multiple of 4 kv_heads"),
        ("head=3,keys=4,d_head=3", "no size 'head'"),
        ("heads=3-4,keys=4,d_head=3", "only batch, queries, keys"),
        ("heads=3,keys=0,d_head=3", "at least 1"),
        ("heads=3,keys=9-4,d_head=3", "the first one is the smaller"),
        ("heads=3,keys=4-,d_head=3", "not a number"),
        ("heads=3,keys=many,d_head=3", "keys=many"),
        ("heads 3", "name=number"),
        ("heads=3,heads=4,keys=4,d_head=3", "heads is given twice"),
    ],
)
def test_sizes_that_are_none_are_named(text, told):
    with pytest.raises(ValueError, match=told):
        GivenSizes.read(text)


@pytest.mark.parametrize("text", [PREFILL, DECODING])
@pytest.mark.parametrize("backward", [False, True])
def test_every_call_has_the_sizes_and_the_ends_of_each_interval_are_met(text, backward):
    sizes = GivenSizes.read(text)
    cases = calls(text, backward=backward)
    assert all(sizes.holds(case) and case.backward is backward for case in cases)
    assert {case.dtype for case in cases} == set(DTYPES)
    for name in ("batch", "keys"):
        lengths = {getattr(case, name) for case in cases}
        first, last = getattr(sizes, name) or sizes.queries
        assert {first, last} <= lengths
        assert len(lengths) > 2 or first == last


def test_the_first_call_of_each_type_is_plain_and_the_largest():
    plain = calls(PREFILL)[0]
    assert (plain.queries, plain.keys, plain.scale, plain.mode) == (200, 200, None, "plain")
    assert len({case.layouts for case in calls(PREFILL)}) > 3
    assert len({case.mode for case in calls(PREFILL)}) > 3


def test_the_causal_flag_is_met_where_it_hides_no_last_key():
    assert {case.is_causal for case in calls(PREFILL)} == {True, False}
    assert not any(case.is_causal for case in calls(DECODING))
    assert any(case.is_causal for case in calls(DECODING, is_aligned=True))
    assert not any(case.is_causal for case in calls(PREFILL, claimed={Feature.GQA}))


def test_options_that_are_claimed_take_turns():
    cases = calls(PREFILL, claimed=BASIC | {Feature.SINKS, Feature.MASK})
    assert {Feature.SINKS, Feature.MASK} <= {each for case in cases for each in case.features}


def test_calls_that_take_long_are_few():
    assert len(groups(PREFILL)) == GROUPS
    assert 2 < len(groups("heads=32,d_head=128,keys=1200")) < GROUPS
    assert len(groups("heads=64,d_head=256,keys=8192")) == 3
    # of a wide interval, the largest lengths are few
    lengths = [group[0].keys for group in groups("heads=64,d_head=256,keys=1-8192")]
    assert lengths[:3] == [8192, 1, 8192]
    assert len(lengths) > 3
    assert max(lengths[3:]) < 4096


def test_calls_of_a_group_differ_in_type_and_flag_and_a_step_follows_each_length():
    for group in groups(PREFILL):
        assert len({(case.batch, case.queries, case.keys) for case in group}) == 1
        assert len({(case.dtype, case.is_causal) for case in group}) == len(group) == 4
    lengths = [(group[0].batch, group[0].keys) for group in groups(DECODING)]
    assert lengths[:3] == [(5, 300), (2, 40), (2, 300)]
    steps = zip(lengths[3::2], lengths[4::2], strict=False)
    assert all(after == (batch, min(keys + 1, 300)) for (batch, keys), after in steps)
    square = [(group[0].queries, group[0].keys) for group in groups(PREFILL)]
    assert all(queries == keys for queries, keys in square)
    assert square[4] == (square[3][0] + 1, square[3][1] + 1)


def test_steps_follow_whole_blocks_and_more_texts_of_fewer_tokens_follow_one_long_text():
    several = [groups("batch=1-8,heads=2,d_head=8,queries=1,keys=1-4096", seed=n) for n in range(8)]
    assert all(any(group[0].keys % 256 == 1 for group in each[4::2]) for each in several)
    for _, _, (before, *_), (after, *_), *_ in several:
        assert (before.batch, before.keys) == (1, 4096)
        assert after.keys < before.keys
        assert after.batch > before.batch


def test_another_seed_draws_other_sizes():
    assert groups(PREFILL) == groups(PREFILL)
    assert groups(PREFILL)[3:] != groups(PREFILL, seed=1)[3:]


def test_a_single_query_is_not_trained():
    assert not GivenSizes.read(DECODING).is_trained
    assert GivenSizes.read(PREFILL).is_trained
    assert GivenSizes.read("heads=2,d_head=8,queries=1-4,keys=70").is_trained


def test_a_call_that_is_refused_in_every_form_is_told_and_not_left_out():
    cases = calls(PREFILL, refuses=lambda case: "no")
    assert len(cases) == len(calls(PREFILL))
    contiguous = calls(
        PREFILL, refuses=lambda case: (case.layouts != Layouts() and "strided") or None
    )
    assert {case.layouts for case in contiguous} == {Layouts()}


def test_other_sizes_are_told_apart():
    sizes = GivenSizes.read(PREFILL)
    case = calls(PREFILL)[0]
    assert sizes.holds(case)
    for changes in ({"keys": 71}, {"queries": 69, "keys": 69}, {"batch": 2}, {"d_value": 8}):
        assert not sizes.holds(case.but(**changes))
