"""Records of libraries: how they are made of findings, stored, replaced, and read."""

import json
from dataclasses import asdict, replace

import pytest
from typer.testing import CliRunner

from attnspec import implementations
from attnspec.conformance.evidence import libraries
from attnspec.conformance.evidence.libraries import (
    FEATURES,
    PROFILE,
    LibraryRecord,
    answers,
    merged,
    read,
    rows,
    with_laws,
    written,
)
from attnspec.conformance.probe.experiment import Finding
from attnspec.conformance.probe.probe import EXPERIMENTS, probe
from attnspec.conformance.report.file import Report
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.report.run import Run
from attnspec.implementations.eager import IMPLEMENTATION
from attnspec.spec import Feature, Profile


@pytest.fixture(scope="module")
def findings():
    return tuple(probe(IMPLEMENTATION.attention))


@pytest.fixture(scope="module")
def record(findings):
    return LibraryRecord(
        name="eager",
        library="torch",
        version="2.13.0+cpu",
        torch="2.13.0+cpu",
        device="cpu",
        date="2026-11-25",
        answers=answers(findings),
        findings=findings,
    )


def test_every_feature_and_every_question_of_the_profile_has_a_row():
    assert {str(feature) for feature in Feature} - FEATURES.keys() == {str(Feature.MASK)}
    assert Profile.QUESTIONS.keys() <= PROFILE.keys()
    assert set(rows().values()) == {experiment.question for experiment in EXPERIMENTS}


def test_answers_are_what_the_implementation_declares(record):
    given, declared = record.answers, IMPLEMENTATION
    assert given.keys() == rows().keys()
    features = {str(feature) for feature in declared.features}
    assert {row for row in FEATURES if given[row] == "yes"} == (
        features - {"mask"} | {"bool mask", "float mask"}
    )
    for row in ("causal_alignment", "grouping", "softcap_order", "masked_keys", "masked_values"):
        assert given[row] == getattr(declared.profile, row), row
    assert given["empty_row_bool_mask"] == given["empty_row_float_mask"] == "zero"
    assert given["empty_row"] == ""
    assert given["float64_precision"] == "float64"
    assert given["rounding"] == declared.profile.rounding.level


def changed(findings, question, **fields):
    return tuple(
        replace(each, **fields) if each.question == question else each for each in findings
    )


def test_a_missing_feature_leaves_no_answer_to_its_questions(findings):
    without = changed(findings, "bool mask", answer="no", facts={})
    found = answers(without)
    assert found["bool mask"] == "no"
    assert found["empty_row_bool_mask"] == ""
    assert found["empty_row_float_mask"] == "zero"


def test_a_deviation_is_the_answer(findings):
    wrong = changed(findings, "bool mask", answer="inverted", deviation="true hides a key")
    assert answers(wrong)["bool mask"] == "true hides a key"


def test_an_answer_that_is_not_found_is_unknown(findings):
    lost = tuple(
        Finding(question=each.question, answer="unknown", evidence=("it crashed",))
        for each in findings
    )
    found = answers(lost)
    assert found["causal"] == found["causal_alignment"] == found["rounding"] == "unknown"


def test_a_missing_experiment_is_an_error(findings):
    with pytest.raises(KeyError, match="causal"):
        answers(tuple(each for each in findings if each.question != "causal"))


def test_a_file_is_read_as_it_was_written(record, tmp_path):
    path = tmp_path / "libraries.json"
    path.write_text(written([record]), encoding="utf-8")
    assert read(path) == [record]
    assert [each["name"] for each in json.loads(path.read_text(encoding="utf-8"))] == ["eager"]
    assert read(tmp_path / "none.json") == []


def test_another_file_is_named(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('[{"name": 1}]', encoding="utf-8")
    with pytest.raises(ValueError, match=r"other\.json: no records of libraries"):
        read(path)


def test_a_record_replaces_that_of_the_same_versions(record):
    newer = replace(record, date="2026-12-01")
    other = replace(record, version="2.14.0")
    assert merged([record], [newer]) == [newer]
    assert merged([record], [other]) == [record, other]


def test_laws_are_counted_and_pinned_reasons_kept(record):
    outcomes = (Outcome.PASSED, Outcome.PASSED, Outcome.EXPECTED_FAILURE)
    kept = [
        Record(subject="eager", law=f"law-{n}", clauses=("ATT-1",), outcome=outcome, reason=f"r{n}")
        for n, outcome in enumerate(outcomes)
    ]
    stranger = Record(subject="sdpa", law="l", clauses=("ATT-1",), outcome=Outcome.FAILED)
    run = Run(
        attnspec="0.1.0", spec="0.3.0", torch="2.13.0", python="3.11", machine="Linux",
        date="2026-11-25T00:00:00+00:00", effort="smoke", seed=1, targets=("eager",), trials=1,
        seconds=1.0, ended="complete",
    )  # fmt: skip
    counted = with_laws(record, Report(run=run, records=(*kept, stranger)))
    assert counted.laws == {"passed": 2, "expected failure": 1}
    assert counted.reasons == ("r2",)
    assert (counted.effort, counted.checked) == ("smoke", "2026-11-25")
    assert LibraryRecord.from_data(json.loads(json.dumps(asdict(counted)))) == counted
    with pytest.raises(ValueError, match="the report is not about eager"):
        with_laws(record, Report(run=run, records=(stranger,)))


class TestCommand:
    @pytest.fixture(autouse=True)
    def app(self):
        import typer

        app = typer.Typer()
        app.command()(libraries.main)
        self.run = lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])

    def test_an_own_implementation_is_no_library(self, tmp_path):
        result = self.run("eager", "--file", tmp_path / "out.json")
        assert result.exit_code == 2
        assert "eager: no implementation of another library" in result.output
        assert not list(tmp_path.iterdir())

    def test_a_missing_library_is_named(self, tmp_path, monkeypatch):
        broken = replace(implementations.load("sdpa"), unavailable=lambda: "no module transformers")
        monkeypatch.setattr(implementations, "load", lambda name: broken)
        result = self.run("gpt2_eager", "--file", tmp_path / "out.json")
        assert result.exit_code == 2
        assert "gpt2_eager: not available here: no module transformers" in result.output

    def test_findings_that_are_older_than_a_question_are_not_kept(self, record, tmp_path):
        file = tmp_path / "out.json"
        older = tuple(each for each in record.findings if each.question != "window")
        file.write_text(written([replace(record, name="sdpa", findings=older)]), encoding="utf-8")
        result = self.run("sdpa", "--file", file, "--keep")
        assert result.exit_code == 2
        assert "sdpa: its record is older than the questions window" in result.output

    @pytest.mark.slow
    def test_findings_are_added_to_a_file(self, tmp_path):
        file = tmp_path / "out.json"
        result = self.run("nested_sdpa", "--file", file)
        assert result.exit_code == 0, result.output
        (record,) = read(file)
        assert record.library == "torch"
        assert record.answers["causal"] == "no"
        assert record.answers["backward"] == "yes"
