"""The calls of NUM-21: every three classes of sizes meet, each call is affordable and claimed."""

import itertools
import math

import pytest
import torch
from basic_claims import BASIC, DTYPES, subject_of

from attnspec.conformance.attention.launches import is_affordable
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers import triples
from attnspec.conformance.laws.helpers.claims import DesignClaims
from attnspec.conformance.laws.helpers.triples import cases_of_triples
from attnspec.conformance.laws.numerics import triples as law
from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.spec import Case, Feature, Layout


def cases_of(subject, seed=1):
    return [
        case
        for backward in (False, True)
        for case in cases_of_triples(subject, seed, backward=backward)
    ]


def classes_of(case):
    """Return the index of the class of each size of a case."""

    def among(intervals, length):
        places = (n for n, (first, last) in enumerate(intervals) if first <= length <= last)
        return next(places, None)

    def listed(classes, value):
        return next((n for n, members in enumerate(classes) if value in members), None)

    return {
        "width": listed(triples.WIDTHS, (case.d_head, case.d_value)),
        "queries": among(triples.QUERIES, case.queries),
        "keys": among(triples.KEYS, case.keys),
        "group": listed(triples.GROUPS, case.heads // case.kv_heads),
        "kv_heads": listed(triples.KV_HEADS, case.kv_heads),
        "batch": listed(triples.BATCH, case.batch),
        "is_causal": int(case.is_causal),
    }


def least(classes, backward):
    """Return the smallest case of some classes."""
    kv_heads = triples.KV_HEADS[classes.get("kv_heads", 0)][0]
    d_head, d_value = min(triples.WIDTHS[classes.get("width", 0)])
    return Case(
        batch=triples.BATCH[classes.get("batch", 0)][0],
        heads=kv_heads * triples.GROUPS[classes.get("group", 0)][0],
        kv_heads=kv_heads,
        queries=triples.QUERIES[classes.get("queries", 0)][0],
        keys=triples.KEYS[classes.get("keys", 0)][0],
        d_head=d_head,
        d_value=d_value,
        dtype=torch.bfloat16,
        is_causal=bool(classes.get("is_causal", 0)),
        backward=backward,
    )


def met_in(runs, backward):
    """Return the classes that meet in cases of successive seeds."""
    cases = [
        case
        for seed in range(3, 3 + runs)
        for case in cases_of_triples(subject_of(), seed, backward=backward)
    ]
    return [classes_of(case) for case in cases]


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("runs", "work"), [(triples.CHEAP_RUNS, triples.WORK), (triples.RUNS, triples.LARGE_WORK)]
)
def test_every_three_affordable_classes_meet(runs, work, backward):
    held = met_in(runs, backward)
    values = {
        "width": range(len(triples.WIDTHS)),
        "queries": range(len(triples.QUERIES)),
        "keys": range(len(triples.KEYS)),
        "group": range(len(triples.GROUPS)),
        "kv_heads": range(len(triples.KV_HEADS)),
        "batch": range(len(triples.BATCH)),
        "is_causal": range(2),
    }
    count = missed = 0
    for names in itertools.combinations(values, 3):
        met = {tuple(each[name] for name in names) for each in held}
        for wanted in itertools.product(*(values[name] for name in names)):
            if is_affordable(least(dict(zip(names, wanted, strict=True)), backward), work):
                count += 1
                missed += wanted not in met
    assert count > 900
    assert missed == 0


def test_every_option_and_type_meets_every_size():
    features = BASIC | {Feature.MASK, Feature.WINDOW, Feature.SOFTCAP}
    subject = subject_of(features=features, dtypes=(torch.float32, *DTYPES))
    cases = cases_of_triples(subject, 0, backward=False, rounds=range(triples.CHEAP_RUNS))
    options = (Feature.MASK, Feature.WINDOW, Feature.SOFTCAP)
    groups = [[case for case in cases if option in case.features] for option in options]
    groups += [
        [case for case in cases if case.dtype == dtype] for dtype in (torch.float32, *DTYPES)
    ]
    for group in groups:
        held = [classes_of(case) for case in group]
        assert {each["width"] for each in held} >= set(range(len(triples.WIDTHS)))
        assert {each["keys"] for each in held} >= set(range(len(triples.KEYS)))
    assert sum(not case.features & set(options) for case in cases) > len(cases) // 3


@pytest.mark.parametrize("backward", [False, True])
def test_rare_classes_are_met(backward):
    cases = [
        case
        for seed in range(triples.RUNS)
        for case in cases_of_triples(subject_of(), seed, backward=backward)
    ]
    assert any(case.queries > 65_536 for case in cases)
    assert any(case.keys > 131_072 for case in cases) is not backward
    assert any(case.batch > 1000 and case.queries > 16 for case in cases)
    assert any(case.kv_heads >= 32 and case.queries > 256 for case in cases)
    assert any(case.d_head <= 16 and case.keys > 8192 for case in cases)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("seed", range(3))
def test_each_call_is_affordable_and_the_sizes_rotate(seed):
    subject = subject_of(features=frozenset(Feature))
    cases = cases_of(subject, seed)
    most = triples.ROOM * triples.LARGEST_WORK
    assert all(is_affordable(case, most, triples.LONGEST) for case in cases)
    assert all(subject.refuses(case) is None for case in cases)
    others = set(cases_of(subject, seed + 1))
    assert len(others & set(cases)) < len(cases) // 20
    lengths = {length for case in cases for length in (case.queries, case.keys)}
    assert len(lengths) > 120
    assert {length % 64 for length in lengths} >= {0, 1, 63}


@pytest.mark.rotating(parts=4)
def test_claims_choose_the_calls():
    plain = cases_of(subject_of(features=frozenset(), dtypes=(torch.float64,)))
    assert plain
    assert all(case.heads == case.kv_heads and not case.is_causal for case in plain)
    assert {case.dtype for case in plain} == {torch.float64}
    narrow = subject_of(supports=lambda case: None if case.d_head <= 128 else "too wide")
    assert {case.d_head for case in cases_of(narrow)} <= set(range(129))
    contiguous = subject_of(
        supports=lambda c: None if c.layouts.query is Layout.CONTIGUOUS else "strides"
    )
    assert len(cases_of(contiguous)) == len(cases_of(subject_of()))


def test_there_are_none_if_each_shape_is_compiled_or_if_the_scalar_definition_judges():
    assert cases_of(subject_of(compiles_each_shape=True)) == []
    subject = subject_of()
    subject.largest = 1000
    assert cases_of(subject) == []


def test_a_further_round_has_the_same_classes_and_other_sizes():
    subject = subject_of()
    first = cases_of_triples(subject, 0, backward=True)
    further = cases_of_triples(subject, 0, backward=True, rounds=range(1, 3))
    others = [cases_of_triples(subject, seed, backward=True) for seed in (1, 2)]
    assert len(further) == sum(map(len, others))
    assert not set(first) & set(further)


def test_subjects_with_the_same_claims_share_the_classes():
    claims = [DesignClaims.of(subject_of()) for _ in range(2)]
    assert triples._rows(claims[0], False) is triples._rows(claims[1], False)


class OneElement(Dense):
    """An attention with one wrong element in its last row, for groups of wide heads."""

    def finish(self, out, value):
        out = super().finish(out, value)
        if out.shape[1] >= 5 and out.shape[-1] > 64 and out.shape[2] > 16:
            out[-1, -1, -1, -1] += 0.25 + 0.25 * out[-1, -1, -1, -1].abs()
        return out


def test_a_single_wrong_element_of_the_last_row_is_found():
    with pytest.raises(Violation, match="the output differs"):
        law.law_every_three_sizes_equal_the_definition(subject_of(OneElement()), law.CHUNK)


class NaNGradient(Dense):
    """An attention whose queries of the last head have no gradient but NaN."""

    def __call__(self, query, key, value, *rest, **options):
        if query.requires_grad:

            def spoiled(grad):
                grad = grad.clone()
                grad[-1, -1] = math.nan
                return grad

            query = query * 1
            query.register_hook(spoiled)
        return super().__call__(query, key, value, *rest, **options)


def test_a_gradient_of_nan_is_found():
    subject = subject_of(NaNGradient(), dtypes=(torch.float32,))
    with pytest.raises(Violation):
        law.law_gradients_at_every_three_sizes_equal_the_definition(subject, law.WIDE)
