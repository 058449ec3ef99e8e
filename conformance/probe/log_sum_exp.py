"""The experiment on the log-sum-exp."""

import math

from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.probe.experiment import Finding, not_supported
from attnspec.conformance.probe.harness import LOOSEST, Harness, describe, dtype_name
from attnspec.spec import Feature


def log_sum_exp(harness: Harness) -> Finding:
    """Find the base and type of the log-sum-exp, and whether the maximum is included."""
    call = harness.draw(return_lse=True)
    result = harness.run(call)
    if result.is_refusal:
        return not_supported(result.message)
    if result.lse is None:
        deviation = f"return_lse: {result.problem}"
        return Finding(answer="wrong", evidence=(result.message,), deviation=deviation)
    oracle_call = harness.oracle_call(call)
    expected = expect(oracle_call, LOOSEST)
    got, exact = result.lse.double(), expected.lse
    assert oracle_call.scale is not None
    scores = oracle_call.query.double() @ oracle_call.key.double().mT * oracle_call.scale
    conventions = {
        "natural logarithm": got,
        "base 2": got * math.log(2),
        "base 10": got * math.log(10),
        "negated": -got,
        "the sum of exponentials and not its logarithm": got.log(),
        "less the maximum": got + scores.amax(-1),
    }
    names = [
        name
        for name, natural in conventions.items()
        if bool(((natural - exact).abs() <= expected.lse_bound).all())
    ]
    first = f"first row {float(got[0, 0, 0]):.6g}, exact {float(exact[0, 0, 0]):.6g}"
    dtype = dtype_name(result.lse.dtype)
    base = names[0] if names else "wrong"
    evidence = f"{describe(call)}: {base}, {dtype} ({first})"
    if base != "natural logarithm":
        return Finding(
            answer=f"{base}, {dtype}",
            evidence=(evidence,),
            deviation=f"the log-sum-exp is not the natural one: {base}",
        )
    return Finding(
        answer=f"{base}, {dtype}",
        evidence=(evidence,),
        facts={"features": [str(Feature.LSE)]},
    )
