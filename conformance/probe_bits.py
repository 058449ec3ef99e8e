"""Experiments on equal bits: in another call, and alone or in a batch."""

import torch

from attnspec.conformance.probe import UNKNOWN, Finding, experiment
from attnspec.conformance.probe_rig import (
    Rig,
    in_words,
)
from attnspec.conformance.probe_training import gradients, incoming


def _long(rig: Rig, times: int) -> int:
    """A length that is taken, of about 128 and more."""
    return rig.unit * max(2, times * 65 // rig.unit)


@experiment("deterministic")
def deterministic(rig: Rig) -> Finding:
    """Whether equal calls give equal bits, forward and backward."""
    _ = rig.base
    same, told = 0, []
    for dtype in rig.dtypes:
        call = rig.draw(dtype=dtype, queries=_long(rig, 1), keys=_long(rig, 3))
        first = rig.ask(call)
        if first.out is None:
            continue
        for _turn in range(2):
            again = rig.ask(call)
            if again.out is None or not _same(first.out, again.out):
                told.append(f"{in_words(call)}: {again.problem or 'other bits in another call'}")
            same += 1
        grad_out = incoming(call)
        one, _ = gradients(rig, call, grad_out)
        two, _ = gradients(rig, call, grad_out) if one else ({}, "")
        if any(name not in two or not _same(one[name], two[name]) for name in one):
            told.append(f"{in_words(call)}: other bits in the gradients of another call")
        same += bool(one)
    if not same:
        evidence = "no longer call is answered"
        return Finding(question="deterministic", answer=UNKNOWN, evidence=(evidence,))
    if told:
        return Finding(
            question="deterministic",
            answer="no",
            evidence=tuple(told),
            facts={"profile": {"deterministic": False}},
        )
    evidence = f"{same} calls repeated, with {_long(rig, 3)} keys: equal bits every time"
    return Finding(
        question="deterministic",
        answer="yes",
        evidence=(evidence,),
        facts={"profile": {"deterministic": True}},
    )


@experiment("batch invariant")
def batch_invariant(rig: Rig) -> Finding:
    """Whether a batch element has the bits that it has alone."""
    _ = rig.base
    compared, told = 0, []
    for dtype in rig.dtypes:
        for queries, keys in ((1, 1), (1, 3), (2, 2)):
            call = rig.draw(
                dtype=dtype, batch=4, queries=_long(rig, queries), keys=_long(rig, keys)
            )
            together = rig.ask(call)
            if together.out is None:
                continue
            for element in range(4):
                part = slice(element, element + 1)
                alone = rig.ask(
                    call.but(query=call.query[part], key=call.key[part], value=call.value[part])
                )
                if alone.out is None:
                    continue
                compared += 1
                if not _same(alone.out, together.out[part]):
                    told.append(f"{in_words(call)}: element {element} has other bits alone")
    if not compared:
        evidence = "it answers no batch of four, or none of its elements alone"
        return Finding(question="batch invariant", answer=UNKNOWN, evidence=(evidence,))
    if told:
        return Finding(
            question="batch invariant",
            answer="no",
            evidence=(f"{len(told)} of {compared} differ; {told[0]}",),
            facts={"profile": {"batch_invariant": False}},
        )
    return Finding(
        question="batch invariant",
        answer="no difference found",
        evidence=(f"{compared} batch elements, alone and among four: equal bits",),
        facts={"seems": ["batch_invariant"]},
    )


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Equal bits: NaN equals NaN, and the zeros differ."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[one.element_size()]
    return torch.equal(one.contiguous().view(whole), two.contiguous().view(whole))
