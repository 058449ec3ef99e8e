"""Laws of ADD: the definition, weights, order, padding, shifts, saturation and gradients."""

from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.additive_attention.case import (
    LAYOUTS,
    AdditiveAttentionCase,
    Content,
    cases,
)
from attnspec.conformance.operators.additive_attention.subject import (
    AXES,
    AdditiveAttentionSubject,
)
from attnspec.conformance.operators.explained import explained_by

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
DTYPES = (F64, F32, F16, BF16)
PINNED = (
    AdditiveAttentionCase(batch=1, queries=1, keys=1, d_query=1, d_key=1, d_value=1, d_inner=1),
    AdditiveAttentionCase(batch=1, queries=1, keys=2, d_query=1, d_key=1, d_value=1, d_inner=1),
    AdditiveAttentionCase(),
    AdditiveAttentionCase(queries=3, keys=5, d_inner=2, seed=1),
    *(AdditiveAttentionCase(keys=7, d_inner=8, dtype=dtype, seed=2) for dtype in DTYPES),
    AdditiveAttentionCase(batch=3, queries=7, keys=33, d_inner=33, dtype=F32, seed=3),
)
WIDE = tuple(case for case in PINNED if case.dtype.itemsize >= 4)


def _wide(subject: AdditiveAttentionSubject, **fixed: Any) -> st.SearchStrategy[Any]:
    return cases(subject, dtype=subject.widest, content=Content.NORMAL, **fixed)


@law("ADD-1", pinned=PINNED, explore=cases)
def law_additive_attention_equals_the_definition(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-1: the scores are those of a network with a tanh, and weigh the values by softmax."""
    subject.judge_case(case, "the output is not the mean of the values by additive scores")


@law(
    "ADD-2",
    pinned=(*WIDE[1:], AdditiveAttentionCase(batch=3, keys=5, padded=True, seed=1)),
    explore=cases,
)
def law_additive_weights_sum_to_one(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-2: the weights of a query sum to one, so that values of one are returned."""
    subject.demand(case)
    tensors = case.draw()
    tensors["value"] = torch.ones_like(tensors["value"])
    subject.judge(tensors, "values of one are not returned: the weights do not sum to one")


@law("ADD-3", pinned=WIDE, explore=_wide, cost=2.0)
def law_the_order_of_states_does_not_matter(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-3: keys and values in another order give the same output."""
    tensors = case.draw()
    order = torch.arange(case.keys).roll(1).flip(0)
    moved = {
        name: each[:, order] if name in ("key", "value", "mask") else each
        for name, each in tensors.items()
    }
    with explained_by(subject, subject.cause, (tensors,), (moved,)):
        check_close(
            subject.call(moved).double(),
            subject.call(tensors).double(),
            subject.expect(moved).bound + subject.expect(tensors).bound,
            what="out of states in another order",
            message="the order of the states changes the output",
            axes=AXES,
        )


PADDED = tuple(
    AdditiveAttentionCase(batch=batch, keys=keys, dtype=dtype, padded=True, seed=seed)
    for seed, (batch, keys) in enumerate(((2, 2), (3, 5), (3, 17)))
    for dtype in (F64, F32)
)


@law(
    "ADD-4",
    pinned=PADDED,
    explore=lambda subject: _wide(subject, padded=True, batch=3),
    needs=("mask",),
    cost=2.0,
)
def law_padding_of_states_equals_a_shorter_text(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-4: with a mask, each text gives what it gives alone, without its padding."""
    tensors = case.draw()
    message = f"padding to {case.keys} states changes a text"
    got, bound = subject.judge(tensors, message).double(), subject.expect(tensors).bound
    for text, length in enumerate(case.lengths):
        alone = {
            name: each[text : text + 1, :length] if name in ("key", "value") else each
            for name, each in tensors.items()
            if name != "mask"
        }
        alone["query"] = tensors["query"][text : text + 1]
        expected = subject.expect(alone)
        check_close(
            got[text],
            expected.value[0],
            bound[text] + expected.bound[0],
            what=f"out of text {text}",
            message=f"a text of {length} states differs when it is padded to {case.keys}",
            axes=AXES[1:],
        )


@law(
    "ADD-5",
    pinned=tuple(case.but(content=Content.STEEP) for case in PADDED),
    explore=lambda subject: cases(subject, padded=True, batch=3),
    needs=("mask",),
    cost=2.0,
)
def law_padded_states_reach_nothing(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-5: keys and values of padding may be any finite numbers, and change nothing."""
    tensors = case.draw()
    is_real = tensors["mask"][..., None]
    expected = subject.expect(tensors)
    for number in (-1000.0, 1000.0):
        changed = dict(tensors)
        for name in ("key", "value"):
            changed[name] = torch.where(is_real, tensors[name], number)
        with explained_by(subject, subject.cause, (changed,)):
            check_close(
                subject.call(changed),
                expected.value,
                expected.bound,
                what="out",
                message=f"padded states of {number:g} change the output",
                axes=AXES,
            )


EQUAL_WIDTHS = tuple(
    AdditiveAttentionCase(d_query=width, d_key=width, d_inner=width, dtype=dtype, seed=width)
    for width in (1, 6)
    for dtype in (F64, F32)
)


@law("ADD-6", pinned=EQUAL_WIDTHS, cost=3.0)
def law_a_shift_of_every_key_counts_like_one_of_the_queries(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-6: one vector added to every key changes the weights, as it does added to the queries."""
    tensors = case.draw()
    identity = torch.eye(case.d_inner, dtype=case.dtype)
    tensors |= {"w_query": identity, "w_key": identity}
    shift = torch.linspace(0.5, 1.5, case.d_inner, dtype=torch.float64).to(case.dtype)
    of_keys = tensors | {"key": tensors["key"] + shift}
    of_queries = tensors | {"query": tensors["query"] + shift}
    got = subject.judge(of_keys, "one vector added to every key has another effect than it should")
    other = subject.judge(of_queries, "one vector added to every query has another effect")
    # shifted operands round by half a unit of at most eight, in queries and in keys; the score
    # moves by the sum of |v| times both, and the output by twice that times the largest value
    unit = torch.finfo(case.dtype).eps * 16
    spread = tensors["value"].double().abs().amax(1, keepdim=True)
    check_close(
        got.double(),
        other.double(),
        subject.expect(of_keys).bound
        + subject.expect(of_queries).bound
        + unit * tensors["w_score"].double().abs().sum() * spread,
        what="out of shifted keys",
        message="a shift of the keys and one of the queries give different outputs",
        axes=AXES,
    )


@law(
    "ADD-7",
    pinned=tuple(
        AdditiveAttentionCase(d_inner=width, d_key=width, dtype=dtype, seed=width)
        for width in (1, 4, 16, 64)
        for dtype in (F64, F32)
    ),
    explore=_wide,
)
def law_additive_scores_are_not_scaled(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-7: scores are not divided by the root of a width."""
    subject.judge_case(case, f"with {case.d_inner} hidden channels the scores are scaled")


@law(
    "ADD-8",
    pinned=tuple(
        case.but(biased=True) for case in (*WIDE[1:], *(each for each in PINNED if each.seed == 2))
    ),
    explore=lambda subject: cases(subject, biased=True),
    needs=("bias",),
)
def law_the_bias_is_added_inside_the_tanh(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-8: the bias is added to the projected query and key before the tanh."""
    subject.judge_case(case, "the bias is not added inside the tanh")


@law(
    "ADD-9",
    pinned=tuple(
        AdditiveAttentionCase(keys=5, d_inner=4, content=Content.SATURATED, dtype=dtype, seed=1)
        for dtype in DTYPES
    ),
    explore=lambda subject: cases(subject, content=Content.SATURATED, padded=False),
)
def law_saturated_scores_are_equal(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-9: a query that saturates every tanh scores all keys the same: the mean is plain."""
    tensors = case.draw()
    # with weights of at least one half, all that enters a tanh exceeds 500
    tensors["query"] = torch.full_like(tensors["query"], 1024)
    expected = subject.expect(tensors)
    mean = tensors["value"].double().mean(1, keepdim=True).expand_as(expected.value)
    with explained_by(subject, subject.cause, (tensors,)):
        check_close(
            subject.call(tensors).double(),
            mean,
            expected.bound,
            what="out",
            message="a query of 1024 does not give the mean of the values",
            axes=AXES,
        )


@law(
    "ADD-10",
    pinned=tuple(
        AdditiveAttentionCase(keys=5, d_inner=16, content=Content.STEEP, dtype=dtype, seed=1)
        for dtype in (F64, F32)
    ),
    explore=lambda subject: cases(subject, content=Content.STEEP),
)
def law_steep_scores_do_not_overflow(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-10: scores whose exponentials overflow give the weights of the definition."""
    subject.judge_case(case, "with scores in the hundreds the weights are wrong")


@law("ADD-11", pinned=tuple(case for case in WIDE if case.batch > 1), explore=_wide, cost=2.0)
def law_each_query_of_each_text_is_independent(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-11: other queries and other texts change nothing."""
    tensors = case.draw()
    changed = dict(tensors)
    for name in ("query", "key", "value"):
        other = tensors[name].clone()
        other[1:] = -4 * other[1:]
        if name == "query":
            other[0, 1:] = 8 * other[0, 1:]
        changed[name] = other
    first, second = subject.call(tensors), subject.call(changed)
    with explained_by(subject, subject.cause, (tensors,), (changed,)):
        check_close(
            second[0, :1].double(),
            first[0, :1].double(),
            (subject.expect(tensors).bound + subject.expect(changed).bound)[0, :1],
            what="out of text 0",
            message="other queries or texts change the output of a query",
            axes=AXES[1:],
        )


@law(
    "ADD-12",
    pinned=tuple(
        AdditiveAttentionCase(keys=5, layout=layout, dtype=dtype, seed=1)
        for layout in LAYOUTS
        for dtype in (F64, F32)
    ),
    explore=cases,
)
def law_states_are_read_by_their_strides_and_stay_as_they_are(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-12: operands in any strides are read, and none is written to."""
    tensors = case.draw()
    before = {name: each.clone() for name, each in tensors.items()}
    subject.judge(tensors, f"states that lie {case.layout} are read wrongly")
    for name, each in tensors.items():
        if not torch.equal(each, before[name]):
            raise Explained(f"{name} is written to")


@law(
    "ADD-13",
    pinned=tuple(case.but(backward=True) for case in PINNED),
    explore=lambda subject: cases(subject, backward=True),
    cost=3.0,
)
def law_gradients_of_additive_attention_equal_the_definition(
    subject: AdditiveAttentionSubject, case: AdditiveAttentionCase
) -> None:
    """ADD-13: the gradients of states and weights are those of the definition."""
    subject.judge_gradients(case.draw(), case.draw_gradient())
