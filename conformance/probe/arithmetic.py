"""Experiments on numbers: storage types, the default scale and rounding."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.probe.experiment import UNKNOWN, Finding, inconclusive
from attnspec.conformance.probe.harness import (
    LOOSEST,
    SCALES,
    CallResult,
    Harness,
    Reading,
    describe,
    distance,
    dtype_name,
    readings,
    with_profile,
)
from attnspec.conformance.probe.training import gradients, incoming
from attnspec.spec import (
    Float64Precision,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Rounding,
    RoundingLevel,
    Values,
)

HARD_INPUTS = (
    (Values.NORMAL, 1, 0),
    (Values.PEAKED, 1, 0),
    (Values.PEAKED, 7, 1),
    (Values.NEGATIVE, 1, 0),
    (Values.GROWING, 7, 0),
    (Values.OFFSET, 1, 0),
    (Values.OFFSET, 7, 1),
    (Values.CANCELLATION, 1, 0),
    (Values.CANCELLATION, 7, 1),
)
"""Inputs that separate the levels: family of values, multiple of the base length, and seed."""

LARGE_BIAS = 48.0
"""A bias common to all keys, which leaves the softmax unchanged."""

LARGE_VALUE = 48.0
"""A number common to all values, which leaves the gradients of queries and keys unchanged."""

KEY_UNITS = 42
"""Keys of equal rounding error, in length units: the one weight of 1 beside them is small."""

MIDPOINT_OFFSET = 0.04
"""Distance of a weight from the midpoint of two numbers, in units of its rounding error."""


def storage_types(harness: Harness) -> Finding:
    """Find the storage types that are accepted and give right results."""
    evidence, wrong, causal, answer = [], [], [], []
    right: list[str] = []
    facts: dict[str, Any] = {"dtypes": right}
    for dtype in harness.dtypes:
        call, name = draw(harness.case(dtype=dtype)), dtype_name(dtype)
        oracle_call = harness.oracle_call(call)
        known = readings(oracle_call)
        if dtype == torch.float64:
            known.append(
                with_profile(
                    "right to float32", oracle_call, float64_precision=Float64Precision.FLOAT32
                )
            )
        verdict = harness.compare(call, known)
        evidence.append(verdict.message)
        if verdict.names:
            right.append(name)
            is_narrow = "right" not in verdict.names
            answer.append(f"{name} (accurate to float32)" if is_narrow else name)
            if is_narrow:
                facts["float64"] = _accuracy(harness, call)
                facts["profile"] = {"float64_precision": str(Float64Precision.FLOAT32)}
        elif not verdict.is_refusal:
            wrong.append(name)
            masked = Reading(name="causal", call=oracle_call.but(is_causal=True))
            if harness.compare(call, [masked]).names:
                causal.append(name)
    deviation = f"wrong in the plainest call: {', '.join(wrong)}" if wrong else ""
    if wrong and wrong == causal:
        deviation = (
            f"a query reads no later key, although is_causal is not set: {', '.join(wrong)}; "
            "read is_causal, or declare a supports that refuses every case without it"
        )
    return Finding(
        answer=", ".join(answer) or "none is right",
        evidence=tuple(evidence),
        deviation=deviation,
        facts=facts,
    )


def _accuracy(harness: Harness, call: Call) -> str:
    """Return the largest error of a call, and its bound, in words."""
    out = harness.run(call).out
    expected = expect(harness.oracle_call(call), LOOSEST)
    if out is None:
        return "no output"
    error = (out - expected.out).abs()
    worst = int((error / expected.bound).argmax())
    return f"error {error.flatten()[worst]:.0e}, bound {expected.bound.flatten()[worst]:.0e}"


def default_scale(harness: Harness) -> Finding:
    """Find the default scale, and whether an explicit scale is applied."""
    verdict, contract = harness.scales, next(iter(SCALES))
    evidence, facts = [verdict.message], {}
    missing = harness.missing_parameter("scale")
    if missing:
        evidence.append(missing)
        facts["supports"] = [["case.scale is not None", missing]]
    else:
        call = harness.draw(scale=0.37)
        explicit = harness.compare(
            call, readings(call, {"ignored": harness.oracle_call(call.but(scale=None))})
        )
        evidence.append(explicit.message)
        if explicit.is_refusal:
            facts["supports"] = [["case.scale is not None", explicit.problem]]
        elif explicit.names[:1] != ("right",):
            details = " or ".join(explicit.names) or explicit.problem or "wrong"
            return Finding(
                answer=" or ".join(verdict.names) or UNKNOWN,
                evidence=tuple(evidence),
                deviation=f"an explicit scale: {details}",
            )
    if not verdict.names:
        return Finding(answer=UNKNOWN, evidence=tuple(evidence), facts=facts)
    answer = " or ".join(verdict.names)
    deviation = (
        "" if contract in verdict.names else f"the default scale is {answer}, not {contract}"
    )
    if deviation:
        facts["supports"] = [*facts.get("supports", []), ["case.scale is None", deviation]]
    return Finding(
        answer=answer,
        evidence=tuple(evidence),
        deviation=deviation,
        facts=facts,
    )


def rounding(harness: Harness) -> Finding:
    """Find the narrowest level under which every hard input stays within its bound."""
    if not harness.scales.names:
        return inconclusive("the plainest call is wrong, whatever the rounding")
    results = list(_hard(harness))
    if not results:
        return inconclusive("no hard input gives an output in any storage type")
    backward = list(_hard_gradients(harness))
    evidence, size = [], f"{len(results)} hard calls, {len(backward)} backward"
    types = ", ".join(dict.fromkeys(dtype_name(result.call.value.dtype) for result in results))
    for level in RoundingLevel:
        exceedance = next(_exceedances(harness, level, results, backward), None)
        if exceedance is None:
            evidence.append(f"{size}, {types}: all within the bound of level {level}")
            return Finding(
                answer=str(level),
                evidence=tuple(evidence),
                facts={"profile": {"rounding": str(level)}},
            )
        evidence.append(f"level {level}: not within the bound; {exceedance}")
    return Finding(
        answer="outside every level",
        evidence=tuple(evidence),
        deviation="it rounds more often, or more coarsely, than any level allows",
    )


def _narrow(harness: Harness) -> list[torch.dtype]:
    """Return the accepted types in which the levels differ most."""
    accepted = [
        dtype
        for dtype in harness.dtypes
        if harness.run(draw(harness.case(dtype=dtype))).out is not None
    ]
    return [dtype for dtype in accepted if torch.finfo(dtype).bits == 16] or accepted[-1:]


def _hard(harness: Harness) -> Iterator[CallResult]:
    """Yield the results of calls that separate the levels."""
    for dtype in _narrow(harness):
        for values, times, seed in HARD_INPUTS:
            length = 6 * times * harness.unit
            call = harness.draw(dtype=dtype, values=values, seed=seed, queries=length, keys=length)
            result = harness.run(call)
            if result.out is not None:
                yield result
        bias = _bias(harness, dtype)
        if bias is not None:
            yield from _biased(harness, dtype, bias)
            yield from _rounded_sums(harness, dtype, bias)


def _biased(harness: Harness, dtype: torch.dtype, bias: Mask) -> Iterator[CallResult]:
    """Yield results with a bias that is large and nearly the same for all keys.

    Its rounding error in a narrow type exceeds the error allowed for any other step.
    """
    for seed in range(2):
        call = harness.draw(dtype=dtype, mask=bias, seed=seed)
        assert call.attn_mask is not None
        result = harness.run(call.but(attn_mask=call.attn_mask + LARGE_BIAS))
        if result.out is not None:
            yield result


def _rounded_sums(harness: Harness, dtype: torch.dtype, bias: Mask) -> Iterator[CallResult]:
    """Yield the result of a call whose weights round down, except the one whose value is read.

    The sum of the rounded weights then has the same relative error as each of them. The mask holds
    nearly all of each score, so rounding the queries has no effect.
    """
    call = harness.draw(dtype=dtype, mask=bias, keys=KEY_UNITS * harness.unit)
    assert call.attn_mask is not None
    scale = harness.oracle_call(call).scale
    if not scale or call.query.shape[3] < 2:
        return
    u = torch.finfo(dtype).eps / 2
    # the first is the largest; relative rounding errors are largest just above a power of two
    weights = torch.full((call.key.shape[2],), 0.5 * (1 + (1 - MIDPOINT_OFFSET) * u))
    weights = weights.double().to(call.key.device)
    weights[:2] = torch.tensor([1.0, 0.5 * (1 + (1 + MIDPOINT_OFFSET) * u)])
    mask_row = weights.log().to(dtype)
    rest = (weights.log() - mask_row.double()) / scale
    query, key, value = (torch.zeros_like(x) for x in (call.query, call.key, call.value))
    query[..., :2] = 1
    key[..., 0] = rest.to(dtype)
    key[..., 1] = (rest - rest.to(dtype).double()).to(dtype)
    value[:, :, 1] = torch.linspace(1, 2, value.shape[3]).to(value)
    mask = mask_row.expand_as(call.attn_mask)
    result = harness.run(call.but(query=query, key=key, value=value, attn_mask=mask))
    if result.out is not None:
        yield result


def _bias(harness: Harness, dtype: torch.dtype) -> Mask | None:
    """Return a float mask without infinities, or `None` if the target does not add such a mask."""
    if harness.missing_parameter("attn_mask"):
        return None
    bias = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)
    call = harness.draw(dtype=dtype, mask=bias)
    return bias if harness.compare(call, readings(harness.oracle_call(call))).names else None


def _hard_gradients(
    harness: Harness,
) -> Iterator[tuple[Call, torch.Tensor, dict[str, torch.Tensor]]]:
    """Yield hard calls, incoming gradients and the gradients of the target, if there are any."""
    for dtype in _narrow(harness):
        for values in (Values.NORMAL, Values.PEAKED):
            call = harness.draw(dtype=dtype, values=values)
            grad_out = incoming(call)
            results, _ = gradients(harness, call, grad_out)
            if results:
                yield call, grad_out, results
        call = _offset_values(harness, dtype)
        grad_out = incoming(call)
        results, _ = gradients(harness, call, grad_out)
        if results:
            yield call, grad_out, results


def _offset_values(harness: Harness, dtype: torch.dtype) -> Call:
    """Return a call whose gradients of weights are large and nearly the same for all keys.

    If they are rounded to a narrow type, the error exceeds that allowed for any other step of the
    backward pass. Weights are equal and keys come in pairs of opposite sign, so that an error
    common to a row, as that of its mean gradient, has no effect.
    """
    call = harness.draw(dtype=dtype)
    key = call.key.clone()
    pairs = key.shape[2] // 2
    key[:, :, pairs : 2 * pairs] = -key[:, :, :pairs]
    key[:, :, 2 * pairs :] = 0
    return call.but(query=torch.zeros_like(call.query), key=key, value=call.value + LARGE_VALUE)


def _exceedances(
    harness: Harness,
    level: RoundingLevel,
    results: list[CallResult],
    backward: list[tuple[Call, torch.Tensor, dict[str, torch.Tensor]]],
) -> Iterator[str]:
    """Yield a description of each result beyond the bound of a level, as they are compared."""
    profile = replace(LOOSEST, rounding=Rounding(level=level))
    for result in results:
        assert result.out is not None
        reading = Reading(name=str(level), call=harness.oracle_call(result.call), profile=profile)
        is_within, details = distance(result.out, reading)
        if not is_within:
            yield f"{describe(result.call)}: {details}"
    for call, grad_out, computed in backward:
        expected_gradients = expect_gradients(harness.oracle_call(call), grad_out, profile)
        for name, gradient in computed.items():
            expected = getattr(expected_gradients, name)
            try:
                check_close(gradient, expected.exact, expected.bound, what=f"d{name}", message="")
            except Violation as error:
                yield f"{describe(call)}: {error.mismatch or error}"
