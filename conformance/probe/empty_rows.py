"""The experiment on queries that may not read any key."""

from collections.abc import Iterator

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.probe.experiment import Finding, inconclusive
from attnspec.conformance.probe.harness import (
    Harness,
    describe,
    distance,
    readings,
    with_profile,
)
from attnspec.conformance.probe.options import BOOL_MASK, INVERTED, align, masked
from attnspec.spec import CausalAlignment, EmptyRow, MaskKind, MaskPattern


def empty_rows(harness: Harness) -> Finding:
    """Find the result of a query that may not read any key."""
    calls = list(_emptying(harness))
    if not calls:
        return inconclusive("no call that it accepts hides every key from a query")
    evidence, names = [], {}
    for call, oracle_call in calls:
        result = harness.run(call)
        if result.out is None:
            evidence.append(result.message)
            continue
        lower = {"causal_alignment": CausalAlignment.LOWER_RIGHT} if call.is_causal else {}
        conventions = [
            with_profile(str(empty_row), oracle_call, empty_row=empty_row, **lower)
            for empty_row in EmptyRow
        ]
        compared = {
            reading.name: distance(result.out, reading, with_empty=True) for reading in conventions
        }
        matches = [name for name, (is_near, _) in compared.items() if is_near]
        first = result.out[0, 0, 0]
        shown = ", ".join(f"{float(number):.4g}" for number in first[:3])
        differences = "; ".join(f"not {name}: {details}" for name, (_, details) in compared.items())
        given = matches[0] if matches else differences
        evidence.append(f"{describe(call)}, query 0 may read no key: {given} ({shown}, …)")
        names[_way(call)] = matches[0] if matches else "other"
    if not names:
        return inconclusive(*evidence)
    same = len(set(names.values())) == 1
    each = ", ".join(f"{way}: {name}" for way, name in names.items())
    answer = next(iter(names.values())) if same else each
    if "other" in names.values():
        return Finding(
            answer=answer,
            evidence=tuple(evidence),
            deviation=f"an empty row gives something else than the profile allows ({each})",
        )
    usual = names.get("empty_row", next(iter(names.values())))
    others = {way: name for way, name in names.items() if name != usual}
    return Finding(
        answer=answer,
        evidence=tuple(evidence),
        facts={"profile": {"empty_row": usual} | others},
    )


def _way(call: Call) -> str:
    """Return the answer of the profile that a call with an empty row shows."""
    if call.attn_mask is None:
        return "empty_row"
    return f"empty_row_{'bool' if call.attn_mask.dtype == torch.bool else 'float'}_mask"


def _emptying(harness: Harness) -> Iterator[tuple[Call, Call]]:
    """Yield calls with an empty row, each with the call for the oracle."""
    if not harness.missing_parameter("attn_mask"):
        for kind in MaskKind:
            call = masked(kind, MaskPattern.EMPTY_ROWS).accepted(harness)
            if call is None:
                continue
            oracle_call = harness.oracle_call(call)
            plain = masked(kind, MaskPattern.RANDOM).accepted(harness)
            if plain is not None and kind is MaskKind.FLOAT:
                if harness.compare(plain, readings(harness.oracle_call(plain))).names:
                    yield call, oracle_call
            elif plain is not None:
                names = BOOL_MASK.compare(harness, plain).names
                if names == (INVERTED,) and call.attn_mask is not None:
                    yield call.but(attn_mask=~call.attn_mask), oracle_call
                elif names == ("right",):
                    yield call, oracle_call
    if not harness.missing_parameter("is_causal"):
        more, few = 5 * harness.unit, 3 * harness.unit
        call, verdict = align(harness, is_causal=True, queries=more, keys=few)
        if verdict.names == (CausalAlignment.LOWER_RIGHT,):
            yield call, harness.oracle_call(call)
