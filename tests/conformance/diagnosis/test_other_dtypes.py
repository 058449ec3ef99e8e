"""Tests of the storage types in which a failing case passes, and of what the verdict says."""

from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.mutants.bases.gpt2 import COMPACT
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.report.verdict import verdict_of
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import declare
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.targets import LoadedSubject, Subject
from attnspec.conformance.runner.task import Task
from attnspec.conformance.subjects.kinds import SubjectKind

LAWS = laws.load()


def wrong_in(dtype):
    def attention(query, key, value, scale=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.mT * scale
        out = scores.softmax(-1).nan_to_num(0.0) @ value
        return out * 2 if query.dtype == dtype else out

    return attention


def record_of(kind, subject, law):
    loaded = LoadedSubject(kind=kind, subject=subject)
    return run_in_process(Task(law=LAWS[law], subject=loaded), Effort.SMOKE)


@pytest.mark.parametrize(
    ("dtype", "others"), [(torch.float64, ("float32",)), (torch.float32, ("float64",))]
)
def test_an_attention_that_is_wrong_in_one_type_passes_in_the_other(dtype, others):
    claims = Claims.read("", "float64,float32", ["rounding=eager"])
    subject = Subject(declare("mine", wrong_in(dtype), claims))
    record = record_of(SubjectKind.ATTENTION, subject, "output-equals-the-definition")
    assert record.outcome is Outcome.FAILED
    assert record.passes_in == others
    name = str(dtype).removeprefix("torch.")
    assert f", in {name} only: the same cases pass in {others[0]}" in verdict_of([record], [])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_gpt2_that_is_wrong_in_one_type_passes_in_the_other(dtype):
    def build(config, weights):
        model = COMPACT.build(config, weights)
        is_wrong = weights["transformer.wte.weight"].dtype == dtype
        return lambda input_ids: model(input_ids) * (1.5 if is_wrong else 1)

    subject = replace(COMPACT, name=f"wrong in {dtype}", build=build, features=frozenset())
    record = record_of(SubjectKind.MODEL, subject, "logits-equal-the-oracles")
    assert record.outcome is Outcome.FAILED
    (other,) = {"float64", "float32"} - {str(dtype).removeprefix("torch.")}
    assert record.passes_in == (other,)
    assert f"only: the same cases pass in {other}" in verdict_of([record], [])


def failed(dtype, *passes_in):
    case = f"queries=1 keys=2 dtype={dtype}"
    return Record(
        subject="mine",
        law="law",
        clauses=("ATT-1",),
        outcome=Outcome.FAILED,
        case=case,
        passes_in=passes_in,
    )


def test_the_verdict_names_types_if_most_failing_cases_pass_in_others():
    narrow = [failed("float16", "float64", "float32"), failed("bfloat16", "float32", "float64")]
    told = ", in float16 and bfloat16 only: the same cases pass in float64 and float32"
    assert told in verdict_of(narrow, [])
    most = verdict_of([*narrow * 2, failed("float16")], [])
    assert "only: 4 of these cases pass in float64 and float32" in most
    assert "only" not in verdict_of([*narrow, failed("float16")], [])
    assert "only" not in verdict_of([failed("float32", "float16"), *narrow], [])
    crash = replace(failed("float32"), outcome=Outcome.ERRORED)
    assert "only" not in verdict_of([*narrow, crash], [])
    several = replace(failed("float32"), law="another")
    told = verdict_of([*narrow * 4, several], [])
    assert "mostly in float16 and bfloat16: 8 of these cases pass in float64 and float32" in told
