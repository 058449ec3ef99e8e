"""Kernels that return a pair, with a logarithm of base e or 2."""

import math

import pytest
import torch
from plain_kernel import is_right, is_wrong, outcomes, parameters, plain

from attnspec.implementations.adapters import from_log_sum_exp

LAWS = ("ATT-30",)


def natural(query, key, value, scale=None):
    return plain(query, key, value, scale=scale)


def base_2(query, key, value, scale=None):
    out, lse = plain(query, key, value, scale=scale)
    return out, lse / math.log(2)


@pytest.mark.parametrize(("kernel", "base"), [(natural, math.e), (base_2, 2)])
def test_a_correct_kernel_passes_with_its_own_base(kernel, base):
    assert is_right(outcomes(from_log_sum_exp(kernel, base=base), "lse", laws=LAWS))


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize(("kernel", "base"), [(natural, 2), (base_2, math.e)])
def test_the_other_base_fails(kernel, base):
    assert is_wrong(outcomes(from_log_sum_exp(kernel, base=base), "lse", laws=LAWS))


def test_the_pair_comes_only_on_request():
    adapted, x = from_log_sum_exp(natural), torch.randn(2, 3, 4, 5)
    assert parameters(adapted) == {"scale", "return_lse"}
    assert isinstance(adapted(x, x, x), torch.Tensor)
    out, lse = adapted(x, x, x, return_lse=True)
    assert (out.shape, lse.shape) == ((2, 3, 4, 5), (2, 3, 4))


def test_another_base_is_refused():
    with pytest.raises(ValueError, match=r"base must be 2 or math\.e, got 10"):
        from_log_sum_exp(natural, base=10)
