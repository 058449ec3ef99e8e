"""The launches of NUM-20: how large they are, what they meet, and which mistakes they show."""

import itertools
import random
from collections import Counter

import pytest
import torch
from basic_claims import BASIC, DTYPES, subject_of

from attnspec import implementations
from attnspec.conformance.attention.given_sizes import GivenSizes
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.launches import (
    COMMON_WIDTHS,
    DIVISIONS,
    KINDS,
    LARGEST,
    SCORES,
    THOROUGH,
    WIDTHS,
    WORK,
    launches,
    quick_types,
    work_of,
)
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import needles
from attnspec.conformance.attention.workloads import ALTERNATIVES, Turns
from attnspec.conformance.comparison.tally import GIVEN
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws import load
from attnspec.conformance.laws.numerics import launches as law
from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.spec import Case, Feature, Layout, Values


def cases_of(features=BASIC, seed=1, **options):
    subject = subject_of(features=features, **options)
    return [
        case
        for backward in (False, True)
        for case in law.cases_of_launches(subject, seed, backward=backward)
    ]


def sequences_of(kind, features=BASIC, seed=0, dtypes=DTYPES):
    dice = random.Random(seed)
    return [each for each in launches(kind, features, dtypes, dice, Turns(dice)) if each]


@pytest.mark.parametrize("seed", range(4))
def test_each_call_is_affordable_and_the_longest_are_nearly_as_large_as_that(seed):
    cases = cases_of(frozenset(Feature), seed)
    assert max(work_of(case) for case in cases) <= LARGEST * WORK
    scores = [case.batch * case.heads * case.queries * case.keys for case in cases]
    assert max(scores) <= SCORES
    for kind in KINDS:
        works = [
            sum(map(work_of, calls))
            for each in range(seed, seed + 3)
            for calls in sequences_of(kind, seed=each)
        ]
        assert max(works) > 0.8 * WORK


def test_in_a_thorough_run_every_width_meets_every_division_in_longer_calls():
    dice = random.Random(0)
    for kind in KINDS:
        usual, thorough = (
            list(filter(None, launches(kind, BASIC, DTYPES, dice, Turns(dice), is_thorough=each)))
            for each in (False, True)
        )
        met = {(case.d_head, case.d_value) for calls in thorough for case in calls}
        assert all(met.intersection(widths) for widths in WIDTHS)
        assert len(thorough) >= 0.9 * len(WIDTHS) * len(DIVISIONS) > len(usual)
        largest = max(work_of(case) for calls in thorough for case in calls)
        assert WORK < largest <= THOROUGH * LARGEST * WORK


def test_a_thorough_run_makes_its_launches_in_any_order():
    subject = subject_of(features=BASIC)
    cases = law.cases_of_launches(subject, 1, backward=True, is_thorough=True)
    half = cases[: len(cases) // 2]
    assert {case.queries == 1 for case in half} == {True, False}
    assert len({case.d_head for case in half}) > 10


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("capability", "device", "dtypes", "quick"),
    [
        ("AVX512", "cpu", (F16, BF16, F32), [BF16, F32]),
        ("SVE256", "cpu", (F16, BF16, F32), [BF16, F32]),
        ("AVX2", "cpu", (F16, BF16, F32), [F32]),
        ("AVX2", "cpu", (F16, BF16), [BF16]),
        ("AVX2", "cpu", (F16,), []),
        ("AVX2", "cuda", (F16, BF16, F32), [F16, BF16, F32]),
    ],
)
def test_the_longest_calls_have_types_that_the_device_has_instructions_for(
    capability, device, dtypes, quick, monkeypatch
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert quick_types(dtypes, device) == quick
    if device == "cpu":
        cases = cases_of(dtypes=dtypes)
        assert {case.dtype for case in cases} == {*dtypes}
        long = [case for case in cases if work_of(case) > 0.8 * WORK and case.d_head == 64]
        assert {case.dtype for case in long} == {*(quick or dtypes)}


def widths_and_heads_of(kind, seeds):
    return {
        ((case.d_head, case.d_value), case.batch * case.heads)
        for seed in seeds
        for (case, *_) in sequences_of(kind, seed=seed)
        if not case.features - BASIC
    }


@pytest.mark.parametrize("seed", range(4))
def test_every_division_meets_a_common_width_in_two_runs(seed):
    common = {width for widths in COMMON_WIDTHS for width in widths}
    for kind in KINDS:
        made = widths_and_heads_of(kind, [2 * seed, 2 * seed + 1])
        if kind.is_common:
            assert len({heads for width, heads in made if width in common}) >= 5
        assert len({width for width, _ in made}) >= 3
        assert len({heads for _, heads in made}) >= 3


def test_every_width_meets_most_divisions_in_a_few_runs():
    for kind in KINDS:
        made = widths_and_heads_of(kind, range(40))
        for widths in WIDTHS:
            assert len({heads for width, heads in made if width in widths}) >= len(DIVISIONS) - 1


def few_keys(case):
    return case.batch > 1 and case.heads > 7 and case.d_head <= 64 and case.keys <= 128


def whole_tiles(case):
    return case.queries == case.keys >= 512 and case.queries % 128 == 0


THRESHOLDS = {
    "forward": [
        lambda c: c.is_causal and c.queries > 4096 and c.d_head >= 64,
        lambda c: not c.is_causal and c.queries > 4096 and c.keys > 4096,
        lambda c: c.batch * c.heads > 256 and c.queries > 512,
        lambda c: c.heads >= 8 * c.kv_heads and c.d_head >= 128 and c.queries > 256,
        lambda c: c.batch > 1 and c.heads > 7 and c.d_head <= 64 and c.queries > 1700,
        lambda c: few_keys(c) and c.queries > 3072,
        whole_tiles,
    ],
    "trained": [
        lambda c: c.batch > 1 and c.heads > 7 and c.d_head <= 64 and c.queries > 990,
        lambda c: few_keys(c) and c.queries > 3072,
        lambda c: c.is_causal and c.queries > 2560 and c.d_head >= 64,
        lambda c: c.queries >= 1024 and c.heads > 1 and c.keys >= 512,
        lambda c: c.batch >= 16 and c.queries > 256,
    ],
}
"""Thresholds of real kernels that calls of every run exceed."""


@pytest.mark.parametrize("seed", range(12))
def test_thresholds_of_real_kernels_are_exceeded_in_every_run(seed):
    cases = cases_of(seed=seed)
    for kind, conditions in THRESHOLDS.items():
        called = [case for case in cases if case.backward is (kind == "trained")]
        assert [any(map(condition, called)) for condition in conditions] == [True] * len(conditions)


OFTEN = [
    lambda c: c.queries == 1 and c.batch >= 16 and c.keys > 1024,
    lambda c: c.queries == 1 and c.kv_heads * c.batch >= 8 and c.keys > 4096,
    lambda c: c.backward and whole_tiles(c),
]
"""Thresholds that calls of most runs exceed."""


def test_other_thresholds_are_exceeded_in_most_runs():
    runs = [cases_of(seed=seed) for seed in range(12)]
    for condition in OFTEN:
        assert sum(any(map(condition, cases)) for cases in runs) >= 8


def test_calls_follow_one_another_at_one_shape_and_after_longer_and_shorter_ones():
    lengths = set()
    for kind in KINDS:
        made = [sequence for seed in range(8) for sequence in sequences_of(kind, seed=seed)]
        lengths.update(map(len, made))
        sequences = [sequence for sequence in made if len(sequence) > 1]
        kinds = Counter(
            "again" if first.keys == last.keys and first.queries == last.queries else "beside"
            for first, *_, last in sequences
        )
        assert kinds["again"]
        assert all(first.seed != last.seed for first, *_, last in sequences)
        for first, second, *_ in sequences:
            assert (first.batch, first.heads, first.d_head) == (
                second.batch,
                second.heads,
                second.d_head,
            )
    assert lengths == {1, 2, 3}


def test_calls_of_one_shape_follow_others_of_another_type_flag_or_number_of_heads():
    names = ("dtype", "is_causal", "kv_heads")
    changed = Counter()
    for kind, seed in itertools.product(KINDS, range(12)):
        made = sequences_of(kind, seed=seed, dtypes=(torch.float32, torch.bfloat16))
        for first, *_, last in (sequence for sequence in made if len(sequence) > 1):
            if (first.queries, first.keys) == (last.queries, last.keys):
                unlike = [each for each in names if getattr(first, each) != getattr(last, each)]
                assert len(unlike) <= 1
                changed[kind.backward, *unlike] += 1
    assert min(changed[backward, name] for backward in (False, True) for name in names) > 3


def test_every_option_is_called_forward_and_backward():
    for backward in (False, True):
        called = {
            case.features - BASIC
            for kind in KINDS
            if kind.backward is backward
            for (case, *_) in sequences_of(kind, frozenset(Feature))
        }
        assert called.issuperset(map(frozenset, ALTERNATIVES))


def test_what_is_not_claimed_is_left_out():
    plain = cases_of(frozenset({Feature.BACKWARD}))
    assert plain
    assert all(case.features <= {Feature.BACKWARD} for case in plain)
    narrow = cases_of(supports=lambda case: None if case.d_head <= 128 else "too wide")
    assert max(case.d_head for case in narrow) == 128
    contiguous = cases_of(
        supports=lambda c: None if c.layouts.query is Layout.CONTIGUOUS else "strides"
    )
    assert len(contiguous) == len(cases_of())


def test_one_call_of_each_kind_is_made_if_each_shape_is_compiled():
    subject = subject_of(compiles_each_shape=True)
    for backward in (False, True):
        cases = law.cases_of_launches(subject, 0, backward=backward)
        assert len(cases) == sum(kind.backward is backward for kind in KINDS)


def test_the_scalar_definition_is_not_asked():
    subject = subject_of()
    subject.largest = 1000
    assert law.cases_of_launches(subject, 0, backward=False) == ()


LONG = Case(
    batch=2,
    heads=4,
    kv_heads=2,
    queries=200,
    keys=300,
    d_head=64,
    d_value=64,
    values=Values.NEEDLES,
)


def test_a_query_has_half_of_its_weight_on_its_needle():
    call = draw(LONG)
    key = call.key.repeat_interleave(2, 1)
    weights = (call.query @ key.mT / 8).softmax(-1)
    chosen = weights.gather(-1, needles(LONG).expand(2, -1, -1)[..., None])[..., 0]
    assert 0.3 < chosen.median() < 0.9
    assert (chosen > 0.1).double().mean() > 0.95


def test_needles_are_the_keys_where_kernels_err():
    places = needles(LONG)
    own = torch.arange(200) + 100
    for wanted in (0, 299, own, (own + 1).clamp(max=299), torch.arange(200)):
        assert (places == wanted).double().mean() > 0.1
    assert places.min() >= 0
    assert places.max() < 300


@pytest.mark.parametrize("change", [{"keys": 0}, {"d_head": 0}, {"scale": 0.0}, {"queries": 0}])
def test_needles_of_degenerate_cases_are_ordinary_numbers(change):
    call = draw(LONG.but(**change))
    assert call.query.isfinite().all()


class OneKeyMore(Dense):
    """A causal attention whose queries at the end of a tile read the key after their own."""

    def causal(self, queries, keys):
        visible = super().causal(queries, keys)
        for place in range(63, min(queries, keys - 1), 64):
            visible[place, place + 1] = True
        return visible


def test_rows_at_the_end_of_a_tile_are_judged():
    case = law.NEEDLES.but(heads=2, kv_heads=2)
    subject = subject_of(OneKeyMore(), dtypes=(torch.float32,))
    with pytest.raises(Violation, match="differs from the definition"):
        law.law_the_largest_calls_equal_the_definition(subject, case)


def test_an_attention_that_stores_its_scores_is_right_in_long_calls():
    subject = Subject(implementations.load("eager"))
    law.law_the_largest_calls_equal_the_definition(subject, law.NEEDLES)
    law.law_gradients_of_the_largest_calls_equal_the_definition(subject, law.TRAINING)


@pytest.mark.parametrize("backward", [False, True])
def test_a_kernel_that_is_wrong_at_the_sizes_of_a_user_alone_is_rejected_there(backward):
    right = Dense()

    def attention(query, key, value, **options):
        out = right(query, key, value, **options)
        is_wrong = query.shape[1] == 6 and key.shape[1:3] == (3, 333)
        return out * 1.5 if is_wrong and query.requires_grad is backward else out

    name = "gradients-of-the-largest-calls" if backward else "the-largest-calls"
    the_law = load()[f"{name}-equal-the-definition"]
    subject = subject_of(attention)
    assert check(the_law, subject, None).outcome is Outcome.PASSED
    given = "batch=2,heads=6,kv_heads=3,queries=5,keys=300-333,d_head=16"
    subject.sizes = (GivenSizes.read(given),)
    record = check(the_law, subject, None)
    assert record.outcome is Outcome.FAILED
    assert "keys=333" in record.case
    subject.implementation = subject_of().implementation
    record = check(the_law, subject, None)
    counts = [count for name, count in record.figures.items() if name.startswith(GIVEN)]
    assert record.outcome is Outcome.PASSED
    assert counts == [len(law.cases_of_given_sizes(subject, backward=backward))]


def test_a_step_follows_its_length_also_among_calls_at_several_sizes():
    subject = subject_of()
    lines = [f"batch=2,heads={heads},d_head=8,queries=1,keys=1-4096" for heads in (2, 3, 5)]
    subject.sizes = tuple(map(GivenSizes.read, lines))
    cases = law.cases_of_given_sizes(subject, backward=False)
    lengths = [
        (heads, keys) for (heads, keys), _ in itertools.groupby(cases, lambda c: (c.heads, c.keys))
    ]
    steps = [
        (before, after)
        for before, after in itertools.pairwise(lengths)
        if after == (before[0], before[1] + 1)
    ]
    assert Counter(before[0] for before, _ in steps) == {2: 4, 3: 4, 5: 4}
    # and each has had some calls before one has had all
    assert {heads for heads, _ in lengths[:3]} == {2, 3, 5}
