"""Snippets of operators repeat the failing call with the same result."""

import contextlib
import io

import pytest
import torch

from attnspec.conformance import laws, mutants
from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.diagnosis.failure.built_model_snippet import built_model_snippet
from attnspec.conformance.diagnosis.failure.operator_snippet import operator_snippet
from attnspec.conformance.operators.built_model import BuiltModelSubject
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.targets import resolve
from attnspec.spec.operator import OperatorImplementation

LAWS = laws.load()
OPERATORS = [
    mutant
    for mutant in mutants.load().values()
    if isinstance(mutant.subject, OperatorImplementation)
]
MODELS = [
    mutant
    for mutant in OPERATORS
    if isinstance(subject_of_operator(mutant.subject), BuiltModelSubject)
]
MUTANTS = [mutant for mutant in OPERATORS if mutant not in MODELS]


def broken(subject: OperatorSubject, name: str) -> Violation | Raised:
    for case in LAWS[name].pinned:
        try:
            LAWS[name].check(subject, case)
        except (Violation, Raised) as error:
            return error
    raise AssertionError(f"{name} holds")


@pytest.mark.rotating(parts=3)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_code_makes_the_call_that_was_made(mutant):
    subject = subject_of_operator(mutant.subject)
    error = broken(subject, mutant.killed_by)
    code = operator_snippet(subject, getattr(error, "mismatch", None))
    call = subject.last_call
    if not code:
        assert sum(tensor.numel() for tensor in call.tensors.values()) > 300
        return
    seen, values = [], {}

    def spy(*arguments, **options):
        shared = options.get("shared") or {}
        seen.append([*arguments, *options.values(), *shared.values()])
        values.update({name: names[name].detach().clone() for name in call.tensors})
        return mutant.subject.function(*arguments, **options)

    names = {mutant.subject.operator: spy}
    raising = (
        contextlib.suppress(Exception)
        if isinstance(error, Raised) or "refused" in mutant.killed_by
        else contextlib.nullcontext()
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


@pytest.mark.rotating(parts=3)
@pytest.mark.parametrize("mutant", MODELS, ids=lambda mutant: mutant.id)
def test_the_code_of_a_model_prints_the_number_of_the_failure(mutant):
    subject = subject_of_operator(mutant.subject)
    error = broken(subject, mutant.killed_by)
    code = built_model_snippet(subject, getattr(error, "mismatch", None))
    if getattr(error, "mismatch", None) is None:
        # operations are counted, parameters compared, or a gradient is missing
        is_counted = mutant.killed_by.endswith(("are-computed-once", "as-they-are"))
        assert is_counted or "no gradient reaches" in str(error)
        return
    place = tuple(int(word) for word in error.mismatch.where.replace(",", "").split()[1::2])
    printed = []
    names = {mutant.subject.operator: mutant.subject.function, "print": printed.append}
    head, _, body = code.partition("\n\n")
    case_import = next(line for line in head.splitlines() if "import" in line and "Case" in line)
    exec(f"import torch\nfrom torch import inf, nan\n{case_import}\n" + body, names)
    (out,) = printed
    assert f"got {error.mismatch.got}" in code
    whole = len(place) == out.dim()  # a law may name one text of a batch, or its own difference
    if whole and "of the reversed" not in error.mismatch.what:
        assert float(out[place]) == pytest.approx(float(error.mismatch.got), rel=1e-7)


def test_a_failing_bert_has_code_that_runs(tmp_path, monkeypatch):
    (tmp_path / "causal_bert.py").write_text(
        "from attnspec.conformance.operators.bert.mistakes import Causal\n"
        "from attnspec.spec.encoder import BertImplementation\n\n"
        "MINE = BertImplementation(name='mine', function=Causal)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (loaded,) = resolve("causal_bert:MINE")
    record = check(LAWS["every-position-reads-the-whole-text"], loaded.subject, Effort.SMOKE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(record.snippet, {})
    # four digits are printed
    assert f"{float(record.mismatch['got']):.4f}" in printed.getvalue()


def test_a_parameter_that_a_law_has_changed_is_written_out():
    name = "a-reversed-source-with-reversed-positions-gives-the-same-logits"
    mutant = next(each for each in MODELS if each.killed_by == name)
    subject = subject_of_operator(mutant.subject)
    error = broken(subject, name)
    code = built_model_snippet(subject, error.mismatch)
    assert "weights['model.encoder.embed_positions.weight'] = torch.tensor(" in code


def test_large_tensors_are_not_written_out():
    subject = subject_of_operator(MUTANTS[0].subject)
    assert operator_snippet(subject, None) == ""
