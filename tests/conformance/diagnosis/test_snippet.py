"""Tests of snippets: run alone, the code of a failure shows the reported numbers."""

import contextlib
import io
import threading
from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.modes import MANY_THREADS, THREADS, deterministic_algorithms
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import normal
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.diagnosis.failure.snippet import snippet
from attnspec.conformance.diagnosis.failure.tensor_code import code_of
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.registry import planted
from attnspec.implementations import load
from attnspec.spec import (
    CallMode,
    Case,
    Feature,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)
from attnspec.spec.case import BIASES

laws.load()
mutants.load()

CASE = Case(heads=2, kv_heads=1, queries=2, keys=3, d_head=2, d_value=2, dtype=torch.float16)
FULL = CASE.but(
    mask=Mask(kind=MaskKind.FLOAT), softcap=2.0, window=(1, None), sinks=True, alibi=True
)


def run(code, **names):
    """Execute code with names that are given, and return its names and output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return names, printed.getvalue()


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        FULL,
        FULL.but(return_lse=True),
        CASE.but(dtype=torch.bfloat16, layouts=Layouts(query=Layout.TRANSPOSED)),
        CASE.but(keys=0),
        CASE.but(is_causal=True, scale=-0.5, dtype=torch.float64),
        CASE.but(mode=CallMode.DEFAULT_FLOAT64),
    ],
    ids=str,
)
def test_a_snippet_repeats_the_call_bit_by_bit(case):
    subject = Subject(load("eager"))
    call = subject.draw(case)
    out = subject.run(call)
    names, _ = run(snippet(subject, call, None))
    for one, two in zip((out,) if not case.return_lse else out, (names["out"],), strict=False):
        again = two if not case.return_lse else two[0]
        assert torch.equal(one, again)
    assert names["query"].stride() == call.query.stride()


def test_a_snippet_makes_the_call_in_its_mode():
    subject = Subject(load("eager"))
    names, _ = run(snippet(subject, subject.draw(CASE.but(mode=CallMode.INFERENCE)), None))
    assert names["out"].is_inference()
    code = snippet(subject, subject.draw(CASE.but(mode=CallMode.DEFAULT_FLOAT64)), None)
    assert "torch.set_default_dtype(torch.float64)" in code


@pytest.mark.parametrize("case", [CASE, FULL, FULL.but(return_lse=True)], ids=str)
def test_a_snippet_repeats_the_backward_pass(case):
    subject = Subject(load("eager"))
    call = subject.draw(case)
    grad_out = torch.randn(1, 2, 2, 2, generator=torch.Generator().manual_seed(0)).to(case.dtype)
    _, gradients = subject.differentiate(call, grad_out)
    code = snippet(subject, call, None)
    names, _ = run(code)
    assert len(code.splitlines()) <= 15
    for expected, got in zip(gradients.values(), names["gradients"], strict=True):
        assert torch.equal(expected, got)


def test_a_forward_call_after_a_backward_pass_has_no_gradient():
    subject = Subject(load("eager"))
    call = subject.draw(CASE)
    subject.differentiate(call, torch.ones(1, 2, 2, 2, dtype=case_dtype(call)))
    subject.call(call)
    assert "grad" not in snippet(subject, call, None)


def case_dtype(call):
    """Return the storage type of a call."""
    return call.value.dtype


LONG = Case(batch=2, heads=4, kv_heads=2, queries=33, keys=65, d_head=8, d_value=8)


@pytest.mark.rotating(parts=3)
@pytest.mark.parametrize(
    "case",
    [
        *(LONG.but(values=family, dtype=torch.float32) for family in Values),
        LONG.but(values=Values.ONE_HOT),
        LONG.but(queries=600, keys=590, d_head=64, d_value=64, dtype=torch.bfloat16),
        LONG.but(values=Values.OFFSET, seed=3, scale=-0.3),
        # larger than the draws that are cached
        *(LONG.but(queries=300, dtype=dtype) for dtype in (torch.float32, torch.float64)),
        # so many numbers that they are drawn in float32: all of them, or the queries alone
        *(
            LONG.but(values=family, queries=1100, keys=2100, dtype=torch.float32)
            for family in Values
        ),
        LONG.but(values=Values.NEEDLES, queries=2100, dtype=torch.float32),
        LONG.but(values=Values.GROWING, dtype=torch.bfloat16, is_causal=True),
        LONG.but(dtype=torch.float16, mask=Mask(), sinks=True, alibi=True),
        *(LONG.but(layouts=Layouts(query=layout, key=layout, value=layout)) for layout in Layout),
        *(
            LONG.but(mask=Mask(pattern=pattern), seed=4)
            for pattern in MaskPattern
            if pattern not in BIASES
        ),
        *(LONG.but(mask=Mask(kind=MaskKind.FLOAT, pattern=pattern)) for pattern in MaskPattern),
        *(LONG.but(mask=Mask(shape=shape)) for shape in MaskShape),
        *(LONG.but(mask=Mask(kind=MaskKind.FLOAT, shape=shape), seed=5) for shape in MaskShape),
    ],
    ids=str,
)
def test_a_long_call_is_drawn_again_with_torch_alone(case):
    subject = Subject(load("eager"))
    call = subject.draw(case)
    code = snippet(subject, call, None, case)
    assert len(code.splitlines()) <= 15
    assert max(map(len, code.splitlines())) < 6000
    assert "attnspec" not in code.replace(subject.import_code, "")
    names, _ = run(code)
    for name, tensor in call.tensors.items():
        assert torch.equal(names[name], tensor)
        assert names[name].stride() == tensor.stride()
        assert names[name].dtype == tensor.dtype
    assert torch.equal(subject.run(call), names["out"])


def test_changes_of_a_law_to_a_long_call_are_repeated():
    subject = Subject(load("eager"))
    call = subject.draw(LONG)
    key = call.key.clone()
    key[0, 1, 3] = torch.nan
    key[1, 0, 7, 2] = -0.0
    names, _ = run(snippet(subject, call.but(key=key), None, LONG))
    assert torch.equal(names["key"].isnan(), key.isnan())
    assert torch.equal(names["key"].nan_to_num(9), key.nan_to_num(9))
    assert torch.equal(names["key"].signbit(), key.signbit())


def test_an_expanded_mask_of_another_rank_than_that_of_the_case_is_repeated():
    subject = Subject(load("eager"))
    case = LONG.but(mask=Mask(shape=MaskShape.RANK_2))
    call = subject.draw(case)
    keys = torch.arange(case.keys) % 3 > 0
    mask = keys.expand(2, 1, 1, case.keys).contiguous().expand(*call.query.shape[:3], case.keys)
    names, _ = run(snippet(subject, call.but(attn_mask=mask), None, case))
    assert torch.equal(names["attn_mask"], mask)


def test_a_long_backward_pass_is_repeated():
    subject = Subject(load("eager"))
    call = subject.draw(LONG)
    grad_out = normal(LONG, "grad_out", 2, 4, 33, 8)
    _, gradients = subject.differentiate(call, grad_out)
    names, _ = run(snippet(subject, call, None, LONG))
    for expected, got in zip(gradients.values(), names["gradients"], strict=True):
        assert torch.equal(expected, got)


def test_rows_that_a_law_permutes_or_repeats_are_taken_from_what_was_drawn():
    subject = Subject(load("eager"))
    call = subject.draw(LONG)
    changed = call.but(
        query=call.query[:, [2, 0, 1, 3]][:, :, :5].contiguous(),
        key=call.key[:, :, torch.arange(20) // 2].contiguous(),
        value=call.value[:, :, :20].contiguous(),
    )
    code = snippet(subject, changed, None, LONG)
    names, _ = run(code)
    for name, tensor in changed.tensors.items():
        assert torch.equal(names[name], tensor)
        assert names[name].is_contiguous()


def test_a_constant_axis_is_written_once():
    subject = Subject(load("eager"))
    call = subject.draw(LONG)
    row = torch.tensor([1.0, -2.0, 4.0, torch.nan, 1.0, -2.0, 4.0, -8.0])
    call = call.but(value=row.to(call.value).expand_as(call.value).contiguous())
    code = snippet(subject, call, None, LONG)
    assert "[[[[1.0, -2.0, 4.0, nan, 1.0, -2.0, 4.0, -8.0]]]]" in code
    names, _ = run(code)
    assert torch.equal(names["value"].nan_to_num(9), call.value.nan_to_num(9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_have_as_few_digits_as_give_the_same_bits(dtype):
    tensor = torch.tensor([0.1, -3e-5, 65504.0, 1 / 3, 0.0, -0.0], dtype=dtype)
    code = code_of("query", tensor, None, is_literal=True)
    assert "[0.1, -3e-05, " in code
    again = eval(code, {"torch": torch})
    assert torch.equal(again, tensor)
    assert torch.equal(again.signbit(), tensor.signbit())


def test_a_gap_of_gigabytes_is_not_filled():
    numbers = torch.tensor([[1.0, 2.0]], dtype=torch.float32)
    near = torch.empty(9).as_strided((1, 2), (1, 8)).copy_(numbers)
    assert "torch.full((9,), nan" in code_of("query", near, None, is_literal=True)
    apart = torch.empty(2**31 + 1).as_strided((1, 2), (1, 2**31)).copy_(numbers)
    code = code_of("query", apart, None, is_literal=True)
    assert code.startswith("torch.empty(2147483649, dtype=torch.float32).as_strided(")
    assert torch.equal(eval(code, {"torch": torch}), numbers)


def test_a_tensor_that_nothing_draws_and_is_too_large_to_write_out_has_no_snippet():
    subject = Subject(load("eager"))
    call = subject.draw(LONG)
    call = call.but(key=torch.rand_like(call.key))
    assert snippet(subject, call, None, LONG) == ""
    assert snippet(subject, call, None) == ""


def test_the_snippet_of_a_broken_law_gives_the_reported_number():
    mutant = planted()["own-pair-softcap-causal"].subject
    subject = Subject(mutant)
    subject.import_code = (
        "from attnspec.conformance import mutants\n"
        "attention = mutants.load()['own-pair-softcap-causal'].subject.attention"
    )
    case = CASE.but(softcap=0.5, is_causal=True, queries=3, dtype=torch.float32)
    assert Feature.SOFTCAP in mutant.features
    with pytest.raises(Violation) as failure:
        registered()["options-combine"].check(subject, case)
    mismatch = failure.value.mismatch
    names, printed = run(snippet(subject, subject.last_call, mismatch))
    assert mismatch is not None
    assert any(f"{x:.9g}" == mismatch.got for x in names["out"].flatten().tolist())
    assert printed


DEFAULT, AUTOCAST = "the-default-dtype-changes-nothing", "autocast-lowers-the-precision"
IN_BFLOAT16 = "with torch.autocast('cpu', dtype=torch.bfloat16):"


@pytest.mark.parametrize(
    ("name", "law", "line"),
    [
        ("own-scale-in-default-dtype", DEFAULT, "torch.set_default_dtype(torch.bfloat16)"),
        ("own-positions-in-default-dtype", DEFAULT, "torch.set_default_dtype(torch.bfloat16)"),
        ("own-autocast-without-bias", f"{AUTOCAST}-and-nothing-else", IN_BFLOAT16),
        ("own-autocast-sum", f"{AUTOCAST}-and-nothing-else", IN_BFLOAT16),
        (
            "own-autocast-gradient-without-scale",
            f"{AUTOCAST}-of-gradients-and-nothing-else",
            IN_BFLOAT16,
        ),
    ],
)
def test_the_snippet_of_a_call_in_another_state_of_torch_enters_it(name, law, line):
    subject = Subject(planted()[name].subject)
    subject.import_code = (
        "from attnspec.conformance import mutants\n"
        f"attention = mutants.load()['{name}'].subject.attention"
    )
    for case in filter(lambda case: subject.refuses(case) is None, registered()[law].pinned):
        try:
            registered()[law].check(subject, case)
        except Violation as violation:
            mismatch = violation.mismatch
            break
    else:
        raise AssertionError("no case fails")
    code = snippet(subject, subject.last_call, mismatch, case)
    assert line in code
    names, _ = run(code)
    results = names["out"] if mismatch.what == "out" else names["gradients"]
    tensors = results if isinstance(results, tuple) else (results,)
    numbers = [f"{x:.9g}" for each in tensors for x in each.flatten().tolist()]
    assert mismatch.got in numbers
    assert torch.get_default_dtype() == torch.float32


def test_a_call_and_its_backward_pass_are_made_in_one_mode():
    seen = []

    class Seeing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query):
            return query.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append((torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()))
            return grad

    def attention(query, key, value, **options):
        return load("eager").attention(Seeing.apply(query), key, value, **options)

    subject = Subject(replace(load("eager"), attention=attention), import_code="pass")
    for mode in (CallMode.PLAIN, CallMode.DETERMINISTIC, CallMode.THREADS, CallMode.TRAINING):
        call = subject.draw(CASE.but(mode=mode))
        subject.differentiate(call, torch.ones_like(call.query))
        run(snippet(subject, call, None), attention=attention)
    of_threads = [(False, THREADS)] * 2 + [(True, MANY_THREADS)] * 2
    assert seen == [(False, 1)] * 2 + [(True, 1)] * 2 + of_threads
    assert torch.get_num_threads() == 1
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_server_calls_in_inference_mode_in_a_thread_with_threads_of_its_own():
    seen = []

    def attention(query, key, value, **options):
        state = (torch.is_inference_mode_enabled(), torch.get_num_threads())
        seen.append((*state, query.is_inference(), threading.get_ident() == here))
        return load("eager").attention(query, key, value, **options)

    here = threading.get_ident()
    subject = Subject(replace(load("eager"), attention=attention), import_code="pass")
    call = subject.draw(CASE.but(mode=CallMode.SERVING))
    out = subject.call(call)
    names, _ = run(snippet(subject, call, None), attention=attention)
    assert torch.equal(out, names["out"])
    assert seen == [(True, MANY_THREADS, True, False)] * 2
    assert torch.get_num_threads() == 1
    with pytest.raises(ValueError, match="not possible under serving"):
        CASE.but(mode=CallMode.SERVING, backward=True)


@pytest.mark.parametrize("wrt", [("query", "key", "value"), ("key",), ("query",)])
def test_the_next_layer_is_called_before_the_backward_pass(wrt):
    seen = []

    def attention(query, key, value, **options):
        leaves = {each.is_leaf for each in (query, key, value)}
        seen.append((query.detach().clone(), leaves, torch.is_grad_enabled()))
        return load("eager").attention(query, key, value, **options)

    subject = Subject(replace(load("eager"), attention=attention), import_code="pass")
    call = subject.draw(CASE.but(mode=CallMode.LAYERS))
    grad_out = torch.ones_like(call.query)
    _, gradients = subject.differentiate(call, grad_out, wrt=wrt)
    _, expected = subject.differentiate(call.but(mode=CallMode.PLAIN), grad_out, wrt=wrt)
    names, _ = run(snippet(subject, call, None), attention=attention)
    for each in (names["gradients"], expected.values()):
        for one, two in zip(gradients.values(), each, strict=True):
            assert torch.equal(one, two)
    subject.differentiate(call, grad_out, wrt=wrt)
    names, _ = run(snippet(subject, call, None), attention=attention)
    for first, *others in (seen[:3], seen[-3:]):
        assert all(torch.equal(first[0], -other[0]) for other in others)
        assert [each[2] for each in (first, *others)] == [True, True, False]
    assert seen[0][1] == ({False} if len(wrt) == 3 else {False, True})
    assert seen[0][1] == seen[-3][1]


def test_a_call_and_its_backward_pass_are_made_in_threads_of_their_own():
    seen = []

    class Seeing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query):
            seen.append(threading.get_ident())
            return query.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(threading.get_ident())
            return grad

    def attention(query, key, value, **options):
        return load("eager").attention(Seeing.apply(query), key, value, **options)

    subject = Subject(replace(load("eager"), attention=attention), import_code="pass")
    call = subject.draw(CASE.but(mode=CallMode.OTHER_THREAD))
    grad_out = torch.ones_like(call.query)
    _, gradients = subject.differentiate(call, grad_out)
    names, _ = run(snippet(subject, call, None), attention=attention)
    for one, two in zip(gradients.values(), names["gradients"], strict=True):
        assert torch.equal(one, two)
    assert len(seen) == 4
    assert threading.get_ident() not in seen
    with torch.no_grad():
        assert not subject.call(call.but(query=call.query.requires_grad_())).requires_grad


@pytest.mark.parametrize("keeps_a_graph", [True, False])
def test_another_gradient_is_sent_through_a_kept_graph_before(keeps_a_graph):
    seen = []

    class Seeing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query):
            ctx.uses = 0
            return query.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(grad)
            ctx.uses += 1
            if ctx.uses > 1 and not keeps_a_graph:
                raise RuntimeError("it was freed")
            return grad

    def attention(query, key, value, **options):
        return Seeing.apply(load("eager").attention(query, key, value, **options))

    subject = Subject(replace(load("eager"), attention=attention), import_code="pass")
    call = subject.draw(CASE.but(mode=CallMode.TWO_BACKWARDS))
    grad_out = torch.ones_like(call.query)
    _, gradients = subject.differentiate(call, grad_out)
    assert [each.mean().item() for each in seen] == [-1, 1] + [1] * (not keeps_a_graph)
    seen.clear()
    names, _ = run(snippet(subject, subject.last_call, None), attention=attention)
    assert [each.mean().item() for each in seen] == ([-1, 1] if keeps_a_graph else [1])
    for one, two in zip(gradients.values(), names["gradients"], strict=True):
        assert torch.equal(one, two)


def test_the_snippet_of_a_call_under_deterministic_algorithms_requests_them():
    subject = Subject(load("eager"))
    with deterministic_algorithms():
        subject.call(subject.draw(CASE))
    code = snippet(subject, subject.last_call, None)
    assert "torch.use_deterministic_algorithms(True, warn_only=True)" in code
    run(code)
    assert not torch.are_deterministic_algorithms_enabled()
