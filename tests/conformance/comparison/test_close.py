"""The comparison rejects results of a wrong form, and finds a single wrong element."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import (
    agree_but_for_rounding,
    check_close,
    check_equal,
    distinct,
    is_evidence,
)
from attnspec.conformance.comparison.tally import Tally, counting
from attnspec.conformance.comparison.violation import Violation

INF, NAN = float("inf"), float("nan")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def close(got, expected, bound, **options):
    return check_close(got, expected, bound, **({"what": "out", "message": "it is off"} | options))


def row(*numbers, dtype=torch.float64):
    return torch.tensor(numbers, dtype=dtype).reshape(1, 1, 1, -1)


GARBAGE = {
    "None": None,
    "a number": 1.0,
    "a tuple": (torch.zeros(1, 1, 1, 2, dtype=torch.float64),),
    "a list": [[[[0.0, 0.0]]]],
    "an array": np.zeros((1, 1, 1, 2)),
    "a string": "out",
    "integers": torch.zeros(1, 1, 1, 2, dtype=torch.int64),
    "booleans": torch.zeros(1, 1, 1, 2, dtype=torch.bool),
    "complex numbers": torch.zeros(1, 1, 1, 2, dtype=torch.complex128),
    "no data": torch.zeros(1, 1, 1, 2, dtype=torch.float64, device="meta"),
    "sparse": torch.zeros(1, 1, 1, 2, dtype=torch.float64).to_sparse(),
    "one axis too few": torch.zeros(1, 1, 2, dtype=torch.float64),
    "one axis too many": torch.zeros(1, 1, 1, 1, 2, dtype=torch.float64),
    "transposed": torch.zeros(1, 1, 2, 1, dtype=torch.float64),
    "nothing": torch.zeros(0, dtype=torch.float64),
    "a scalar that would broadcast": torch.zeros((), dtype=torch.float64),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("bound", [0.0, 1.0, INF])
def test_garbage_is_refused_for_every_bound(garbage, bound):
    zeros = row(0.0, 0.0)
    with pytest.raises(Violation, match="it is off: out must"):
        close(garbage, zeros, torch.full_like(zeros, bound))


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_never_equal(garbage):
    with pytest.raises(Violation, match="it is off: out must"):
        check_equal(garbage, row(0.0, 0.0), what="out", message="it is off")


def test_the_type_of_garbage_is_named():
    with pytest.raises(Violation, match="must be a tensor, got tuple"):
        close((1, 2), row(0.0), row(0.0))
    with pytest.raises(Violation, match=r"must have shape \(1, 1, 1, 2\), got \(1, 1, 1, 3\)"):
        close(row(0.0, 0.0, 0.0), row(0.0, 0.0), row(1.0, 1.0))


@pytest.mark.parametrize("given_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_dtype_is_refused(given_dtype, dtype):
    got = row(1.0, dtype=given_dtype)
    if given_dtype == dtype:
        assert close(got, row(1.0), row(0.0), dtype=dtype) == 0
    else:
        with pytest.raises(Violation, match=f"must have dtype {dtype}, got {given_dtype}"):
            close(got, row(1.0), row(INF), dtype=dtype)


def test_the_fraction_of_the_worst_element_is_returned_and_counted():
    tally = Tally()
    with counting(tally):
        assert close(row(1.5, 2.0), row(1.0, 1.0), row(1.0, 4.0)) == 0.5
    assert tally.worst == 0.5


def test_an_element_at_its_bound_passes_and_beyond_it_does_not():
    assert close(row(2.0), row(1.0), row(1.0)) == 1.0
    with pytest.raises(Violation):
        close(row(2.0 + 1e-15), row(1.0), row(1.0))


@given(st.floats(1e-300, 1e300), st.sampled_from([0, 1]))
def test_no_quotient_is_rounded_across_the_limit(bound, other):
    within = row(bound, 0.0)
    limit = torch.tensor([[[[bound, float(other)]]]], dtype=torch.float64)
    assert close(within, row(0.0, 0.0), limit) == 1.0
    beyond = torch.nextafter(within, row(INF, 0.0))
    with pytest.raises(Violation):
        close(beyond, row(0.0, 0.0), limit)


def test_a_failure_counts_as_infinitely_much():
    tally = Tally()
    with counting(tally), pytest.raises(Violation):
        close(row(2.0), row(1.0), row(0.5))
    assert tally.worst == INF


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_single_wrong_element_is_found_and_named(data):
    shape = data.draw(st.tuples(*[st.integers(1, 4)] * 4), label="shape")
    index = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    wrong = data.draw(st.sampled_from([1.0, -1.0, 1e-3, 1e300, INF, -INF, NAN]), label="wrong")
    expected = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bound = torch.full(shape, 1e-6, dtype=torch.float64)
    got = expected + bound / 2
    close(got, expected, bound)
    got[index] += wrong
    with pytest.raises(Violation) as failure:
        close(got, expected, bound)
    mismatch = failure.value.mismatch
    batch, head, query, channel = index
    assert mismatch.where == f"batch {batch}, head {head}, query {query}, channel {channel}"
    assert mismatch.wrong == f"1 of {got.numel()} elements wrong"
    assert float(mismatch.bound) == 1e-6
    assert mismatch.what == "out"
    with pytest.raises(Violation) as failure:
        check_equal(got, expected + bound / 2, what="out", message="it is off")
    assert failure.value.mismatch.where == mismatch.where


def test_many_right_elements_do_not_hide_a_wrong_one():
    expected = torch.zeros(1, 1, 1000, 100, dtype=torch.float64)
    got = expected.clone()
    got[0, 0, 567, 89] = 2e-9
    with pytest.raises(Violation, match="query 567, channel 89"):
        close(got, expected, torch.full_like(expected, 1e-9))


@pytest.mark.parametrize(
    ("got", "expected", "bound", "passes"),
    [
        (NAN, 1.0, 1e9, False),
        (NAN, INF, 0.0, False),
        (1.0, NAN, 1e9, False),
        (INF, NAN, 1e9, False),
        (NAN, NAN, 0.0, True),
        (INF, INF, 0.0, True),
        (-INF, INF, 0.0, False),
        (1e308, INF, 0.0, False),
        (INF, 1.0, 1e9, False),
        (NAN, 1.0, INF, True),
        (INF, 1.0, INF, True),
        (-1e300, 1.0, INF, True),
        (1.0, NAN, INF, True),
        (0.0, -0.0, 0.0, True),
    ],
)
def test_nan_and_infinity(got, expected, bound, passes):
    if passes:
        close(row(got, 0.0), row(expected, 0.0), row(bound, 0.0))
    else:
        with pytest.raises(Violation):
            close(row(got, 0.0), row(expected, 0.0), row(bound, 0.0))


def test_an_infinity_is_right_only_where_the_bound_reaches_past_the_largest_number():
    got = row(INF, dtype=torch.float16)
    assert close(got, row(65500.0), row(20.0)) == 0
    for wrong in (row(65500.0 - 100), row(-65500.0)):
        with pytest.raises(Violation):
            close(got, wrong, row(20.0))


def test_nan_is_allowed_where_it_may_be_and_nowhere_else():
    allowed = row(1.0, 0.0).bool()
    close(row(NAN, 2.0), row(1.0, 2.0), row(0.0, 0.0), may_be_nan=allowed)
    close(row(1.0, 2.0), row(1.0, 2.0), row(0.0, 0.0), may_be_nan=allowed)
    with pytest.raises(Violation, match="channel 1"):
        close(row(1.0, NAN), row(1.0, 2.0), row(0.0, 0.0), may_be_nan=allowed)
    with pytest.raises(Violation, match="channel 0"):
        close(row(1.5, 2.0), row(1.0, 2.0), row(0.0, 0.0), may_be_nan=allowed)


def test_an_infinite_bound_is_no_evidence():
    tally = Tally()
    with counting(tally):
        assert close(row(5.0), row(1.0), row(INF)) == 0
    assert tally.worst is None


@pytest.mark.parametrize("bound", [NAN, -1.0])
def test_an_invalid_bound_is_an_error_of_the_caller(bound):
    with pytest.raises(RuntimeError, match="out: the bound"):
        close(row(1.0), row(1.0), row(bound))
    with pytest.raises(RuntimeError, match="out: the bound"):
        close(row(1.0, 1.0), row(1.0, 1.0), row(1.0))


def test_results_without_elements_pass():
    nothing = torch.zeros(1, 2, 0, 4, dtype=torch.float64)
    assert close(nothing, nothing, nothing) == 0
    check_equal(nothing, nothing, what="out", message="it is off")


def test_an_exact_result_with_no_slack_passes():
    assert close(row(1.0), row(1.0), row(0.0)) == 0


def test_gradients_in_the_result_do_not_matter():
    got = row(1.0).requires_grad_()
    assert close(got, row(1.0), row(0.0)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_equality_knows_nan_and_zeros(dtype):
    left, right = row(NAN, 0.0, INF, 1.0, dtype=dtype), row(NAN, -0.0, INF, 1.0, dtype=dtype)
    check_equal(left, right, what="out", message="it is off")
    for wrong in (NAN, 0.0, INF, -INF):
        changed = left.clone()
        changed[..., 3] = wrong
        with pytest.raises(Violation, match="channel 3"):
            check_equal(changed, right, what="out", message="it is off")
    nearest = torch.nextafter(left, torch.full_like(left, 2.0))
    with pytest.raises(Violation):
        check_equal(nearest, right, what="out", message="it is off")


def test_equality_of_integers_and_booleans():
    number = torch.tensor([[1, 2], [3, 4]])
    check_equal(number, number.clone(), what="ids", message="they differ", axes=("row", "place"))
    with pytest.raises(Violation, match="row 1, place 0"):
        check_equal(
            torch.tensor([[1, 2], [9, 4]]),
            number,
            what="ids",
            message="they differ",
            axes=("row", "place"),
        )
    with pytest.raises(Violation):
        check_equal(number > 1, number > 2, what="ids", message="they differ")


def test_evidence_is_a_bound_small_against_the_values():
    assert is_evidence(row(1.0, 0.0), row(0.1, 0.1))
    assert not is_evidence(row(1.0, 0.0), row(0.1, 0.6))
    assert not is_evidence(row(1.0, 0.0), row(0.1, INF))
    assert not is_evidence(row(0.0, 0.0), row(0.1, 0.1))
    assert is_evidence(row(1.0, INF), row(0.1, 0.0))
    assert is_evidence(row(NAN, NAN), row(0.0, 0.0))


@pytest.mark.parametrize("wrong", [1.0, NAN, INF])
def test_a_row_of_a_sample_is_named_by_its_number(wrong):
    expected, bound = torch.zeros(1, 2, 3, 4, dtype=torch.float64), torch.full((1, 2, 3, 4), 0.1)
    got, rows = expected.clone(), torch.tensor([0, 7, 131_071])
    assert close(got, expected, bound.double(), places={"query": rows}) == 0
    got[0, 1, 2, 3] = wrong
    with pytest.raises(Violation, match="batch 0, head 1, query 131071, channel 3"):
        close(got, expected, bound.double(), places={"query": rows})


def test_a_part_of_batch_elements_and_heads_is_named_by_its_places():
    expected, bound = torch.zeros(2, 2, 3, dtype=torch.float64), torch.full((2, 2, 3), 0.1)
    got, places = expected.clone(), {"batch": torch.tensor([4, 9]), "head": torch.tensor([1, 31])}
    axes = ("batch", "head", "query")
    assert close(got, expected, bound.double(), places=places, axes=axes) == 0
    got[1, 1, 2] = 1.0
    with pytest.raises(Violation, match="batch 9, head 31, query 2"):
        close(got, expected, bound.double(), places=places, axes=axes)


@pytest.mark.parametrize(
    ("one", "two", "agree"),
    [
        (row(1, 1), row(1, 1 + 1e-6), True),
        (row(1, 1), row(1, 1 + 1e-5), False),
        (row(1e6, 0), row(1e6 + 0.5, 0), True),
        (row(1e6, 0), row(1e6, 0.5), False),
        (row(NAN, INF), row(NAN, INF), True),
        (row(1, 1), row(NAN, 1), False),
        (row(1, 1), row(INF, 1), False),
        (row(INF, 1), row(-INF, 1), False),
        (row(1, 1), row(1), False),
        (row(1, 1), row(1, 1, dtype=torch.float32), True),
    ],
)
def test_results_agree_but_for_rounding_which_grows_with_their_size(one, two, agree):
    assert agree_but_for_rounding(one, two, 1e-6) is agree
    assert agree_but_for_rounding(two, one, 1e-6) is agree


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (0.5, 0.75, ("0.5", "0.75")),
        (0.3, 0.3 + 1.5e-12, ("0.3", "0.3000000000015")),
        (1.0, 1.0 + 2**-52, ("1", "1.0000000000000002")),
        (-1e300, 1e300, ("-1e+300", "1e+300")),
        (math.nan, 1.0, ("nan", "1")),
        (math.inf, 0.1, ("inf", "0.1")),
        (0.0, -0.0, ("0", "-0")),
    ],
)
def test_numbers_have_so_many_digits_that_they_differ(one, other, texts):
    assert distinct(one, other) == texts


def test_a_distance_beside_its_bound_has_more_digits():
    expected, bound = torch.zeros(1).double(), torch.full((1,), 1.4251640e-21).double()
    with pytest.raises(Violation) as failure:
        check_close(expected + 1.425167e-21, expected, bound, what="out", message="wrong")
    mismatch = failure.value.mismatch
    assert mismatch is not None
    assert mismatch.difference == "1.425167e-21, 1.000002 times the bound"
    assert mismatch.bound == "1.425164e-21"


def test_a_mismatch_says_how_far_off_it_is():
    expected, bound = torch.ones(1, dtype=torch.float64), torch.full((1,), 1e-15).double()
    with pytest.raises(Violation) as failure:
        check_close(expected + 4e-13, expected, bound, what="out", message="wrong")
    mismatch = failure.value.mismatch
    assert mismatch is not None
    assert mismatch.difference.startswith("4e-13, 400 times the bound")
    assert (mismatch.expected, mismatch.got) == ("1", "1.0000000000004")
    nothing = torch.full((1,), torch.nan, dtype=torch.float64)
    with pytest.raises(Violation) as failure:
        check_close(nothing, expected, bound, what="out", message="wrong")
    assert failure.value.mismatch is not None
    assert failure.value.mismatch.difference == ""
