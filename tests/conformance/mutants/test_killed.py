"""Each mutant is killed by the law that it names, and each law kills: live and as stored."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.cli.app import app
from attnspec.conformance.comparison.violation import NotAvailable, NotClaimed, Raised, Violation
from attnspec.conformance.evidence.mutation import kills as kills_module
from attnspec.conformance.evidence.mutation.kill_matrix import KillMatrix, updated
from attnspec.conformance.evidence.mutation.kills import (
    CORRECT,
    false_alarms,
    kills,
    run_law,
    select_mutants,
    subject_of,
)
from attnspec.conformance.evidence.mutation.sources import (
    changed_since,
    correct_are_current,
    source_digests,
)
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.conformance.report.record import Outcome

LAWS, MUTANTS = laws.load(), mutants.load()
STORED = Path(__file__).parents[3] / "docs" / "results" / "mutants.jsonl"


@pytest.fixture(scope="module")
def matrix() -> KillMatrix:
    return KillMatrix.read(STORED)


@pytest.mark.rotating(parts=8)
@pytest.mark.parametrize("id", MUTANTS)
def test_the_named_law_kills_the_mutant_by_a_pinned_case(id):
    law, subject = LAWS[MUTANTS[id].killed_by], subject_of(MUTANTS[id])
    designed = law.design(subject) if law.design else ()

    missing = ""
    for case in (*law.pinned, *designed):
        if isinstance(subject, Subject | OperatorSubject) and subject.refuses(case) is not None:
            continue
        try:
            law.check(subject, case)
        except (Violation, Raised):
            return
        except NotAvailable as error:
            missing = str(error)
        except NotClaimed:
            continue
    if missing:
        pytest.skip(missing)
    pytest.fail(f"{law.name} does not kill {id} by its pinned cases")


def test_the_stored_matrix_is_of_these_laws_and_mutants(matrix):
    changed = changed_since(matrix.sources)
    assert not changed, (
        f"docs/results/mutants.jsonl is older than {', '.join(changed)}: run `nox -s mutants`"
    )
    assert {name for names in matrix.laws.values() for name in names} == set(LAWS)
    assert {result.mutant for result in matrix.mutants} == set(MUTANTS)


def test_every_law_kills_a_mutant_in_the_stored_matrix(matrix):
    kills = Counter(law for result in matrix.mutants for law in result.pinned)
    assert not set(LAWS) - set(kills)


def test_every_mutant_is_killed_by_the_law_that_it_names_in_the_stored_matrix(matrix):
    assert not [
        result.mutant
        for result in matrix.mutants
        if MUTANTS[result.mutant].killed_by not in result.pinned
    ]


def test_comments_and_docstrings_do_not_make_a_matrix_old(tmp_path, monkeypatch):
    def digest_of(source: str) -> str:
        (tmp_path / "one.py").write_text(source)
        monkeypatch.setattr(laws, "__file__", str(tmp_path / "__init__.py"))
        return source_digests()[f"{tmp_path.name}/one.py"]

    plain = digest_of("def f(x):\n    return x\n")
    documented = '"""A module."""\n\n\ndef f(x):  # same\n    """Return x."""\n    return x\n'
    assert digest_of(documented) == plain
    assert digest_of("def f(x):\n    return -x\n") != plain


@pytest.mark.rotating(parts=4)
def test_a_changed_a_new_and_a_removed_file_make_a_matrix_old():
    current = source_digests()
    path = "laws/attention/definition.py"
    assert changed_since(current) == []
    assert changed_since(current | {path: "other"}) == [path]
    assert changed_since(current | {"laws/gone.py": "x"}) == ["laws/gone.py"]
    assert changed_since({name: d for name, d in current.items() if name != path}) == [path]


class TestUpdate:
    """An update tries all laws on a changed mutant, and changed laws on the others."""

    def test_nothing_is_tried_again_while_nothing_has_changed(self):
        assert select_mutants(stored=source_digests()) == []
        assert correct_are_current(source_digests())

    def test_a_mutant_without_a_result_is_tried(self):
        tried = MUTANTS.keys() - {"own-causal-strict"}
        missing = select_mutants(stored=source_digests(), tried=tried)
        assert [mutant.id for mutant in missing] == ["own-causal-strict"]

    @pytest.mark.rotating(parts=4)
    @pytest.mark.parametrize(
        ("path", "inside", "outside"),
        [
            ("laws/rms_norm/definition.py", "own-rms-epsilon-outside", "own-rotary-linear-times"),
            ("laws/helpers/calls.py", "own-causal-strict", "own-rms-epsilon-outside"),
            ("mutants/bases/rms_norm.py", "own-rms-epsilon-outside", "own-causal-strict"),
            ("mutants/masking/causal.py", "own-causal-strict", "own-dropout-not-scaled"),
        ],
    )
    def test_a_change_concerns_the_mutants_of_its_laws_and_those_that_use_it(
        self, path, inside, outside
    ):
        stored = source_digests()
        assert path in stored
        assert {inside, outside} <= set(MUTANTS)
        ids = {mutant.id for mutant in select_mutants(stored=stored | {path: "other"})}
        assert inside in ids
        assert outside not in ids

    @pytest.mark.rotating(parts=4)
    def test_an_id_that_stands_in_no_file_depends_on_all(self):
        stored = source_digests() | {"mutants/masking/causal.py": "other"}
        ids = {mutant.id for mutant in select_mutants(stored=stored)}
        assert "own-sinks-as-contiguous" in ids

    @pytest.mark.parametrize("changes", ["one that survived", "the first", "none"])
    def test_only_changed_laws_are_run_again(self, matrix, monkeypatch, changes):
        (stored,) = (
            row for row in matrix.of("rms_norm") if row.mutant == "own-rms-epsilon-outside"
        )
        changed = {
            "one that survived": stored.survived[:1],
            "the first": (stored.first,),
            "none": (),
        }
        tried = []

        def run_and_note(law, *rest):
            tried.append(law.name)
            return run_law(law, *rest)

        monkeypatch.setattr(kills_module, "run_law", run_and_note)
        again = kills(MUTANTS[stored.mutant], stored, changed[changes])
        assert tuple(tried) == tuple(changed[changes])
        assert replace(again, seconds=0.0) == replace(stored, seconds=0.0)

    def test_the_next_law_is_first_if_the_first_no_longer_kills(self, matrix, monkeypatch):
        (stored,) = (
            row for row in matrix.of("rms_norm") if row.mutant == "own-rms-epsilon-outside"
        )
        first, second, *_ = stored.pinned

        def pass_the_first(law, subject, effort):
            record, seconds = run_law(law, subject, effort)
            return (
                replace(record, outcome=Outcome.PASSED) if law.name == first else record
            ), seconds

        monkeypatch.setattr(kills_module, "run_law", pass_the_first)
        again = kills(MUTANTS[stored.mutant], stored, {first})
        assert again.first == second
        assert first in again.survived
        assert again.case

    def test_correct_implementations_meet_changed_laws_alone(self, matrix, monkeypatch):
        (stored,) = (row for row in matrix.of(CORRECT) if row.mutant == "dense")
        tried = []

        def note(law, *rest):
            tried.append(law.name)
            return run_law(law, *rest)

        monkeypatch.setattr(kills_module, "run_law", note)
        name = next(law.name for law in LAWS.values() if law.judges == "attention")
        assert false_alarms("dense", dense("dense", Dense()), stored, {name}) == stored
        assert tried == [name]

    def test_rows_are_replaced_kept_and_dropped(self, matrix):
        first, second = matrix.of("rms_norm")[:2]
        gone = replace(first, mutant="own-gone")
        old = replace(matrix, results=(first, second, gone), sources=source_digests())
        retried = replace(second, seconds=99.0)
        new = updated(old, matrix.run, [retried])
        assert new.results == tuple(sorted((first, retried), key=lambda result: result.mutant))
        assert new.run.remarks[-1].startswith("1 rows of 2 are of 20")

    def test_rows_that_are_not_current_are_never_kept(self, matrix):
        path = "laws/rms_norm/definition.py"
        old = replace(
            matrix,
            results=tuple(matrix.of("rms_norm")),
            sources=source_digests() | {path: "other"},
        )
        assert updated(old, matrix.run, []).results == ()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["MSK", "--update", str(STORED)], "--update takes no pattern and no part"),
            (["--update", "/nowhere/kills.jsonl"], "/nowhere/kills.jsonl: No such file"),
        ],
    )
    def test_what_cannot_be_updated_is_refused(self, arguments, message):
        done = CliRunner().invoke(app, ["mutants", *arguments])
        assert done.exit_code == 2
        assert message in done.output
