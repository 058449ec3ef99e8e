"""The trial of the suite on its mutants: what is recorded, chosen, printed and restored."""

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

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance import memory
from attnspec.conformance.check import check
from attnspec.conformance.cli import app
from attnspec.conformance.effort import Effort
from attnspec.conformance.kills import Kills, chosen, false_alarms, first_kill, kills
from attnspec.conformance.kills_report import Matrix, catalogue, matrix_of, page, remarks, tables
from attnspec.conformance.law import registered
from attnspec.conformance.mutant_trials import correct
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.equivalent import EQUIVALENT
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.process import restored
from attnspec.conformance.record import Outcome
from attnspec.conformance.report_run import begun
from attnspec.conformance.styles import STYLES, rejects
from attnspec.conformance.subject import Subject
from attnspec.spec import Feature


def test_the_parts_are_the_whole():
    whole = [each.id for each in chosen()]
    parts = [each.id for number in range(1, 6) for each in chosen("", f"{number}/5")]
    assert sorted(parts) == sorted(whole)
    assert len(whole) >= 275


@pytest.mark.parametrize("part", ["", "0/3", "4/3", "1", "a/b", "1/0", "-1/3"])
def test_a_part_that_does_not_exist_is_named(part):
    with pytest.raises(ValueError, match="a part is given as 2/7, got"):
        chosen("", part)


def test_a_pattern_that_no_id_contains_is_named():
    with pytest.raises(ValueError, match="no mutant has 'poetry' in its id"):
        chosen("poetry")


def test_a_mutant_is_killed_by_what_it_names_and_the_record_survives_json():
    told = kills(planted()["own-tile-sum"])
    assert told.first
    assert told.effort == "smoke"
    assert set(planted()["own-tile-sum"].kills) <= set(told.pinned)
    assert "output-equals-the-definition" in told.pinned
    assert not set(told.pinned) & set(told.survived)
    assert set(told.styles) == {each.name for each in STYLES}
    assert Kills.from_json(told.to_json()) == told


def test_a_correct_implementation_survives_what_a_mutant_does_not():
    laws = [registered()["weights-sum-to-one"]]
    right = replace(planted()["own-tile-sum"], subject=dense("dense", Dense()))
    assert first_kill(right, laws, Effort.SMOKE) == {}
    assert first_kill(planted()["own-tile-sum"], laws, Effort.SMOKE)["first"] == laws[0].name


@pytest.mark.parametrize("each", EQUIVALENT, ids=lambda each: each.id)
def test_an_equivalent_mutant_breaks_no_law_that_a_mistake_would_break(each):
    assert each.proof
    assert not each.subject.features & {Feature.LSE, Feature.SINKS, Feature.SOFTCAP}
    subject = Subject(each.subject)
    for name in ("output-equals-the-definition", "weights-sum-to-one", "options-combine"):
        record = check(registered()[name], subject, None)
        assert record.outcome is Outcome.PASSED, record.message


def test_false_alarms_are_looked_for_everywhere():
    names = set(correct())
    assert {"eager", "sdpa", "sdpa_math", "sdpa_flash", "compiled"} <= names
    assert {each.id for each in EQUIVALENT} <= names


def test_a_false_alarm_is_recorded():
    told = false_alarms("wrong", planted()["SCL-05"].subject)
    assert told.first
    assert told.kind == "correct"


class TestStyles:
    """Each usual style accepts what it should accept, and sees a gross mistake."""

    @pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
    def test_a_gross_mistake_is_seen(self, style):
        assert rejects(style, planted()["SCL-05"].subject)

    @pytest.mark.parametrize("style", [STYLES[0], STYLES[2], STYLES[3]], ids=lambda s: s.name)
    def test_a_wide_kernel_is_accepted(self, style):
        assert rejects(style, dense("dense", Dense())) == ""

    def test_an_exception_is_a_rejection(self):
        def raises(*arguments, **options):
            raise RuntimeError("no")

        assert "no" in rejects(STYLES[0], dense("raises", raises))

    def test_a_wrong_shape_is_a_rejection(self):
        def shorter(query, key, value, **options):
            return value[:, :, :1]

        assert all(rejects(style, dense("shorter", shorter)) for style in STYLES)


def test_what_a_subject_changes_is_put_back():
    before = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state()
    os.environ.pop("ATTNSPEC_TEST", None)
    drawn = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    with restored():
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


def test_what_a_subject_changes_is_put_back_after_an_error():
    def breaks() -> None:
        with restored():
            torch.set_default_dtype(torch.float16)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        breaks()
    assert torch.get_default_dtype() == torch.float32


class TestSummary:
    """What is printed about a run of the catalogue."""

    LAWS = ("l", "m", "n")
    FOUND = (
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
    MATRIX = Matrix(
        run=begun(device="cpu", effort="standard", seed=0), laws={"attention": LAWS}, found=FOUND
    )

    def text(self):
        console = Console(width=200, record=True, file=io.StringIO())
        for each in tables(self.MATRIX):
            console.print(each)
        return console.export_text()

    def row(self, text, start):
        (line,) = (each for each in text.splitlines() if each.strip(" │|").startswith(start))
        return [each.strip() for each in line.strip(" │|").replace("│", "|").split("|")]

    def test_scores_are_counted_by_kind(self):
        assert self.row(self.text(), "attention") == ["attention", *"3212", "0.50", "0.8"]

    def test_styles_are_counted_on_wrong_and_on_right(self):
        text = self.text()
        assert self.row(text, "usual") == ["usual", "0 of 3 (0%)", "1 of 1"]
        assert self.row(text, "other") == ["other", "1 of 3 (33%)", "0 of 1"]
        assert self.row(text, "the laws") == ["the laws", "2 of 3 (67%)", "0 of 1"]

    def test_survivors_idle_laws_and_the_diagnosis_are_told(self):
        lines = remarks(self.MATRIX, is_whole=True)
        assert "survived: c" in lines
        assert any("2 of 3 named, 1 of 2 (50%)" in line for line in lines)
        assert any("3 laws" in line and "killing none by pinned cases: n" in line for line in lines)

    def test_a_part_says_nothing_about_laws(self):
        assert not any("killing none" in line for line in remarks(self.MATRIX, is_whole=False))

    def test_what_is_right_and_rejected_is_told(self):
        alarm = Kills(mutant="right", kind="correct", first="l")
        matrix = replace(self.MATRIX, found=(alarm,))
        assert "rejected, and right: right" in remarks(matrix, is_whole=False)

    def test_the_page_shows_scores_and_the_catalogue_every_mutant(self):
        text = page(self.MATRIX, 3)
        assert "Only" not in text
        assert "Only 3 of 9 mutants were tried" in page(self.MATRIX, 9)
        assert self.row(text, "attention")[1] == "3"
        text = catalogue(self.MATRIX, {"a": ("wrong | so", "https://example.org/1")})
        assert "[a](https://example.org/1) | wrong \\| so | `l` | 3 | 0.25 | 2 |" in text
        assert "**survived**" in text

    def test_a_file_gives_back_what_was_written(self, tmp_path):
        path = tmp_path / "matrix.jsonl"
        self.MATRIX.write(path)
        assert Matrix.read(path) == self.MATRIX

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"laws": 3}', "\x00", '{"laws": {}}\n{}'])
    def test_a_file_without_a_matrix_is_named(self, tmp_path, text):
        path = tmp_path / "matrix.jsonl"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"matrix\.jsonl: no matrix of mutants"):
            Matrix.read(path)

    def test_laws_stand_in_the_order_of_a_run(self):
        told = [each for each in self.FOUND if each.mutant == "c"]
        laws = matrix_of(self.MATRIX.run, told).laws
        assert sum(map(len, laws.values())) == len(registered())


@pytest.mark.skipif(not memory.can_limit(), reason="memory is limited on Linux alone")
def test_a_process_that_tries_mutants_is_kept_to_its_part_of_the_memory(tmp_path):
    told = "def pytest_unconfigure(): print('may hold', limited())"
    (tmp_path / "teller.py").write_text(f"from attnspec.conformance.memory import limited\n{told}")
    trials = ["--pyargs", "attnspec.conformance.mutant_trials", "--import-mode=importlib"]
    chosen = ["--attnspec-mutant=own-temperature-ignored", "--attnspec-memory=3"]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--noconftest", "-p", "teller"]
    done = subprocess.run(
        [*command, *trials, *chosen],
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
        (["--part", "9/3"], "a part is given as 2/7"),
        (["MSK", "--report", "/nowhere/at/all.jsonl"], "there is no folder"),
        (["MSK", "--page", "/nowhere/at/all.md"], "there is no folder"),
    ],
)
def test_the_command_names_what_it_does_not_understand(arguments, message):
    result = CliRunner().invoke(app, ["mutants", *arguments])
    assert result.exit_code == 2
    assert message in result.output
