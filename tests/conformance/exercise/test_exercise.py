"""The exercise: our solution is done, each wrong turn is named, and what is not written is said."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app
from attnspec.conformance.exercise import advice
from attnspec.conformance.exercise.judge import Finding, judge, model_laws
from attnspec.conformance.exercise.learner import NoExercise, read_learner
from attnspec.conformance.exercise.marking import Mark, mark
from attnspec.conformance.exercise.steps import CACHE, ENGLISH, STEPS
from attnspec.conformance.mutants import load

EXERCISE = Path(__file__).parents[3] / "docs" / "exercise"
SOLUTION, SKELETON = EXERCISE / "solution", EXERCISE / "gpt2"
FILES = [path.stem for path in SOLUTION.glob("*.py")]
BY_FUNCTION = {step.function: step for step in STEPS}


@pytest.fixture(autouse=True)
def _forget_the_files(monkeypatch):
    """Let each test import its own files of the same names."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [*FILES, "my_gpt2"]:
        sys.modules.pop(name, None)
    yield
    for name in [*FILES, "my_gpt2"]:
        sys.modules.pop(name, None)


def changed(folder, module, right, wrong):
    """Copy our solution with one mistake."""
    copy = folder / "gpt2"
    shutil.copytree(SOLUTION, copy)
    path = copy / f"{module}.py"
    source = path.read_text()
    assert source.count(right) >= 1
    path.write_text(source.replace(right, wrong))
    return copy


TURNS = [
    # function, module, the right code, the wrong code, a part of what the learner reads
    ("linear", "linear_map", "x @ weight", "x @ weight.T", "The weight is transposed"),
    ("gelu", "activation", "0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * "
     "x**3)))", "torch.nn.functional.gelu(x)", "the erf form of GELU"),
    ("block", "transformer_block", """\
    y = layer_norm(x, p["ln_1.weight"], p["ln_1.bias"], epsilon)
    x = x + multi_head_attention(y, *attention, config.n_head, kept)
    y = layer_norm(x, p["ln_2.weight"], p["ln_2.bias"], epsilon)
    return x + mlp(y, *(p[f"mlp.{name}"] for name in NAMES_OF_MLP))""",
     """    x = x + multi_head_attention(x, *attention, config.n_head, kept)
    x = layer_norm(x, p["ln_1.weight"], p["ln_1.bias"], epsilon)
    x = x + mlp(x, *(p[f"mlp.{name}"] for name in NAMES_OF_MLP))
    return layer_norm(x, p["ln_2.weight"], p["ln_2.bias"], epsilon)""", "post-norm"),
    ("causal_attention", "attention", "triu(1 + past)", "triu(2)", "reads the one after it"),
    ("causal_attention", "attention", "triu(1 + past)", "triu(0)", "off by one"),
    ("embed", "embedding", "F.embedding(input_ids, token_table)",
     "F.embedding(input_ids, token_table) * token_table.shape[1] ** 0.5",
     "multiplied by the root of n_embd"),
    ("multi_head_attention", "heads",
     "part.view(batch, length, n_head, channels // n_head).transpose(1, 2)",
     "part.reshape(batch, n_head, length, channels // n_head)", "which mixes tokens"),
    ("multi_head_attention", "heads",
     "part.view(batch, length, n_head, channels // n_head).transpose(1, 2)",
     "part.reshape(batch, length, channels // n_head, n_head).permute(0, 3, 1, 2)",
     "every n_head-th channel"),
    ("multi_head_attention", "heads", "mixed.transpose(1, 2).reshape", "mixed.reshape",
     "merged without moving"),
    ("head", "language_head", 'parameters["transformer.wte.weight"]',
     'parameters["lm_head.weight"]', "no lm_head.weight"),
    ("head", "language_head", 'parameters["transformer.wte.weight"].T',
     'torch.randn(x.shape[-1], config.vocab_size, generator=torch.Generator().manual_seed(1))'
     ".to(x)", "head is tied"),
    ("mlp", "feed_forward", "gelu(linear(x, in_weight, in_bias))",
     "__import__('torch').nn.functional.dropout(gelu(linear(x, in_weight, in_bias)), 0.1)",
     "dropout is on"),
    ("layer_norm", "norm", "torch.sqrt(variance + epsilon)", "(torch.sqrt(variance) + epsilon)",
     "outside the root"),
    ("layer_norm", "norm", "torch.sqrt(variance + epsilon)", "torch.sqrt(variance)",
     "Epsilon is missing"),
    ("layer_norm", "norm", "torch.sqrt(variance + epsilon)", "torch.sqrt(variance + 1e-5)",
     "always 1e-5"),
    ("causal_attention", "attention", "math.sqrt(query.shape[-1])", "1.0", "not scaled"),
    ("load_parameters", "parameters", 'raise ValueError(f"{name} is no parameter of this model")',
     "continue", "no parameter of this model, but the model gives logits"),
    ("load_parameters", "parameters", "config.d_inner", "4 * n", "need not be 4 * n_embd"),
    ("load_parameters", "parameters", "for name in shapes}", "for name in shapes if 'h.1' not in "
     "name}", "lacks transformer.h.1.ln_1.weight and 11 others"),
    ("load_parameters", "parameters", "return {", "x = {", "returns nothing"),
    ("load_parameters", "parameters", "return {name: state_dict[name] for name in shapes}",
     "return list(state_dict)", "a dictionary of tensors by name"),
    ("load_parameters", "parameters", "if name not in state_dict", "if 'bias' not in state_dict",
     "It refuses transformer.wte.weight, which fits"),
    ("head", "language_head", 'parameters["transformer.wte.weight"].T',
     'parameters["transformer.wte.weight"]', "transpose it"),
    ("build", "model", "load_parameters(config, state_dict)", "state_dict",
     "Let build call load_parameters"),
    ("transformer", "stack", "return layer_norm(x, gain, bias, config.layer_norm_epsilon)",
     "return x", "final LayerNorm is missing"),
    ("transformer", "stack", "in range(config.n_layer)", "in reversed(range(config.n_layer))",
     "order of their numbers"),
    (CACHE, "stack", '["transformer.wpe.weight"][past:]', '["transformer.wpe.weight"]',
     "positions start again at zero"),
    (CACHE, "attention", "past + length, dtype=torch.bool).triu(1 + past)",
     "past + length, dtype=torch.bool).triu(1)", "hides the past"),
    (CACHE, "model", "[dict(kept) for kept in cache]", "cache", "Return a new one"),
    ("generate", "generation", "[input_ids.shape[1] :]", "", "prompt is returned too"),
    ("generate", "generation", "argmax", "argmin", "likeliest"),
]  # fmt: skip
"""A typical wrong turn of each step, and what it is called."""


@pytest.mark.rotating(parts=3)
@pytest.mark.parametrize(
    ("function", "module", "right", "wrong", "words"),
    TURNS,
    ids=[f"{turn[0]}-{number}" for number, turn in enumerate(TURNS)],
)
def test_a_wrong_turn_is_named(tmp_path, function, module, right, wrong, words):
    folder = changed(tmp_path, module, right, wrong)
    if "torch." in wrong and function == "head":
        path = folder / f"{module}.py"
        path.write_text(f"import torch\n{path.read_text()}")
    finding = judge(BY_FUNCTION[function], read_learner(str(folder)))
    assert not finding.holds
    assert words in finding.sentence


CACHED = '''
class Cached:
    """The solution with a cache of its tokens."""

    def __init__(self, config, parameters):
        self.config, self.inner = config, GPT2(config, parameters)

    def empty_cache(self):
        return torch.zeros(0, dtype=torch.long)

    def __call__(self, input_ids, cache=None):
        if cache is None:
            return self.inner(input_ids)
        tokens = torch.cat([cache.view(len(input_ids), -1), input_ids], 1)
        return self.inner(tokens)[:, -input_ids.shape[1] :], tokens
'''


def with_cache(folder, inner="return self.inner(tokens)"):
    source = CACHED.replace("return self.inner(tokens)", inner)
    copy = changed(folder, "model", "return GPT2(config, load", "return Cached(config, load")
    path = copy / "model.py"
    path.write_text(f"import torch\n{path.read_text()}{source}")
    return copy


def test_a_cache_is_judged(tmp_path):
    learner = read_learner(str(with_cache(tmp_path)))
    assert judge(BY_FUNCTION[CACHE], learner).holds


def test_positions_that_start_again_with_a_cache_are_named(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    path = folder / "my_gpt2.py"
    # an own class of the base of mutants, in which positions are those of a call
    path.write_text(
        "import torch\n"
        "from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2\n"
        "class build(CompactGPT2):\n"
        "    def __init__(self, config, state_dict):\n"
        "        super().__init__(config, state_dict)\n"
        "    def positions(self, past, length):\n"
        "        return torch.arange(length)[None]\n"
    )
    finding = judge(BY_FUNCTION[CACHE], read_learner(str(path)))
    assert not finding.holds
    assert "positions start again at zero" in finding.sentence


def test_every_advice_is_about_a_mutant():
    assert advice.MUTANTS.keys() <= load().keys()


def test_our_solution_is_done_and_writes_english():
    marked = list(mark(str(SOLUTION)))
    assert {each.mark for each in marked if not each.step.is_optional} == {Mark.DONE}
    text = marked[-1].finding.sentence
    words = re.findall(r"[a-z]+", text.lower())
    known = set(re.findall(r"[a-z]+", (Path(__file__).parents[3] / "conformance" / "exercise"
        / "harbour.txt").read_text().lower()))  # fmt: skip
    assert len(words) > 20
    assert len(known.intersection(words)) >= 0.9 * len(set(words))


def test_the_skeleton_has_the_names_of_the_steps():
    for step in STEPS:
        if step.function in (CACHE, ENGLISH):
            continue
        source = (SKELETON / f"{step.module}.py").read_text()
        assert f"def {step.signature}:" in source
        assert "raise NotImplementedError" in source


def test_nothing_is_written_in_the_skeleton():
    first, *others = mark(str(SKELETON))
    assert first.mark is Mark.NEXT
    assert first.finding.sentence == "load_parameters is not written yet."
    assert {each.mark for each in others} == {Mark.NOT_REACHED}


def test_a_model_with_a_tied_head_alone_passes_the_first_step(tmp_path):
    tied = ("if not config.tie_word_embeddings:", "if False:")
    learner = read_learner(str(changed(tmp_path, "parameters", *tied)))
    assert judge(BY_FUNCTION["load_parameters"], learner).holds


def test_an_empty_file_is_a_start(tmp_path):
    path = tmp_path / "my_gpt2.py"
    path.write_text("")
    first, *_ = mark(str(path))
    assert first.mark is Mark.NEXT
    assert first.finding.details == (("Write", "load_parameters(config, state_dict)"),)


def test_a_model_without_functions_of_steps_is_judged_by_its_stages(tmp_path):
    source = (EXERCISE.parent / "examples" / "student_gpt2.py").read_text()
    path = tmp_path / "my_gpt2.py"
    path.write_text(source)
    learner = read_learner(str(path))
    assert judge(BY_FUNCTION["load_parameters"], learner).holds
    finding = judge(BY_FUNCTION["embed"], learner)
    assert not finding.holds
    assert "counted from 0" in finding.sentence


IN_FLOAT32 = """import torch
from attnspec.conformance.mutants.bases.gpt2 import COMPACT

def build(config, state_dict):
    model = COMPACT.build(config, {name: each.float() for name, each in state_dict.items()})
    return lambda input_ids: torch.nn.functional.dropout(model(input_ids), 0.5)
"""
USUAL = """from attnspec.conformance.mutants.bases.gpt2 import COMPACT
from attnspec.spec import GPT2Config

def build(config, state_dict):
    sizes = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner")
    usual = GPT2Config(**{name: getattr(config, name) for name in sizes})
    return COMPACT.build(usual, state_dict)
"""


@pytest.mark.parametrize(
    ("step", "source", "words"),
    [
        ("load_parameters", IN_FLOAT32, "dropout is on"),
        ("build", USUAL, '\nif config.activation_function != "gelu_new": raise NotImplemented'),
    ],
)
def test_a_mistake_of_one_class_is_named(tmp_path, step, source, words):
    path = tmp_path / "my_gpt2.py"
    path.write_text(source)
    finding = judge(BY_FUNCTION[step], read_learner(str(path)))
    assert not finding.holds
    assert words in finding.sentence


def test_a_model_whose_first_call_fails_is_told_why(tmp_path):
    source = "def build(config, state_dict):\n    return lambda input_ids: 1 / 0\n"
    path = tmp_path / "my_gpt2.py"
    path.write_text(source)
    finding = judge(BY_FUNCTION["load_parameters"], read_learner(str(path)))
    assert finding.sentence.startswith("The first call of the model fails: ")
    assert dict(finding.details)["Raised"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def layer_norm(x, weight, bias, epsilon):\n    pass", "returns nothing"),
        ("def layer_norm(x, weight, bias, epsilon):\n    return x[0]", "must have shape"),
        ("def layer_norm(x, weight, bias, epsilon):\n    return x.half()", "must have dtype"),
        ("def layer_norm(x):\n    return x", "other parameters"),
        ("def layer_norm(x, weight, bias, epsilon):\n    return 1 / 0", "ZeroDivisionError"),
        ("def layernorm(x, weight, bias, epsilon):\n    return x", "did you mean 'layernorm'?"),
        ("def layer_norm(x, weight, bias, epsilon)\n    return x", "SyntaxError in my_gpt2.py"),
        ("import numpyy", "cannot be imported"),
    ],
)
def test_a_function_that_gives_no_numbers_is_explained(tmp_path, source, words):
    path = tmp_path / "my_gpt2.py"
    path.write_text(source)
    finding = judge(BY_FUNCTION["layer_norm"], read_learner(str(path)))
    assert not finding.holds
    assert words in finding.sentence


def test_code_that_ends_its_process_is_a_finding(tmp_path):
    path = tmp_path / "my_gpt2.py"
    path.write_text("import os\ndef load_parameters(config, state_dict):\n    os._exit(3)\n")
    first, *_ = mark(str(path))
    assert first.mark is Mark.NEXT
    assert "exit status 3" in first.finding.sentence


def test_a_target_that_is_none_is_refused(tmp_path):
    for name in ("none.py", "none"):
        with pytest.raises(NoExercise, match=name):
            read_learner(str(tmp_path / name))
    with pytest.raises(NoExercise, match="no file of Python"):
        read_learner(str(tmp_path))
    with pytest.raises(NoExercise, match="no such file or folder"):
        list(mark(str(SKELETON), weights=str(tmp_path / "weights.bin")))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["none.py", "--exercise"], "neither a file"),
        (["a.py", "b.py", "--exercise"], "one file or folder"),
        (["a.py", "--exercise", "--laws", "GPT"], "--laws does not apply"),
        (["a.py:build", "--weights", "gpt2"], "option of --exercise"),
    ],
)
def test_a_wrong_command_is_refused(words, reason):
    run = CliRunner().invoke(app, ["check-gpt2", *words])
    assert run.exit_code == 2
    assert reason in run.output


def test_the_command_prints_the_next_step():
    run = CliRunner().invoke(app, ["check-gpt2", str(SKELETON), "--exercise"])
    assert run.exit_code == 1
    assert "0 of 13 steps done" in run.output
    assert "Next: 1, names and shapes" in run.output


def test_a_finding_survives_json():
    finding = Finding(holds=False, sentence="wrong", details=(("Got", "2"),))
    assert Finding.from_json(finding.to_json()) == finding
    assert json.loads(finding.to_json())["holds"] is False


def test_the_laws_of_the_whole_model_need_no_feature():
    names = {law.name for law in model_laws()}
    assert {"logits-equal-the-oracles", "equal-calls-give-equal-logits"} <= names
    assert "a-cache-equals-all-at-once" in {law.name for law in model_laws(with_cache=True)}
    assert not torch.is_inference_mode_enabled()
