"""Experiments on equal bits: in repeated calls, and alone or in a batch."""

import torch

from attnspec.conformance.probe.experiment import Finding, inconclusive
from attnspec.conformance.probe.harness import (
    Harness,
    describe,
)
from attnspec.conformance.probe.training import gradients, incoming


def _long(harness: Harness, times: int) -> int:
    """Return a length of about 65 · `times`: a multiple of the unit, and at least two units."""
    return harness.unit * max(2, times * 65 // harness.unit)


def deterministic(harness: Harness) -> Finding:
    """Find out whether equal calls give equal bits, forward and backward."""
    repeats, differences = 0, []
    for dtype in harness.dtypes:
        call = harness.draw(dtype=dtype, queries=_long(harness, 1), keys=_long(harness, 3))
        first = harness.run(call)
        if first.out is None:
            continue
        for _turn in range(2):
            again = harness.run(call)
            if again.out is None or not _same(first.out, again.out):
                differences.append(
                    f"{describe(call)}: {again.problem or 'other bits in another call'}"
                )
            repeats += 1
        grad_out = incoming(call)
        before, _ = gradients(harness, call, grad_out)
        after, _ = gradients(harness, call, grad_out) if before else ({}, "")
        if any(name not in after or not _same(before[name], after[name]) for name in before):
            differences.append(f"{describe(call)}: other bits in the gradients of another call")
        repeats += bool(before)
    if not repeats:
        return inconclusive("no call with longer sequences gives an output")
    if differences:
        return Finding(
            answer="no",
            evidence=tuple(differences),
            facts={"profile": {"deterministic": False}},
        )
    evidence = f"{repeats} calls repeated, with {_long(harness, 3)} keys: equal bits every time"
    return Finding(
        answer="yes",
        evidence=(evidence,),
        facts={"profile": {"deterministic": True}},
    )


def batch_invariant(harness: Harness) -> Finding:
    """Find out whether a batch element has the same bits alone and in a batch."""
    compared, differences = 0, []
    for dtype in harness.dtypes:
        for queries, keys in ((1, 1), (1, 3), (2, 2)):
            call = harness.draw(
                dtype=dtype, batch=4, queries=_long(harness, queries), keys=_long(harness, keys)
            )
            together = harness.run(call)
            if together.out is None:
                continue
            for element in range(4):
                part = slice(element, element + 1)
                alone = harness.run(
                    call.but(query=call.query[part], key=call.key[part], value=call.value[part])
                )
                if alone.out is None:
                    continue
                compared += 1
                if not _same(alone.out, together.out[part]):
                    differences.append(f"{describe(call)}: element {element} has other bits alone")
    if not compared:
        return inconclusive("no batch of four gives an output, or none of its elements alone")
    if differences:
        return Finding(
            answer="no",
            evidence=(f"{len(differences)} of {compared} differ; {differences[0]}",),
            facts={"profile": {"batch_invariant": False}},
        )
    return Finding(
        answer="no difference found",
        evidence=(f"{compared} batch elements, alone and among four: equal bits",),
        facts={"seems": ["batch_invariant"]},
    )


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Compare bits: NaN equals NaN, and the two zeros differ."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[one.element_size()]
    return torch.equal(one.contiguous().view(integer), two.contiguous().view(integer))
