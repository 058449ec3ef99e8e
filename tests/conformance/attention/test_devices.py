"""Tensors on the wrong device are found by a simulated accelerator, on a CPU.

The laws, the oracle, the error bound and `eager` create tensors; on a machine without a GPU
nothing else shows whether each is on the device of the call.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnspec.spec.clauses import all_clauses

JUDGE = """
import sys
sys.path.insert(0, {folder!r})
from dataclasses import replace

import torch
from simulated_accelerator import NAME

from attnspec.conformance import laws
from attnspec.conformance.api import check_attention
from attnspec.implementations import load
from attnspec.spec import Feature, Implementation


def with_mask_on(device):
    def attention(query, key, value, is_causal=False, scale=None):
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=device).tril()
            scores = scores.masked_fill(~visible, -torch.inf)
        return scores.softmax(-1) @ value

    return Implementation(
        name="own",
        attention=attention,
        features=frozenset({{Feature.CAUSAL}}),
        dtypes=(torch.float32,),
        devices=(NAME,),
    )


# under torch.compile and autocast this device has no operations
EAGER = replace(load("eager"), devices=(NAME,), extras=frozenset(), deviations=())
for record in check_attention({subject}, device=NAME, effort="smoke", laws={patterns!r}):
    print(record.law, record.outcome, record.reason.splitlines()[:1], sep="|")
"""

WITHOUT_KERNELS = {
    "autocast-lowers-the-precision-and-nothing-else",
    "autocast-lowers-the-precision-of-gradients-and-nothing-else",
    "calls-without-gradients-are-right-and-change-no-later-call",
}
"""Laws that need what the simulated device lacks: autocast, and tensors of inference mode."""

NOT_CLAIMED = {"TEN-8", "TEN-12", "TEN-13", "TEN-14", "TEN-15", "TEN-19"}
"""Clauses of extras, which are not claimed here, and of what this device cannot show."""


def judge(subject, *patterns):
    """Return the outcome and the reason of each law, in a process of its own."""
    folder = str(Path(__file__).parent.parent)
    code = JUDGE.format(folder=folder, subject=subject, patterns=list(patterns))
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=1200
    )
    assert run.returncode == 0, run.stderr
    lines = (line.split("|", 2) for line in run.stdout.splitlines())
    return {law: (outcome, reason) for law, outcome, reason in lines}


@pytest.fixture(autouse=True)
def _backend():
    registration = torch.utils.backend_registration
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip(f"torch {torch.__version__} has no Python backend for a simulated device")


@pytest.mark.rotating(parts=3)
def test_a_tensor_on_the_wrong_device_is_found():
    law = "a-causal-row-attends-its-prefix"
    outcome, reason = judge("with_mask_on('cpu')", law)[law]
    assert outcome == "errored"
    assert "Expected all tensors to be on the same device" in reason
    assert judge("with_mask_on(NAME)", law)[law][0] == "passed"


@pytest.mark.slow
@pytest.mark.rotating(parts=12)
@pytest.mark.parametrize("clause", [each for each in all_clauses() if each.startswith("TEN-")])
def test_eager_passes_the_laws_about_tensors(clause):
    outcomes = judge("EAGER", clause)
    tried = {law: each for law, each in outcomes.items() if law not in WITHOUT_KERNELS}
    wrong = {law: each for law, each in tried.items() if each[0] in ("failed", "errored", "flaky")}
    assert not wrong
    assert clause in NOT_CLAIMED or any(outcome == "passed" for outcome, _ in tried.values())


@pytest.mark.slow
@pytest.mark.rotating(parts=12)
@pytest.mark.parametrize("law", ["options-combine", "masks-broadcast", "a-sink-of-minus-infinity"])
def test_the_laws_create_nothing_on_another_device(law):
    outcomes = judge("EAGER", f"{law}*")
    assert outcomes
    assert {outcome for outcome, _ in outcomes.values()} == {"passed"}
