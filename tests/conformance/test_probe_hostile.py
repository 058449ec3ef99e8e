"""The probe stays calm: targets that break, hang or end, and a page that shows what it prints."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from typer.testing import CliRunner

from attnspec.conformance.cli import app
from attnspec.conformance.probe import ORDER, UNKNOWN, Finding, probe
from attnspec.conformance.probe_declaration import declaration
from attnspec.conformance.probe_process import probe_apart


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


def leaves(query, key, value):
    raise SystemExit(3)


def writes_and_meddles(query, key, value, is_causal=False):
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
        leaves,
        writes_and_meddles,
    ],
)
def test_a_hostile_function_gets_a_line_for_each_question(attention):
    state = torch.get_rng_state()
    findings = probe(attention)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_default_dtype() is torch.float32
    assert [each.question for each in findings] == list(ORDER)
    assert all(each.evidence for each in findings)
    assert not any("experiment itself failed" in str(each.evidence) for each in findings)
    assert [Finding.from_json(each.to_json()) for each in findings] == findings
    code = declaration("x", "attention = None", findings, "cpu")
    compile(code, "declaration", "exec")
    if attention is writes_and_meddles:
        assert "upper_left" in {each.answer for each in findings}
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


def test_a_process_that_hangs_or_ends_costs_one_experiment(tmp_path, capfd):
    path = tmp_path / "kernels_that_hang.py"
    path.write_text(HOSTILE)
    questions = ("bool mask", "causal", "softcap", "backward")
    found = list(probe_apart(f"{path}:attention", questions, timeout=10))
    assert [each.question for each in found] == list(questions)
    assert [each.answer for each in found] == [UNKNOWN, UNKNOWN, "no", "yes"]
    assert found[0].evidence == ("no answer within 10 s",)
    ended = "during this experiment it ended its process, with exit status 3"
    assert found[1].evidence == (ended,)
    assert "noise" not in capfd.readouterr().out


def test_the_command_prints_answers_evidence_and_a_declaration():
    given = CliRunner().invoke(
        app, ["probe", "sdpa_math", "--features", "lse", "--dtypes", "float32"]
    )
    assert given.exit_code == 0, given.output
    assert "1/√d_head" in given.output
    assert "it has no parameter return_lse" in given.output
    assert "is_causal=True" not in given.output.partition("refusals:")[0]
    assert "dtypes=(torch.float32,)," in given.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no_such_thing"], "no_such_thing"),
        (["tiktoken_gpt2"], "no attention"),
        (["sdpa", "--features", "cache"], "cache"),
        (["sdpa", "--dtypes", "float8"], "float8"),
    ],
)
def test_what_cannot_be_probed_is_refused_in_a_line(arguments, told):
    given = CliRunner().invoke(app, ["probe", *arguments])
    assert given.exit_code == 2
    assert told in given.output
    assert "Traceback" not in given.output


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os._exit(3)", "importing it failed: it ended its process, with exit status 3"),
        ("raise SystemExit('bye')", "importing it failed: SystemExit: bye"),
        ("while True: pass", "importing it failed: timed out after 2 s"),
        ("import ctypes; ctypes.string_at(0)", "importing it failed: its process died by SIGSEGV"),
    ],
)
def test_what_does_not_survive_its_import_is_refused_in_a_line(tmp_path, code, told):
    path = tmp_path / "kernels_that_end.py"
    path.write_text(code)
    given = CliRunner().invoke(app, ["probe", f"{path}:attention", "--timeout", "2"])
    assert given.exit_code == 2
    assert told in given.output


def test_memory_that_is_used_up_costs_one_experiment(tmp_path):
    path = tmp_path / "kernels_that_eat.py"
    path.write_text(EATS)
    found = list(probe_apart(f"{path}:attention", ("causal", "softcap"), memory=2**30))
    assert [each.question for each in found] == ["causal", "softcap"]
    assert "memory" in str(found[0].evidence)
    assert found[1].answer == "no"


EATS = """
import torch
from torch.nn.functional import scaled_dot_product_attention

def attention(query, key, value, is_causal=False):
    if is_causal:
        torch.ones(2**33).sum()
    return scaled_dot_product_attention(query, key, value)
"""


def test_the_page_shows_what_the_probe_finds():
    page = (Path(__file__).parents[2] / "docs" / "probe.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0]
    names = {}
    exec(compile(source, "page", "exec"), names)
    findings = probe(names["attention"])
    for each in findings:
        row = rf"│ *{re.escape(each.question)} +│ {re.escape(each.answer)} +│ "
        assert re.search(row + re.escape(each.deviation), page), each.question
    importing = "import my_kernels; attention = my_kernels.attention"
    assert declaration("my_kernels.py:attention", importing, findings, "cpu") in page
