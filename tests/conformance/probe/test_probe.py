"""The probe finds the declarations of backends and names the conventions of mutants."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.mutants.attention_options.softcap import CapAfterBias
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.bases.lengths import Ragged
from attnspec.conformance.mutants.lengths.lengths import (
    LengthIsAnIndex,
    LengthOfTheFirst,
    OffsetOfTheFirst,
)
from attnspec.conformance.mutants.numerics.bound import ScoresIn16Bits
from attnspec.conformance.probe.arithmetic import rounding
from attnspec.conformance.probe.declaration import conflicts, declaration
from attnspec.conformance.probe.experiment import UNKNOWN
from attnspec.conformance.probe.following import UNKNOWN_ROUNDING, experiment_on
from attnspec.conformance.probe.probe import (
    EXPERIMENTS,
    experiments,
    harness_of,
    probe,
    run_experiment,
)
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import tasks
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.implementations import load
from attnspec.spec import (
    EmptyRow,
    Feature,
    Float64Precision,
    Grouping,
    Mask,
    MaskKind,
    RoundingLevel,
    SoftcapOrder,
)

laws.load()

LAWS = ("a-causal-row-attends-its-prefix", "padding-equals-a-shorter-sequence")
CPU = ("eager", "sdpa", "sdpa_math", "sdpa_flash", "compiled", "custom_op")


def findings_of(attention, *questions):
    """Return the findings on some questions, or on all, by question."""
    return {
        experiment.question: run_experiment(experiment, harness_of(attention, None, "cpu"))
        for experiment in experiments()
        if not questions or experiment.question in questions
    }


def executed(findings, attention, name="probed"):
    """Execute the printed declaration and return its implementation."""
    code = declaration(name, "attention = probed", findings, "cpu")
    assert max(map(len, code.splitlines())) < 260
    names = {"probed": attention}
    exec(compile(code, "declaration", "exec"), names)
    return names["IMPLEMENTATION"]


@pytest.mark.rotating
@pytest.mark.parametrize("name", CPU)
def test_the_probe_finds_the_declaration_of_a_backend(name):
    declared = load(name)
    findings = probe(declared.attention)
    assert [finding.question for finding in findings] == [
        experiment.question for experiment in EXPERIMENTS
    ]
    assert not [finding for finding in findings if finding.deviation]
    assert not conflicts(findings)
    assert all(finding.evidence for finding in findings)
    probed = executed(findings, declared.attention, name)
    assert probed.features == declared.features
    assert set(probed.dtypes) == set(declared.dtypes)
    for question in (
        "causal_alignment",
        "causal_single_query",
        "empty_row",
        "empty_row_bool_mask",
        "empty_row_float_mask",
        "masked_keys",
        "masked_values",
        "grouping",
        "softcap_order",
        "deterministic",
    ):
        assert getattr(probed.profile, question) == getattr(declared.profile, question)
    assert probed.profile.rounding.level is declared.profile.rounding.level
    assert not probed.profile.batch_invariant
    subject = Subject(probed)
    judged = LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject)
    for task in tasks([judged], LAWS):
        record = run_in_process(task, Effort.SMOKE)
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


class ByKindOfMask(Dense):
    """An attention that gives means for a bool mask and NaN for a float one, as JAX does."""

    is_float = False

    def mask(self, attn_mask, is_causal, scores):
        self.is_float = attn_mask is not None and attn_mask.dtype != torch.bool
        return super().mask(attn_mask, is_causal, scores)

    def softmax(self, scores, visible):
        weights = super().softmax(scores, visible)
        fill = torch.nan if self.is_float else 1 / scores.shape[-1]
        return torch.where(visible.any(-1, keepdim=True), weights, fill)


class AddsInfinity(Dense):
    """An attention whose hidden scores are minus infinity plus NaN if the key is NaN."""

    def hide(self, scores, visible):
        return scores + torch.zeros_like(scores).masked_fill(~visible, -torch.inf)


class SingleQueryIgnored(Dense):
    def causal(self, queries, keys):
        visible = super().causal(queries, keys)
        return torch.ones_like(visible) if queries == 1 else visible


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


class FirstHead(Dense):
    def share_heads(self, tensor, heads):
        return tensor[:, :1].expand(-1, heads, -1, -1)


class CapBeforeScale(Dense):
    def cap(self, scores, softcap):
        return super().cap(scores, softcap * 0.25)


class Steeper(Dense):
    def add_alibi(self, scores, slopes):
        return super().add_alibi(scores, -slopes)


class KeptUnscaled(Dense):
    def drop(self, weights, dropout_p):
        return weights * (torch.rand_like(weights) >= dropout_p)


class Flaky(Dense):
    def finish(self, out, value):
        return (out * (1 + 1e-7 * torch.randint(2, (1,)))).to(value.dtype)


class AnySoftcap(Dense):
    def cap(self, scores, softcap):
        return softcap * torch.tanh(scores / softcap)


@pytest.mark.rotating(parts=4)
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
        (Dense, "hidden NaN and infinity", "keys: blocked, values: propagates", False),
        (AddsInfinity, "hidden NaN and infinity", "propagates", False),
        (SingleQueryIgnored, "causal", "upper_left, ignored for a single query", False),
        (
            ByKindOfMask,
            "empty rows",
            "empty_row_bool_mask: mean, empty_row_float_mask: nan",
            False,
        ),
        (Blocking, "hidden NaN and infinity", "blocked", False),
        (Cleaning, "hidden NaN and infinity", "blocked", False),
        (BiasBeforeScale, "float mask", "added before the scale", True),
        (Dense, "grouped heads", "yes, consecutive", False),
        (Interleaved, "grouped heads", "yes, interleaved", False),
        (FirstHead, "grouped heads", "only the first head is read", True),
        (Dense, "softcap", "yes, before_bias", False),
        (CapAfterBias, "softcap", "yes, after_bias", False),
        (CapBeforeScale, "softcap", "capped before the scale", True),
        (Steeper, "alibi", "added and not subtracted", True),
        (Ragged, "key lengths", "yes", False),
        (LengthIsAnIndex, "key lengths", "the index of the last key", True),
        (LengthOfTheFirst, "key lengths", "the first length is used for all", True),
        (Ragged, "query offset", "yes", False),
        (OffsetOfTheFirst, "query offset", "the first offset is used for all", True),
        (KeptUnscaled, "dropout", "the weights that are kept are not divided by 1 - p", True),
        (ScoresIn16Bits, "rounding", "outside every level", True),
        (Flaky, "deterministic", "no", False),
        (Dense, "invalid arguments", "refused", False),
        (AnySoftcap, "invalid arguments", "accepted", False),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_another_convention_is_named(kind, question, answer, deviates):
    finding = findings_of(kind(), question)[question]
    assert finding.answer == answer
    assert bool(finding.deviation) is deviates
    assert finding.evidence


def test_a_scale_that_must_be_positive_is_declared():
    class Positive(Dense):
        def scale(self, query, value, scale):
            if scale is not None and scale <= 0:
                raise ValueError("scale must be positive")
            return super().scale(query, value, scale)

    findings = findings_of(Positive(), "refusals", "storage types")
    supports = executed(findings.values(), Positive()).supports
    case = harness_of(Positive(), None, "cpu").base_case
    assert supports(case) is None
    assert supports(case.but(scale=0.5)) is None
    assert "negative scale" in supports(case.but(scale=-0.5))
    assert "scale of zero" in supports(case.but(scale=0.0))


def test_each_kind_of_mask_has_its_answer_in_the_declaration():
    attention = ByKindOfMask()
    findings = findings_of(attention, "empty rows", "storage types")
    profile = executed(findings.values(), attention).profile
    assert profile.empty_row is EmptyRow.MEAN
    assert profile.empty_row_answers["bool"] is EmptyRow.MEAN
    assert profile.empty_row_answers["float"] is EmptyRow.NAN


def test_grouping_and_softcap_order_are_declared_where_they_matter():
    class Both(CapAfterBias, Interleaved):
        """An attention with the second answer to both questions."""

    questions = ("storage types", "grouped heads", "softcap")
    profile = executed(findings_of(Both(), *questions).values(), Both()).profile
    assert profile.grouping is Grouping.INTERLEAVED
    assert profile.softcap_order is SoftcapOrder.AFTER_BIAS
    without = findings_of(Dense(), "storage types").values()
    code = declaration("x", "attention = probed", without, "cpu")
    assert "grouping" not in code
    assert "softcap_order" not in code


def test_the_order_of_softcap_and_bias_is_found_by_slopes_too():
    def attention(query, key, value, *, softcap=None, alibi_slopes=None, scale=None):
        return CapAfterBias()(
            query, key, value, softcap=softcap, alibi_slopes=alibi_slopes, scale=scale
        )

    finding = findings_of(attention, "softcap")["softcap"]
    assert finding.answer == "yes, after_bias"
    assert finding.facts["profile"] == {"softcap_order": "after_bias"}


def test_a_softcap_without_any_bias_has_no_order():
    def attention(query, key, value, *, softcap=None, scale=None):
        return Dense()(query, key, value, softcap=softcap, scale=scale)

    findings = findings_of(attention, "softcap", "storage types")
    assert findings["softcap"].answer == "yes"
    code = declaration("x", "attention = probed", findings.values(), "cpu")
    assert "# softcap_order: unknown" in code


class LowerRightFlagOnly(Dense):
    def causal(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def test_a_window_aligned_otherwise_than_the_causal_flag_is_a_conflict():
    findings = findings_of(LowerRightFlagOnly(), "causal", "window")
    assert findings["causal"].answer == "lower_right"
    assert findings["window"].answer == "yes, both edges are read, upper_left"
    (message,) = conflicts(findings.values())
    assert message == "causal_alignment: causal says lower_right, window says upper_left"


def test_a_flag_that_refuses_unequal_lengths_has_no_alignment():
    class Square(Dense):
        def causal(self, queries, keys):
            if queries != keys:
                raise ValueError("only as many queries as keys")
            return super().causal(queries, keys)

    findings = findings_of(Square(), "causal", "refusals", "storage types")
    assert findings["causal"].answer.startswith("yes, alignment unknown")
    assert "profile" not in findings["causal"].facts
    declared = executed(findings.values(), Square())
    assert "case.is_causal" not in str(declared.supports)
    case = harness_of(Square(), None, "cpu").base_case.but(is_causal=True)
    assert declared.supports(case) is None
    assert "fewer queries" in declared.supports(case.but(queries=3))
    assert "more queries" in declared.supports(case.but(keys=3))
    code = declaration("x", "attention = probed", findings.values(), "cpu")
    assert "# causal_alignment: unknown" in code


class BoolAsNumber(Dense):
    def mask(self, attn_mask, is_causal, scores):
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = attn_mask.to(scores.dtype)
        return super().mask(attn_mask, is_causal, scores)


def test_the_declaration_refuses_calls_that_deviate():
    findings = findings_of(BoolAsNumber(), "storage types", "bool mask", "float mask", "refusals")
    assert findings["bool mask"].deviation == "a bool mask: true is added as the number one"
    declared = executed(findings.values(), BoolAsNumber())
    assert Feature.MASK in declared.features
    case = harness_of(BoolAsNumber(), None, "cpu").base_case
    assert declared.supports(case) is None
    assert declared.supports(case.but(mask=Mask(kind=MaskKind.FLOAT))) is None
    assert "true is added" in declared.supports(case.but(mask=Mask(kind=MaskKind.BOOL)))


def test_calls_that_are_causal_without_the_flag_are_named_and_no_rounding_is():
    def attention(query, key, value):
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    findings = findings_of(attention, "storage types", "rounding")
    deviation = findings["storage types"].deviation
    assert deviation.startswith("a query reads no later key, although is_causal is not set: float6")
    assert findings["rounding"].answer == UNKNOWN
    found = experiment_on(dense("causal", attention), "cpu")
    assert found.answers == {"rounding": RoundingLevel.EAGER}
    assert found.deviations == [deviation + UNKNOWN_ROUNDING]


def test_an_ignored_option_is_a_deviation():
    def attention(query, key, value, scale=None, **anything):
        return scaled_dot_product_attention(query, key, value, scale=scale)

    findings = findings_of(attention)
    for question in ("causal", "bool mask", "window", "softcap", "sinks", "alibi", "dropout"):
        assert findings[question].answer == "ignored", question
        assert findings[question].deviation
    assert findings["empty rows"].answer == UNKNOWN
    assert executed(findings.values(), attention).features == {Feature.BACKWARD}


def test_an_adapter_is_proposed_for_parameters_of_other_names():
    def attention(query, key, value, causal=False, softmax_scale=None, window_size=(-1, -1)):
        return scaled_dot_product_attention(query, key, value, scale=softmax_scale)

    findings = findings_of(attention, "causal", "window", "default scale", "grouped heads")
    assert findings["causal"].evidence == (
        "it has no parameter is_causal, but causal: an adapter can pass it on",
    )
    assert "window_size" in findings["window"].evidence[0]
    assert findings["default scale"].facts["supports"][0][0] == "case.scale is not None"


def test_a_kernel_with_blocks_is_called_with_multiples_of_its_blocks():
    def attention(query, key, value, is_causal=False):
        if query.shape[2] % 16 or key.shape[2] % 16 or query.shape[3] not in (16, 32):
            raise ValueError("blocks of 16, and 16 or 32 channels")
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal)

    findings = findings_of(attention, "storage types", "causal", "refusals")
    assert findings["causal"].answer == "upper_left"
    declared = executed(findings.values(), attention)
    case = harness_of(attention, None, "cpu").base_case
    assert declared.supports(case) is None
    assert declared.supports(case.but(queries=24, keys=24)) is not None
    assert declared.supports(case.but(d_head=48, d_value=48)) is not None


def test_levels_of_rounding_are_distinguished():
    class RowSum(Dense):
        def softmax(self, scores, visible):
            exact = torch.exp(scores - scores.amax(-1, keepdim=True))
            # gradients pass unrounded, as those of a kernel that recomputes the weights
            weights = exact + (exact.to(self.stored).float() - exact).detach()
            return weights / weights.sum(-1, keepdim=True)

        def __call__(self, query, key, value, attn_mask=None):
            self.stored = value.dtype
            return super().__call__(query, key, value, attn_mask)

    assert findings_of(Dense(), "rounding")["rounding"].answer == RoundingLevel.FUSED
    findings = probe(RowSum(), dtypes=(torch.bfloat16,))
    (found,) = (finding for finding in findings if finding.question == "rounding")
    assert found.answer == RoundingLevel.ROWSUM


def test_gradients_that_are_rounded_while_the_output_is_not_are_found():
    def attention(query, key, value, scale=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query.float() @ key.float().mT * scale
        # torch computes the gradient of the weights in 16 bits, in which they are multiplied
        return scores.softmax(-1).to(value.dtype) @ value

    for dtype in (torch.float16, torch.bfloat16):
        harness = harness_of(attention, (dtype,), "cpu")
        assert rounding(harness).answer == RoundingLevel.EAGER
        without_gradients = harness_of(torch.no_grad()(attention), (dtype,), "cpu")
        assert rounding(without_gradients).answer == RoundingLevel.FUSED


def test_a_function_that_is_wrong_in_some_types_is_held_to_the_widest_rounding():
    def attention(query, key, value, scale=None):
        narrow = query.element_size() == 2 and scale is None
        scale = query.shape[-1] ** (-1 if narrow else -0.5) if scale is None else scale
        return (query @ key.mT * scale).softmax(-1) @ value

    found = experiment_on(dense("narrow", attention), "cpu")
    assert found.answers["rounding"] is RoundingLevel.EAGER
    wrong = "wrong in the plainest call: float16, bfloat16"
    assert found.deviations == [wrong + UNKNOWN_ROUNDING]


class InFloat32(Dense):
    """A correct attention that computes everything in float32."""

    def wide(self, dtype):
        return torch.float32


def test_float64_computed_in_float32_is_declared_and_other_experiments_use_float32():
    findings = findings_of(InFloat32(), "storage types", "causal", "bool mask", "backward")
    types = findings["storage types"]
    assert types.answer == "float64 (accurate to float32), float32, float16, bfloat16"
    assert not any(finding.deviation for finding in findings.values())
    assert "float32: right" in findings["causal"].evidence[0]
    profile = executed(findings.values(), InFloat32()).profile
    assert profile.float64_precision is Float64Precision.FLOAT32
    code = declaration(
        "x", "attention = probed", findings_of(Dense(), "storage types").values(), ""
    )
    assert "float64_precision" not in code


def test_gradients_of_nan_where_a_row_reads_nothing_are_no_claim():
    def attention(query, key, value, attn_mask=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if attn_mask is not None:
            hides = (
                attn_mask
                if attn_mask.dtype != torch.bool
                else torch.zeros(()).masked_fill(~attn_mask, -torch.inf)
            )
            scores = scores + hides
        return scores.softmax(-1).nan_to_num() @ value

    finding = findings_of(attention, "refusals")["refusals"]
    assert "gradients where a row reads nothing" in finding.deviation
    condition = "case.backward and case.mask is not None"
    reason = "a wrong result: gradients where a row reads nothing"
    assert [condition, reason] in finding.facts["supports"]

    def right(query, key, value, attn_mask=None):
        return scaled_dot_product_attention(query, key, value, attn_mask)

    assert "gradients" not in findings_of(right, "refusals")["refusals"].deviation


def test_hidden_values_are_answered_although_hidden_keys_deviate():
    def attention(query, key, value, attn_mask=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
        scores = scores if attn_mask is None else scores + attn_mask
        return scores.softmax(-1).nan_to_num() @ value

    finding = findings_of(attention, "hidden NaN and infinity")["hidden NaN and infinity"]
    assert finding.deviation
    assert finding.facts["profile"] == {"masked_values": "propagates"}
