"""The laws of GRD: right attention passes them, each planted bug is caught by those it names."""

from dataclasses import replace

import pytest
import torch
from trying import pinned_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.call import Call
from attnspec.conformance.inputs import draw
from attnspec.conformance.law import Law, registered
from attnspec.conformance.laws.gradients_calls import strided
from attnspec.conformance.laws.gradients_features import OPTIONS, PAIRS
from attnspec.conformance.laws.gradients_sides import (
    KINDS,
    check_gradients,
    check_zero,
    evident_gradients,
    gradients_of,
    incoming,
    kind_of,
)
from attnspec.conformance.laws.gradients_sums import added
from attnspec.conformance.laws.gradients_zeros import unread
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.explicit import Explicit, Gradients, Pass
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.soundness_cases import draw_call
from attnspec.conformance.subject import WRT, Raised, Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.implementations import load
from attnspec.reference.implementation import REFERENCE
from attnspec.spec import (
    Case,
    CausalAlignment,
    EmptyRow,
    Feature,
    Implementation,
    Mask,
    MaskedNonfinite,
    MaskKind,
    MaskPattern,
    MaskShape,
    Profile,
    chapter_text,
)
from attnspec.spec.clauses import parse

F32 = torch.float32
LAWS = {name: law for name, law in registered().items() if law.clauses[0].startswith("GRD-")}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, Implementation) and LAWS.keys() & set(mutant.kills)
}
EASY = Case(queries=1, keys=1, d_head=1, d_value=1, dtype=F32, backward=True)
"""One number of each."""
SMALL = Case(queries=3, keys=5, d_head=4, d_value=4, dtype=F32, backward=True)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)


class LowerRight(Explicit):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)

    def displacement(self, queries: int, keys: int) -> torch.Tensor:
        return super().displacement(queries, keys) - (keys - queries)


class Answering(Dense):
    """Give another answer for rows that read nothing."""

    def __init__(self, answer: EmptyRow) -> None:
        self.answer = answer

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        fill = 1 / max(scores.shape[-1], 1) if self.answer is EmptyRow.MEAN else torch.nan
        empty = ~visible.any(-1, keepdim=True)
        return super().softmax(scores, visible).masked_fill(empty, fill)


class Blocking(Explicit):
    """Replace what no query may read by zeros, on both ways."""

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        names = ("is_causal", "window", "attn_mask")
        options = {name: getattr(done, name) for name in names}
        key, value = _blocked(done.query, done.key, done.value, options)
        return super().backward(replace(done, key=key, value=value), given, needed)

    def forward(self, query, key, value, attn_mask, options):
        asked = {name: options[name] for name in ("is_causal", "window")}
        key, value = _blocked(query, key, value, asked | {"attn_mask": attn_mask})
        return super().forward(query, key, value, attn_mask, options)


def _blocked(query, key, value, options):
    call = Call(query=query, key=key, value=value, **options)
    hidden = unread(Subject(dense("dense", Dense())), call)[..., None]
    return key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)


def _declared(name: str, attention: Dense, **profile: object) -> Implementation:
    base = dense(name, attention)
    features = frozenset(Feature) - {Feature.DROPOUT}
    return replace(base, features=features, profile=replace(base.profile, **profile))


BASES = {
    "dense": _declared("dense", Dense()),
    "tiled": _declared("tiled", Tiled()),
    "explicit": _declared("explicit", Explicit()),
    "lower_right": _declared(
        "lower_right", LowerRight(), causal_alignment=CausalAlignment.LOWER_RIGHT
    ),
    "blocking": _declared("blocking", Blocking(), masked_nonfinite=MaskedNonfinite.BLOCKED),
    "mean": _declared("mean", Answering(EmptyRow.MEAN), empty_row=EmptyRow.MEAN),
    "nan": _declared("nan", Answering(EmptyRow.NAN), empty_row=EmptyRow.NAN),
    "eager": load("eager"),
    "reference": REFERENCE,
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
def test_right_attention_passes_under_every_profile(base: Implementation, law: Law) -> None:
    said = pinned_on(law, Subject(base))
    if base.profile.empty_row is not EmptyRow.ZERO and law.clauses == ("GRD-5",):
        assert said == 0
        return
    assert said >= (0.6 if base.name == "lower_right" else 0.9) * len(law.pinned)


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        pytest.param(mutant, name, id=f"{id}-{name}")
        for id, mutant in MUTANTS.items()
        for name in mutant.kills
        if name in LAWS
    ],
)
def test_mutant_is_killed_by_the_pinned_cases_of_each_law_it_names(
    mutant: Mutant, law: str
) -> None:
    with pytest.raises((Violation, Raised)):
        pinned_on(registered()[law], Subject(mutant.subject))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutant_is_right_on_an_easy_input(mutant: Mutant) -> None:
    subject = Subject(mutant.subject)
    for case in (EASY.but(backward=False), SMALL.but(backward=False)):
        call = subject.draw(case)
        subject.judge(call, subject.call(call), "wrong")
    # an operand at least has the right gradient of one number
    call, grad = subject.draw(EASY), incoming(EASY)
    expected = subject.expect_gradients(call, grad)
    _, found = subject.differentiate(call, grad)
    right = []
    for name, got in found.items():
        try:
            check_gradients(call, {name: got}, expected, "wrong")
        except Violation:
            continue
        right.append(name)
    assert right


def test_every_law_kills_a_mutant() -> None:
    assert set(LAWS) <= {name for mutant in MUTANTS.values() for name in mutant.kills}


def test_chapter_and_laws_name_each_other() -> None:
    chapter = parse("gradients", chapter_text("gradients"))
    named = {law: each.id for each in chapter for law in each.held_by}
    assert named == {law.check.__name__: law.clauses[0] for law in LAWS.values()}


@pytest.mark.parametrize("dtype", [torch.float64, F32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tile", [1, 16, 64])
def test_the_backward_pass_of_the_base_is_right(dtype: torch.dtype, tile: int) -> None:
    attention = Explicit()
    attention.tile = tile
    subject = Subject(_declared("explicit", attention))
    for seed in range(12):
        drawn = draw_call(seed, dtype, longest=70)
        call = drawn.call.but(return_lse=False)
        is_float = call.attn_mask is not None and call.attn_mask.is_floating_point()
        wrt = (*WRT, "attn_mask") if is_float else WRT
        _, found = subject.differentiate(call, drawn.grad, wrt=wrt)
        check_gradients(call, found, subject.expect_gradients(call, drawn.grad), "wrong")


def test_the_base_refuses_dropout() -> None:
    call = draw(SMALL)
    with pytest.raises(ValueError, match="dropout_p"):
        Explicit()(call.query, call.key, call.value, dropout_p=0.5)


@pytest.mark.parametrize("name", WRT)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 1e-3])
def test_held_gradients_reject_a_single_wrong_element(name: str, wrong: float) -> None:
    subject = Subject(BASES["explicit"])
    call, grad = subject.draw(SMALL), incoming(SMALL)
    expected = subject.expect_gradients(call, grad)
    _, found = subject.differentiate(call, grad)
    check_gradients(call, found, expected, "wrong")
    spoiled = {each: got.clone() for each, got in found.items() if got is not None}
    spoiled[name][0, 0, 2, 1] += wrong
    with pytest.raises(Violation, match=f"gradient of {name} at batch 0, head 0, .* 2, channel 1"):
        check_gradients(call, spoiled, expected, "wrong")


@pytest.mark.parametrize(
    ("garbage", "told"),
    [
        (None, "must come back, got None"),
        (torch.zeros(1, 1, 3, 5), "shape"),
        (torch.zeros(1, 1, 3, 4, dtype=torch.float64), "dtype"),
        ("zeros", "must be a tensor"),
    ],
)
def test_held_gradients_reject_garbage(garbage: object, told: str) -> None:
    subject = Subject(BASES["explicit"])
    call, grad = subject.draw(SMALL), incoming(SMALL)
    expected = subject.expect_gradients(call, grad)
    with pytest.raises(Violation, match=told):
        check_gradients(call, {"query": garbage}, expected, "wrong")


def test_only_zeros_are_zeros() -> None:
    got = torch.zeros(1, 1, 2, 3)
    got[0, 0, 1, 1] = -0.0
    check_zero(got, "key", None, "wrong")
    where = torch.tensor([True, False])[:, None].expand(1, 1, 2, 3)
    for wrong in (1e-45, torch.nan, torch.inf):
        spoiled = got.clone()
        spoiled[0, 0, 1, 2] = wrong
        check_zero(spoiled, "key", where, "wrong")
        with pytest.raises(Violation, match="key 1, channel 2"):
            check_zero(spoiled, "key", None, "wrong")


def test_a_gradient_without_an_expectation_is_a_mistake_of_the_law() -> None:
    subject = Subject(BASES["explicit"])
    call, grad = subject.draw(SMALL), incoming(SMALL)
    expected = subject.expect_gradients(call, grad)
    with pytest.raises(ValueError, match="attn_mask"):
        check_gradients(call, {"attn_mask": grad}, expected, "wrong")


@pytest.mark.parametrize("dtype", [torch.float64, F32, torch.float16, torch.bfloat16], ids=str)
def test_incoming_gradients_are_of_different_kinds(dtype: torch.dtype) -> None:
    case = Case(batch=2, heads=3, kv_heads=3, queries=4, keys=2, d_value=5, dtype=dtype)
    made = {kind: incoming(case, kind) for kind in KINDS}
    for grad in made.values():
        assert grad.shape == (2, 3, 4, 5)
        assert grad.dtype == dtype
        assert grad.is_contiguous()
        assert bool(grad.isfinite().all())
        assert bool(grad.any())
    assert float(made["one hot"].sum()) == float(made["one hot"].abs().max()) == 1
    assert float(made["constant"].min()) == float(made["constant"].max()) == 1
    sizes = {kind: float(grad.double().abs().max()) for kind, grad in made.items()}
    assert sizes["large"] == 64 * sizes["normal"] or sizes["large"] > 1e12
    assert sizes["small"] < 0.1
    assert torch.equal(incoming(case), incoming(case))
    assert not torch.equal(incoming(case), incoming(case, purpose="another"))
    assert {kind_of(case.but(seed=seed)) for seed in range(6)} == set(KINDS)


def test_incoming_gradients_lie_in_every_layout() -> None:
    grad = incoming(Case(batch=2, heads=3, kv_heads=3, queries=4, keys=2, d_value=5))
    given = strided(grad)
    strides = [each.stride() for each in given.values()]
    assert (0, 0, 0, 0) in strides
    assert len(set(strides)) >= 8
    assert {each.shape for each in given.values()} == {grad.shape}
    assert sum(torch.equal(each, grad) for each in given.values()) >= 6


def test_a_sum_in_float64_is_within_its_own_error() -> None:
    numbers = torch.randn(2, 1, 999, 3, dtype=torch.float64)
    numbers[:, :, 500:] *= 1e12
    total, own = added(numbers, 2)
    assert total.shape == own.shape == (2, 1, 1, 3)
    backwards = numbers.flip(2).cumsum(2)[:, :, -1:]
    assert bool(((total - backwards).abs() <= 2 * own).all())
    assert bool((own < 1e-12 * numbers.abs().sum(2, keepdim=True)).all())


def test_any_two_options_meet() -> None:
    def used(case: Case) -> set[int]:
        return {
            number
            for number, option in enumerate(OPTIONS)
            if all(getattr(case, name) == value for name, value in option.items())
        }

    met = {frozenset(pair) for case in PAIRS for pair in [used(case)]}
    assert len(met) == len(PAIRS) == len(OPTIONS) * (len(OPTIONS) - 1) // 2 - 1


def test_the_gradient_of_a_mask_is_asked_for_where_it_is_claimed() -> None:
    biased = SMALL.but(mask=BIAS)
    assert gradients_of(Subject(load("sdpa_math")), biased) == (*WRT, "attn_mask")
    assert gradients_of(Subject(load("sdpa_flash")), biased) == WRT
    assert gradients_of(Subject(load("sdpa_math")), SMALL) == WRT
    padded = SMALL.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS))
    assert gradients_of(Subject(load("sdpa_math")), padded) == WRT


def test_a_pass_within_a_bound_as_wide_as_the_gradient_is_no_evidence() -> None:
    subject = Subject(BASES["explicit"])
    expected = subject.expect_gradients(subject.draw(SMALL), incoming(SMALL))
    evident_gradients(expected)
    for name in WRT:
        each = getattr(expected, name)
        wide = replace(each, bound=each.bound + each.exact.abs().max())
        expected = replace(expected, **{name: wide})
    with pytest.raises(NotClaimed):
        evident_gradients(expected)


def test_keys_are_unread_for_a_whole_group() -> None:
    subject = Subject(BASES["explicit"])
    case = Case(heads=4, kv_heads=2, queries=2, keys=3, is_causal=True, backward=True)
    call = draw(case)
    assert unread(subject, call).tolist() == [[[False, False, True]] * 2]
    rows = torch.zeros(1, 4, 2, dtype=torch.bool)
    rows[0, 1, 0] = True
    assert unread(subject, call, rows).tolist() == [[[False, True, True], [True, True, True]]]


def test_poison_is_blocked_where_that_is_declared() -> None:
    leaking = replace(BASES["explicit"], profile=Profile())
    with pytest.raises(Violation, match="nobody reads"):
        pinned_on(LAWS["poison-that-nobody-reads-reaches-no-gradient"], Subject(leaking))
