"""Laws of MOE: the choice of a router, ties, scores, and their gradients."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.experts import router_regimes as regimes
from attnspec.conformance.operators.experts.case import RouterCase, router_cases
from attnspec.conformance.operators.experts.router import AXES, RouterSubject
from attnspec.conformance.operators.gated_mlp.subject import is_within
from attnspec.conformance.operators.regimes import note_call
from attnspec.spec.experts import RouterProfile, RouterScores, RouterTies

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
PINNED = (
    RouterCase(tokens=1, d_model=1, experts=2, top_k=1),
    RouterCase(),
    RouterCase(dtype=F32),
    RouterCase(tokens=5, experts=8, top_k=3, seed=1),
    RouterCase(tokens=5, experts=8, top_k=3, seed=1, scale=0.1, dtype=F32),
    RouterCase(tokens=2, experts=4, top_k=4, seed=2),
    RouterCase(tokens=4, d_model=16, experts=7, scale=6.0, seed=3),
    RouterCase(tokens=17, d_model=33, experts=64, top_k=8, seed=4, dtype=F32),
    RouterCase(d_model=8, dtype=F16),
    RouterCase(d_model=8, dtype=BF16),
)
EXACT = tuple(case for case in PINNED if case.dtype.itemsize >= 4)


def _exact_cases(subject: RouterSubject) -> st.SearchStrategy[RouterCase]:
    return router_cases(subject, dtype=subject.widest)


@law("MOE-1", pinned=PINNED, explore=router_cases)
def law_router_chooses_the_largest_logits(subject: RouterSubject, case: RouterCase) -> None:
    """MOE-1: the chosen experts are those on top for some logits within their bounds."""
    tensors = case.draw()
    routed = subject.call(tensors, case.top_k)
    subject.check_choice(tensors, routed, "the chosen experts are not those of the largest logits")


@law("MOE-2", pinned=EXACT[1:])
def law_equal_logits_are_chosen_as_declared(subject: RouterSubject, case: RouterCase) -> None:
    """MOE-2: of experts with equal logits, any or the lowest are chosen, as declared."""
    # rows that are equal numbers have logits that are equal numbers, and small integers are exact
    count = max(case.experts, case.top_k + 2)
    rows = torch.tensor([2.0, 1.0, 1.0]).repeat(count)[:count, None]
    rows = rows.expand(count, case.d_model) if case.seed % 2 else rows.flip(0)
    rows = rows.expand(count, case.d_model)
    tensors = {"x": torch.ones(case.tokens, case.d_model), "weight": rows.contiguous()}
    tensors = {name: each.to(case.dtype) for name, each in tensors.items()}
    routed = subject.call(tensors, case.top_k)
    subject.check_choice(
        tensors, routed, "among experts with equal logits, one with less is chosen"
    )
    if subject.profile.ties is RouterTies.LOWEST:
        order = rows[:, 0].sort(descending=True, stable=True).indices[: case.top_k]
        expected = order.sort().values.tolist()
        for token, chosen in enumerate(routed.indices.sort(-1).values.tolist()):
            if chosen != expected:
                raise Violation(
                    f"of equal logits, the lowest experts are declared: token {token} has "
                    f"{chosen}, expected {expected}"
                )


@law("MOE-3", pinned=EXACT, explore=_exact_cases)
def law_router_scores_are_the_declared_function(subject: RouterSubject, case: RouterCase) -> None:
    """MOE-3: the scores are the declared function of the logits, before or after the choice."""
    tensors, declared = case.draw(), subject.profile
    routed = subject.call(tensors, case.top_k)
    expected = subject.expect(tensors, routed.indices)
    if not is_within(routed.scores, expected):
        for scores in RouterScores:
            other = RouterProfile(scores=scores, renormalized=declared.renormalized)
            if scores is not declared.scores and is_within(
                routed.scores, subject.expect(tensors, routed.indices, other)
            ):
                raise Explained(f"{_WHICH[scores]}: the profile says {declared.scores}")
    check_close(
        routed.scores,
        expected.value,
        expected.bound,
        what="scores",
        message=f"the scores are not those of {declared.scores}",
        axes=AXES,
    )


_WHICH = {
    RouterScores.SOFTMAX_ALL: "the softmax is taken over all experts, before the choice",
    RouterScores.SOFTMAX_CHOSEN: "the softmax is taken over the chosen experts, after the choice",
    RouterScores.SIGMOID: "the scores are logistic functions of the logits",
}


@law("MOE-4", pinned=EXACT, explore=_exact_cases)
def law_router_scores_are_renormalized_as_declared(
    subject: RouterSubject, case: RouterCase
) -> None:
    """MOE-4: the scores of a token sum to one if the profile says so, else to their own sum."""
    tensors = case.draw()
    routed = subject.call(tensors, case.top_k)
    expected = subject.expect(tensors, routed.indices)
    is_one = subject.profile.renormalized or (subject.profile.scores is RouterScores.SOFTMAX_CHOSEN)
    size = expected.value.abs().sum(-1)
    check_close(
        routed.scores.double().sum(-1),
        torch.ones_like(size) if is_one else expected.value.sum(-1),
        expected.bound.sum(-1) + 2.0**-48 * size,
        what="sum of the scores",
        message="the scores do not sum to one"
        if is_one
        else "the scores are renormalized, which the profile denies",
        axes=AXES[:1],
    )


@law(
    "MOE-5",
    pinned=tuple(case.but(biased=True) for case in EXACT),
    explore=_exact_cases,
    needs={"bias"},
)
def law_router_adds_its_bias(subject: RouterSubject, case: RouterCase) -> None:
    """MOE-5: the bias of each expert is added to its logit, before choice and scores."""
    tensors = case.but(biased=True).draw()
    routed = subject.call(tensors, case.top_k)
    without = tensors | {"bias": torch.zeros_like(tensors["bias"])}
    is_wrong = not bool(subject.allowed_choices(tensors, routed.indices).all())
    is_wrong |= not is_within(routed.scores, subject.expect(tensors, routed.indices))
    if (
        is_wrong
        and bool(subject.allowed_choices(without, routed.indices).all())
        and is_within(routed.scores, subject.expect(without, routed.indices))
    ):
        raise Explained("the bias of the router is forgotten")
    subject.judge(tensors, case.top_k, "the bias of the router is not added to its logits")


@law("MOE-6", pinned=EXACT[1:], explore=_exact_cases, cost=2.0)
def law_permuted_router_rows_permute_the_choice(subject: RouterSubject, case: RouterCase) -> None:
    """MOE-6: permuting the rows of the router permutes the experts, and nothing else."""
    tensors = case.draw()
    order = torch.randperm(case.experts, generator=torch.Generator().manual_seed(case.seed))
    if case.experts > 1 and torch.equal(order, torch.arange(case.experts)):
        order = order.roll(1)
    moved = dict(tensors) | {
        name: tensors[name][order] for name in ("weight", "bias") if name in tensors
    }
    routed = subject.call(moved, case.top_k)
    message = "with permuted rows, other experts are chosen"
    subject.check_choice(moved, routed, message)
    back = order[routed.indices]
    if not bool(subject.allowed_choices(tensors, back).all()):
        raise Violation(message)
    expected = subject.expect(tensors, back)
    check_close(
        routed.scores,
        expected.value,
        expected.bound,
        what="scores",
        message="with permuted rows, the scores of the same experts differ",
        axes=AXES,
    )


@law(
    "MOE-7",
    pinned=tuple(case.but(backward=True) for case in PINNED[1:]),
    explore=lambda subject: router_cases(subject, backward=True),
    cost=3.0,
)
def law_gradients_of_the_router_equal_the_definition(
    subject: RouterSubject, case: RouterCase
) -> None:
    """MOE-7: the gradients of tokens, weight and bias are those of the scores for the choice."""
    if subject.profile.scores is RouterScores.SOFTMAX_CHOSEN and case.top_k == 1:
        raise NotClaimed("the score of a single choice is one, whose gradient is zero")
    _check_gradients(subject, case)


@law("MOE-16", pinned=regimes.PINNED, wide=regimes.cases)
def law_a_router_is_right_in_every_two_regimes(subject: RouterSubject, case: RouterCase) -> None:
    """MOE-16: in any two classes of sizes, choices, strides, types and passes, it is right."""
    tensors = case.draw()
    routed = subject.judge(
        tensors, case.top_k, "a router of this size, layout or type differs from the definition"
    )
    if case.backward:
        _check_gradients(subject, case)
    expected = subject.expect(tensors, routed.indices)
    x = tensors["x"].requires_grad_(case.backward)
    call = regimes.RouterCall(x, tensors["weight"], case.top_k, case.biased)
    note_call(call, expected.value, expected.bound, regimes.AXES)


def _check_gradients(subject: RouterSubject, case: RouterCase) -> None:
    tensors, grad_out = case.draw(), case.draw_gradient()
    routed, got = subject.gradients(tensors, case.top_k, grad_out.to(_scores_dtype(subject, case)))
    subject.check_choice(tensors, routed, "the chosen experts are not those of the largest logits")
    for name, allowed in subject.expect_gradients(tensors, routed.indices, grad_out).items():
        check_close(
            got[name],
            allowed.value,
            allowed.bound,
            what=f"gradient of {name}",
            message=f"the gradient of {name} differs from that of the scores",
            axes=("expert", "channel"),
        )


def _scores_dtype(subject: RouterSubject, case: RouterCase) -> torch.dtype:
    """Return the type of the scores, which may be wider or narrower than that of the tokens."""
    return subject.call(case.draw(), case.top_k).scores.dtype
