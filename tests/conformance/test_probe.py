"""The probe: it finds what backends declare, and names the convention that a mutant follows."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import attnspec.conformance.laws  # noqa: F401
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Judged
from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.numerics_bound import ScoresIn16Bits
from attnspec.conformance.probe import ORDER, UNKNOWN, answer, experiments, probe, rig_of
from attnspec.conformance.probe_declaration import conflicts, declaration
from attnspec.conformance.record import Outcome
from attnspec.conformance.subject import Subject
from attnspec.conformance.targets import Judgeable
from attnspec.conformance.trials import trials
from attnspec.implementations import load
from attnspec.spec import Feature, RoundingLevel

LAWS = ("a-causal-row-attends-its-prefix", "padding-equals-a-shorter-sequence")
CPU = ("eager", "sdpa", "sdpa_math", "sdpa_flash", "compiled", "custom_op")


def found_of(attention, *questions):
    """The findings on some questions, or on all, by question."""
    chosen = [each for each in experiments() if not questions or each.question in questions]
    return {each.question: answer(each, rig_of(attention, None, "cpu")) for each in chosen}


def executed(findings, attention, name="probed"):
    """The implementation that the printed declaration defines."""
    code = declaration(name, "attention = given", findings, "cpu")
    assert max(map(len, code.splitlines())) < 260
    names = {"given": attention}
    exec(compile(code, "declaration", "exec"), names)
    return names["IMPLEMENTATION"]


@pytest.mark.parametrize("name", CPU)
def test_what_a_backend_declares_is_found(name):
    declared = load(name)
    findings = probe(declared.attention)
    assert [each.question for each in findings] == list(ORDER)
    assert not [each for each in findings if each.deviation]
    assert not conflicts(findings)
    assert all(each.evidence for each in findings)
    found = executed(findings, declared.attention, name)
    assert found.features == declared.features
    assert set(found.dtypes) == set(declared.dtypes)
    for question in ("causal_alignment", "empty_row", "masked_nonfinite", "deterministic"):
        assert getattr(found.profile, question) == getattr(declared.profile, question)
    assert found.profile.rounding.level is declared.profile.rounding.level
    assert not found.profile.batch_invariant
    subject = Subject(found)
    judged = Judgeable(kind=Judged.ATTENTION, subject=subject)
    for trial in trials([judged], LAWS):
        record = trial.run(Effort.SMOKE)
        assert record.outcome is Outcome.PASSED, record.message


class LowerRight(Dense):
    def displacement(self, queries, keys):
        return super().displacement(queries, keys) - (keys - queries)

    def causal(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


class Inverted(Dense):
    def polarity(self, attn_mask):
        return ~attn_mask


class MeanOfAll(Dense):
    def softmax(self, scores, visible):
        weights = super().softmax(scores, visible)
        return torch.where(visible.any(-1, keepdim=True), weights, 1 / scores.shape[-1])


class NanRows(Dense):
    def softmax(self, scores, visible):
        return scores.softmax(-1)


class ShortWindow(Dense):
    def window(self, left, right, queries, keys):
        return super().window(None if left is None else left - 1, right, queries, keys)


class WideWindow(Dense):
    def window(self, left, right, queries, keys):
        return super().window(left, None if right is None else right + 1, queries, keys)


class Base2(Dense):
    def lse(self, scores):
        return super().lse(scores) / math.log(2)


class ScaleOfOne(Dense):
    def scale(self, query, value, scale):
        return 1.0 if scale is None else scale


class ScaleOfValues(Dense):
    def scale(self, query, value, scale):
        return value.shape[-1] ** -0.5 if scale is None else scale


class Blocking(Dense):
    def mix(self, weights, value):
        return (
            (weights[..., None] * value[:, :, None])
            .masked_fill(weights[..., None] == 0, 0.0)
            .sum(-2)
        )


class Cleaning(Dense):
    def mix(self, weights, value):
        return weights @ value.nan_to_num(1.0, 1.0, 1.0)


class BiasBeforeScale(Dense):
    def add_bias(self, scores, bias):
        return scores + bias * 0.25


class Interleaved(Dense):
    def share_heads(self, tensor, heads):
        return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


class CapBeforeScale(Dense):
    def cap(self, scores, softcap):
        return super().cap(scores, softcap * 0.25)


class Steeper(Dense):
    def lean(self, scores, slopes):
        return super().lean(scores, -slopes)


class KeptUnscaled(Dense):
    def drop(self, weights, dropout_p):
        return weights * (torch.rand_like(weights) >= dropout_p)


class Diceing(Dense):
    def finish(self, out, value):
        return (out * (1 + 1e-7 * torch.randint(2, (1,)))).to(value.dtype)


@pytest.mark.parametrize(
    ("kind", "question", "answer", "deviates"),
    [
        (LowerRight, "causal", "lower_right", False),
        (LowerRight, "window", "yes, both edges are read, lower_right", False),
        (Inverted, "bool mask", "inverted: true hides a key", True),
        (Dense, "empty rows", "zero", False),
        (MeanOfAll, "empty rows", "mean", False),
        (NanRows, "empty rows", "nan", False),
        (ShortWindow, "window", "the left edge is not read", True),
        (WideWindow, "window", "one key past the right edge", True),
        (Base2, "log-sum-exp", "base 2, float64", True),
        (ScaleOfOne, "default scale", "1", True),
        (ScaleOfValues, "default scale", "1/√d_value", True),
        (Dense, "hidden NaN and infinity", "propagates", False),
        (Blocking, "hidden NaN and infinity", "blocked", False),
        (Cleaning, "hidden NaN and infinity", "blocked", False),
        (BiasBeforeScale, "float mask", "added before the scale", True),
        (Interleaved, "grouped heads", "heads take turns", True),
        (CapBeforeScale, "softcap", "capped before the scale", True),
        (Steeper, "alibi", "added and not subtracted", True),
        (KeptUnscaled, "dropout", "the weights that are kept are not divided by 1 - p", True),
        (ScoresIn16Bits, "rounding", "outside every level", True),
        (Diceing, "deterministic", "no", False),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_one_other_convention_is_named(kind, question, answer, deviates):
    found = found_of(kind(), question)[question]
    assert found.answer == answer
    assert bool(found.deviation) is deviates
    assert found.evidence


class LowerRightFlagOnly(Dense):
    def causal(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def test_a_window_that_follows_another_diagonal_than_the_flag_is_a_conflict():
    found = found_of(LowerRightFlagOnly(), "causal", "window")
    assert found["causal"].answer == "lower_right"
    assert found["window"].answer == "yes, both edges are read, upper_left"
    (told,) = conflicts(found.values())
    assert told == "causal_alignment: causal says lower_right, window says upper_left"


def test_a_flag_that_refuses_unequal_lengths_has_no_alignment():
    class Square(Dense):
        def causal(self, queries, keys):
            if queries != keys:
                raise ValueError("only as many queries as keys")
            return super().causal(queries, keys)

    found = found_of(Square(), "causal", "refusals", "storage types")
    assert found["causal"].answer.startswith("yes, alignment unknown")
    assert "profile" not in found["causal"].facts
    declared = executed(found.values(), Square())
    assert "case.is_causal" not in str(declared.supports)
    case = rig_of(Square(), None, "cpu").base.but(is_causal=True)
    assert declared.supports(case) is None
    assert "fewer queries" in declared.supports(case.but(queries=3))
    assert "more queries" in declared.supports(case.but(keys=3))
    code = declaration("x", "attention = given", found.values(), "cpu")
    assert "# causal_alignment: unknown" in code


def test_what_is_accepted_and_ignored_is_told():
    def attention(query, key, value, scale=None, **anything):
        return scaled_dot_product_attention(query, key, value, scale=scale)

    found = found_of(attention)
    for question in ("causal", "bool mask", "window", "softcap", "sinks", "alibi", "dropout"):
        assert found[question].answer == "ignored", question
        assert found[question].deviation
    assert found["empty rows"].answer == UNKNOWN
    assert executed(found.values(), attention).features == {Feature.BACKWARD}


def test_an_adapter_is_proposed_for_parameters_of_other_names():
    def attention(query, key, value, causal=False, softmax_scale=None, window_size=(-1, -1)):
        return scaled_dot_product_attention(query, key, value, scale=softmax_scale)

    found = found_of(attention, "causal", "window", "default scale", "grouped heads")
    assert found["causal"].evidence == (
        "it has no parameter is_causal, but causal: an adapter can pass it on",
    )
    assert "window_size" in found["window"].evidence[0]
    assert found["default scale"].facts["supports"][0][0] == "case.scale is not None"


def test_a_kernel_with_blocks_is_asked_in_its_blocks():
    def attention(query, key, value, is_causal=False):
        if query.shape[2] % 16 or key.shape[2] % 16 or query.shape[3] not in (16, 32):
            raise ValueError("blocks of 16, and 16 or 32 channels")
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal)

    found = found_of(attention, "storage types", "causal", "refusals")
    assert found["causal"].answer == "upper_left"
    declared = executed(found.values(), attention)
    case = rig_of(attention, None, "cpu").base
    assert declared.supports(case) is None
    assert declared.supports(case.but(queries=24, keys=24)) is not None
    assert declared.supports(case.but(d_head=48, d_value=48)) is not None


def test_levels_of_rounding_are_told_apart():
    class RowSum(Dense):
        def softmax(self, scores, visible):
            weights = torch.exp(scores - scores.amax(-1, keepdim=True)).to(self.stored)
            return weights.float() / weights.float().sum(-1, keepdim=True)

        def __call__(self, query, key, value, attn_mask=None):
            self.stored = value.dtype
            return super().__call__(query, key, value, attn_mask)

    assert found_of(Dense(), "rounding")["rounding"].answer == RoundingLevel.FUSED
    found = probe(RowSum(), dtypes=(torch.bfloat16,))
    (rounding,) = (each for each in found if each.question == "rounding")
    assert rounding.answer == RoundingLevel.ROWSUM
