"""The laws of GRD: their cases, and how they compare gradients."""

from dataclasses import replace

import pytest
import torch
from trying import pinned_judged_count

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.evidence.soundness.cases import draw_call
from attnspec.conformance.laws.gradients.calls import incoming_layouts
from attnspec.conformance.laws.gradients.options import OPTION_VALUES, PAIRS
from attnspec.conformance.laws.gradients.sums import sum_with_error
from attnspec.conformance.laws.gradients.zeros import unread_keys
from attnspec.conformance.laws.helpers.gradients import (
    KINDS,
    check_gradients,
    check_zero,
    incoming_gradient,
    incoming_kind,
    operands_with_gradient,
    require_evidence_of_gradients,
)
from attnspec.conformance.mutants.bases.dense import dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit
from attnspec.conformance.mutants.registry import Mutant
from attnspec.implementations import load
from attnspec.spec import (
    Case,
    Feature,
    Implementation,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Profile,
)

F32 = torch.float32
LAWS = {name: law for name, law in laws.load().items() if law.clauses[0].startswith("GRD-")}
MUTANTS = {
    name: mutant
    for name, mutant in mutants.load().items()
    if isinstance(mutant.subject, Implementation) and mutant.killed_by in LAWS
}
EASY = Case(queries=1, keys=1, d_head=1, d_value=1, dtype=F32, backward=True)
"""One number of each."""
SMALL = Case(queries=3, keys=5, d_head=4, d_value=4, dtype=F32, backward=True)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)


def declared(attention: Explicit) -> Implementation:
    """Declare an attention with a backward pass of its own, and every option."""
    return replace(dense("explicit", attention), features=frozenset(Feature) - {Feature.DROPOUT})


CORRECT = declared(Explicit())


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutant_is_right_on_an_easy_input(mutant: Mutant) -> None:
    subject = Subject(mutant.subject)
    for case in (EASY.but(backward=False), SMALL.but(backward=False)):
        call = subject.draw(case)
        subject.judge(call, subject.call(call), "wrong")
    # at least one operand has the right gradient
    call, grad = subject.draw(EASY), incoming_gradient(EASY)
    expected = subject.expect_gradients(call, grad)
    _, gradients = subject.differentiate(call, grad)
    right = []
    for name, gradient in gradients.items():
        try:
            check_gradients(call, {name: gradient}, expected, "wrong")
        except Violation:
            continue
        right.append(name)
    assert right


@pytest.mark.parametrize("dtype", [torch.float64, F32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tile", [1, 16, 64])
def test_the_backward_pass_of_the_base_is_right(dtype: torch.dtype, tile: int) -> None:
    attention = Explicit()
    attention.tile = tile
    subject = Subject(declared(attention))
    for seed in range(12):
        drawn = draw_call(seed, dtype, longest=70)
        call = drawn.call.but(return_lse=False)
        is_float = call.attn_mask is not None and call.attn_mask.is_floating_point()
        wrt = (*WRT, "attn_mask") if is_float else WRT
        _, gradients = subject.differentiate(call, drawn.grad, wrt=wrt)
        check_gradients(call, gradients, subject.expect_gradients(call, drawn.grad), "wrong")


def test_the_base_refuses_dropout() -> None:
    call = draw(SMALL)
    with pytest.raises(ValueError, match="dropout_p"):
        Explicit()(call.query, call.key, call.value, dropout_p=0.5)


@pytest.mark.parametrize("name", WRT)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 1e-3])
def test_held_gradients_reject_a_single_wrong_element(name: str, wrong: float) -> None:
    subject = Subject(CORRECT)
    call, grad = subject.draw(SMALL), incoming_gradient(SMALL)
    expected = subject.expect_gradients(call, grad)
    _, gradients = subject.differentiate(call, grad)
    check_gradients(call, gradients, expected, "wrong")
    spoiled = {
        operand: gradient.clone() for operand, gradient in gradients.items() if gradient is not None
    }
    spoiled[name][0, 0, 2, 1] += wrong
    with pytest.raises(Violation, match=f"gradient of {name} at batch 0, head 0, .* 2, channel 1"):
        check_gradients(call, spoiled, expected, "wrong")


@pytest.mark.parametrize(
    ("garbage", "cause"),
    [
        (None, "must not be None"),
        (torch.zeros(1, 1, 3, 5), "shape"),
        (torch.zeros(1, 1, 3, 4, dtype=torch.float64), "dtype"),
        ("zeros", "must be a tensor"),
    ],
)
def test_held_gradients_reject_garbage(garbage: object, cause: str) -> None:
    subject = Subject(CORRECT)
    call, grad = subject.draw(SMALL), incoming_gradient(SMALL)
    expected = subject.expect_gradients(call, grad)
    with pytest.raises(Violation, match=cause):
        check_gradients(call, {"query": garbage}, expected, "wrong")


def test_only_zeros_are_zeros() -> None:
    gradient = torch.zeros(1, 1, 2, 3)
    gradient[0, 0, 1, 1] = -0.0
    check_zero(gradient, "key", None, "wrong")
    where = torch.tensor([True, False])[:, None].expand(1, 1, 2, 3)
    for wrong in (1e-45, torch.nan, torch.inf):
        spoiled = gradient.clone()
        spoiled[0, 0, 1, 2] = wrong
        check_zero(spoiled, "key", where, "wrong")
        with pytest.raises(Violation, match="key 1, channel 2"):
            check_zero(spoiled, "key", None, "wrong")


def test_a_gradient_without_an_expectation_is_a_mistake_of_the_law() -> None:
    subject = Subject(CORRECT)
    call, grad = subject.draw(SMALL), incoming_gradient(SMALL)
    expected = subject.expect_gradients(call, grad)
    with pytest.raises(ValueError, match="attn_mask"):
        check_gradients(call, {"attn_mask": grad}, expected, "wrong")


@pytest.mark.parametrize("dtype", [torch.float64, F32, torch.float16, torch.bfloat16], ids=str)
def test_incoming_gradients_are_of_different_kinds(dtype: torch.dtype) -> None:
    case = Case(batch=2, heads=3, kv_heads=3, queries=4, keys=2, d_value=5, dtype=dtype)
    made = {kind: incoming_gradient(case, kind) for kind in KINDS}
    for grad in made.values():
        assert grad.shape == (2, 3, 4, 5)
        assert grad.dtype == dtype
        assert grad.is_contiguous()
        assert bool(grad.isfinite().all())
        assert bool(grad.any())
    assert float(made["one hot"].sum()) == float(made["one hot"].abs().max()) == 1
    assert float(made["constant"].min()) == float(made["constant"].max()) == 1
    sizes = {kind: float(grad.double().abs().max()) for kind, grad in made.items()}
    assert sizes["large"] == 512 * sizes["normal"] or sizes["large"] > 1e12
    assert sizes["small"] < 0.1
    assert torch.equal(incoming_gradient(case), incoming_gradient(case))
    assert not torch.equal(incoming_gradient(case), incoming_gradient(case, purpose="another"))
    assert {incoming_kind(case.but(seed=seed)) for seed in range(6)} == set(KINDS)


def test_incoming_gradients_lie_in_every_layout() -> None:
    grad = incoming_gradient(Case(batch=2, heads=3, kv_heads=3, queries=4, keys=2, d_value=5))
    layouts = incoming_layouts(grad)
    strides = [laid_out.stride() for laid_out in layouts.values()]
    assert (0, 0, 0, 0) in strides
    assert len(set(strides)) >= 8
    assert {laid_out.shape for laid_out in layouts.values()} == {grad.shape}
    assert sum(torch.equal(laid_out, grad) for laid_out in layouts.values()) >= 6


def test_a_sum_in_float64_is_within_its_own_error() -> None:
    numbers = torch.randn(2, 1, 999, 3, dtype=torch.float64)
    numbers[:, :, 500:] *= 1e12
    total, error = sum_with_error(numbers, 2)
    assert total.shape == error.shape == (2, 1, 1, 3)
    backwards = numbers.flip(2).cumsum(2)[:, :, -1:]
    assert bool(((total - backwards).abs() <= 2 * error).all())
    assert bool((error < 1e-12 * numbers.abs().sum(2, keepdim=True)).all())


def test_any_two_options_meet() -> None:
    def used(case: Case) -> set[int]:
        return {
            number
            for number, option in enumerate(OPTION_VALUES)
            if all(getattr(case, name) == value for name, value in option.items())
        }

    met = {frozenset(pair) for case in PAIRS for pair in [used(case)]}
    assert len(met) == len(PAIRS) == len(OPTION_VALUES) * (len(OPTION_VALUES) - 1) // 2 - 1


def test_the_gradient_of_a_mask_is_requested_if_it_is_claimed() -> None:
    biased = SMALL.but(mask=BIAS)
    assert operands_with_gradient(Subject(load("sdpa_math")), biased) == (*WRT, "attn_mask")
    assert operands_with_gradient(Subject(load("sdpa_flash")), biased) == WRT
    assert operands_with_gradient(Subject(load("sdpa_math")), SMALL) == WRT
    padded = SMALL.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS))
    assert operands_with_gradient(Subject(load("sdpa_math")), padded) == WRT


def test_a_pass_within_a_bound_as_wide_as_the_gradient_is_no_evidence() -> None:
    subject = Subject(CORRECT)
    expected = subject.expect_gradients(subject.draw(SMALL), incoming_gradient(SMALL))
    require_evidence_of_gradients(expected)
    for name in WRT:
        each = getattr(expected, name)
        wide = replace(each, bound=each.bound + each.exact.abs().max())
        expected = replace(expected, **{name: wide})
    with pytest.raises(NotClaimed):
        require_evidence_of_gradients(expected)


def test_keys_are_unread_for_a_whole_group() -> None:
    subject = Subject(CORRECT)
    case = Case(heads=4, kv_heads=2, queries=2, keys=3, is_causal=True, backward=True)
    call = draw(case)
    assert unread_keys(subject, call).tolist() == [[[False, False, True]] * 2]
    rows = torch.zeros(1, 4, 2, dtype=torch.bool)
    rows[0, 1, 0] = True
    assert unread_keys(subject, call, rows).tolist() == [[[False, True, True], [True, True, True]]]


def test_poison_that_is_declared_blocked_must_be_blocked() -> None:
    leaking = replace(CORRECT, profile=Profile())
    with pytest.raises(Violation, match="no query reads"):
        pinned_judged_count(LAWS["unreadable-nan-and-infinity-reach-no-gradient"], Subject(leaking))
