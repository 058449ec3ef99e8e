"""The MLPs, routers and experts of transformers conform under the profiles that they declare."""

from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from attnspec import implementations
from attnspec.conformance import laws
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.spec.profiles import Float64Precision

pytest.importorskip("transformers")
LAWS = laws.load()
TRIALS = [
    (name, law.name)
    for name in implementations.operator_names()
    for law in LAWS.values()
    if law.judges == implementations.load_operator(name).operator
]


@pytest.mark.parametrize(("name", "law"), TRIALS)
def test_a_law_holds(name, law):
    subject = subject_of_operator(implementations.load_operator(name))
    record = check(LAWS[law], subject, None)
    is_unclaimed = bool(LAWS[law].needs - subject.implementation.features)
    clamps = "GLU-4" in LAWS[law].clauses
    expected = Outcome.NOT_CLAIMED if is_unclaimed or clamps else Outcome.PASSED
    assert record.outcome is expected, record.message


class KeepFloat64(TorchFunctionMode):
    """Returns a tensor of float64 unchanged when it is to be converted to float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))


SCORES = "router-scores-are-the-declared-function"


def test_mixtral_without_its_cast_conforms_in_float64():
    """The cast to float32 is all that separates its router from the float64 bound."""
    shipped = implementations.load_operator("mixtral_router")
    exact = replace(shipped.profile, scores_precision=Float64Precision.FLOAT64)
    subject = subject_of_operator(replace(shipped, profile=exact, dtypes=(torch.float64,)))
    assert check(LAWS[SCORES], subject, None).outcome is Outcome.FAILED
    with KeepFloat64():
        assert check(LAWS[SCORES], subject, None).outcome is Outcome.PASSED
