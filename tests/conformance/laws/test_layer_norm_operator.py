"""Causes that laws of a LayerNorm on its own name."""

import pytest
import torch
from torch.nn import functional

from attnspec.conformance import laws
from attnspec.conformance.comparison.violation import Explained
from attnspec.conformance.mutants.bases.layer_norm import correct
from attnspec.conformance.operators.layer_norm.case import LayerNormCase
from attnspec.conformance.operators.layer_norm.subject import LayerNormSubject
from attnspec.spec.layer_norm import LayerNormImplementation, LayerNormProfile
from attnspec.spec.profiles import Float64Precision

LAWS = laws.load()


def subject_of(function, profile) -> LayerNormSubject:
    declared = LayerNormImplementation(name="it", function=function, profile=profile)
    return LayerNormSubject(implementation=declared)


def test_statistics_that_are_wrong_in_16_bits_alone_are_named():
    def lost(x, shape, weight, bias, eps):
        rows = x - 1 if x.dtype == torch.bfloat16 and bool(x.mean() > 10) else x
        first = 0.5 if x.dtype == torch.bfloat16 else 1.0
        return correct().function(rows, shape, weight * first, bias, eps)

    subject = subject_of(lost, LayerNormProfile())
    case = LayerNormCase(shape=(3,), channels=64, dtype=torch.bfloat16)
    with pytest.raises(Explained, match="mean or variance is wrong in bfloat16 and right in flo"):
        LAWS["a-layer-norm-equals-the-definition"].check(subject, case)
    LAWS["a-layer-norm-equals-the-definition"].check(subject, case.but(dtype=torch.float32))


def test_float64_in_float32_is_named_and_allowed_where_it_is_declared():
    def narrowed(x, shape, weight, bias, eps):
        out = functional.layer_norm(x.float(), shape, weight.float(), bias.float(), eps)
        return out.to(x.dtype)

    law = LAWS["a-layer-norm-equals-the-definition"]
    case = LayerNormCase(shape=(3,), channels=64)
    with pytest.raises(Explained, match="results in float64 have the accuracy of float32"):
        law.check(subject_of(narrowed, LayerNormProfile()), case)
    declared = LayerNormProfile(float64_precision=Float64Precision.FLOAT32)
    law.check(subject_of(narrowed, declared), case)
