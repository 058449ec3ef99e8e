"""The verdict in the terminal: how many causes were found, and what each of them says."""

import io
import subprocess
import sys

from rich.console import Console

from attnspec.conformance.report.causes import causes_of
from attnspec.conformance.report.console import plain_console
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.report.verdict import lines_of, print_verdict


def failed(law: str, **changes: object) -> Record:
    fields = {"subject": "mine", "clauses": ("ATT-1",), "case": "queries=1 keys=2"} | changes
    return Record(law=law, outcome=Outcome.FAILED, reason="wrong", **fields)


def printed(records: list[Record]) -> str:
    stream = io.StringIO()
    print_verdict(records, Console(file=stream, width=500), is_verbose=False)
    return stream.getvalue()


def test_a_target_is_no_emoji():
    stream = io.StringIO()
    print_verdict(
        [failed("a", subject="norms.py:llama")],
        plain_console(file=stream, width=500),
        is_verbose=False,
    )
    assert "norms.py:llama: NOT conforming" in stream.getvalue()


def test_laws_without_an_explanation_are_no_cause():
    records = [failed("a", stage="the MLP"), failed("b"), failed("c")]
    text = printed(records)
    assert "3 of 3 laws broken, 1 cause found" in text
    assert "Cause: mine: the first stage that diverges is the MLP" in text
    assert "No explanation was found, in 2 laws: mine\n" in text


def test_what_a_law_found_is_the_cause():
    found = {"cause": "gate and up are swapped", "holds_under": "packing=up_first"}
    records = [failed(law, **found) for law in "ab"]
    text = printed(records)
    assert "2 of 2 laws broken, 1 cause found" in text
    assert "Cause, in 2 laws: mine: gate and up are swapped\n" in text


def test_a_profile_is_recommended_only_if_it_explains_everything():
    explained = [failed(law, holds_under="empty_row=nan") for law in "ab"]
    (cause,) = causes_of(explained)
    assert cause.explanation == (
        "with --profile empty_row=nan these 2 laws pass: declare it if this is intended"
    )
    cause, _ = causes_of([*explained, failed("c")])
    assert cause.explanation == (
        "with --profile empty_row=nan these 2 laws pass, and the other broken law still fails: "
        "it is not the only cause"
    )
    cause, _ = causes_of([explained[0], failed("c"), failed("d")])
    assert cause.explanation.startswith(
        "with --profile empty_row=nan this law passes, and 2 others"
    )


def test_of_two_answers_to_one_question_the_more_frequent_is_named():
    records = [failed(law, holds_under="empty_row=nan") for law in "ab"]
    records.append(failed("c", holds_under="empty_row=mean"))
    assert [cause.explanation[:28] for cause in causes_of(records)] == [
        "with --profile empty_row=nan",
        "",
    ]


def test_a_planted_bug_that_explains_more_laws_comes_before_a_profile():
    bug = {"looks_like": ("own-values-by-turns",), "titles": ("values by turns",)}
    records = [failed("a", **bug), failed("b", holds_under="grouping=interleaved", **bug)]
    (cause,) = causes_of(records)
    assert cause.explanation.startswith("it looks like own-values-by-turns: ")
    (cause,) = causes_of(records[1:])
    assert cause.explanation.startswith("with --profile grouping=interleaved this law passes")


def test_bugs_that_explain_equally_many_laws_are_all_named():
    (cause,) = causes_of([failed("a", looks_like=("one", "two"))])
    assert cause.explanation == "it looks like one, or two"
    (cause,) = causes_of([failed("a", looks_like=("one", "two")), failed("b", looks_like=("two",))])
    assert cause.explanation == "it looks like two"


def test_a_planted_bug_is_named_with_its_title_and_no_mutant_is_imported():
    (cause,) = causes_of([failed("a", looks_like=("one", "two"), titles=("first", "second"))])
    assert cause.explanation == "it looks like one: first, or two: second"
    code = (
        "import sys\n"
        "from attnspec.conformance.report.causes import causes_of\n"
        "from attnspec.conformance.report.record import Outcome, Record\n"
        "fields = {'outcome': Outcome.FAILED, 'looks_like': ('one',), 'titles': ('first',)}\n"
        "print(causes_of([Record(subject='s', law='l', clauses=(), **fields)])[0].explanation)\n"
        "assert 'torch' not in sys.modules, 'printing causes needs torch'\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("it looks like one: first\n", "")


def test_laws_that_depend_on_one_size_have_one_cause():
    sizes = ("keys: fails at 64 and 128, passes at 63, 65, 127 and 129",)
    small = ("queries: fails at 2 and 3, passes at 1",)
    records = [failed("a", sizes=sizes), failed("b", sizes=(*small, *sizes))]
    records += [failed("c", sizes=small), failed("d", passes_in=("float32",))]
    first, rest = causes_of(records)
    assert first.explanation == "whether it is wrong depends on keys"
    assert len(first.records) == len(rest.records) == 2
    assert rest.explanation == ""
    assert f"Sizes     {sizes[0]}\n" in printed(records)


def test_a_cause_has_at_most_25_lines():
    sizes = tuple(f"axis {number}: fails at 3, passes at 2" for number in range(6))
    mismatch = dict.fromkeys(("what", "where", "expected", "got", "difference", "bound"), "1")
    for length in range(30):
        code = "\n".join(["import torch", "", *["x = 1"] * length])
        first = failed("a", sizes=sizes, mismatch=mismatch, snippet=code)
        (cause,) = causes_of([first, failed("b")])
        lines = lines_of(cause, "Cause")
        assert len(lines) <= 25
        assert ("Reproduce:" in lines) == (length <= 10)


def test_a_run_that_ended_early_is_never_called_conforming():
    passed = Record(subject="mine", law="a", clauses=("ATT-1",), outcome=Outcome.PASSED)
    stream = io.StringIO()
    console = Console(file=stream, width=500)
    print_verdict([passed, passed], console, is_verbose=False, left=7)
    assert stream.getvalue() == "mine: not decided: the run ended before 7 laws of it; 2 held\n"
    print_verdict([passed, failed("b")], console, is_verbose=False, left=7)
    assert "mine: NOT conforming: 1 of 2 laws broken" in stream.getvalue()
