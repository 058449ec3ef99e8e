"""The trial of the suite on its mutants: what is recorded, chosen, printed and restored."""

import io
import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.check import check
from attnspec.conformance.cli import app
from attnspec.conformance.cli_mutants import summarise
from attnspec.conformance.effort import Effort
from attnspec.conformance.kills import Kills, chosen, false_alarms, first_kill, kills
from attnspec.conformance.law import registered
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.equivalent import EQUIVALENT
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.process import restored
from attnspec.conformance.record import Outcome
from attnspec.conformance.styles import STYLES, rejects
from attnspec.conformance.subject import Subject
from attnspec.conformance.test_mutants import correct
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

    FOUND = (
        Kills(mutant="a", kind="attention", first="l", effort="smoke", pinned={"l": 1, "m": 2}),
        Kills(mutant="b", kind="attention", first="l", effort="standard", survived=("n",)),
        Kills(mutant="c", kind="attention", survived=("l", "m", "n")),
    )

    def text(self, **options):
        console = Console(width=200, record=True, file=io.StringIO())
        summarise(self.FOUND, console, **options)
        return console.export_text()

    def test_survivors_and_idle_laws_are_named(self):
        text = self.text(is_whole=True)
        assert "survived: c" in text
        assert "killing none by pinned cases: n" in text

    def test_a_part_says_nothing_about_laws(self):
        assert "killing none" not in self.text(is_whole=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ZZZ"], "no mutant has 'ZZZ'"),
        (["--part", "9/3"], "a part is given as 2/7"),
        (["MSK", "--report", "/nowhere/at/all.jsonl"], "there is no folder"),
    ],
)
def test_the_command_names_what_it_does_not_understand(arguments, message):
    result = CliRunner().invoke(app, ["mutants", *arguments])
    assert result.exit_code == 2
    assert message in result.output
