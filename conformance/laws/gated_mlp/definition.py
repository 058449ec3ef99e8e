"""Laws of GLU: the definition of a gated MLP, the order of gate and up, and the gate function."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.gated_mlp import regimes
from attnspec.conformance.operators.gated_mlp.case import Content, GatedMLPCase, cases
from attnspec.conformance.operators.gated_mlp.subject import (
    AXES,
    GatedMLPSubject,
    is_within,
    packed,
    unpacked,
)
from attnspec.conformance.operators.regimes import note_call
from attnspec.spec.gated_mlp import GateForm, GatePacking

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
PINNED = (
    GatedMLPCase(shape=(1,), d_model=1, d_inner=1),
    GatedMLPCase(),
    GatedMLPCase(dtype=F32),
    GatedMLPCase(shape=(2, 3), d_model=5, d_inner=7, seed=1),
    GatedMLPCase(content=Content.LARGE, seed=2),
    GatedMLPCase(content=Content.LARGE, seed=2, dtype=F32),
    GatedMLPCase(content=Content.SMALL, seed=3),
    GatedMLPCase(dtype=F16, d_model=8),
    GatedMLPCase(dtype=BF16, d_model=8),
    GatedMLPCase(shape=(17,), d_model=33, d_inner=65, dtype=F32),
)
EXACT = tuple(case for case in PINNED if case.dtype.itemsize >= 4)


def _exact_cases(subject: GatedMLPSubject) -> st.SearchStrategy[GatedMLPCase]:
    return cases(subject, dtype=subject.widest)


@law("GLU-1", pinned=PINNED, explore=cases)
def law_gated_mlp_equals_the_definition(subject: GatedMLPSubject, case: GatedMLPCase) -> None:
    """GLU-1: each output is down(f(gate(x), up(x))), within its bound."""
    _check(subject, case.draw(), "a gated MLP differs from down(f(gate(x), up(x)))")


def _check(subject: GatedMLPSubject, tensors: dict[str, torch.Tensor], message: str) -> None:
    """Check a call against the definition, and name what a wrong result is instead."""
    with _explaining(subject, tensors):
        subject.judge(tensors, message)


@contextmanager
def _explaining(subject: GatedMLPSubject, tensors: dict[str, torch.Tensor]) -> Iterator[None]:
    """Name what the result of a call is instead, if a check fails and there is a name for it.

    Raises:
        Explained: naming it.
        Violation: that of the check, if the result is right or has no name.
    """
    try:
        yield
    except Violation as error:
        failed = subject.last_call
        expected, got = subject.expect(tensors), subject.call(tensors)
        cause = "" if is_within(got, expected) else _cause(subject, tensors, got)
        subject.last_call = failed  # the call that the failure shows
        if not cause:
            raise
        raise Explained(cause, error.mismatch) from None


def _cause(subject: GatedMLPSubject, tensors: dict[str, torch.Tensor], got: torch.Tensor) -> str:
    """Return what explains a wrong result, if anything does: another order or function, a bias."""
    for name in ("gate_bias", "up_bias", "down_bias"):
        without = {key: torch.zeros_like(each) for key, each in tensors.items() if key == name}
        if without and is_within(got, subject.expect(tensors | without)):
            return f"{name} is forgotten"
    for name, other in _misread(tensors, subject.profile.packing).items():
        if is_within(got, subject.expect(other)):
            return f"{name}: the profile says {subject.profile.packing}"
    for form in GateForm:
        if is_within(got, subject.expect(tensors, form)):
            return f"the function of gate and up is {form}: the profile says {subject.profile.form}"
    return ""


@law("GLU-2", pinned=EXACT[1:], explore=_exact_cases)
def law_gate_and_up_lie_in_the_declared_order(subject: GatedMLPSubject, case: GatedMLPCase) -> None:
    """GLU-2: gate and up are the matrices, or the rows of one matrix, that the profile says."""
    tensors, declared = case.draw(), subject.profile.packing
    _check(subject, tensors, f"gate and up are not read in the order {declared}")


def _misread(
    tensors: dict[str, torch.Tensor], declared: GatePacking
) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors as another order of gate and up reads them, by its description."""
    swapped = {"gate": tensors["up"], "up": tensors["gate"]}
    if "gate_bias" in tensors:
        swapped |= {"gate_bias": tensors["up_bias"], "up_bias": tensors["gate_bias"]}
    result = {"gate and up are swapped": dict(tensors) | swapped}
    if declared is GatePacking.SEPARATE:
        return result
    for other in GatePacking:
        if other not in (declared, GatePacking.SEPARATE):
            read = unpacked(packed(tensors, declared), other)
            title = f"the rows of gate and up are read as {other}"
            if {declared, other} != {GatePacking.GATE_FIRST, GatePacking.UP_FIRST}:
                result[title] = read
    return result


@law("GLU-3", pinned=EXACT[1:], explore=_exact_cases)
def law_the_gate_function_is_the_declared_one(subject: GatedMLPSubject, case: GatedMLPCase) -> None:
    """GLU-3: the function of gate and up is the declared one, and no other one of the profile."""
    tensors, declared = case.draw(), subject.profile.form
    _check(subject, tensors, f"the function of gate and up is not {declared}")


@law("GLU-4", pinned=EXACT[1:])
def law_the_clamped_form_clamps_gate_above_and_up_on_both_sides(
    subject: GatedMLPSubject, case: GatedMLPCase
) -> None:
    """GLU-4: a gate above 7 counts as 7, up counts within [-7, 7], and a low gate is kept."""
    if subject.profile.form is not GateForm.CLAMPED:
        raise NotClaimed("the form of the profile does not clamp")
    # one channel of the input times one row each: gate and up are the numbers themselves
    places = [(50.0, 1.0), (7.0, 1.0), (3.0, 50.0), (3.0, -50.0), (-9.0, 2.0), (-50.0, 2.0)]
    numbers = torch.tensor(places, dtype=torch.float64)
    tensors = {
        "x": torch.ones(1, 1),
        "gate": numbers[:, :1],
        "up": numbers[:, 1:],
        "down": torch.eye(len(numbers))[:1] * 0,
    }
    for place, (gate, up) in enumerate(places):
        tensors["down"] = torch.zeros(1, len(places))
        tensors["down"][0, place] = 1
        given = {name: each.to(case.dtype) for name, each in tensors.items()}
        subject.judge(given, f"gate {gate:g} and up {up:g} are not clamped at 7")


@law("GLU-5", pinned=EXACT[1:], explore=_exact_cases, cost=3.0)
def law_gated_mlp_is_affine_in_up(subject: GatedMLPSubject, case: GatedMLPCase) -> None:
    """GLU-5: twice the difference that up makes is the difference that twice up makes."""
    plain = case.but(biased=False, content=Content.SMALL).draw()  # within the limits of a clamp
    results, bounds = {}, {}
    for factor in (0, 1, 2):
        tensors = plain | {"up": plain["up"] * factor}
        results[factor] = subject.call(tensors).double()
        bounds[factor] = subject.expect(tensors).bound
    with _explaining(subject, plain):
        check_close(
            results[2] - results[0],
            2 * (results[1] - results[0]),
            bounds[2] + 2 * bounds[1] + bounds[0],
            what="out with twice up, less out without up",
            message="the result is not affine in up",
            axes=AXES,
        )


BIASED = tuple(case.but(biased=True) for case in EXACT)


@law("GLU-6", pinned=BIASED, explore=lambda subject: _exact_cases(subject), needs={"bias"})
def law_biases_of_gate_up_and_down_are_added(subject: GatedMLPSubject, case: GatedMLPCase) -> None:
    """GLU-6: the biases are added to gate, to up and to the output, each to its own."""
    tensors = case.but(biased=True).draw()
    _check(subject, tensors, "the biases of gate, up and down are not added, each to its own")


@law("GLU-7", pinned=PINNED[1:], explore=cases, cost=2.0)
def law_gated_mlp_treats_rows_independently(subject: GatedMLPSubject, case: GatedMLPCase) -> None:
    """GLU-7: a row of the output does not depend on other rows of the input."""
    tensors = case.draw()
    rows = tensors["x"].flatten(0, -2)
    changed = rows * 8  # of the same values in another row, a mean would not move
    changed[::2] = rows[::2]
    other = tensors | {"x": changed.reshape(tensors["x"].shape)}
    first, second = (subject.call(each).double().flatten(0, -2) for each in (tensors, other))
    bounds = [subject.expect(each).bound.flatten(0, -2) for each in (tensors, other)]
    check_close(
        second[::2],
        first[::2],
        bounds[0][::2] + bounds[1][::2],
        what="out of the unchanged rows",
        message="other rows change the result of a row",
        axes=AXES,
    )


@law(
    "GLU-8",
    pinned=tuple(case.but(backward=True) for case in PINNED),
    explore=lambda subject: cases(subject, backward=True),
    cost=3.0,
)
def law_gradients_of_gated_mlp_equal_the_definition(
    subject: GatedMLPSubject, case: GatedMLPCase
) -> None:
    """GLU-8: the gradients of input, weights and biases are those of the definition."""
    tensors, grad_out = case.draw(), case.draw_gradient()
    if "bias" in subject.implementation.features:
        tensors = case.but(biased=True).draw()
    _check_gradients(subject, tensors, grad_out)


@law("GLU-9", pinned=regimes.PINNED, wide=regimes.cases)
def law_gated_mlp_is_right_in_every_two_regimes(
    subject: GatedMLPSubject, case: GatedMLPCase
) -> None:
    """GLU-9: in any two classes of sizes, strides, types, biases and passes, it is right."""
    tensors = case.draw()
    expected = subject.expect(tensors)
    with _explaining(subject, tensors):
        check_close(
            subject.call(tensors),
            expected.value,
            expected.bound,
            what="out",
            message="a gated MLP of this size, layout or type differs from the definition",
            axes=AXES,
        )
    if case.backward:
        _check_gradients(subject, tensors, case.draw_gradient())
    x = tensors["x"].requires_grad_(case.backward)
    call = regimes.GatedMLPCall(x, tensors["down"], case.biased)
    note_call(call, expected.value, expected.bound, regimes.AXES)


def _check_gradients(
    subject: GatedMLPSubject, tensors: dict[str, torch.Tensor], grad_out: torch.Tensor
) -> None:
    with _explaining(subject, tensors):
        got = subject.gradients(tensors, grad_out)
        for name, allowed in subject.expect_gradients(tensors, grad_out).items():
            check_close(
                got[name],
                allowed.value,
                allowed.bound,
                what=f"gradient of {name}",
                message=f"the gradient of {name} differs from that of the definition",
                axes=AXES,
            )
