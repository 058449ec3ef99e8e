"""Snippets of operators repeat the failing call with the same result."""

import contextlib
import io

import pytest
import torch

from attnspec.conformance import laws, mutants
from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.diagnosis.failure.operator_snippet import operator_snippet
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.targets import resolve
from attnspec.spec.operator import OperatorImplementation

LAWS = laws.load()
MUTANTS = [
    mutant
    for mutant in mutants.load().values()
    if isinstance(mutant.subject, OperatorImplementation)
]


def broken(subject: OperatorSubject, name: str) -> Violation | Raised:
    for case in LAWS[name].pinned:
        try:
            LAWS[name].check(subject, case)
        except (Violation, Raised) as error:
            return error
    raise AssertionError(f"{name} holds")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_code_makes_the_call_that_was_made(mutant):
    subject = subject_of_operator(mutant.subject)
    error = broken(subject, mutant.killed_by)
    code = operator_snippet(subject, getattr(error, "mismatch", None))
    call = subject.last_call
    if not code:
        # a model is built, and its call is none of tensors alone
        is_model = mutant.subject.operator == "bert"
        assert is_model or sum(tensor.numel() for tensor in call.tensors.values()) > 300
        return
    seen, values = [], {}

    def spy(*arguments, **options):
        shared = options.get("shared") or {}
        seen.append([*arguments, *options.values(), *shared.values()])
        values.update({name: names[name].detach().clone() for name in call.tensors})
        return mutant.subject.function(*arguments, **options)

    names = {mutant.subject.operator: spy}
    raising = (
        contextlib.suppress(Exception) if isinstance(error, Raised) else contextlib.nullcontext()
    )
    with contextlib.redirect_stdout(io.StringIO()), raising:
        exec("import torch\nfrom torch import inf, nan\n" + code.partition("\n\n")[2], names)
    (given,) = seen
    assert sum(isinstance(each, torch.Tensor) for each in given) == len(call.tensors)
    for name, tensor in call.tensors.items():
        assert torch.allclose(values[name], tensor, rtol=0, atol=0, equal_nan=True), name
        assert names[name].dtype == tensor.dtype
        assert any(names[name] is each for each in given), name


def test_a_failure_of_a_file_has_code_that_runs(tmp_path, monkeypatch):
    (tmp_path / "swapped_mlp.py").write_text(
        "from torch.nn.functional import linear, silu\n"
        "from attnspec.spec.gated_mlp import GatedMLPImplementation\n\n\n"
        "def mlp(x, gate, up, down):\n"
        "    return linear(silu(linear(x, up)) * linear(x, gate), down)\n\n\n"
        "MINE = GatedMLPImplementation(name='mine', function=mlp)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (loaded,) = resolve("swapped_mlp:MINE")
    record = check(LAWS["gated-mlp-equals-the-definition"], loaded.subject, Effort.SMOKE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(record.snippet, {})
    assert record.mismatch["got"][:6] in printed.getvalue()


def test_large_tensors_are_not_written_out():
    subject = subject_of_operator(MUTANTS[0].subject)
    assert operator_snippet(subject, None) == ""
