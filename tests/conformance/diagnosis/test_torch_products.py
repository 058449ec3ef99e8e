"""Tests of the bug of torch's bfloat16 products: told apart from mistakes of the subject."""

import math

import pytest
import torch

from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.diagnosis.torch_products import (
    LINK,
    MendedProducts,
    spoiled_products,
)
from attnspec.conformance.laws.law import Law
from attnspec.conformance.report.causes import causes_of
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.report.verdict import verdict_of
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import declare
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.targets import LoadedSubject, Subject
from attnspec.conformance.runner.task import Task
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.implementations.cpu_products import rows_are_apart
from attnspec.spec import Case, Mask, MaskPattern

LEAKING = Case(queries=26, keys=79, d_head=1, d_value=2).but(
    dtype=torch.bfloat16, mask=Mask(pattern=MaskPattern.EMPTY_ROWS)
)
needs_the_bug = pytest.mark.skipif(
    rows_are_apart() is not None, reason="the bug of products in bfloat16 needs a CPU with AMX"
)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def textbook(query, key, value, attn_mask=None):
    """Attention in the storage type, whose empty rows are NaN."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    return scores.softmax(-1) @ value


def leaking(query, key, value, attn_mask=None):
    """Let a NaN of one row reach all others in every type."""
    out = textbook(query, key, value, attn_mask)
    return out + 0 * out.sum(dim=-2, keepdim=True)


def doubled_in_float32(query, key, value, attn_mask=None):
    out = textbook(query, key, value, attn_mask)
    return out * 2 if query.dtype == torch.float32 else out


def subject_of(attention):
    answers = ["empty_row=nan", "rounding=eager", "masked_values=propagates"]
    claims = Claims.read("bool_mask", "float32,bfloat16", answers)
    return Subject(declare("mine", attention, claims))


def tried(law, attention):
    loaded = LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject_of(attention))
    return run_in_process(Task(law=law, subject=loaded), Effort.SMOKE)


def law_on(*cases):
    """Return a law that demands the definition on these cases alone."""

    def check(subject, case):
        """ATT-1: the output equals the definition."""
        call = draw(case)
        subject.judge(call, subject.call(call), "the output differs from the definition")

    return Law(
        name="output-equals-the-definition-here",
        clauses=("ATT-1",),
        judges=SubjectKind.ATTENTION,
        check=check,
        pinned=cases,
    )


@needs_the_bug
def test_a_textbook_attention_is_not_blamed_for_torch():
    record = tried(law_on(LEAKING), textbook)
    assert record.outcome is Outcome.FAILED
    assert record.torch_bug
    assert record.link == LINK
    assert LINK in record.message
    assert record.passes_in == ("float32",)
    (cause,) = causes_of([record])
    assert "torch, not the function, is wrong" in cause.explanation
    assert "NOT conforming on this machine: 1 of 1 laws broken, all by a bug of torch" in (
        verdict_of([record], [cause])
    )


@needs_the_bug
def test_a_mistake_behind_that_of_torch_is_reported():
    wide = LEAKING.but(dtype=torch.float32)
    record = tried(law_on(LEAKING, wide), doubled_in_float32)
    assert record.outcome is Outcome.FAILED
    assert not record.torch_bug
    assert "dtype=float32" in record.case


def test_a_leak_of_the_function_is_its_own():
    record = tried(law_on(LEAKING), leaking)
    assert record.outcome is Outcome.FAILED
    assert not record.torch_bug
    (cause,) = causes_of([record])
    assert "torch" not in cause.explanation


def test_cases_of_other_types_are_never_explained_by_torch():
    wide = LEAKING.but(dtype=torch.float32)
    assert spoiled_products(law_on(wide), subject_of(leaking), wide) == ()


def test_a_nan_that_belongs_to_a_row_stays():
    rows = torch.zeros(17, 63, dtype=torch.bfloat16)
    rows[8] = torch.nan
    columns = torch.ones(63, 4, dtype=torch.bfloat16)
    for mode in (torch.enable_grad, torch.inference_mode):
        with mode(), MendedProducts() as products:
            for product in (rows @ columns, torch.nn.functional.linear(rows, columns.mT)):
                assert product.isnan().any(1).nonzero().flatten().tolist() == [8]
            batched = torch.einsum("bij,jk->bik", rows[None], columns)[0]
            assert batched.isnan().any(1).nonzero().flatten().tolist() == [8]
        assert bool(products.spoiled) == (rows_are_apart() is None)
