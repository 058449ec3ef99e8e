"""The probe: it finds what backends declare and what mutants get wrong, and stays calm."""

import math

import pytest
import torch

import attnspec.conformance.laws  # noqa: F401
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Judged
from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.numerics_bound import ScoresIn16Bits
from attnspec.conformance.probe import ORDER, answer, experiments, probe, rig_of
from attnspec.conformance.probe_declaration import conflicts, declaration
from attnspec.conformance.probe_process import probe_apart  # noqa: F401
from attnspec.conformance.record import Outcome
from attnspec.conformance.subject import Subject
from attnspec.conformance.targets import Judgeable
from attnspec.conformance.trials import trials
from attnspec.implementations import load

LAWS = ("a-causal-row-attends-its-prefix", "padding-equals-a-shorter-sequence")
CPU = ("eager", "sdpa", "sdpa_math", "sdpa_flash", "custom_op")


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
        (Inverted, "bool mask", "inverted true hides a key", True),
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
