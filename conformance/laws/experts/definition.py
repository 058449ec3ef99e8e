"""Laws of MOE: the sum over the chosen experts, what it does not depend on, and its gradients."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.experts import regimes
from attnspec.conformance.operators.experts.case import Choice, ExpertsCase, experts_cases
from attnspec.conformance.operators.experts.subject import AXES, ExpertsSubject
from attnspec.conformance.operators.gated_mlp.case import Content
from attnspec.conformance.operators.gated_mlp.subject import is_within
from attnspec.conformance.operators.regimes import note_call

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
PINNED = (
    ExpertsCase(tokens=1, d_model=1, d_inner=1, experts=1, top_k=1),
    ExpertsCase(tokens=1, experts=3, top_k=1),
    ExpertsCase(),
    ExpertsCase(dtype=F32),
    ExpertsCase(tokens=7, experts=4, top_k=3, content=Content.LARGE, seed=1),
    ExpertsCase(tokens=33, d_model=5, experts=6, choice=Choice.UNEVEN, seed=2, dtype=F32),
    ExpertsCase(dtype=F16),
    ExpertsCase(dtype=BF16),
)
EXACT = tuple(case for case in PINNED if case.dtype.itemsize >= 4)


def _exact_cases(subject: ExpertsSubject) -> st.SearchStrategy[ExpertsCase]:
    return experts_cases(subject, dtype=subject.widest)


@law("MOE-8", pinned=PINNED, explore=experts_cases)
def law_experts_give_the_weighted_sum_of_the_chosen(
    subject: ExpertsSubject, case: ExpertsCase
) -> None:
    """MOE-8: the output is the sum of the chosen experts' results, each times its score."""
    subject.judge(case.draw(), "the output is not the sum of the chosen experts times their scores")


@law("MOE-9", pinned=EXACT[2:], explore=_exact_cases, cost=2.0)
def law_permuted_experts_with_their_indices_change_nothing(
    subject: ExpertsSubject, case: ExpertsCase
) -> None:
    """MOE-9: permuting the experts and renaming them in the indices changes nothing."""
    tensors = case.draw()
    order = torch.arange(case.experts).roll(1 + case.seed % max(case.experts - 1, 1))
    stacked = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")
    moved = {name: each[order] if name in stacked else each for name, each in tensors.items()}
    moved["indices"] = order.argsort()[tensors["indices"]]
    first, second = subject.call(tensors).double(), subject.call(moved).double()
    check_close(
        second,
        first,
        subject.expect(tensors).bound + subject.expect(moved).bound,
        what="out with permuted experts",
        message="permuting the experts together with their indices changes the result",
        axes=AXES,
    )


@law(
    "MOE-10",
    pinned=tuple(case.but(top_k=case.experts) for case in EXACT),
    explore=_exact_cases,
    cost=2.0,
)
def law_all_experts_give_the_dense_sum(subject: ExpertsSubject, case: ExpertsCase) -> None:
    """MOE-10: if every token has every expert, the output is the sum over all experts."""
    tensors = case.but(top_k=case.experts).draw()
    expected = subject.expect(tensors)
    check_close(
        subject.call(tensors),
        expected.value,
        expected.bound,
        what="out with every expert",
        message="with every expert chosen, the output is not the sum over all experts",
        axes=AXES,
    )


@law(
    "MOE-11",
    pinned=tuple(case.but(biased=True) for case in EXACT),
    explore=_exact_cases,
    needs={"bias"},
)
def law_each_expert_adds_its_own_biases(subject: ExpertsSubject, case: ExpertsCase) -> None:
    """MOE-11: each expert adds its biases of gate, up and down, the last times its score."""
    tensors = case.but(biased=True).draw()
    expected, got = subject.expect(tensors), subject.call(tensors)
    if not is_within(got, expected):
        for name in ("gate_bias", "up_bias", "down_bias"):
            without = tensors | {name: torch.zeros_like(tensors[name])}
            if is_within(got, subject.expect(without)):
                raise Explained(f"the {name} of an expert is forgotten")
    check_close(
        got,
        expected.value,
        expected.bound,
        what="out",
        message="an expert does not add its own biases, the last times its score",
        axes=AXES,
    )


@law("MOE-12", pinned=PINNED[2:], explore=experts_cases, cost=2.0)
def law_experts_treat_tokens_independently(subject: ExpertsSubject, case: ExpertsCase) -> None:
    """MOE-12: the result of a token is the same whatever other tokens hold and choose."""
    tensors = case.draw()
    kept = slice(0, None, 2)
    # the others are larger, and crowd into the experts of the kept ones
    changed = {name: tensors[name].clone() for name in ("x", "indices")}
    changed["x"][1::2] *= 8
    changed["indices"][1::2] = changed["indices"][:1]
    alone = {name: tensors[name][kept] for name in ("x", "indices", "scores")}
    first, bound = subject.call(tensors).double(), subject.expect(tensors).bound
    for what, other, rows in (("changed", changed, kept), ("absent", alone, slice(None))):
        given = dict(tensors) | other
        check_close(
            subject.call(given).double()[rows],
            first[kept],
            bound[kept] + subject.expect(given).bound[rows],
            what="out of the unchanged tokens",
            message=f"a token's result changes if other tokens are {what}",
            axes=AXES,
        )


GROUPS = tuple(
    ExpertsCase(tokens=tokens, experts=experts, top_k=top_k, choice=choice, dtype=dtype)
    for dtype in (torch.float64, F32)
    for choice in (Choice.FIRST, Choice.LAST, Choice.UNEVEN)
    for tokens, experts, top_k in ((1, 4, 1), (3, 4, 2), (16, 5, 1), (17, 3, 2), (65, 6, 2))
)


@law("MOE-13", pinned=GROUPS)
def law_groups_of_tokens_have_any_size(subject: ExpertsSubject, case: ExpertsCase) -> None:
    """MOE-13: experts may have no token, one, or all of them, around any tile."""
    sizes = case.indices().flatten().bincount(minlength=case.experts).tolist()
    subject.judge(case.draw(), f"groups of {sizes} tokens give a wrong result")


@law(
    "MOE-14",
    pinned=tuple(case.but(shared=True) for case in EXACT),
    explore=_exact_cases,
    needs={"shared"},
)
def law_a_shared_expert_adds_to_every_token(subject: ExpertsSubject, case: ExpertsCase) -> None:
    """MOE-14: a shared expert adds its result to every token, with score one."""
    tensors = case.but(shared=True).draw()
    expected, got = subject.expect(tensors), subject.call(tensors)
    without = {name: each for name, each in tensors.items() if not name.startswith("shared_")}
    if not is_within(got, expected) and is_within(got, subject.expect(without)):
        raise Explained("the shared expert is forgotten")
    check_close(
        got,
        expected.value,
        expected.bound,
        what="out",
        message="a shared expert does not add its result to every token with score one",
        axes=AXES,
    )


@law(
    "MOE-15",
    pinned=tuple(case.but(backward=True) for case in PINNED[1:]),
    explore=lambda subject: experts_cases(subject, backward=True),
    cost=3.0,
)
def law_gradients_of_experts_equal_the_definition(
    subject: ExpertsSubject, case: ExpertsCase
) -> None:
    """MOE-15: the gradients of tokens, scores and weights are those of the definition."""
    claimed = subject.implementation.features
    case = case.but(biased="bias" in claimed, shared="shared" in claimed)
    _check_gradients(subject, case)


@law("MOE-17", pinned=regimes.PINNED, wide=regimes.cases)
def law_experts_are_right_in_every_two_regimes(subject: ExpertsSubject, case: ExpertsCase) -> None:
    """MOE-17: in any two classes of sizes, groups, strides, types and passes, they are right."""
    tensors = case.draw()
    expected = subject.expect(tensors)
    check_close(
        subject.call(tensors),
        expected.value,
        expected.bound,
        what="out",
        message="experts of these sizes, groups, layout or type differ from the definition",
        axes=AXES,
    )
    if case.backward:
        _check_gradients(subject, case)
    weights = (tensors[name] for name in ("gate", "up", "down"))
    call = regimes.call_of(
        tensors["x"].requires_grad_(case.backward), tensors["indices"], tensors["scores"], *weights
    )
    call = call._replace(is_biased=case.biased, is_shared=case.shared)
    note_call(call, expected.value, expected.bound, regimes.AXES)


def _check_gradients(subject: ExpertsSubject, case: ExpertsCase) -> None:
    tensors, grad_out = case.draw(), case.draw_gradient()
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
