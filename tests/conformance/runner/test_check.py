"""The checking of one law on one subject: every outcome, and the order of the search."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from attnspec.conformance.attention.strategies import cases
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.law import Law
from attnspec.conformance.report.record import CONFORMING, Outcome, Record
from attnspec.conformance.runner import check as check_module
from attnspec.conformance.runner.check import REPEATS, check, check_deviation
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import Case, Deviation, Feature, Implementation

SDPA = torch.nn.functional.scaled_dot_product_attention


def subject(attention=SDPA, **claims) -> Subject:
    return Subject(Implementation(name="subject", attention=attention, **claims))


def a_law(body, **options) -> Law:
    options.setdefault("pinned", (Case(), Case(keys=2)))
    return Law(
        name="a-law", clauses=("ATT-1",), judges=SubjectKind.ATTENTION, check=body, **options
    )


def test_a_law_that_holds_passes_and_counts_its_cases():
    def body(subject, case):
        """ATT-1: always true."""
        tally.record_fraction(0.25 * case.keys)

    record = check(a_law(body), subject(), Effort.SMOKE)
    assert record.outcome is Outcome.PASSED
    assert (record.examples, record.worst, record.dtypes) == (2, 0.5, ("float64",))


@pytest.mark.parametrize(("effort", "count"), [(Effort.SMOKE, 0), (Effort.STANDARD, 1)])
def test_a_pinned_case_is_tried_again_at_large_sizes(effort, count):
    tried = []

    def body(subject, case):
        """ATT-1: always true."""
        tried.append(case)

    record = check(a_law(body), subject(), effort, seed=5)
    assert sum(case.keys > 256 for case in tried) == count
    assert record.seed == (5 if count else None)


def test_a_failure_at_large_sizes_names_its_seed():
    def body(subject, case):
        """ATT-1: true up to 256 keys."""
        if case.keys > 256:
            raise Violation("too long")

    record = check(a_law(body), subject(), Effort.STANDARD, seed=5)
    assert record.outcome is Outcome.FAILED
    assert "Drawn with --seed 5" in record.message
    assert record.seed == 5


def test_the_first_pinned_case_that_fails_ends_the_search():
    tried = []

    def body(subject, case):
        """ATT-1: never true of two keys."""
        tried.append(case)
        if case.keys == 2:
            raise Violation("two keys")

    record = check(a_law(body, pinned=(Case(), Case(keys=2), Case(keys=3))), subject())
    assert record.outcome is Outcome.FAILED
    assert "two keys" in record.reason
    assert "keys=2" in record.case
    # it is repeated to see whether it is flaky
    assert [case.keys for case in tried] == [1, 2, *[2] * REPEATS]


@pytest.mark.parametrize(
    ("effort", "keys"),
    [
        (None, [301, 302, 305]),
        (Effort.SMOKE, [301, 302, 305]),
        (Effort.STANDARD, [301, 302, 305, 303]),
        (Effort.THOROUGH, [301, 302, 305, 303, 304]),
    ],
)
def test_each_effort_tries_more_cases_each_once(effort, keys):
    tried = []

    def body(subject, case):
        """ATT-1: always true."""
        tried.append(case.keys)

    law = a_law(
        body,
        pinned=(Case(keys=301), Case(keys=302)),
        design=lambda subject: (Case(keys=305),),
        wide=(Case(keys=302), Case(keys=303), Case(keys=303)),
        large=(Case(keys=301), Case(keys=304)),
    )
    # no case is grown where each shape is compiled, and cases this long keep their lengths
    assert check(law, subject(compiles_each_shape=True), effort).examples == len(keys)
    assert tried == keys


def test_large_cases_that_would_take_too_long_are_left_out_and_named(monkeypatch):
    tried = []

    def body(subject, case):
        """ATT-1: always true."""
        tried.append(case.keys)
        monkeypatch.setattr(check_module, "ENOUGH", -1 if case.keys == 303 else 100)

    law = a_law(body, pinned=(Case(keys=301),), large=[Case(keys=keys) for keys in range(302, 306)])
    record = check(law, subject(compiles_each_shape=True), Effort.THOROUGH)
    assert tried == [301, 302, 303]
    assert record.outcome is Outcome.PASSED
    (reason,) = record.missing
    assert reason == "time for more large cases, which a law tries for -1 s"


def test_cases_chosen_for_a_subject_keep_their_shapes():
    tried = []

    def body(subject, case):
        """ATT-1: always true."""
        tried.append(case.keys)

    law = a_law(
        body, pinned=(Case(keys=301),), wide=lambda subject, seed: (Case(keys=7), Case(keys=9))
    )
    check(law, subject(compiles_each_shape=True))
    assert tried == [301, 7, 9]


def test_exploration_shrinks_to_the_smallest_failing_case():
    def body(subject, case):
        """ATT-1: true up to nine keys."""
        if case.keys > 9:
            raise Violation("too many")

    keys = st.integers(0, 1000).map(lambda n: Case(keys=n))
    record = check(a_law(body, pinned=(), explore=lambda subject: keys), subject())
    assert record.outcome is Outcome.FAILED
    assert "keys=10 " in record.case


def test_a_law_whose_case_fails_only_once_is_flaky():
    calls = []

    def body(subject, case):
        """ATT-1: false the first time."""
        calls.append(case)
        if len(calls) == 1:
            raise Violation("once")

    record = check(a_law(body, pinned=(Case(),)), subject())
    assert record.outcome is Outcome.FLAKY
    assert "once" in record.reason
    assert record.outcome not in CONFORMING


def test_a_subject_that_raises_is_an_error_and_not_a_failure():
    def broken(*args, **kwargs):
        raise RuntimeError("no kernel for this shape")

    def body(subject, case):
        """ATT-1: calls."""
        subject.call(subject.draw(case))

    record = check(a_law(body), subject(broken))
    assert record.outcome is Outcome.ERRORED
    assert "no kernel for this shape" in record.reason


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "got NoneType"),
        ((torch.zeros(1), 2), "got tuple"),
        (torch.zeros(1, 1, 1, 2, dtype=torch.float64), "must have shape (1, 1, 1, 1)"),
        (torch.zeros(1, 1, 1, 1), "must have dtype torch.float64"),
    ],
)
def test_an_output_that_is_no_output_breaks_the_law_in_words(result, told):
    def body(subject, case):
        """ATT-1: calls."""
        subject.call(subject.draw(case))

    record = check(a_law(body), subject(lambda *args, **kwargs: result))
    assert record.outcome is Outcome.FAILED
    assert told in record.reason


def test_what_is_not_claimed_is_reported_with_the_reason():
    def body(subject, case):
        """ATT-1: never reached."""
        raise AssertionError

    plain = subject(features=frozenset())
    assert check(a_law(body, needs=frozenset({"lse"})), plain).outcome is Outcome.NOT_CLAIMED
    record = check(a_law(body, pinned=(Case(is_causal=True),)), plain)
    assert (record.outcome, record.reason) == (Outcome.NOT_CLAIMED, "feature not claimed: causal")


def test_what_cannot_run_here_is_reported_with_the_reason():
    absent = subject(unavailable=lambda: "no CUDA device")
    record = check(a_law(lambda subject, case: None), absent)
    assert (record.outcome, record.reason) == (Outcome.NOT_AVAILABLE, "no CUDA device")


def deviating(body, applies=lambda case: case.keys == 2) -> tuple[Law, Subject, Deviation]:
    known = Deviation(
        law="a-law", reason="wrong for two keys", link="here", applies=applies, example=Case(keys=2)
    )
    return a_law(body), subject(deviations=(known,)), known


def test_a_known_deviation_is_left_out_of_its_law_and_expected_by_itself():
    def body(subject, case):
        """ATT-1: never true of two keys."""
        if case.keys == 2:
            raise Violation("two keys")

    law, known_bad, known = deviating(body)
    assert check(law, known_bad).outcome is Outcome.PASSED
    record = check_deviation(law, known_bad, known)
    assert (record.outcome, record.link) == (Outcome.EXPECTED_FAILURE, "here")


def test_a_known_deviation_that_no_longer_shows_is_an_error():
    law, mended, known = deviating(lambda subject, case: None)
    record = check_deviation(law, mended, known)
    assert record.outcome is Outcome.UNEXPECTED_PASS
    assert record.outcome not in CONFORMING


def test_a_failure_can_be_repeated_from_its_snippet():
    def strict(query, key, value, attn_mask=None, is_causal=False, **options):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(-1)
        return SDPA(query, key, value, mask if is_causal else attn_mask)

    def body(subject, case):
        """ATT-1: as the oracle."""
        call = subject.draw(case)
        subject.judge(call, subject.call(call), "the output is not the weighted mean")

    case = Case(queries=2, keys=2, d_head=1, d_value=1, is_causal=True)
    wrong = subject(strict, features=frozenset({Feature.CAUSAL}))
    record = check(a_law(body, pinned=(case,)), wrong)
    assert record.outcome is Outcome.FAILED
    assert len(record.snippet.splitlines()) <= 15
    lines = [line for line in record.snippet.splitlines() if "attnspec" not in line]
    scope = {"attention": strict}
    exec("\n".join(lines), scope)
    got = float(record.message.partition("got       ")[2].splitlines()[0])
    assert any(abs(got - each) < 1e-6 for each in scope["out"].flatten().tolist())


def test_a_record_survives_being_written_and_read():
    record = Record(
        subject="eager",
        law="a-law",
        clauses=("ATT-1", "ATT-2"),
        outcome=Outcome.FAILED,
        worst=float("inf"),
        seconds={"total": 1.0},
    )
    assert Record.from_json(record.to_json()) == record
    with pytest.raises(ValueError, match="not a record"):
        Record.from_json('{"law": 1}')


def test_smoke_tries_fewer_cases_than_standard():
    seen = {}
    for effort in (Effort.SMOKE, Effort.STANDARD):
        cases = st.integers(0, 10_000).map(lambda n: Case(seed=n))
        law = a_law(lambda subject, case: None, pinned=(), explore=lambda subject, c=cases: c)
        seen[effort] = check(law, subject(), effort).examples
    assert 0 < seen[Effort.SMOKE] < seen[Effort.STANDARD]


@pytest.mark.parametrize(
    ("cost", "effort", "keys"),
    [
        (1.0, Effort.SMOKE, [301, 303, 305]),
        (3.0, Effort.SMOKE, [301]),
        (20.0, Effort.SMOKE, [301]),
        (1.0, Effort.STANDARD, [301, 302, 303, 304, 305]),
    ],
)
def test_smoke_tries_few_cases_where_each_shape_is_compiled(cost, effort, keys):
    tried = []

    def body(subject, case):
        """ATT-1: always true."""
        tried.append(case.keys)

    law = a_law(body, pinned=tuple(Case(keys=keys) for keys in range(301, 306)), cost=cost)
    check(law, subject(compiles_each_shape=True), effort)
    assert tried == keys


def test_smoke_goes_on_to_a_claimed_case_where_each_shape_is_compiled():
    def is_last(case):
        return None if case.keys == 304 else "only one length"

    law = a_law(
        lambda subject, case: None,
        pinned=tuple(Case(keys=keys) for keys in range(301, 306)),
        explore=lambda subject: st.nothing(),
    )
    record = check(law, subject(compiles_each_shape=True, supports=is_last), Effort.SMOKE)
    assert (record.outcome, record.examples) == (Outcome.PASSED, 1)


# 0 and 1 equal False and True, which other draws have asked for before
@given(case=cases(lengths=(0, 1))(subject()))
def test_a_length_that_is_drawn_is_no_flag(case):
    assert type(case.queries) is int
    assert type(case.keys) is int


def test_a_deviation_that_the_machine_does_not_show_is_not_expected():
    """The law runs on its cases, and the deviation itself is not available."""

    def body(subject, case):
        """ATT-1: never true."""
        raise Violation("broken")

    law, judged, known = deviating(body)
    absent = replace(known, unavailable=lambda: "needs another CPU")
    judged = replace(judged, implementation=replace(judged.implementation, deviations=(absent,)))
    record = check_deviation(law, judged, absent)
    assert (record.outcome, record.reason) == (Outcome.NOT_AVAILABLE, "needs another CPU")
    assert check(law, judged).outcome is Outcome.FAILED
