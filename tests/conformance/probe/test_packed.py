"""The probe of packed and paged attention finds declarations, and names mistakes."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app
from attnspec.conformance.mutants.bases.packed import PlainPacked
from attnspec.conformance.mutants.bases.packed import correct as correct_packed
from attnspec.conformance.mutants.bases.paged import correct as correct_paged
from attnspec.conformance.mutants.packed import neighbours as _of_neighbours  # noqa: F401
from attnspec.conformance.mutants.packed import sequences as _planted  # noqa: F401
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.paged.case import PagedCase
from attnspec.conformance.probe.declaration import NOTHING
from attnspec.conformance.probe.packed import packed_declaration, probe_packed, questions_of
from attnspec.implementations import load_operator, packed_eager, paged_eager
from attnspec.spec.packed import EmptySequences, IndexType, LseLayout, PackedProfile, causal_alone
from attnspec.spec.paged import PagedProfile
from attnspec.spec.profiles import EmptyRow, RoundingLevel

TYPES = (torch.float64, torch.float32)


def executed(findings, function, operator):
    """Execute the printed declaration, and return what it declares."""
    code = packed_declaration("it", f"{operator} = probed", findings, operator)
    names = {"probed": function}
    exec(code, names)
    return names["IMPLEMENTATION"]


def by_question(findings):
    return {each.question: each for each in findings}


@pytest.mark.parametrize(
    ("implementation", "operator"),
    [(packed_eager.IMPLEMENTATION, "packed"), (paged_eager.IMPLEMENTATION, "paged")],
)
def test_the_declaration_of_an_implementation_is_found(implementation, operator):
    findings = probe_packed(implementation.function, operator)
    found = executed(findings, implementation.function, operator)
    assert not any(each.deviation for each in findings)
    assert found.features == implementation.features
    assert found.profile == implementation.profile
    assert found.dtypes == implementation.dtypes
    assert found.supports is implementation.supports
    assert type(found) is type(implementation)


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize(
    "name",
    [
        *("packed_nested", "paged_transformers"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("packed_flex", "paged_flex")),
    ],
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_declaration_of_a_library_is_found(name):
    """Calls find all but two answers, for which a bare function has no words.

    Of the rounding level they find whether it is the narrowest, and else the widest. A function
    that raises only if all sequences are empty is declared with `supports`.
    """
    declared = load_operator(name)
    if reason := declared.unavailable():
        pytest.skip(reason)
    findings = probe_packed(declared.function, declared.operator)
    found = executed(findings, declared.function, declared.operator)
    is_fused = declared.profile.rounding is RoundingLevel.FUSED
    level = RoundingLevel.FUSED if is_fused else RoundingLevel.EAGER
    empty = PagedCase(queries=(0, 0), keys=(2, 2))
    is_declared = declared.supports(empty) is None
    sequences = (declared if is_declared else found).profile.empty_sequences
    assert found.features == declared.features
    assert found.profile == replace(declared.profile, rounding=level, empty_sequences=sequences)
    assert found.dtypes == declared.dtypes


@pytest.mark.parametrize("paged", [False, True])
def test_a_function_that_is_always_causal_is_found(paged):
    declared = (paged_eager if paged else packed_eager).IMPLEMENTATION

    def causal(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size, **options):
        if max_q > 1 and window_size != (-1, 0):
            raise ValueError(f"the diagonal is causal, got {window_size}")
        given = (query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)
        return declared.function(*given, window_size=window_size, **options)

    dtypes = (torch.float32, torch.bfloat16)
    findings = probe_packed(causal, declared.operator, dtypes=dtypes)
    found = executed(findings, causal, declared.operator)
    assert found.supports is causal_alone
    assert found.features == declared.features - {"window"}
    assert found.profile == declared.profile
    assert "not causal raise" in by_question(findings)["storage types"].evidence[-1]


@pytest.mark.parametrize("layout", LseLayout)
def test_answers_of_the_profile_are_found(layout):
    profile = PackedProfile(lse_layout=layout, rounding=RoundingLevel.EAGER)
    function = correct_packed(profile=profile).function
    found = executed(probe_packed(function, dtypes=TYPES), function, "packed")
    assert found.profile.lse_layout is layout
    assert found.profile.empty_row is EmptyRow.ZERO
    assert found.profile.empty_sequences is EmptySequences.ALLOWED


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("answer", IndexType)
def test_integer_types_that_are_refused_are_found(answer, paged):
    correct, operator = (correct_paged, "paged") if paged else (correct_packed, "packed")
    profile = replace(correct().profile, index_type=answer)
    function = correct(profile=profile).function
    findings = probe_packed(function, operator, dtypes=TYPES[1:])
    found = executed(findings, function, operator)
    assert found.profile.index_type is answer
    assert "validates" in found.features
    assert by_question(findings)["storage types"].answer == "float32"


def test_integers_that_are_read_wrongly_are_a_finding_and_no_answer():
    function = planted()["own-packed-int64-as-int32"].subject.function
    findings = probe_packed(function, dtypes=TYPES[1:])
    assert executed(findings, function, "packed").profile.index_type is IndexType.EITHER


def test_refusals_of_empty_sequences_are_found():
    class Strict(PlainPacked):
        def __call__(self, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options):
            if not bool((cu_seq_q.diff() > 0).all() and (cu_seq_k.diff() > 0).all()):
                raise ValueError("an empty sequence")
            return super().__call__(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options)

    found = by_question(probe_packed(Strict(), dtypes=TYPES))
    assert found["empty sequences"].answer == "undefined"


def test_invalid_lengths_that_are_accepted_are_counted():
    found = by_question(probe_packed(packed_eager.packed, dtypes=TYPES[1:]))["invalid arguments"]
    assert found.answer.endswith("accepted")
    assert all("is not refused" in line for line in found.evidence)
    assert found.facts == {}


@pytest.mark.parametrize("paged", [False, True])
def test_a_correct_base_refuses_invalid_arguments(paged):
    correct, operator = (correct_paged, "paged") if paged else (correct_packed, "packed")
    found = by_question(probe_packed(correct().function, operator, dtypes=TYPES[1:]))
    assert found["invalid arguments"].answer == "all refused"
    assert found["invalid arguments"].facts == {"features": ["validates"]}


MISTAKES = {
    "own-packed-upper-left": ("causal", "the diagonal is upper-left"),
    "own-packed-interleaved": ("grouped heads", ""),
    "own-packed-softcap-dropped": ("softcap", ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_no_feature_and_is_named(name):
    question, cause = MISTAKES[name]
    function = planted()[name].subject.function
    findings = probe_packed(function, dtypes=TYPES)
    found = by_question(findings)[question]
    assert found.answer == "wrong"
    assert cause in found.deviation
    declared = executed(findings, function, "packed")
    assert {"grouped heads": "gqa"}.get(question, question) not in declared.features


def test_one_page_size_is_found():
    def sixteen(query, key, *arguments, **options):
        if key.shape[1] != 16:
            raise ValueError("pages have 16 tokens")
        return paged_eager.paged(query, key, *arguments, **options)

    findings = probe_packed(sixteen, "paged", dtypes=TYPES)
    assert by_question(findings)["page sizes"].answer == "16"
    assert executed(findings, sixteen, "paged").page_sizes == (16,)
    assert isinstance(executed(findings, sixteen, "paged").profile, PagedProfile)


def test_a_function_that_is_always_wrong_has_no_declaration():
    findings = probe_packed(lambda query, *arguments, **options: 0 * query, dtypes=TYPES)
    found = by_question(findings)
    assert found["storage types"].answer == "none"
    assert found["rounding"].answer == "unknown"
    assert packed_declaration("it", "packed = probed", findings, "packed") == NOTHING


FILE = """
import time
from attnspec.implementations.packed_eager import packed

def hangs_with_softcap(*arguments, softcap=None, **options):
    if softcap is not None:
        time.sleep(60)
    return packed(*arguments, **options)
"""


@pytest.mark.rotating(parts=4)
def test_the_command_prints_findings_and_a_declaration_that_conforms(tmp_path):
    path, written = tmp_path / "varlen.py", tmp_path / "declared.py"
    path.write_text("from attnspec.implementations.packed_eager import packed as varlen\n")
    arguments = [f"{path}:varlen", "--packed", "--dtypes", "float32"]
    result = CliRunner().invoke(app, ["probe", *arguments, "--write", str(written)])
    assert result.exit_code == 0, result.output
    for question in questions_of("packed"):
        assert question in result.output
    check = ["check", f"{written}:IMPLEMENTATION", "--effort", "smoke", "-n", "1"]
    result = CliRunner().invoke(app, [*check, "--laws", "SEQ-1", "--laws", "SEQ-7"])
    assert result.exit_code == 0, result.output


@pytest.mark.rotating(parts=3)
def test_a_call_that_hangs_costs_the_questions_that_need_it(tmp_path):
    path = tmp_path / "hangs.py"
    path.write_text(FILE)
    arguments = [f"{path}:hangs_with_softcap", "--operator", "packed", "--dtypes", "float32"]
    result = CliRunner().invoke(app, ["probe", *arguments, "--timeout", "3"])
    assert result.exit_code == 0, result.output
    assert "no answer within 3 s" in result.output
    assert "float32: right" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--operator", "gelu"], "packed and paged"),
        (["--operator", "packed", "--features", "causal"], "all its features"),
        (["--paged", "--device", "cuda"], "paged attention is probed on a CPU"),
        (["--packed", "--operator", "paged"], "--packed means --operator packed, not paged"),
        (["--packed", "--paged"], "--paged means --operator paged, not packed"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    result = CliRunner().invoke(app, ["probe", "packed_eager", *options])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_paged_attention_is_probed_by_its_flag():
    result = CliRunner().invoke(app, ["probe", "paged_eager", "--paged", "--dtypes", "float32"])
    assert result.exit_code == 0, result.output
    assert "page sizes" in result.output
    assert "PagedImplementation(" in result.output
