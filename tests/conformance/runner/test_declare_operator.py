"""Bare functions as operators: their claims by parameters, their profile by calls."""

from contextlib import suppress

import pytest
import torch
from torch.nn.functional import linear, silu

from attnspec.conformance import laws
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.law import SubjectKind
from attnspec.conformance.mutants.bases.experts import PlainRouter
from attnspec.conformance.mutants.bases.gated_mlp import PlainGatedMLP
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare_operator import declare_operator, profile_in_words
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.targets import TargetError, resolve
from attnspec.spec.experts import RouterProfile, RouterScores
from attnspec.spec.gated_mlp import GatedMLPProfile, GateForm, GatePacking


@pytest.mark.parametrize("packing", GatePacking)
@pytest.mark.parametrize("form", GateForm)
def test_calls_find_form_and_packing(form, packing):
    function = PlainGatedMLP()
    function.profile = GatedMLPProfile(form=form, packing=packing)
    # a function with one signature, as people write it: separate or packed
    if packing is GatePacking.SEPARATE:
        bare = lambda x, gate, up, down: function(x, gate, up, down)  # noqa: E731
    else:
        bare = lambda x, gate_up, down: function(x, gate_up, down)  # noqa: E731
    found = declare_operator("it", bare, Claims(operator="gated_mlp"))
    assert found.profile == function.profile
    assert found.dtypes == (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("scores", RouterScores)
@pytest.mark.parametrize("renormalized", [False, True])
def test_calls_find_the_scores_of_a_router(scores, renormalized):
    function = PlainRouter()
    function.profile = RouterProfile(scores=scores, renormalized=renormalized)
    found = declare_operator("it", function, Claims(operator="router")).profile
    alike = renormalized and scores is RouterScores.SOFTMAX_CHOSEN
    assert (found.scores, found.renormalized) == (scores, renormalized and not alike)


def test_a_softmax_that_is_renormalized_is_held_to_its_own_gradients():
    def router(x, weight, top_k):
        scores, indices = linear(x, weight).softmax(-1).topk(top_k)
        return scores / scores.sum(-1, keepdim=True), indices

    found = declare_operator("it", router, Claims(operator="router"))
    assert (found.profile.scores, found.profile.renormalized) == (RouterScores.SOFTMAX_ALL, True)
    subject = subject_of_operator(found)
    for law in laws.load().values():
        if law.judges is SubjectKind.ROUTER:
            for case in law.pinned:
                if subject.refuses(case) is None:
                    with suppress(NotClaimed):
                        law.check(subject, case)


def test_types_that_are_not_claimed_are_not_called():
    def of_float32(x, gate, up, down):
        if x.dtype != torch.float32:
            raise TypeError("float32 alone")
        return linear(silu(linear(x, gate)) * linear(x, up), down)

    found = declare_operator("it", of_float32, Claims(operator="gated_mlp"))
    assert found.dtypes == (torch.float32,)
    subject = subject_of_operator(found)
    for law in laws.load().values():
        if law.judges is SubjectKind.GATED_MLP:
            record = check(law, subject, Effort.SMOKE)
            assert record.outcome in (Outcome.PASSED, Outcome.NOT_CLAIMED), record.message
            assert record.dtypes in ((), ("float32",))


def test_parameters_show_features():
    def biased(x, gate, up, down, *, gate_bias=None, up_bias=None, down_bias=None):
        return linear(silu(linear(x, gate, gate_bias)) * linear(x, up, up_bias), down, down_bias)

    found = declare_operator("it", biased, Claims(operator="gated_mlp"))
    assert found.features == {"bias"}
    assert profile_in_words(found) == "form=swiglu, packing=separate"


def wrong(x, gate, up, down):
    return linear(silu(linear(x, up)) * linear(x, gate), down)


def test_a_wrong_function_is_judged_under_the_default():
    found = declare_operator("it", wrong, Claims(operator="gated_mlp"))
    assert found.profile == GatedMLPProfile()


def test_answers_that_are_given_are_held():
    claims = Claims.read(profile=["form=reglu"], operator="gated_mlp")
    assert declare_operator("it", wrong, claims).profile.form is GateForm.REGLU


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (["shape=round"], "gated_mlp has no question 'shape' in its profile"),
        (["form=round"], "form is one of swiglu, .*, got 'round'"),
    ],
)
def test_unknown_answers_are_refused(profile, message):
    claims = Claims.read(profile=profile, operator="gated_mlp")
    with pytest.raises(ValueError, match=message):
        declare_operator("it", wrong, claims)


def test_an_unknown_operator_is_refused():
    with pytest.raises(ValueError, match="no operator 'gelu'; there are gated_mlp, router, exp"):
        declare_operator("it", wrong, Claims(operator="gelu"))


def test_a_declared_operator_is_found_by_name_and_of_its_own_kind():
    (loaded,) = resolve("gemma_mlp")
    assert (loaded.kind, loaded.name) == ("gated_mlp", "gemma_mlp")
    target = "attnspec.implementations.gemma_mlp:IMPLEMENTATION"
    assert resolve(target)[0].kind == "gated_mlp"
    with pytest.raises(TargetError, match="declared as gated_mlp, not router"):
        resolve(target, claims=Claims(operator="router"))


def test_the_reference_has_a_subject_of_each_operator():
    kinds = [loaded.kind for loaded in resolve("reference")]
    assert kinds[-3:] == ["gated_mlp", "router", "experts"]
