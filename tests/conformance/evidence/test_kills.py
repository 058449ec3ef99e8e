"""Mutation testing of the suite: selection, results, tables and restored state."""

import io
import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.cli.app import app
from attnspec.conformance.evidence.mutation.baseline_calls import (
    OPTIONS,
    BaselineCase,
    expected_of,
)
from attnspec.conformance.evidence.mutation.baselines import BASELINES, Comparison
from attnspec.conformance.evidence.mutation.items import correct
from attnspec.conformance.evidence.mutation.kill_matrix import (
    KillMatrix,
    catalogue,
    matrix_of,
    page,
    remarks,
    tables,
)
from attnspec.conformance.evidence.mutation.kills import (
    Kills,
    false_alarms,
    first_kill,
    kills,
    select_mutants,
)
from attnspec.conformance.evidence.mutation.torch_checks import (
    SMALL_SHAPES,
    GradientCheck,
    OperatorCheck,
)
from attnspec.conformance.isolation import memory
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.equivalent import EQUIVALENT
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.report.run import begun
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.spec import CausalAlignment, EmptyRow, Feature

laws.load()
mutants.load()


def test_the_parts_are_the_whole():
    whole = [mutant.id for mutant in select_mutants()]
    parts = [mutant.id for number in range(1, 6) for mutant in select_mutants("", f"{number}/5")]
    assert sorted(parts) == sorted(whole)
    assert len(whole) >= 275


@pytest.mark.parametrize("part", ["", "0/3", "4/3", "1", "a/b", "1/0", "-1/3"])
def test_a_part_that_does_not_exist_is_rejected(part):
    with pytest.raises(ValueError, match="a part has the form 2/7, got"):
        select_mutants("", part)


def test_a_pattern_that_no_id_contains_is_rejected():
    with pytest.raises(ValueError, match="no mutant has 'poetry' in its id"):
        select_mutants("poetry")


@pytest.mark.rotating(parts=6)
def test_a_mutant_is_killed_by_the_law_that_it_names_and_survives_json():
    result = kills(planted()["own-tile-sum"])
    assert result.first
    assert result.effort == "smoke"
    assert planted()["own-tile-sum"].killed_by in result.pinned
    assert "output-equals-the-definition" in result.pinned
    assert not set(result.pinned) & set(result.survived)
    assert set(result.styles) == {baseline.name for baseline in BASELINES}
    assert Kills.from_json(result.to_json()) == result


def test_a_law_kills_a_mutant_and_passes_a_correct_implementation():
    laws = [registered()["weights-sum-to-one"]]
    right = replace(planted()["own-tile-sum"], subject=dense("dense", Dense()))
    assert first_kill(right, laws, Effort.SMOKE) == {}
    assert first_kill(planted()["own-tile-sum"], laws, Effort.SMOKE)["first"] == laws[0].name


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda mutant: mutant.id)
def test_an_equivalent_mutant_breaks_no_law_that_a_mistake_would_break(mutant):
    assert mutant.proof
    assert not mutant.subject.features & {Feature.LSE, Feature.SINKS, Feature.SOFTCAP}
    subject = Subject(mutant.subject)
    for name in ("output-equals-the-definition", "weights-sum-to-one", "options-combine"):
        record = check(registered()[name], subject, None)
        assert record.outcome is Outcome.PASSED, record.message


def test_backends_and_equivalent_mutants_are_tried_for_false_alarms():
    names = set(correct())
    assert {"eager", "sdpa", "sdpa_math", "sdpa_flash", "compiled"} <= names
    assert {mutant.id for mutant in EQUIVALENT} <= names


def test_a_false_alarm_is_recorded():
    result = false_alarms("wrong", planted()["SCL-05"].subject)
    assert result.first
    assert result.kind == "correct"


class TestBaselines:
    """Tests of the baselines: each accepts a correct kernel and rejects a gross mistake."""

    COMPARING = tuple(each for each in BASELINES if isinstance(each, Comparison))

    @pytest.mark.parametrize("baseline", COMPARING, ids=lambda baseline: baseline.name)
    def test_a_gross_mistake_is_rejected(self, baseline):
        assert baseline.rejects(planted()["SCL-05"].subject)

    @pytest.mark.parametrize(
        "baseline", [each for each in BASELINES if "16 bit" not in each.name], ids=lambda b: b.name
    )
    def test_a_wide_kernel_is_accepted(self, baseline):
        assert baseline.rejects(dense("dense", Dense())) == ""

    @pytest.mark.parametrize("shape", [*SMALL_SHAPES, (128, 128, 64)], ids=str)
    @pytest.mark.parametrize("feature", sorted(set(OPTIONS) - {Feature.GQA}), ids=str)
    def test_an_option_changes_every_shape_and_leaves_no_row_empty(self, feature, shape):
        def out(feature: Feature | None) -> torch.Tensor:
            case = BaselineCase(
                shape, torch.float64, feature, CausalAlignment.UPPER_LEFT, EmptyRow.NAN
            )
            return expected_of(case, wants_gradients=False)[0]["out"]

        assert out(feature).isfinite().all()
        assert not torch.equal(out(feature), out(None))

    def test_gradcheck_rejects_wrong_gradients_and_no_wrong_output(self):
        check = GradientCheck()
        assert check.rejects(planted()["SCL-05"].subject) == ""

        def detached(query, key, value, **options):
            return (Dense()(query, key.detach(), value, **options)) + 0 * key.sum()

        assert "Jacobian mismatch" in check.rejects(dense("detached", detached))

    def test_opcheck_rejects_a_written_input_and_no_wrong_number(self):
        check = OperatorCheck()
        assert check.rejects(planted()["SCL-05"].subject) == ""

        def overwriting(query, key, value, **options):
            out = Dense()(query, key, value, **options)
            query.zero_()
            return out

        assert "query" in check.rejects(dense("overwriting", overwriting))

    def test_an_exception_is_a_rejection(self):
        def raises(*arguments, **options):
            raise RuntimeError("no")

        assert all("no" in each.rejects(dense("raises", raises)) for each in BASELINES)

    def test_a_wrong_shape_is_a_rejection(self):
        def shorter(query, key, value, **options):
            return value[:, :, :1]

        wrong = dense("shorter", shorter)
        assert all(baseline.rejects(wrong) for baseline in (*self.COMPARING, OperatorCheck()))


def test_the_process_wide_state_is_restored():
    before = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state()
    os.environ.pop("ATTNSPEC_TEST", None)
    drawn = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    with restored_state():
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        os.environ["ATTNSPEC_TEST"] = "1"
    assert torch.get_default_dtype() == before[0]
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == before[1]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.get_rng_state(), before[2])
    assert random.getstate() == drawn[0]
    assert np.array_equal(np.random.get_state()[1], drawn[1])  # noqa: NPY002
    assert "ATTNSPEC_TEST" not in os.environ


def test_the_process_wide_state_is_restored_after_an_error():
    def breaks() -> None:
        with restored_state():
            torch.set_default_dtype(torch.float16)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        breaks()
    assert torch.get_default_dtype() == torch.float32


class TestSummary:
    """Tests of the summary of a run of the catalogue."""

    LAWS = ("l", "m", "n")
    RESULTS = (
        Kills(
            mutant="a",
            kind="attention",
            first="l",
            effort="smoke",
            seconds=0.25,
            examples=3,
            pinned={"l": 1, "m": 2},
            silent=("n",),
            looks_like=("a",),
            styles={"usual": "", "other": "off"},
        ),
        Kills(
            mutant="b",
            kind="attention",
            first="l",
            effort="standard",
            seconds=0.75,
            pinned={"m": 1},
            survived=("l", "n"),
            looks_like=("a",),
            looks_like_others=("a",),
        ),
        Kills(mutant="c", kind="attention", survived=("l", "m", "n")),
        Kills(mutant="right", kind="correct", styles={"usual": "off", "other": ""}),
    )
    MATRIX = KillMatrix(
        run=begun(device="cpu", effort="standard", seed=0),
        laws={"attention": LAWS},
        results=RESULTS,
        sources={"laws/masking/causal.py": "0123456789ab"},
    )

    def text(self):
        console = Console(width=200, record=True, file=io.StringIO())
        for table in tables(self.MATRIX):
            console.print(table)
        return console.export_text()

    def row(self, text, start):
        (line,) = (line for line in text.splitlines() if line.strip(" │|").startswith(start))
        return [cell.strip() for cell in line.strip(" │|").replace("│", "|").split("|")]

    def test_scores_are_counted_by_kind(self):
        assert self.row(self.text(), "attention") == ["attention", *"3212", "0.50", "0.8"]

    def test_baselines_are_counted_on_mutants_and_on_correct_implementations(self):
        text = self.text()
        assert self.row(text, "usual") == ["usual", "0 of 3 (0%)", "1 of 1"]
        assert self.row(text, "other") == ["other", "1 of 3 (33%)", "0 of 1"]
        assert self.row(text, "the laws") == ["the laws", "2 of 3 (67%)", "0 of 1"]

    def test_survivors_idle_laws_and_the_diagnosis_are_summarized(self):
        lines = remarks(self.MATRIX, is_whole=True)
        assert "survived: c" in lines
        assert any("2 of 3 named, 1 of 2 (50%)" in line for line in lines)
        assert any("3 laws" in line and "killing none by pinned cases: n" in line for line in lines)

    def test_a_part_says_nothing_about_laws(self):
        assert not any("killing none" in line for line in remarks(self.MATRIX, is_whole=False))

    def test_a_false_alarm_is_summarized(self):
        alarm = Kills(mutant="right", kind="correct", first="l")
        matrix = replace(self.MATRIX, results=(alarm,))
        assert "rejected, but correct: right" in remarks(matrix, is_whole=False)

    def test_the_page_shows_the_scores_and_the_catalogue_shows_every_mutant(self):
        text = page(self.MATRIX, 3)
        assert "Only" not in text
        assert "Only 3 of 9 mutants were tried" in page(self.MATRIX, 9)
        assert self.row(text, "attention")[1] == "3"
        text = catalogue(self.MATRIX, {"a": ("wrong | so", "https://example.org/1")})
        assert "[a](https://example.org/1) | wrong \\| so | `l` | 3 | 0.25 | 2 |" in text
        assert "**survived**" in text

    def test_a_written_file_can_be_read(self, tmp_path):
        path = tmp_path / "matrix.jsonl"
        self.MATRIX.write(path)
        assert KillMatrix.read(path) == self.MATRIX

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"laws": 3}', "\x00", '{"laws": {}}\n{}'])
    def test_a_file_without_a_matrix_is_rejected(self, tmp_path, text):
        path = tmp_path / "matrix.jsonl"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"matrix\.jsonl: no matrix of mutants"):
            KillMatrix.read(path)

    def test_laws_are_in_the_order_of_a_run(self):
        results = [result for result in self.RESULTS if result.mutant == "c"]
        laws = matrix_of(self.MATRIX.run, results).laws
        assert sum(map(len, laws.values())) == len(registered())


@pytest.mark.rotating(parts=3)
@pytest.mark.skipif(not memory.can_limit(), reason="memory is limited on Linux alone")
def test_the_memory_limit_applies_to_a_process_that_tries_mutants(tmp_path):
    hook = "def pytest_unconfigure(): print('may hold', memory_limit())"
    (tmp_path / "limit_plugin.py").write_text(
        f"from attnspec.conformance.isolation.memory import memory_limit\n{hook}"
    )
    items = ["--pyargs", "attnspec.conformance.evidence.mutation.items", "--import-mode=importlib"]
    options = ["--attnspec-mutant=own-temperature-ignored", "--attnspec-memory=3"]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--noconftest", "-p", "limit_plugin"]
    done = subprocess.run(
        [*command, *items, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"may hold {3 * memory.GIBIBYTE}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ZZZ"], "no mutant has 'ZZZ'"),
        (["--part", "9/3"], "a part has the form 2/7"),
        (["MSK", "--report", "/nowhere/at/all.jsonl"], "there is no folder"),
        (["MSK", "--page", "/nowhere/at/all.md"], "there is no folder"),
    ],
)
def test_the_command_rejects_invalid_arguments(arguments, message):
    result = CliRunner().invoke(app, ["mutants", *arguments])
    assert result.exit_code == 2
    assert message in result.output
