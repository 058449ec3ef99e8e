"""Regimes of operators with axes of their own: every class and pair is called and judged."""

import importlib
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest
from trying import judged_count

from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.diagnosis.torch_products import MendedProducts
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases import experts, gated_mlp, packed, paged, rotary
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at
from attnspec.conformance.operators.experts import regimes as of_experts
from attnspec.conformance.operators.experts import router_regimes as of_router
from attnspec.conformance.operators.gated_mlp import regimes as of_gated_mlp
from attnspec.conformance.operators.packed import regimes as of_packed
from attnspec.conformance.operators.paged import regimes as of_paged
from attnspec.conformance.operators.regimes import pairs_of
from attnspec.conformance.operators.rotary import regimes as of_rotary
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.implementations.cpu_products import rows_are_apart

for chapter in (
    *("rotary.gradients", "gated_mlp.definition", "experts.router", "experts.definition"),
    *("packed.in_regimes", "paged.in_regimes"),
):
    importlib.import_module(f"attnspec.conformance.laws.{chapter}")


@dataclass(frozen=True)
class Operator:
    """The law of an operator, a correct one, and its regimes."""

    law: str
    correct: Any
    regimes: Any
    most: int

    def wrong_at(self, *regimes):
        function = wrong_at(
            self.correct.function, self.regimes.call_of, self.regimes.AXES, *regimes
        )
        return subject_of_operator(replace(self.correct, function=function))


OPERATORS = {
    "rotary": Operator(
        law="rotary-is-right-in-every-two-regimes",
        correct=rotary.correct(),
        regimes=of_rotary,
        most=80,
    ),
    "gated_mlp": Operator(
        law="gated-mlp-is-right-in-every-two-regimes",
        correct=gated_mlp.correct(),
        regimes=of_gated_mlp,
        most=80,
    ),
    "router": Operator(
        law="a-router-is-right-in-every-two-regimes",
        correct=experts.correct_router(),
        regimes=of_router,
        most=80,
    ),
    "experts": Operator(
        law="experts-are-right-in-every-two-regimes",
        correct=experts.correct_experts(),
        regimes=of_experts,
        most=95,
    ),
}
OPERATORS |= {
    "packed": Operator(
        law="packed-attention-is-right-in-every-two-regimes",
        correct=packed.correct(),
        regimes=of_packed,
        most=130,
    ),
    "paged": Operator(
        law="paged-attention-is-right-in-every-two-regimes",
        correct=paged.correct(),
        regimes=of_paged,
        most=170,
    ),
}
CLASSES = [
    (operator, (axis, each.name))
    for operator, of in OPERATORS.items()
    for axis, members in of.regimes.AXES.items()
    for each in members
]
PAIRS = [
    ("rotary", ("positions", "131 072 and more"), ("length", "127 to 129")),
    ("rotary", ("turned", "part"), ("layout", "heads inside")),
    ("rotary", ("batch", "own positions"), ("backward", "yes")),
    ("rotary", ("pairs", "odd"), ("dtype", "bfloat16")),
    ("gated_mlp", ("d_model", "127 to 129"), ("d_inner", "63 to 65")),
    ("gated_mlp", ("rows", "over 256"), ("bias", "yes")),
    ("gated_mlp", ("weights", "transposed"), ("layout", "expanded")),
    ("gated_mlp", ("inner width", "odd"), ("backward", "yes")),
    ("router", ("experts", "128 and more"), ("chosen", "all")),
    ("router", ("tokens", "over 256"), ("dtype", "bfloat16")),
    ("router", ("top_k", "8 and more"), ("backward", "yes")),
    ("router", ("weights", "transposed"), ("layout", "expanded")),
    ("experts", ("layout", "channels apart"), ("weights", "transposed")),
    ("experts", ("group", "none"), ("shared", "yes")),
    ("experts", ("group", "64 and more"), ("dtype", "float16")),
    ("experts", ("d_inner", "127 to 129"), ("backward", "yes")),
    ("packed", ("group", "5 to 7"), ("phase", "chunks")),
    ("packed", ("d_head", "128"), ("backward", "yes")),
    ("paged", ("page_size", "128"), ("window", "up to 63")),
    ("paged", ("group", "9 and more"), ("d_head", "128")),
    ("paged", ("longest", "4096 and more"), ("page_size", "one")),
]


@pytest.mark.rotating(parts=3)
@pytest.mark.parametrize(("operator", "regime"), CLASSES, ids=str)
def test_a_mistake_in_one_class_is_found_by_the_pinned_cases(operator, regime):
    of = OPERATORS[operator]
    law = registered()[of.law]
    with pytest.raises(Violation):
        judged_count(law, of.wrong_at(regime), law.pinned)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize(("operator", "first", "second"), PAIRS, ids=str)
def test_a_mistake_where_two_classes_meet_is_found(operator, first, second):
    of = OPERATORS[operator]
    law, subject = registered()[of.law], of.wrong_at(first, second)
    with pytest.raises(Violation):
        judged_count(law, subject, law.wide(subject, 0))


APART = {
    "rotary": {
        "batch: own positions with positions: zero",
        "length: 63 to 65 with positions: zero",
        "length: 127 to 129 with positions: zero",
        # of one head or one token, they are contiguous
        "heads: one with layout: heads inside",
        "layout: heads inside with length: one",
    },
    "gated_mlp": {
        # one row has no other place
        "layout: expanded with rows: one",
        "layout: rows apart with rows: one",
    },
    "router": {
        # one token has no other place
        "layout: expanded with tokens: one",
        "layout: rows apart with tokens: one",
        # no more are chosen than there are
        "experts: 2 with top_k: 3 to 7",
        "experts: 2 with top_k: 8 and more",
        "experts: 3 to 7 with top_k: 8 and more",
        "chosen: all with top_k: 1",
        # the score of a single choice is one, whatever the logits are
        "backward: yes with top_k: 1",
    },
    "experts": {
        # no more are chosen than there are, and a single one has every token
        "experts: 1 with top_k: 2",
        "experts: 1 with top_k: 3 to 7",
        "experts: 1 with top_k: 8 and more",
        "experts: 2 to 7 with top_k: 8 and more",
        "chosen: some with experts: 1",
        "experts: 1 with group: none",
        "chosen: all with group: none",
    },
    "packed": {
        # a single sequence has one length
        "lengths: equal with sequences: one",
        "lengths: one 64 times as long with sequences: one",
        "lengths: unequal with sequences: one",
        "lengths: one 64 times as long with longest: 1 to 32",
        # its oracle would take seconds
        "longest: 4096 and more with phase: prefill",
    },
    "paged": {
        # a single sequence has one length
        "lengths: equal with sequences: one",
        "lengths: one 64 times as long with sequences: one",
        "lengths: unequal with sequences: one",
        "lengths: one 64 times as long with longest: 1 to 32",
        # its oracle would take seconds
        "longest: 4096 and more with phase: prefill",
        # pages have at most 256 tokens, and a long sequence has many
        "longest: 1 to 32 with pages: over 64",
        "longest: 511 to 513 with pages: one each",
        "longest: 4096 and more with pages: one each",
        "page size: 65 to 127 with pages: over 64",
        "page size: 128 with pages: over 64",
        "page size: 256 with pages: over 64",
    },
}
"""Pairs of classes that no call joins."""


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_design_covers_every_pair_that_can_meet(operator):
    of = OPERATORS[operator]
    # the operands lie between NaN, which torch's products read on some CPUs
    with MendedProducts() if rows_are_apart() is None else nullcontext():
        record = check(registered()[of.law], subject_of_operator(of.correct), Effort.STANDARD)
    assert record.outcome is Outcome.PASSED, record.message
    assert record.coverage["missing"] == []
    axes = of.regimes.AXES.values()
    every = {
        frozenset((one, other))
        for left, right in combinations(axes, 2)
        for one in left
        for other in right
    }
    called = claimed(of)
    apart = {" with ".join(sorted(map(str, each))) for each in every - called}
    assert apart == APART[operator]
    assert record.coverage["claimed"] == len(called)


def claimed(of):
    law, subject = registered()[of.law], subject_of_operator(of.correct)
    calls = [of.regimes.call_without_memory(case) for case in law.wide(subject, 0)]
    assert len(calls) < of.most
    return frozenset().union(*(pairs_of(call, of.regimes.AXES) for call in calls))
