"""RMSNorm and rotary positions in Triton: what they refuse anywhere, and laws where Triton is."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnspec.conformance.operators.rms_norm.case import RMSNormCase
from attnspec.conformance.operators.rotary.case import RotaryCase
from attnspec.implementations import load_operator, triton_rows

NEEDS_TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="no module triton"
)
NAMES = ("triton_rms_norm", "triton_rotary")


@pytest.mark.parametrize("name", NAMES)
def test_each_is_registered(name):
    assert load_operator(name).name == name


def test_types_that_the_kernels_do_not_have_are_refused():
    pytest.importorskip("triton")
    ones = torch.ones(1, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="float32, float16 or bfloat16, got"):
        triton_rows.rms_norm(ones, (2,), ones[0], 1e-6)


def test_the_interpreter_takes_few_rows(monkeypatch):
    monkeypatch.setattr(triton_rows, "IS_INTERPRETED", True)
    assert triton_rows.few_rows(RMSNormCase(shape=(20, 20))) is None
    large = "the interpreter would take 401 rows, more than 400"
    assert triton_rows.few_rows(RMSNormCase(shape=(401,))) == large
    assert triton_rows.few_tokens(RotaryCase(heads=401, length=1)) == large
    monkeypatch.setattr(triton_rows, "IS_INTERPRETED", False)
    assert triton_rows.few_rows(RMSNormCase(shape=(401,))) is None


JUDGED = """
import sys
import row_kernels
sys.modules["attnspec.implementations.triton_row_kernels"] = row_kernels
from attnspec.conformance import laws
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.runner.check import check
from attnspec.implementations import load_operator
outcomes = {}
for name, *chosen in (
    (
        "triton_rms_norm",
        "rms-norm-equals-the-definition",
        "gradients-of-rms-norm-equal-the-definition",
        "rms-norm-is-right-in-every-two-regimes",
    ),
    ("triton_rotary", "rotary-equals-the-definition", "the-gradient-turns-back"),
):
    subject = subject_of_operator(load_operator(name))
    for law in chosen:
        outcomes[law] = check(laws.load()[law], subject, None).outcome
print(" ".join(law for law, outcome in outcomes.items() if outcome != "passed") or "right")
"""

PLANTED = {
    "": ("", "right"),
    "tl.sum(values * values, 0) / channels + epsilon": (
        "tl.sum(values * values, 0) / WIDTH + epsilon",
        "rms-norm-equals-the-definition",
    ),
    "- normalized * overlap": ("", "gradients-of-rms-norm-equal-the-definition"),
    "row // heads": ("row % heads", "rotary-equals-the-definition"),
    "frequencies, -1.0)": ("frequencies, 1.0)", "the-gradient-turns-back"),
}
"""Code of the kernels, the bug that takes its place, and a law that finds it."""


@pytest.mark.slow
@NEEDS_TRITON
@pytest.mark.parametrize("code", PLANTED, ids=["none", "mean", "overlap", "token", "sign"])
def test_the_interpreter_conforms_and_bugs_in_the_kernels_are_found(code, tmp_path):
    source = Path(triton_rows.__file__).with_name("triton_row_kernels.py").read_text()
    mistake, found = PLANTED[code]
    if code:
        assert source.count(code) == 1
        source = source.replace(code, mistake)
    (tmp_path / "row_kernels.py").write_text(source)
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, "-c", JUDGED],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        cwd=tmp_path,
    )
    assert found in run.stdout.split(), run.stdout + run.stderr
