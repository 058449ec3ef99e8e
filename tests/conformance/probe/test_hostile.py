"""The probe survives targets that crash, hang or exit, and its page shows its real output."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app
from attnspec.conformance.probe.declaration import declaration
from attnspec.conformance.probe.experiment import UNKNOWN, Finding
from attnspec.conformance.probe.probe import EXPERIMENTS, probe
from attnspec.conformance.probe.process import probe_in_subprocess
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.targets import resolve
from attnspec.spec import Feature


def returns_none(query, key, value):
    return None


def returns_a_tuple(query, key, value):
    return query, key


def has_another_shape(query, key, value):
    return value[..., :1]


def has_another_dtype(query, key, value):
    return value.int()


def is_nan(query, key, value, attn_mask=None, is_causal=False, return_lse=False, window=None):
    out = torch.full_like(value, math.nan)
    return (out, out[..., 0]) if return_lse else out


def exits(query, key, value):
    raise SystemExit(3)


def changes_inputs_and_state(query, key, value, is_causal=False):
    out = scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    query.zero_()
    key.fill_(math.nan)
    torch.set_default_dtype(torch.float16)
    torch.manual_seed(0)
    return out


@pytest.mark.parametrize(
    "attention",
    [
        returns_none,
        returns_a_tuple,
        has_another_shape,
        has_another_dtype,
        is_nan,
        exits,
        changes_inputs_and_state,
    ],
)
def test_a_hostile_function_gets_a_finding_for_each_question(attention):
    state = torch.get_rng_state()
    findings = probe(attention)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_default_dtype() is torch.float32
    assert [finding.question for finding in findings] == [
        experiment.question for experiment in EXPERIMENTS
    ]
    assert all(finding.evidence for finding in findings)
    assert not any("experiment itself failed" in str(finding.evidence) for finding in findings)
    assert [Finding.from_json(finding.to_json()) for finding in findings] == findings
    code = declaration("x", "attention = None", findings, "cpu")
    compile(code, "declaration", "exec")
    if attention is changes_inputs_and_state:
        assert "upper_left" in {finding.answer for finding in findings}
    else:
        assert "nothing to declare" in code


HOSTILE = """
import os, time
from torch.nn.functional import scaled_dot_product_attention

def attention(query, key, value, attn_mask=None, is_causal=False):
    if attn_mask is not None:
        print("noise" * 10_000)
        time.sleep(600)
    if is_causal:
        os._exit(3)
    return scaled_dot_product_attention(query, key, value)
"""


@pytest.mark.rotating(parts=4)
def test_a_target_that_hangs_or_exits_costs_one_experiment(tmp_path, capfd):
    path = tmp_path / "kernels_that_hang.py"
    path.write_text(HOSTILE)
    questions = ("bool mask", "causal", "softcap", "backward")
    findings = list(probe_in_subprocess(f"{path}:attention", questions, timeout=10))
    assert [finding.question for finding in findings] == list(questions)
    assert [finding.answer for finding in findings] == [UNKNOWN, UNKNOWN, "no", "yes"]
    call = "in the call query = key = value 2×2×6×16"
    (hung,) = findings[0].evidence
    assert hung == f"no answer within 10 s, {call}, attn_mask bool 2×2×6×6, float64"
    ended = "during this experiment it ended its process, with exit status 3"
    assert findings[1].evidence == (f"{ended}, {call}, is_causal=True, float64",)
    assert "noise" not in capfd.readouterr().out


def test_the_command_prints_answers_evidence_and_a_declaration():
    result = CliRunner().invoke(
        app, ["probe", "sdpa_math", "--features", "lse", "--dtypes", "float32"]
    )
    assert result.exit_code == 0, result.output
    assert "1/√d_head" in result.output
    assert "it has no parameter return_lse" in result.output
    assert "is_causal=True" not in result.output.partition("refusals:")[0]
    assert "dtypes=(torch.float32,)," in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_thing"], "no_such_thing"),
        (["tiktoken_gpt2"], "no attention"),
        (["sdpa", "--features", "cache"], "cache"),
        (["sdpa", "--dtypes", "float8"], "float8"),
    ],
)
def test_an_invalid_target_or_option_is_refused_in_a_line(arguments, message):
    result = CliRunner().invoke(app, ["probe", *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os._exit(3)", "importing it failed: it ended its process, with exit status 3"),
        ("raise SystemExit('bye')", "importing it failed: SystemExit: bye"),
        ("while True: pass", "importing it failed: timed out after 2 s"),
        ("import ctypes; ctypes.string_at(0)", "importing it failed: its process died by SIGSEGV"),
    ],
)
def test_a_target_that_fails_on_import_is_refused_in_a_line(tmp_path, code, message):
    path = tmp_path / "kernels_that_end.py"
    path.write_text(code)
    result = CliRunner().invoke(app, ["probe", f"{path}:attention", "--timeout", "2"])
    assert result.exit_code == 2
    assert message in result.output


def test_exhausted_memory_costs_one_experiment(tmp_path):
    path = tmp_path / "kernels_that_exhaust_memory.py"
    path.write_text(EXHAUSTS_MEMORY)
    # the subprocess begins with what this process holds, as after other tests
    findings = list(probe_in_subprocess(f"{path}:attention", ("causal", "softcap"), memory=2**32))
    assert [finding.question for finding in findings] == ["causal", "softcap"]
    assert "memory" in str(findings[0].evidence)
    assert findings[1].answer == "no"


EXHAUSTS_MEMORY = """
import torch
from torch.nn.functional import scaled_dot_product_attention

def attention(query, key, value, is_causal=False):
    if is_causal:
        torch.ones(2**33).sum()
    return scaled_dot_product_attention(query, key, value)
"""


def test_the_page_shows_the_findings():
    page = (Path(__file__).parents[3] / "docs" / "probe.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0]
    names = {}
    exec(compile(source, "page", "exec"), names)
    findings = probe(names["attention"])
    for finding in findings:
        row = rf"│ *{re.escape(finding.question)} +│ {re.escape(finding.answer)} +│ "
        assert re.search(row + re.escape(finding.deviation), page), finding.question
    import_code = "import my_kernels; attention = my_kernels.attention"
    assert declaration("my_kernels.py:attention", import_code, findings, "cpu") in page


WRITTEN = """
import torch

def right(query, key, value, is_causal=False):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)

def wrong(query, key, value):
    return value * 2
"""


def run_probe(*arguments):
    return CliRunner().invoke(app, ["probe", *arguments, "--features", "causal"])


def test_the_declaration_is_written_once_and_can_be_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(WRITTEN)
    done = run_probe("mine.py:right", "--write", "declared.py")
    assert done.exit_code == 0, done.output
    assert done.output.endswith(
        "written to declared.py; check it with: attnspec check declared.py:IMPLEMENTATION\n"
    )
    (judged,) = resolve("declared.py:IMPLEMENTATION", claims=Claims(), device="cpu")
    assert judged.subject.implementation.features == {Feature.CAUSAL}
    written = Path("declared.py").read_text()
    again = run_probe("mine.py:right", "--write", "declared.py")
    assert (again.exit_code, Path("declared.py").read_text()) == (2, written)
    assert again.stderr == "attnspec: declared.py: exists already; name a new file\n"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no/where.py", "no folder no"),
        ("declared.txt", "not the name of a Python module"),
        ("new.py", "not written: no storage type gives right results"),
    ],
)
def test_a_declaration_that_cannot_be_written_is_one_error(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(WRITTEN)
    done = run_probe("mine.py:wrong", "--write", path)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1] == f"attnspec: {path}: {message}"
    assert not Path(path).exists()
