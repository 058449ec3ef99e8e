"""Tests of the search for a smaller failing case, and of the comparison of its sizes."""

import time

import pytest
import torch

from attnspec.conformance.attention.decoding.session import Append, Session
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.diagnosis.smaller.correct import correct_counterpart
from attnspec.conformance.diagnosis.smaller.neighbours import compared_sizes
from attnspec.conformance.diagnosis.smaller.reductions import smaller_sizes
from attnspec.conformance.diagnosis.smaller.shrink import shrink
from attnspec.conformance.models.case import ModelCase
from attnspec.implementations import load, load_model
from attnspec.spec import (
    CallMode,
    Case,
    EmptyRow,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    Profile,
    Values,
)

LARGE = Case(
    batch=2,
    heads=6,
    kv_heads=2,
    queries=65,
    keys=129,
    d_head=128,
    d_value=64,
    mask=Mask(kind=MaskKind.FLOAT),
    backward=True,
    mask_gradient=True,
    is_causal=True,
    scale=0.5,
    softcap=2.0,
    window=(1, 2),
    sinks=True,
    alibi=True,
    return_lse=True,
    mode=CallMode.DETERMINISTIC,
    values=Values.PEAKED,
    layouts=Layouts(query=Layout.TRANSPOSED, key=Layout.SLICED),
)


@pytest.mark.parametrize(
    ("fails", "smallest"),
    [
        (lambda case: True, Case()),
        (lambda case: case.d_head == 128, Case(d_head=128)),
        (lambda case: case.keys > 64 and case.is_causal, Case(keys=65, is_causal=True)),
        (lambda case: case.heads > case.kv_heads, Case(heads=2)),
        (lambda case: case.mask_gradient, Case(mask=LARGE.mask, backward=True, mask_gradient=True)),
        (lambda case: case.dtype is torch.bfloat16, Case(dtype=torch.bfloat16)),
        (
            lambda case: case.layouts.key is Layout.SLICED,
            Case(layouts=Layouts(key=Layout.SLICED)),
        ),
    ],
)
def test_the_smallest_case_that_fails_is_found(fails, smallest):
    case = LARGE.but(dtype=torch.bfloat16)
    assert shrink(case, fails, 60) == smallest.but(
        dtype=torch.bfloat16 if smallest.dtype is torch.bfloat16 else torch.float32
    )


def test_a_case_of_a_model_and_a_session_shrink():
    case = ModelCase(n_layer=3, n_head=3, d_head=4, length=5, n_positions=9, batch=2, tied=False)
    smallest = shrink(case, lambda each: each.length > 2, 60)
    assert smallest == ModelCase(d_head=2, vocab_size=2, length=3, n_positions=3)
    steps = (Append(3), Append(1), Append(2))
    session = Session(is_causal=True, d_head=8, d_value=8, steps=steps)
    smallest = shrink(session, lambda each: Append(1) in each.steps, 60)
    assert (smallest.steps, smallest.d_head) == ((Append(1),), 1)


def test_shrinking_ends_when_its_time_is_up():
    def fails(case):
        time.sleep(0.01)
        return False

    started = time.perf_counter()
    assert shrink(LARGE, fails, 0.0) == LARGE
    assert shrink("a case of another kind", fails, 60) == "a case of another kind"
    assert time.perf_counter() - started < 5


def test_sizes_only_become_smaller():
    for size in range(200):
        assert all(1 <= each < size for each in smaller_sizes(size))


def test_a_size_of_one_tile_is_compared_with_its_neighbours():
    lines = compared_sizes(Case(keys=64), lambda case: case.keys % 64 == 0, 60)
    assert lines == ("keys: fails at 64 and 128, passes at 32, 63, 65, 127 and 129",)


def test_a_size_beyond_a_limit_is_compared_with_the_limit():
    lines = compared_sizes(Case(queries=129), lambda case: case.queries > 128, 60)
    assert lines == ("queries: fails at 129, 130, 257, 258 and 259, passes at 64 and 128",)


def test_sizes_that_do_not_matter_are_left_out():
    assert compared_sizes(Case(keys=7, batch=2), lambda case: True, 60) == ()
    assert compared_sizes("a case of another kind", lambda case: True, 60) == ()


def test_a_size_passes_only_if_it_passes_with_several_seeds():
    lines = compared_sizes(Case(keys=16), lambda case: case.keys == 16 or case.seed == 4, 60)
    assert lines == ()


def test_sizes_that_are_not_claimed_are_left_out_and_equal_widths_change_together():
    def fails(case):
        return None if case.d_head != case.d_value or case.d_head % 8 else case.d_head == 64

    lines = compared_sizes(Case(d_head=64, d_value=64), fails, 60)
    assert lines == ("d_head: fails at 64, passes at 32 and 128",)


def test_sizes_of_models_are_compared():
    lines = compared_sizes(
        ModelCase(length=3, n_positions=3, vocab_size=2), lambda case: case.length > 2, 60
    )
    assert lines == ("length: fails at 3, 4, 5, 6 and 7, passes at 1 and 2",)


def test_no_size_is_tried_when_time_is_up():
    assert compared_sizes(Case(keys=64), lambda case: case.keys == 64, 0.0) == ()


@pytest.mark.parametrize("answer", EmptyRow)
def test_the_counterpart_follows_the_profile_of_the_subject(answer):
    subject = Subject(load("eager"))
    implementation = subject.implementation
    subject.implementation = implementation.__class__(
        name="mine",
        attention=implementation.attention,
        features=implementation.features,
        profile=Profile(empty_row=answer),
    )
    counterpart = correct_counterpart(subject)
    mask = Mask(pattern=MaskPattern.EMPTY_ROWS)
    call = subject.draw(Case(queries=1, keys=2, mask=mask, dtype=torch.float32))
    out = counterpart.call(call)
    expected = {
        EmptyRow.ZERO: torch.zeros_like(out),
        EmptyRow.MEAN: call.value.mean(dim=2, keepdim=True),
        EmptyRow.NAN: torch.full_like(out, torch.nan),
    }
    torch.testing.assert_close(out, expected[answer], equal_nan=True)
    assert correct_counterpart(load_model("huggingface_gpt2")).build is not None
    assert correct_counterpart("a tokenizer") is None
