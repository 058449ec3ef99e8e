"""Trials of a new user: the first three lines printed are true and say what to do."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from attnspec.conformance import laws
from attnspec.conformance.probe.following import look_up
from attnspec.conformance.report.verdict import print_verdict
from attnspec.conformance.runner.declare import BrokenCall
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.plan import plan
from attnspec.conformance.runner.task import Task, TypedClaims

TEXTBOOK = """
import math
import torch


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.softmax(scores, dim=-1) @ value
"""

HEAD = "def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):\n"

FLOAT32 = """def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.float()
    wide = (x.float() for x in (query, key, value))
    return inner(*wide, attn_mask, is_causal, scale).to(query.dtype)
"""

ATTENTION_LAWS = (
    "output-equals-the-definition",
    "masks-broadcast",
    "true-means-readable",
    "an-empty-row-gives-the-declared-output",
    "consecutive-query-heads-share-a-key-head",
    "every-output-is-within-its-bound",
)
MODEL_LAWS = (
    "each-token-selects-its-row",
    "layer-norm-has-zero-mean-and-biased-unit-variance",
    "activation-is-the-tanh-gelu",
    "logits-equal-the-oracles",
    "no-logit-depends-on-later-tokens",
)

OF_FIELDS = "every-field-of-a-configuration-is-followed-or-refused"


def in_float32(source):
    inner = source.replace("def attention(", "def inner(")
    return f"{inner}\n\n{FLOAT32}"


def printed(target, names):
    """Return what a run of a few laws prints: the remark on the target, and then the verdict."""
    (planned,) = plan([str(target)], TypedClaims(), "cpu", limit=120, memory=None, look_up=look_up)
    known = laws.load()
    loaded = planned.load()
    records = [
        run_in_process(Task(law=known[name], subject=loaded), Effort.SMOKE) for name in names
    ]
    stream = io.StringIO()
    print_verdict(records, Console(file=stream, width=1000), is_verbose=False)
    remark = planned.remark.splitlines()
    return [*remark, *(line for line in stream.getvalue().splitlines() if line)]


def of_attention(folder, source, name):
    path = folder / f"trial_{name}.py"
    path.write_text(source)
    return printed(f"{path}:attention", [each for each in ATTENTION_LAWS if each in laws.load()])


PROFILE = "empty_row=nan, masked_keys=propagates, masked_values=propagates"


def test_a_textbook_attention_conforms(tmp_path):
    remark, verdict, *_ = of_attention(tmp_path, TEXTBOOK, "textbook")
    assert (
        f"the profile that it follows in experiments: {PROFILE}, rounding=eager; to pin" in remark
    )
    assert "conforming in all of" in verdict
    assert "NOT" not in verdict


def test_parameters_of_other_names_are_named(tmp_path):
    renamed = TEXTBOOK.replace("is_causal", "causal").replace("scale", "sm_scale")
    remark, unset, *_ = of_attention(tmp_path, renamed, "renamed")
    assert "is judged under the profile" in remark
    assert unset.startswith("parameters that no call sets: causal, sm_scale; rename")


def test_float64_computed_in_float32_is_not_claimed_and_the_rest_conforms(tmp_path):
    remark, accuracy, verdict, *_ = of_attention(tmp_path, in_float32(TEXTBOOK), "float32")
    assert PROFILE in remark
    assert "float64_precision" not in remark
    assert accuracy.startswith("float64 is accepted with float32 accuracy (error ")
    assert ", bound " in accuracy
    assert "): not claimed; compute in float64, or" in accuracy
    assert "conforming in all of" in verdict


@pytest.mark.rotating(parts=4)
def test_a_bug_in_16_bits_alone_is_named_with_its_types(tmp_path):
    wrong = in_float32(TEXTBOOK).replace(
        "    return torch.softmax",
        "    if NARROW and scores.shape[-1] > 2:\n        scores[..., -1, -1] = 0\n"
        "    return torch.softmax",
    )
    wrong = wrong.replace(
        "    wide =", "    global NARROW\n    NARROW = query.itemsize == 2\n    wide ="
    )
    lines = of_attention(
        tmp_path, wrong.replace("import torch\n", "import torch\nNARROW = 0\n"), "narrow"
    )
    assert lines[1].startswith("experiments show: wrong in the plainest call: float16, bfloat16;")
    assert lines[2].startswith("float64 is accepted with float32 accuracy")
    (verdict,) = (line for line in lines if "NOT conforming" in line)
    assert "only: the same cases pass in float32" in verdict
    assert not any("it looks like" in line for line in lines)


def test_a_bool_mask_that_is_added_as_a_number_is_named(tmp_path):
    wrong = TEXTBOOK.replace("masked_fill(~attn_mask, -torch.inf)", "add(attn_mask)")
    _, deviation, verdict, *_ = of_attention(tmp_path, wrong, "added")
    assert deviation == "experiments show: a bool mask: true is added as the number one"
    assert "NOT conforming" in verdict


def test_an_attention_that_is_always_causal_is_named_with_what_to_do(tmp_path):
    wrong = TEXTBOOK.replace("if is_causal:", "if True:")
    _, deviation, verdict, *_ = of_attention(tmp_path, wrong, "always")
    assert deviation.startswith(
        "experiments show: a query reads no later key, although is_causal is not set"
    )
    assert "NOT conforming" in verdict


@pytest.mark.rotating(parts=4)
def test_heads_that_are_interleaved_and_a_mean_over_all_keys_are_profiles(tmp_path):
    grouped = TEXTBOOK.replace("scale=None):", "scale=None, enable_gqa=False):").replace(
        "    scale = 1",
        "    groups = query.shape[1] // key.shape[1]\n"
        "    key, value = (x.repeat(1, groups, 1, 1) for x in (key, value))\n    scale = 1",
    )
    remark, verdict, *_ = of_attention(tmp_path, grouped, "interleaved")
    assert "grouping=interleaved" in remark
    assert "conforming in all of" in verdict
    least = TEXTBOOK.replace("-torch.inf", "torch.finfo(scores.dtype).min")
    remark, verdict, *_ = of_attention(tmp_path, least, "mean")
    assert "empty_row=mean, empty_row_float_mask=nan" in remark
    assert "conforming in all of" in verdict


def test_answers_that_are_given_are_held_and_experiments_find_the_others(tmp_path):
    path = tmp_path / "trial_given.py"
    path.write_text(TEXTBOOK)
    claims = TypedClaims(profile=("empty_row=zero",))
    (planned,) = plan([f"{path}:attention"], claims, "cpu", limit=120, memory=None, look_up=look_up)
    found = ("masked_keys=propagates", "masked_values=propagates", "rounding=eager")
    assert planned.claims.profile == ("empty_row=zero", *found)
    assert planned.remark == (
        f"{path}:attention is judged under the profile given: empty_row=zero; "
        f"and, as experiments show, {', '.join(found)}"
    )


def test_masks_of_one_kind_alone_are_claimed_if_the_other_kind_is_refused(tmp_path):
    only = TEXTBOOK.replace(
        "    elif attn_mask is not None:\n        scores = scores + attn_mask\n",
        "    elif attn_mask is not None:\n        raise TypeError('a mask must be bool')\n",
    )
    _, refused, verdict, *_ = of_attention(tmp_path, only, "bool_only")
    assert refused.startswith("a float mask is refused (query = key = value 2×2×6×16, attn_mask fl")
    assert refused.endswith("must be bool): not claimed; to pin it: --features causal,bool_mask")
    assert "conforming in all of" in verdict
    float_only = TEXTBOOK.replace(
        "scores = scores.masked_fill(~attn_mask, -torch.inf)", "raise TypeError('float')"
    )
    _, refused, verdict, *_ = of_attention(tmp_path, float_only, "float_only")
    assert refused.startswith("a bool mask is refused")
    assert "--features causal,float_mask" in refused
    assert "conforming in all of" in verdict


@pytest.fixture
def nanogpt(tmp_path, monkeypatch, request):
    """A copy of the model with the mistake that the parameter names."""
    monkeypatch.setenv("NANOGPT_TRIAL", request.param)
    path = tmp_path / f"nanogpt_{request.param or 'right'}.py"
    shutil.copy(Path(__file__).with_name("nanogpt.py"), path)
    return path


@pytest.mark.rotating(parts=3)
@pytest.mark.parametrize("nanogpt", [""], indirect=True)
def test_nanogpt_conforms_and_as_it_is_the_message_says_what_to_return(nanogpt):
    verdict, *_ = printed(f"{nanogpt}:build", MODEL_LAWS)
    assert "conforming in all of 5 laws" in verdict
    with pytest.raises(BrokenCall) as caught:
        printed(f"{nanogpt}:original", MODEL_LAWS)
    first, _, advice = str(caught.value).splitlines()
    assert "a tuple whose first item is a tensor: return that alone" in first
    assert "return the logits alone, of shape (1, 3, vocab_size)" in advice


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize(
    ("nanogpt", "stage"),
    [("mask", "attention: mask"), ("epsilon", "first LayerNorm")],
    indirect=["nanogpt"],
)
def test_a_mistake_in_nanogpt_is_named_by_its_stage(nanogpt, stage):
    verdict, cause, *_ = printed(f"{nanogpt}:build", MODEL_LAWS)
    assert "NOT conforming" in verdict
    assert f"the first stage that diverges is block 0, {stage} (in a model of n_layer=1" in cause


@pytest.mark.rotating(parts=12)
@pytest.mark.parametrize("nanogpt", [""], indirect=True)
def test_fields_that_nanogpt_ignores_are_one_cause_with_the_lines_that_refuse_them(nanogpt):
    source = nanogpt.read_text()
    start = source.index("    if config.activation_function")
    end = source.index("    sizes = ", start)
    path = nanogpt.with_name("nanogpt_ignoring.py")
    path.write_text(source[:start] + source[end:])
    verdict, cause, *lines = printed(f"{path}:build", (*MODEL_LAWS, OF_FIELDS))
    assert "NOT conforming: 1 of 6 laws broken, 1 cause found" in verdict
    assert "the build does not follow n_inner, activation_function, layer_norm_epsilon" in cause
    line = 'if not config.scale_attn_weights: raise NotImplementedError("scale_attn_weights")'
    assert line in {each.strip() for each in lines}


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("nanogpt", ["own_key_hidden"], indirect=True)
def test_logits_of_nan_are_no_dropout(nanogpt):
    verdict, cause, *_ = printed(f"{nanogpt}:build", MODEL_LAWS)
    assert "NOT conforming" in verdict
    assert "dropout" not in cause


@pytest.mark.parametrize("nanogpt", ["dropout"], indirect=True)
def test_dropout_that_is_left_on_ends_the_run(nanogpt):
    with pytest.raises(BrokenCall) as caught:
        printed(f"{nanogpt}:build", MODEL_LAWS)
    first, _, advice = str(caught.value).splitlines()
    assert first.endswith("(GPT-20): answers differ from call to call: is dropout on?")
    assert "call model.eval() in build" in advice
