"""Causes that laws of RMSNorm name, and those that they do not."""

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.comparison.violation import Explained, Violation
from attnspec.conformance.operators.rms_norm.case import RMSNormCase, Rows
from attnspec.conformance.operators.rms_norm.subject import RMSNormSubject
from attnspec.spec.rms_norm import RMSNormImplementation, RMSNormProfile

LAWS = laws.load()


def subject_of(function, profile) -> RMSNormSubject:
    declared = RMSNormImplementation(name="it", function=function, profile=profile)
    return RMSNormSubject(implementation=declared)


def in_float16(x, shape, weight, eps):
    """Adds squares in the storage type, one after another."""
    total = torch.zeros_like(x[..., :1])
    for channel in range(shape[0]):
        total = total + x[..., channel, None].square()
    wide = torch.promote_types(x.dtype, torch.float32)
    root = torch.rsqrt(total.to(wide) / shape[0] + eps)
    return (x.to(wide) * root * weight.to(wide)).to(x.dtype)


@pytest.mark.parametrize(
    ("rows", "channels", "message"),
    [
        (Rows.NORMAL, 4096, "the mean square is wrong in float16 and right in float32"),
        (Rows.LARGE, 64, "the sum of squares overflows in float16"),
    ],
)
def test_sums_of_16_bits_are_named(rows, channels, message):
    subject = subject_of(in_float16, RMSNormProfile())
    case = RMSNormCase(shape=(3,), channels=channels, rows=rows, dtype=torch.float16, seed=1)
    with pytest.raises(Explained, match=message):
        LAWS["rms-norm-equals-the-definition"].check(subject, case)
    LAWS["rms-norm-equals-the-definition"].check(subject, case.but(dtype=torch.float32))


def test_a_formula_that_another_call_refutes_is_not_named():
    """A row times 1.5 is no formula of the list, though with one channel some are near."""

    def times(x, shape, weight, eps):
        return 1.5 * torch.nn.functional.rms_norm(x, shape, weight, eps)

    subject = subject_of(times, RMSNormProfile())
    law = LAWS["rms-norm-equals-the-definition"]
    with pytest.raises(Explained, match="rows are divided by a root that is not theirs"):
        law.check(subject, RMSNormCase(channels=16))
    with pytest.raises(Violation) as error:
        law.check(subject, RMSNormCase(channels=1))
    assert not isinstance(error.value, Explained)


def test_a_wrong_shape_has_no_cause():
    subject = subject_of(lambda x, shape, weight, eps: x[..., :1], RMSNormProfile())
    with pytest.raises(Violation, match="must have shape") as error:
        LAWS["rms-norm-equals-the-definition"].check(subject, RMSNormCase())
    assert not isinstance(error.value, Explained)
