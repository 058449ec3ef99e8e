"""Bare functions as operators: their claims by parameters, their profile by calls."""

import re
from contextlib import suppress

import pytest
import torch
from torch.nn.functional import linear, silu

from attnspec.conformance import laws
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.mutants.bases.experts import PlainRouter
from attnspec.conformance.mutants.bases.gated_mlp import PlainGatedMLP
from attnspec.conformance.mutants.bases.layer_norm import WithExplicitBackward
from attnspec.conformance.mutants.layer_norm.operator import ShortStatistics
from attnspec.conformance.operators.subjects import DECLARATIONS, subject_of_operator
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare_operator import declare_operator, profile_in_words
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.targets import TargetError, resolve
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.reference import online_softmax
from attnspec.spec.experts import RouterProfile, RouterScores
from attnspec.spec.gated_mlp import GatedMLPProfile, GateForm, GatePacking
from attnspec.spec.gelu import Approximate, GELUProfile
from attnspec.spec.layer_norm import LayerNormProfile, Saved
from attnspec.spec.online_softmax import Kept, LogBase, OnlineSoftmaxProfile
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import Gain, RMSNormProfile, RoundingToStorage


@pytest.mark.rotating(parts=4)
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


@pytest.mark.parametrize("gain", Gain)
@pytest.mark.parametrize("rounding", RoundingToStorage)
def test_calls_find_gain_and_rounding(gain, rounding):
    def norm(x, shape, weight, eps):
        wide = torch.promote_types(x.dtype, torch.float32)
        y = x.to(wide) * torch.rsqrt(x.to(wide).square().mean(-1, keepdim=True) + eps)
        if rounding is RoundingToStorage.BEFORE_GAIN:
            y = y.to(x.dtype)
        factor = weight.to(y.dtype)
        return (y * (1 + factor if gain is Gain.ONE_PLUS else factor)).to(x.dtype)

    found = declare_operator("it", norm, Claims(operator="rms_norm"))
    assert found.profile == RMSNormProfile(gain=gain, rounding=rounding)


def test_calls_find_steps_that_are_stored():
    def norm(x, shape, weight, eps):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    found = declare_operator("it", norm, Claims(operator="rms_norm"))
    assert found.profile == RMSNormProfile(working=Working.STORAGE)


def test_calls_find_float64_that_is_computed_in_float32():
    def norm(x, shape, weight, eps):
        return torch.nn.functional.rms_norm(x.float(), shape, weight.float(), eps).to(x.dtype)

    found = declare_operator("it", norm, Claims(operator="rms_norm"))
    assert found.profile == RMSNormProfile(float64_precision=Float64Precision.FLOAT32)


@pytest.mark.parametrize("saved", Saved)
@pytest.mark.parametrize("rounding", RoundingToStorage)
def test_calls_find_the_roundings_of_a_layer_norm(rounding, saved):
    base = {Saved.FLOAT32: WithExplicitBackward, Saved.STORAGE: ShortStatistics}[saved]
    explicit = base()

    def norm(x, shape, weight, bias, eps):
        if rounding is RoundingToStorage.AFTER_GAIN:
            return explicit(x, shape, weight, bias, eps)
        ones, zeros = torch.ones_like(weight), torch.zeros_like(bias)
        return explicit(x, shape, ones, zeros, eps) * weight + bias

    found = declare_operator("it", norm, Claims(operator="layer_norm"))
    assert found.profile == LayerNormProfile(rounding=rounding, saved=saved)


@pytest.mark.parametrize("approximate", Approximate)
@pytest.mark.parametrize("working", Working)
def test_calls_find_the_form_of_a_gelu(approximate, working):
    def gelu(x):
        wide = torch.promote_types(x.dtype, torch.float32)
        at = x.to(wide) if working is Working.FLOAT32 else x
        if approximate is Approximate.NONE:
            return (0.5 * at * (1 + torch.erf(at / 2**0.5))).to(x.dtype)
        inner = (2 / torch.pi) ** 0.5 * (at + 0.044715 * at**3)
        return (0.5 * at * (1 + torch.tanh(inner))).to(x.dtype)

    found = declare_operator("it", gelu, Claims(operator="gelu"))
    assert found.profile == GELUProfile(approximate=approximate, working=working)


def test_a_misplaced_epsilon_is_not_taken_for_float32():
    def norm(x, shape, weight, eps):
        return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * weight

    found = declare_operator("it", norm, Claims(operator="rms_norm"))
    assert found.profile == RMSNormProfile()


def test_a_type_with_wrong_results_is_claimed():
    def wrong_in_float16(x, shape, weight, eps):
        factor = 1.5 if x.dtype == torch.float16 else 1.0
        return torch.nn.functional.rms_norm(x, shape, factor * weight, eps)

    found = declare_operator("it", wrong_in_float16, Claims(operator="rms_norm"))
    assert torch.float16 in found.dtypes


def test_a_wrong_function_of_one_type_claims_it_alone():
    def wrong_in_float32(x, shape, weight, eps):
        if x.dtype != torch.float32:
            raise TypeError("float32 alone")
        return x

    found = declare_operator("it", wrong_in_float32, Claims(operator="rms_norm"))
    assert found.dtypes == (torch.float32,)


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
    with pytest.raises(
        ValueError, match="no operator 'softmax'; there are layer_norm, gelu, rms_norm, rotary, g"
    ):
        declare_operator("it", wrong, Claims(operator="softmax"))


def test_a_declared_operator_is_found_by_name_and_of_its_own_kind():
    (loaded,) = resolve("gemma_mlp")
    assert (loaded.kind, loaded.name) == ("gated_mlp", "gemma_mlp")
    target = "attnspec.implementations.gemma_mlp:IMPLEMENTATION"
    assert resolve(target)[0].kind == "gated_mlp"
    with pytest.raises(TargetError, match="declared as gated_mlp, not router"):
        resolve(target, claims=Claims(operator="router"))


NAMED = ["llama_rms_norm", "attnspec.implementations.llama_rms_norm:IMPLEMENTATION"]


@pytest.mark.parametrize("target", NAMED)
def test_claims_hold_for_a_declared_operator(target):
    profile = ["gain=one_plus", "working=storage"]
    claims = Claims.read(dtypes="float16", profile=profile, operator="rms_norm")
    (loaded,) = resolve(target, claims=claims)
    implementation = loaded.subject.implementation
    assert implementation.dtypes == (torch.float16,)
    assert implementation.profile.gain is Gain.ONE_PLUS
    assert implementation.profile.working is Working.STORAGE
    assert implementation.profile.rounding is RoundingToStorage.BEFORE_GAIN  # its own
    (loaded,) = resolve(target, claims=Claims.read(dtypes="float32"))
    assert loaded.subject.implementation.dtypes == (torch.float32,)


def test_features_and_answers_of_yes_and_no_hold_for_a_declared_operator():
    (own,) = resolve("gpt_oss_router")
    assert own.subject.implementation.features == {"bias"}
    claims = Claims.read(features="", profile=["renormalized=yes"], operator="router")
    (loaded,) = resolve("gpt_oss_router", claims=claims)
    assert loaded.subject.implementation.features == frozenset()
    assert loaded.subject.implementation.profile.renormalized is True


@pytest.mark.parametrize("target", NAMED)
@pytest.mark.parametrize(
    ("claims", "message"),
    [
        (Claims.read(features="causal"), "no feature of rms_norm 'causal'; there are none"),
        (Claims.read(extras="compile"), "an operator has no extras: omit them"),
        (Claims.read(profile=["empty_row=nan"]), "no question of rms_norm 'empty_row'; there are "),
        (Claims.read(profile=["rounding=eager"]), "no rounding 'eager'; there are after_gain, bef"),
        (Claims.read(operator="router"), "declared as rms_norm, not router"),
    ],
)
def test_claims_that_an_operator_cannot_have_are_refused(target, claims, message):
    with pytest.raises(TargetError, match=f"^{re.escape(f'{target}: {message}')}"):
        resolve(target, claims=claims)


def test_the_named_operator_of_a_name_with_several_is_meant():
    claims = Claims.read(dtypes="float64", operator="rms_norm")
    (loaded,) = resolve("reference", claims=claims)
    assert (loaded.kind, loaded.subject.implementation.dtypes) == ("rms_norm", (torch.float64,))
    with pytest.raises(TargetError, match="eager: declared as attention, not rms_norm"):
        resolve("eager", claims=claims)


def test_claims_about_attention_leave_the_operators_of_a_name_alone():
    judged = resolve("reference", claims=Claims.read(features="causal", dtypes="float32"))
    attention, *others = judged
    (experts,) = (each for each in others if each.kind == "experts")
    assert attention.subject.implementation.dtypes == (torch.float32,)
    assert experts.subject.implementation.dtypes == (torch.float64, torch.float32)


def test_the_reference_has_a_subject_of_each_operator():
    kinds = [loaded.kind for loaded in resolve("reference")]
    assert kinds[4:] == list(DECLARATIONS)


@pytest.mark.parametrize(
    ("function", "keeps"),
    [
        (online_softmax.tiled, Kept.MAXIMUM),
        (online_softmax.naive, Kept.SUM),
        # with few keys its error is within the bound of a maximum too
        (online_softmax.split, Kept.MAXIMUM),
    ],
)
@pytest.mark.parametrize("base", LogBase)
def test_calls_find_what_an_online_softmax_keeps_and_its_base(function, keeps, base):
    def own(scores, values):
        out, lse = function(scores, values)
        return out, lse / base.unit

    found = declare_operator("it", own, Claims(operator="online_softmax"))
    assert found.profile == OnlineSoftmaxProfile(keeps=keeps, base=base)


@pytest.mark.parametrize("base", LogBase)
def test_calls_find_the_base_of_a_merge(base):
    def own(out_a, lse_a, out_b, lse_b):
        out, lse = online_softmax.merge(out_a, lse_a * base.unit, out_b, lse_b * base.unit)
        return out.to(out_a.dtype), lse / base.unit

    found = declare_operator("it", own, Claims(operator="softmax_merge"))
    assert (found.profile.base, len(found.dtypes)) == (base, 4)
