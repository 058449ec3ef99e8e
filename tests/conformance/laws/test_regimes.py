"""Regimes: every two that are claimed meet in a call, and a kernel that is wrong in them fails."""

import dataclasses
import os
import random
import subprocess
import sys
from dataclasses import replace
from itertools import chain, combinations
from types import SimpleNamespace

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.fields import FIELDS
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import Expected
from attnspec.conformance.attention.oracle_gradients import ExpectedGradients, Gradient
from attnspec.conformance.attention.regimes import AXES, regimes_of
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.evidence import rows_of_regimes
from attnspec.conformance.laws.helpers import regimes
from attnspec.conformance.laws.helpers.design import design, plan_of
from attnspec.conformance.laws.helpers.few_shapes import REASON, SHAPES, SIZES
from attnspec.conformance.laws.helpers.regimes import (
    operations,
    pairs_shown,
    stored_rows,
    to_json,
    too_costly,
)
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.bases.wrong_at import wrong_at
from attnspec.conformance.report.record import DEVIATING, HIDDEN, Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.spec import Case, Deviation, Feature

LAW = laws.load()["every-two-regimes-equal-the-definition"]
LAWS = {
    False: LAW,
    True: laws.load()["gradients-in-every-two-regimes-equal-the-definition"],
}
"""The law of calls without a backward pass, and that of calls with one."""
EVERYTHING = frozenset(Feature) - {Feature.DROPOUT}
CLAIMS = {
    "everything": {"features": EVERYTHING},
    "16 bits": {
        "features": frozenset({Feature.CAUSAL, Feature.GQA, Feature.BACKWARD}),
        "dtypes": (torch.float16, torch.bfloat16),
    },
    "plain float32": {"features": frozenset(), "dtypes": (torch.float32,)},
}
SEED = 3
"""Of the design of a subject that claims everything."""

PARTS = 4
"""Parts of the regimes, of which each run tries one."""

NOT_ALONE = {
    ("queries", "0"): "there is no output to spoil",
    ("backward", "no"): "a call with gradients is made without them first",
    ("backward", "yes"): "every case of a design of backward passes is in it",
}


class Recording(Dense):
    """A correct attention that keeps the pairs of regimes of its calls."""

    def __init__(self):
        self.pairs = set()

    def __call__(self, query, key, value, *arguments, **options):
        self.pairs |= pairs_shown(regimes_of(call_of(query, key, value, *arguments, **options)))
        return super().__call__(query, key, value, *arguments, **options)


def call_of(query, key, value, **options):
    """Return the arguments of a call as the factory of mutants reads them."""
    seen = []
    recorder = wrong_at(("queries", "0"), attention=lambda *_, **__: torch.zeros(1))
    object.__setattr__(recorder, "regimes", (Seen(seen),))
    recorder(query, key, value, **options)
    return seen[0]


class Seen:
    def __init__(self, calls):
        self.calls = calls

    def holds(self, call):
        self.calls.append(call)
        return False


def subject_of(attention, **claims):
    return Subject(replace(dense("recording", attention), **claims))


def all_regimes():
    return list(chain.from_iterable(AXES.values()))


def called(case):
    call = draw(case)
    if not case.backward:
        return call
    return call.but(**{name: getattr(call, name).requires_grad_() for name in WRT})


@pytest.fixture(scope="module")
def everything():
    """The design of a subject that claims everything, with the regimes of each case.

    The cheapest cases are first, so that most trials take little time.
    """
    subject = subject_of(Dense(), **CLAIMS["everything"])
    designs = (design(subject, SEED, backward=each) for each in (False, True))
    cases = sorted((case for each in designs for case in each.cases), key=operations)
    return subject, [(case, set(regimes_of(called(case)))) for case in cases]


def test_each_regime_has_values_that_are_of_it():
    for regime in all_regimes():
        for field, condition in regime.conditions.items():
            assert any(map(condition, FIELDS[field].values)), regime


@pytest.mark.rotating(parts=12)
@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_every_pair_that_is_claimed_is_drawn(everything, backward):
    subject, cases = everything
    chosen = design(subject, SEED, backward=backward)
    held_by = (held for case, held in cases if case.backward is backward)
    pairs = set().union(*map(pairs_shown, held_by))
    assert chosen.claimed
    assert all(case.backward is backward for case in chosen.cases)
    assert not sorted(map(str, chosen.claimed - pairs))
    assert all(subject.refuses(case) is None for case in chosen.cases)
    assert not any(map(too_costly, chosen.cases))


def nothing(call, profile, rows):
    """An oracle that expects nothing, in no time."""
    shape = (*call.query.shape[:2], len(rows))
    zeros = torch.zeros(*shape, call.value.shape[3], dtype=torch.float64)
    row = torch.zeros(shape, dtype=torch.float64)
    return Expected(out=zeros, bound=zeros + torch.inf, lse=row, lse_bound=row + torch.inf)


def far_from_zero(call, profile, rows=range(4)):
    """An oracle of large numbers, beside which no mistake shows."""
    expected = nothing(call, profile, rows)
    return replace(expected, out=expected.out + 1)


def no_gradients(call, grad, profile, rows):
    """Likewise of the gradients."""
    shapes = [getattr(call, name).shape for name in WRT]
    shapes[0] = (*shapes[0][:2], len(rows), shapes[0][3])
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    gradients = [Gradient(exact=each, bound=each + torch.inf) for each in zeros]
    return ExpectedGradients(**dict(zip(WRT, gradients, strict=True)), attn_mask=None)


@pytest.mark.slow
@pytest.mark.rotating(parts=16)
@pytest.mark.parametrize(
    ("name", "backward"),
    [
        (name, each)
        for name in CLAIMS
        for each in (False, True)
        if name != "plain float32" or not each
    ],
)
def test_a_whole_run_calls_every_pair_and_says_so(name, backward):
    attention = Recording()
    subject = subject_of(attention, **CLAIMS[name])
    if name == "everything":
        # its calls are those of the implementations, which the oracle judges in every run
        subject = replace(subject, oracle=nothing, oracle_gradients=no_gradients)
    record = check(LAWS[backward], subject, Effort.STANDARD, seed=2)
    assert record.outcome is Outcome.PASSED
    assert not design(subject, 2, backward=backward).claimed - attention.pairs
    assert record.coverage["backward"] is backward
    assert record.coverage["called"] == record.coverage["claimed"] > 1000
    assert record.coverage["missing"] == []
    assert record.coverage["not tried"]
    hidden = record.coverage["not tried"].get(HIDDEN, ())
    assert len(hidden) < 0.01 * record.coverage["claimed"]


class WrongWithoutKeys(Dense):
    """An attention that has no output without keys in float16."""

    def __call__(self, query, key, value, **options):
        out = super().__call__(query, key, value, **options)
        return out * torch.nan if query.dtype == torch.float16 and key.shape[2] == 0 else out


@pytest.mark.rotating(parts=4)
def test_pairs_of_a_known_deviation_are_called_in_another_type_or_told():
    claims = {"features": frozenset(), "dtypes": (torch.float16, torch.float32)}
    known = Deviation(
        law=LAW.name,
        reason="it has no output without keys",
        link="the tracker",
        applies=lambda case: case.dtype == torch.float16 and case.keys == 0,
        example=Case(keys=0, dtype=torch.float16),
    )
    subject = subject_of(WrongWithoutKeys(), **claims, deviations=(known,))
    record = check(LAW, subject, Effort.STANDARD, seed=2)
    assert record.outcome is Outcome.PASSED
    assert record.coverage["called"] == record.coverage["claimed"] > 1000
    assert record.coverage["missing"] == []
    assert record.coverage["not tried"][DEVIATING] == ["dtype: float16 with keys: 0"]
    assert check(LAW, subject_of(WrongWithoutKeys(), **claims), seed=2).outcome is Outcome.FAILED


@pytest.mark.rotating(parts=4)
def test_the_stored_rows_are_nearly_the_whole_design():
    plans = [plan_of(rows_of_regimes.EVERYTHING, backward=each) for each in (False, True)]
    rows = [row for plan in plans for row in plan.combined]
    stored = [row for row in stored_rows() if row in rows]
    assert len(stored) > 0.9 * len(rows), "store them anew: see CONTRIBUTING.md"


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Return rows that are stored; where rows are stored is an empty folder from then on."""
    # read first: they are kept for the process, and none would be if the folder were empty by then
    rows = stored_rows()[:5]
    monkeypatch.setattr(regimes, "STORED", tmp_path / "rows.json")
    assert len(rows) == 5
    return rows


def test_stored_rows_of_other_classes_are_read_as_far_as_they_are_known(rows):
    text = to_json(rows).replace('"causal"', '"gone"').replace('"odd_strides"', '"renamed"')
    regimes.STORED.write_text(text)
    read = stored_rows.__wrapped__()
    assert [set(row) for row in read] == [set(AXES)] * 5
    for row, original in zip(read, rows, strict=True):
        assert row["causal"] is None
        assert row["queries"] is original["queries"]
    regimes.STORED.unlink()
    assert stored_rows.__wrapped__() == ()


def test_rows_of_equal_widths_are_stored_after_those_of_all_claims(rows, monkeypatch):
    first, *others = rows
    of_other_widths = first | {axis: None for axis in rows_of_regimes.WIDTHS}

    def plan(claims, earlier, *, backward):
        if claims is rows_of_regimes.EVERYTHING:
            assert earlier == ()
            return SimpleNamespace(combined=[others[backward]])
        assert claims is rows_of_regimes.EQUAL_WIDTHS
        assert earlier == [others[backward]]
        return SimpleNamespace(combined=[others[backward], others[2 + backward], of_other_widths])

    monkeypatch.setattr(regimes, "Plan", plan)
    rows_of_regimes.main()
    written = [others[0], others[2], of_other_widths, others[1], others[3], of_other_widths]
    assert list(stored_rows.__wrapped__()) == written


def test_rows_that_differ_from_known_ones_in_widths_alone_are_not_stored(rows, monkeypatch):
    first = rows[0]
    changed = first | dict.fromkeys(rows_of_regimes.WIDTHS)

    def plan(claims, earlier, *, backward):
        return SimpleNamespace(combined=[changed if earlier else first])

    monkeypatch.setattr(regimes, "Plan", plan)
    rows_of_regimes.main()
    assert list(stored_rows.__wrapped__()) == [first, first]


def test_equal_widths_refuse_values_of_another_width():
    refuses = rows_of_regimes.EQUAL_WIDTHS.subject().refuses
    assert refuses(Case(d_head=8, d_value=8)) is None
    assert refuses(Case(d_head=8, d_value=16)) is not None


PRINTS_A_DESIGN = """
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.design import design
from attnspec.implementations import load
for backward in (False, True):
    print(*design(Subject(load("sdpa_flash")), 5, backward=backward).cases, sep="\\n")
"""


@pytest.mark.rotating(parts=4)
def test_a_seed_repeats_the_cases_in_another_process():
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINTS_A_DESIGN],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert printed.pop().count("\n") > 1000


@pytest.mark.rotating(parts=4)
def test_values_inside_a_class_rotate_with_the_seed():
    subject = subject_of(Dense(), **CLAIMS["plain float32"])
    assert design(subject, 1).cases == design(subject, 1).cases
    assert design(subject, 1).cases != design(subject, 2).cases


@pytest.mark.rotating(parts=4)
@pytest.mark.slow
def test_a_kernel_that_compiles_each_shape_is_called_with_few_shapes():
    subject = subject_of(Dense(), **CLAIMS["plain float32"], compiles_each_shape=True)
    chosen = design(subject, 1)
    shapes = [case.but(**PLAIN) for case in chosen.cases]
    assert len(set(shapes)) <= SHAPES
    assert len(shapes) > 5 * SHAPES
    # few calls have a pair here, and large scores may leave the class that a call was drawn for
    cases = (case for seed in (1, 2, 3) for case in design(subject, seed).cases)
    pairs = set().union(*(pairs_shown(regimes_of(draw(case))) for case in cases))
    assert not sorted(map(str, chosen.claimed - pairs))
    # each class of sizes is called; two of them need not meet
    subject = subject_of(Dense(), **CLAIMS["plain float32"])
    usual = design(subject, 1).claimed
    assert frozenset().union(*chosen.claimed) == frozenset().union(*usual)
    assert set(chosen.not_tried[REASON]) == usual - chosen.claimed


PLAIN = {
    field.name: field.default
    for field in dataclasses.fields(Case)
    if field.name not in (*SIZES, "kv_heads")
}
"""The fields of a case beside its sizes, at their defaults."""


def test_a_call_without_output_shows_only_that():
    regimes = regimes_of(draw(Case(queries=0, keys=0, heads=2, kv_heads=1, d_head=8)))
    assert {str(one) for one in frozenset.intersection(*pairs_shown(regimes))} == {"queries: 0"}
    assert pairs_shown(regimes) < {frozenset(pair) for pair in combinations(regimes, 2)}


def test_a_call_without_keys_shows_only_that():
    regimes = regimes_of(draw(Case(queries=3, keys=0, heads=2, kv_heads=1, d_head=8)))
    assert {str(one) for one in frozenset.intersection(*pairs_shown(regimes))} == {"keys: 0"}


def is_killed(subject, cases):
    for case in cases:
        try:
            LAWS[case.backward].check(subject, case)
        except Violation:
            return True
        except NotClaimed:
            continue
    return False


def trial(everything, regimes):
    """Return whether an attention that is wrong in some regimes fails there, and passes beside."""
    correct, cases = everything
    names = [(regime.axis, regime.name) for regime in regimes]
    attention = wrong_at(*names)
    subject = Subject(replace(correct.implementation, attention=attention))
    there = [case for case, held in cases if held.issuperset(regimes)]
    beside = [case for case, held in cases if not held.issuperset(regimes)]
    return is_killed(subject, there), is_killed(subject, beside[:3])


def can_be_seen(everything, regimes):
    """Return whether a call of some regimes has an output that is not zero everywhere."""
    correct, cases = everything
    there = [case for case, held in cases if held.issuperset(regimes)]
    return not all(correct.expect(correct.draw(case)).is_zero for case in there)


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("part", range(PARTS))
def test_a_kernel_that_is_wrong_in_one_regime_fails_there_alone(everything, part):
    regimes = [each for each in all_regimes() if (each.axis, each.name) not in NOT_ALONE]
    tried = regimes[part::PARTS]
    survived = [str(each) for each in tried if trial(everything, [each]) != (True, False)]
    assert not survived


@pytest.mark.rotating(parts=6)
@pytest.mark.slow
def test_a_kernel_that_is_wrong_in_two_regimes_fails_there_alone(everything):
    dice = random.Random(20261122)
    designs = (design(everything[0], SEED, backward=each) for each in (False, True))
    claimed = set().union(*(each.claimed for each in designs))
    pairs = [
        sorted(pair, key=str)
        for pair in dice.sample(sorted(claimed, key=lambda pair: sorted(map(str, pair))), 200)
        if not any((each.axis, each.name) in NOT_ALONE for each in pair)
    ]
    survived = [pair for pair in pairs if trial(everything, pair) != (True, False)]
    # a mask may hide all keys in each of a pair's calls, so that gradients are zero either way
    assert len(survived) < 0.02 * len(pairs)
    assert not [[*map(str, pair)] for pair in survived if can_be_seen(everything, pair)]


def test_a_backward_pass_that_hides_mistakes_is_repeated_in_finer_numbers():
    calls = []

    class Typed(Dense):
        def __call__(self, query, *arguments, **options):
            calls.append((query.dtype, query.requires_grad))
            return super().__call__(query, *arguments, **options)

    dtypes = (torch.float16, torch.bfloat16)
    subject = subject_of(Typed(), features=frozenset({Feature.BACKWARD}), dtypes=dtypes)
    case = Case(queries=64, keys=64, d_head=16, d_value=16, dtype=torch.bfloat16)
    hidden = replace(subject, oracle=far_from_zero, oracle_gradients=no_gradients)
    LAWS[False].check(hidden, case)
    assert {dtype for dtype, _ in calls} == set(dtypes)
    calls.clear()
    LAWS[True].check(hidden, case.but(backward=True))
    assert calls[0][0] is torch.bfloat16
    assert {dtype for dtype, _ in calls[1:]} == {torch.float16}


@pytest.fixture
def wrong_in_float32():
    """A subject that is wrong in float32, judged by an oracle that sees nothing in bfloat16."""

    class Wrong(Dense):
        def __call__(self, query, *arguments, **options):
            out = super().__call__(query, *arguments, **options)
            return out + 1 if query.dtype == torch.float32 else out

    subject = subject_of(Wrong(), features=frozenset(), dtypes=(torch.float32, torch.bfloat16))

    def expect(call, profile, **rows):
        hides = call.query.dtype == torch.bfloat16
        return (far_from_zero if hides else subject.oracle)(call, profile, **rows)

    return replace(subject, oracle=expect)


HIDING = Case(queries=4, keys=4, d_head=8, d_value=8, dtype=torch.bfloat16)


def test_a_failure_of_a_repeated_call_is_reported_as_that_call(wrong_in_float32):
    law = dataclasses.replace(LAW, pinned=(HIDING,))
    record = check(law, wrong_in_float32, Effort.SMOKE)
    assert record.outcome is Outcome.FAILED, record.reason
    assert "dtype=float32" in record.case


def test_a_repeated_call_with_a_known_bug_is_left_out(wrong_in_float32):
    known = Deviation(
        law=LAW.name,
        reason="it is wrong in float32",
        link="the tracker",
        applies=lambda case: case.dtype == torch.float32,
        example=HIDING.but(dtype=torch.float32),
    )
    implementation = replace(wrong_in_float32.implementation, deviations=(known,))
    LAW.check(replace(wrong_in_float32, implementation=implementation), HIDING)
    with pytest.raises(Violation):
        LAW.check(wrong_in_float32, HIDING)


def test_a_scalar_oracle_judges_no_design():
    subject = replace(subject_of(Dense(), **CLAIMS["everything"]), largest=1000)
    assert design(subject).cases == ()
