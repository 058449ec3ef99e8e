"""A target that is never judged: the verdict names the step that failed, and what to do."""

import pytest
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app
from attnspec.conformance.probe.following import look_up
from attnspec.conformance.runner.declare import BrokenCall, TargetError
from attnspec.conformance.runner.plan import plan
from attnspec.conformance.runner.task import TypedClaims

TARGET = """
import ctypes
import os
import torch

def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    right = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    held = []
    {code}
    return right

def build(config, state_dict):
    def model(input_ids):
        right = torch.zeros(*input_ids.shape, config.vocab_size)
        right = right.to(state_dict["transformer.wte.weight"].dtype)
        held = []
        {code}
        return right
    return model
"""

FAILING = {
    "raise RuntimeError('no kernel image')": "RuntimeError: no kernel image",
    "raise SystemExit('bye')": "SystemExit: bye",
    "while True: pass": "timed out after 2 s",
    "os._exit(3)": "it ended its process, with exit status 3",
    "ctypes.string_at(0)": "its process died by SIGSEGV",
    "while True: held.append(torch.ones(2**24))": "out of memory (limit 1 GiB): RuntimeError",
    "right = (right, None)": "must be a tensor, got",
    "right = right[:, None, -1:]": "must have shape",
    "right = right.half()": "must have dtype torch.float64, got torch.float16",
    "right = None": "must be a tensor, got NoneType",
}
"""Code inside of a first call, and the cause that the verdict names."""


def looked_up(path, attribute, *, limit=60.0, **claims):
    target, memory = f"{path}:{attribute}", 2**30
    typed = TypedClaims(**claims)
    return plan([target], typed, "cpu", limit=limit, memory=memory, look_up=look_up)


@pytest.mark.parametrize("attribute", ["attention", "build"])
@pytest.mark.parametrize("code", FAILING)
def test_a_first_call_that_fails_is_a_verdict_in_three_lines(tmp_path, code, attribute):
    path = tmp_path / "failing_first_call.py"
    path.write_text(TARGET.format(code=code))
    with pytest.raises(BrokenCall) as caught:
        looked_up(path, attribute, limit=2.0 if "pass" in code else 60.0)
    first, call, advice = str(caught.value).splitlines()
    assert first.startswith(f"{path}:{attribute}: NOT conforming: its first call fails: ")
    assert FAILING[code] in first
    assert call.startswith(f"  Call    {attribute}(")
    assert advice.startswith("  To do   make this call return ")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("while True: pass", "timed out after 2 s"),
        ("import os; os._exit(3)", "it ended its process, with exit status 3"),
        ("import ctypes; ctypes.string_at(0)", "its process died by SIGSEGV"),
    ],
)
def test_an_import_that_fails_is_told_from_a_call(tmp_path, code, cause):
    path = tmp_path / "failing_import.py"
    path.write_text(code)
    with pytest.raises(TargetError) as caught:
        looked_up(path, "attention", limit=2.0 if "pass" in code else 60.0)
    assert not isinstance(caught.value, BrokenCall)
    first, advice = str(caught.value).splitlines()
    assert first == f"{path}:attention: importing it failed: {cause}"
    assert advice == f'  To do   run python -c "import failing_import" in {tmp_path}, and ' + (
        "mend what it shows"
    )


def test_a_missing_module_is_named_with_the_python_that_lacks_it(tmp_path):
    path = tmp_path / "needs_another_module.py"
    path.write_text("import no_such_module\n")
    with pytest.raises(TargetError, match="No module named 'no_such_module'\n  To do   install"):
        looked_up(path, "attention")


def test_a_dtype_that_crashes_need_not_be_claimed(tmp_path):
    path = tmp_path / "crashing_in_float64.py"
    code = "os._exit(3) if query.dtype == torch.float64 else None"
    path.write_text(TARGET.format(code=code))
    with pytest.raises(BrokenCall, match=r"torch\.float64.*\n.*pass --dtypes without it"):
        looked_up(path, "attention")
    (planned,) = looked_up(path, "attention", dtypes="float32")
    assert not planned.broken


def test_a_crash_in_an_experiment_leaves_the_laws_to_judge(tmp_path):
    path = tmp_path / "crashing_if_causal.py"
    path.write_text(TARGET.format(code="os._exit(3) if is_causal else None"))
    (planned,) = looked_up(path, "attention", dtypes="float32")
    assert not planned.broken
    told = f"{path}:attention is judged under the default profile: the experiment on “causal”"
    assert planned.remark == (
        f"{told} did not end: it ended its process, with exit status 3, "
        "in the call query = key = value 2×2×6×16, is_causal=True, float32"
    )


def test_a_target_that_others_are_judged_beside_is_left_to_the_laws(tmp_path):
    path = tmp_path / "returning_none.py"
    path.write_text(TARGET.format(code="right = None"))
    targets, claims = [f"{path}:attention", "sdpa"], TypedClaims(dtypes="float32")
    planned = plan(targets, claims, "cpu", limit=60, memory=None, look_up=look_up)
    assert [each.broken for each in planned] == ["", ""]


@pytest.mark.parametrize(
    ("command", "attribute"), [("check", "attention"), ("check-gpt2", "build")]
)
def test_the_command_prints_the_verdict_and_ends_with_status_one(tmp_path, command, attribute):
    path = tmp_path / f"failing_{attribute}.py"
    path.write_text(TARGET.format(code="os._exit(3)"))
    result = CliRunner().invoke(app, [command, f"{path}:{attribute}", "-n", "1"])
    assert result.exit_code == 1, result.output
    first, *others = result.output.strip().splitlines()
    assert first.endswith("its first call fails: it ended its process, with exit status 3")
    assert len(others) == 2


def test_a_build_that_fails_in_one_dtype_is_judged_in_the_other_and_a_line_says_so(tmp_path):
    path = tmp_path / "build_in_float32.py"
    path.write_text(TARGET.format(code="right = right.float()"))
    (planned,) = looked_up(path, "build")
    assert planned.remark == (
        "float64 is not claimed: the logits must have dtype torch.float64, got torch.float32"
    )
    (planned,) = looked_up(path, "build", dtypes="float32")
    assert not planned.remark
