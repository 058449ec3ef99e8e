"""NaN and infinities are found wherever they are, and large numbers are not taken for them."""

import pytest
import torch

from attnspec.conformance.attention.inputs import attention_mask, visible_pairs
from attnspec.conformance.attention.nonfinite import is_finite
from attnspec.spec import Case, Mask, MaskPattern, MaskShape


@pytest.mark.parametrize("place", [0, 7, 999])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_not_finite_is_found(number, place):
    tensor = torch.randn(1000, dtype=torch.float64)
    tensor[place] = number
    assert not is_finite(tensor)


def test_infinities_of_both_signs_are_found():
    assert not is_finite(torch.tensor([torch.inf, 1.0, -torch.inf]))


@pytest.mark.parametrize("numbers", [[], [0.0], [1.7e308, 1.7e308], [-1.7e308, -1.7e308, 3.0]])
def test_numbers_whose_sum_may_overflow_are_finite(numbers):
    assert is_finite(torch.tensor(numbers, dtype=torch.float64))


@pytest.mark.parametrize("pattern", [MaskPattern.RANDOM, MaskPattern.PADDING, MaskPattern.HALF])
def test_a_mask_for_all_elements_is_that_of_the_first(pattern):
    case = Case(batch=3, heads=4, kv_heads=2, queries=5, keys=7, seed=3)
    full = visible_pairs(case, pattern)
    for shape, expected in (
        (MaskShape.RANK_2, full[0, 0]),
        (MaskShape.RANK_3, full[0]),
        (MaskShape.HEADS, full[:1]),
    ):
        mask = attention_mask(case, Mask(pattern=pattern, shape=shape))
        assert torch.equal(mask, expected)
