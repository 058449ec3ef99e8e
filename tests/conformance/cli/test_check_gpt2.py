"""`attnspec check-gpt2`: a build of anyone's is read, or refused with a reason, and judged."""

from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from attnspec.conformance import laws
from attnspec.conformance.cli.app import app
from attnspec.conformance.diagnosis.stages.search import first_divergence
from attnspec.conformance.mutants.bases.gpt2 import COMPACT
from attnspec.conformance.report.record import CONFORMING, Outcome
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import TargetError
from attnspec.conformance.runner.declare_model import BuildError, declare_model, is_build
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.targets import LoadedSubject, resolve
from attnspec.conformance.runner.task import tasks
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.implementations import load_tokenizer
from attnspec.reference.text_implementations import SAMPLER, TOKENIZER
from attnspec.spec import GPT2Config, ModelFeature

laws.load()

DOCS = Path(__file__).parents[3] / "docs"
STUDENT = DOCS / "examples" / "student_gpt2.py"

MENDED = (
    (
        "position embedding",
        "torch.arange(1, input_ids.shape[1] + 1) % self.config.n_positions",
        "torch.arange(input_ids.shape[1])",
    ),
    (
        "block 0, attention: scale of the scores",
        "math.sqrt(channels)",
        "math.sqrt(query.shape[-1])",
    ),
    (
        "block 0, MLP: activation",
        'F.gelu(self.linear(x, f"{block}.mlp.c_fc"))',
        'F.gelu(self.linear(x, f"{block}.mlp.c_fc"), approximate="tanh")',
    ),
)
"""The student's mistakes in the order of the stages: where each is, and how it is mended."""


def student(source, folder, name):
    path = folder / f"{name}.py"
    path.write_text(source)
    (judged,) = resolve(f"{path}:build")
    return judged


def outcomes(judged):
    return {task.law.name: run_in_process(task, Effort.SMOKE) for task in tasks([judged])}


@pytest.mark.rotating(parts=8)
def test_three_mistakes_are_found_one_after_another(tmp_path):
    source = STUDENT.read_text()
    for number, (stage, wrong, mended) in enumerate(MENDED):
        judged = student(source, tmp_path, f"student_with_mistakes_{number}")
        found = first_divergence(judged.subject)
        assert found is not None
        assert found.place == stage
        assert source.count(wrong) == 1
        source = source.replace(wrong, mended)
    records = outcomes(student(source, tmp_path, "student_mended"))
    assert {each.outcome for each in records.values()} <= CONFORMING
    assert sum(each.outcome is Outcome.PASSED for each in records.values()) > 20
    lacking = [each for each in records.values() if each.outcome is Outcome.NOT_CLAIMED]
    assert any("cache" in each.reason for each in lacking)
    page = (DOCS / "check_gpt2.md").read_text()
    for stage, wrong, mended in MENDED:
        assert f"first stage that diverges: {stage}" in page
        assert wrong in page
        assert mended in page


def test_what_a_model_takes_is_read_from_its_parameters():
    found = declare_model("compact", COMPACT.build)
    everything = {ModelFeature.CACHE, ModelFeature.PADDING, ModelFeature.HIDDEN_STATES}
    assert found.features == everything
    assert found.dtypes == (torch.float64, torch.float32)

    class Plain(nn.Module):
        def __init__(self, config, weights):
            super().__init__()
            self.inner = COMPACT.build(config, weights)

        def forward(self, input_ids):
            return self.inner(input_ids)

    assert declare_model("plain", Plain).features == frozenset()
    said = declare_model("plain", Plain, frozenset({ModelFeature.BACKWARD}))
    assert said.features == {ModelFeature.BACKWARD}


def test_a_configuration_that_build_refuses_is_not_claimed():
    def build(config, weights):
        if config.n_layer != 2:
            raise NotImplementedError("only two layers")
        if config.activation_function == "relu":
            raise RuntimeError("a mistake, and no refusal")
        return COMPACT.build(config, weights)

    subject = declare_model("two", build)
    sizes = {"vocab_size": 7, "n_positions": 4, "n_embd": 4, "n_head": 2}
    assert subject.supports(GPT2Config(n_layer=2, **sizes)) is None
    refused = subject.supports(GPT2Config(n_layer=1, **sizes))
    assert refused == "build refuses this configuration: only two layers"
    other = GPT2Config(n_layer=2, activation_function="relu", **sizes)
    assert subject.supports(other) == "build does not follow activation_function"
    gelu = GPT2Config(n_layer=2, layer_norm_epsilon=0.25, **sizes)
    assert subject.supports(gelu) is None


def test_one_dtype_is_enough_and_none_is_an_error():
    def build(config, weights):
        if weights["transformer.wte.weight"].dtype != torch.float32:
            raise TypeError("float32 only")
        return COMPACT.build(config, weights)

    assert declare_model("narrow", build).dtypes == (torch.float32,)

    def broken(config, weights):
        raise KeyError("wte")

    with pytest.raises(BuildError, match="broken: NOT conforming: its first call fails: KeyError"):
        declare_model("broken", broken)


@pytest.mark.parametrize(
    ("found", "builds"),
    [
        (lambda config, state_dict: None, True),
        (lambda config, weights, device=None: None, True),
        (COMPACT.build, True),
        (lambda query, key, value: None, False),
        (lambda query, key, value, attn_mask=None: None, False),
        (lambda *operands: None, False),
        (torch.nn.functional.scaled_dot_product_attention, False),
    ],
    ids=["two", "two and more", "class", "three", "three and more", "any", "built in"],
)
def test_a_build_is_told_from_an_attention(found, builds):
    assert is_build(found) is builds


def test_declared_subjects_of_every_kind_are_targets(tmp_path, monkeypatch):
    path = tmp_path / "declared_kinds.py"
    path.write_text(
        "from attnspec.reference.model import MODEL\n"
        "from attnspec.reference.text_implementations import SAMPLER, TOKENIZER\n"
    )
    wanted = {
        "MODEL": SubjectKind.MODEL,
        "TOKENIZER": SubjectKind.TOKENIZER,
        "SAMPLER": SubjectKind.SAMPLER,
    }
    for attribute, kind in wanted.items():
        (judged,) = resolve(f"{path}:{attribute}")
        assert judged.kind is kind
    assert SAMPLER.name
    assert TOKENIZER.name
    assert isinstance(judged, LoadedSubject)
    assert load_tokenizer("tiktoken_gpt2").name


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        (Claims.read("gqa"), "no feature 'gqa'; there are cache"),
        (Claims.read(profile=["rounding=eager"]), "a GPT-2 has no profile"),
    ],
)
def test_claims_of_attention_are_refused_for_a_model(claims, message):
    with pytest.raises(TargetError, match=message):
        resolve(f"{STUDENT}:build", claims=claims)


def test_claims_of_a_model_are_refused_for_attention():
    with pytest.raises(TargetError, match="no feature 'cache'; there are mask"):
        resolve("attnspec.implementations.eager:attention", claims=Claims.read("cache"))


def test_features_of_a_model_may_be_said():
    (judged,) = resolve(f"{STUDENT}:build", claims=Claims.read("backward", "float32"))
    assert judged.subject.features == {ModelFeature.BACKWARD}
    assert judged.subject.dtypes == (torch.float32,)


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eager"], "eager: no GPT-2"),
        (["nowhere:build"], "nowhere:build: cannot import it"),
        (["attnspec.implementations.eager:attention"], "no GPT-2"),
        ([f"{STUDENT}:build", "--laws", "HED"], "no law of HED judges"),
        ([f"{STUDENT}:build", "--features", "poetry"], "no feature 'poetry'"),
    ],
)
def test_the_command_names_what_it_cannot_check(arguments, message):
    result = CliRunner().invoke(app, ["check-gpt2", *arguments, "-n", "1"])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.rotating(parts=4)
def test_a_function_of_one_argument_is_refused_in_words_about_gpt2(tmp_path):
    path = tmp_path / "models_of_one_argument.py"
    path.write_text("def build(config):\n    return None\n")
    result = CliRunner().invoke(app, ["check-gpt2", f"{path}:build", "-n", "1"])
    assert result.exit_code == 2
    assert f"{path}:build: no GPT-2, which is built from two arguments" in result.output
