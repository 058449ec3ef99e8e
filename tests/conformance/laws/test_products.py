"""The law of less precise products accepts products of rounded factors, and nothing worse."""

import math
from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check

LAW = laws.load()["a-lower-precision-of-products-changes-nothing-else"]
BITS = {"high": 10, "medium": 7}
"""Bits of the significand of a factor, behind its first."""


def rounded(number, bits):
    spacing = 2.0 ** (torch.frexp(number)[1] - 1 - bits).to(number)
    return torch.where(number == 0, number, torch.round(number / spacing) * spacing)


def cut(number, bits):
    spacing = 2.0 ** (torch.frexp(number)[1] - 1 - bits).to(number)
    return torch.where(number == 0, number, torch.trunc(number / spacing) * spacing)


class Products(Dense):
    """An attention whose products have less precise factors, as torch's may."""

    def __init__(self, lower, is_prescaled=False, sums_are_products=False, fewer=0):
        self.lower, self.is_prescaled, self.fewer = lower, is_prescaled, fewer
        self.sums_are_products = sums_are_products

    def product(self, left, right):
        precision = torch.get_float32_matmul_precision()
        if left.dtype == torch.float32 and precision != "highest":
            bits = BITS[precision] - self.fewer
            left, right = self.lower(left, bits), self.lower(right, bits)
        return left @ right

    def scores(self, query, key, scale):
        root = math.sqrt(abs(scale)) if self.is_prescaled else 1.0
        sign = math.copysign(1.0, scale) if self.is_prescaled else scale
        return self.product(query * root, (key * root).mT) * sign

    def mix(self, weights, value):
        mixed = self.product(weights, value)
        ones = torch.ones_like(value[..., :1])
        return mixed / self.product(weights, ones) if self.sums_are_products else mixed


def outcome(attention, dtypes):
    base = dense("products", attention)
    return check(LAW, Subject(replace(base, dtypes=dtypes))).outcome


@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float16,), (torch.bfloat16,)], ids=str)
@pytest.mark.parametrize("lower", [rounded, cut], ids=["rounded", "cut"])
@pytest.mark.parametrize("is_prescaled", [False, True])
@pytest.mark.parametrize("sums_are_products", [False, True])
def test_products_of_rounded_factors_conform(lower, sums_are_products, is_prescaled, dtypes):
    attention = Products(lower, is_prescaled, sums_are_products)
    assert outcome(attention, dtypes) is Outcome.PASSED


def test_factors_with_fewer_bits_fail():
    assert outcome(Products(rounded, fewer=3), (torch.float32,)) is Outcome.FAILED
