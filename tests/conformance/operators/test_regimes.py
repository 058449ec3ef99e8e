"""Regimes of operators on rows: every class and every pair of classes is called and judged."""

import importlib
from itertools import combinations

import pytest
import torch
from trying import judged_count

from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.gelu import PlainGELU
from attnspec.conformance.mutants.bases.layer_norm import PlainLayerNorm
from attnspec.conformance.mutants.bases.rms_norm import PlainRMSNorm
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at_rows
from attnspec.conformance.operators.regimes import AXES, design, pairs_of, regimes_of
from attnspec.conformance.operators.subjects import DECLARATIONS, subject_of_operator
from attnspec.conformance.report.matrix import coverage, run_notes
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort

for chapter in ("layer_norm.operator", "rms_norm.definition", "activation.operator"):
    importlib.import_module(f"attnspec.conformance.laws.{chapter}")
LAWS = {
    "layer_norm": registered()["a-layer-norm-is-right-in-every-two-regimes"],
    "rms_norm": registered()["rms-norm-is-right-in-every-two-regimes"],
    "gelu": registered()["a-gelu-is-right-in-every-two-regimes"],
}
CORRECT = {"layer_norm": PlainLayerNorm(), "rms_norm": PlainRMSNorm(), "gelu": PlainGELU()}
CLASSES = [(axis, each.name) for axis, members in AXES.items() for each in members]
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def subject_of(operator, function):
    return subject_of_operator(DECLARATIONS[operator](name="it", function=function))


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("operator", LAWS)
@pytest.mark.parametrize(
    "regime", [each for each in CLASSES if each != ("rows", "none")], ids=" ".join
)
def test_a_mistake_in_one_class_is_found_by_the_pinned_cases(operator, regime):
    subject = subject_of(operator, wrong_at_rows(CORRECT[operator], regime))
    with pytest.raises(Violation):
        judged_count(LAWS[operator], subject, LAWS[operator].pinned)


@pytest.mark.parametrize("operator", LAWS)
def test_a_result_without_rows_must_have_the_form_of_the_rows(operator):
    def flat(x, *others):
        return CORRECT[operator](x, *others) if x.numel() else x.new_zeros(0)

    with pytest.raises(Violation, match="must have shape"):
        judged_count(LAWS[operator], subject_of(operator, flat), LAWS[operator].pinned)


PAIRS = [
    (("channels", "4096 and more"), ("dtype", "bfloat16")),
    (("channels", "63 to 65"), ("layout", "rows apart")),
    (("rows", "over 256"), ("layout", "expanded")),
    (("width", "odd"), ("layout", "unaligned")),
    (("backward", "yes"), ("rows", "one")),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_mistake_where_two_classes_meet_is_found(pair):
    subject = subject_of("rms_norm", wrong_at_rows(CORRECT["rms_norm"], *pair))
    law = LAWS["rms_norm"]
    with pytest.raises(Violation):
        judged_count(law, subject, law.wide(subject, 0))


def test_the_design_covers_every_pair_that_can_meet():
    chosen = design(DTYPES, has_gradients=True)
    regimes = [each for members in AXES.values() for each in members]
    every = {frozenset(each) for each in combinations(regimes, 2) if each[0].axis != each[1].axis}
    apart = {" with ".join(sorted(map(str, each))) for each in every - chosen.claimed}
    # no row, or one, has no other place
    assert apart == {
        "layout: expanded with rows: none",
        "layout: expanded with rows: one",
        "layout: rows apart with rows: none",
        "layout: rows apart with rows: one",
    }
    assert len(chosen.cases) < 60


def test_a_type_or_a_pass_that_is_not_claimed_is_not_called():
    chosen = design((torch.float32,), has_gradients=False)
    names = {str(each) for pair in chosen.claimed for each in pair}
    assert "dtype: float32" in names
    assert not names & {"dtype: float64", "dtype: bfloat16", "backward: yes"}


def test_classes_of_a_tensor():
    x = torch.zeros(2, 65)
    assert list(map(str, regimes_of(x))) == [
        "channels: 63 to 65",
        "width: odd",
        "rows: 2 to 64",
        "layout: contiguous",
        "dtype: float32",
        "backward: no",
    ]
    assert len(pairs_of(x)) == 15
    assert "layout: expanded" in map(str, regimes_of(x[:1].expand(3, 65)))
    assert "layout: channels apart" in map(str, regimes_of(x[:, ::2]))
    assert "layout: rows apart" in map(str, regimes_of(x[:, :64]))
    assert "layout: unaligned" in map(str, regimes_of(x.flatten()[1:66].view(1, 65)))


def test_the_report_says_how_many_pairs_were_called():
    record = check(LAWS["gelu"], subject_of("gelu", CORRECT["gelu"]), Effort.STANDARD)
    assert record.outcome is Outcome.PASSED
    count = len(design(DTYPES, has_gradients=True).claimed)
    lines = "\n".join(run_notes([record]))
    assert f"regimes: it: {count} of {count} claimed pairs were called" in lines
    assert coverage([record]) == []
    pinned = check(LAWS["gelu"], subject_of("gelu", CORRECT["gelu"]), Effort.SMOKE)
    assert pinned.coverage is None
