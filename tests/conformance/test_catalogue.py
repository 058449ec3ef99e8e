"""The catalogue of mutants against the list of public reports: nothing is missing or double."""

import re

import pytest
import torch
from trying import pinned_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.kills import subject_of
from attnspec.conformance.law import registered
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.mutants.unshown import UNSHOWN
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Implementation, ModelImplementation, Values

BF16 = torch.bfloat16
REPORTED = {
    "BWD": (1, 2, 3, 6, 8, 9, 10, 11, 15, 16),
    "CAC": (1, 2, 3, 4, 9, 14, 15),
    "CMP": (2, 5, 6),
    "DRP": (3,),
    "DST": (2, 3),
    "DTY": (1, 2, 3, 5, 6),
    "GQA": (1, 3, 4, 5, 6, 7, 8, 10, 12),
    "MDL": (3, 4, 5, 7, 8, 9, 10, 12),
    "MSK": (1, 4, 5, 8, 10, 11, 17, 21, 22, *range(25, 34), *range(36, 41)),
    "NUM": (2, 5, 6, 7, 9),
    "POS": (2, 3, 4, 5),
    "SCL": (3, 4, 5, 6, 8, 11),
    "SHP": (3, 4),
    "SPV": (1, 2, 5, 7, 8),
    "STR": (1, 2, 4, 6, 7, 9, 10),
    "TIL": (1, 4, 5, 7),
}
"""The public reports of wrong attention and wrong GPT-2, one number per cause."""
IDS = {f"{family}-{number:02}" for family, numbers in REPORTED.items() for number in numbers}
PUBLIC = re.compile(r"[A-Z]{3}-\d{2}")
SHOWN = {id for id in planted() if PUBLIC.fullmatch(id)}
GIVEN_UP = [each.id for each in UNSHOWN]

CRASHES = {"GQA-03", "POS-05", "SHP-03", "SHP-04"}
"""Reports of an error, which the mutant raises as well."""


def _module(mutant: Mutant) -> str:
    made = getattr(mutant.subject, "attention", None)
    where = type(made) if made is not None else getattr(mutant.subject, "build", None)
    return str(getattr(where, "__module__", ""))


MUTANTS = {id: each for id, each in planted().items() if ".catalogue_" in _module(each)}
ATTENTION = [id for id, each in MUTANTS.items() if isinstance(each.subject, Implementation)]
MODELS = [id for id, each in MUTANTS.items() if isinstance(each.subject, ModelImplementation)]
ONE = Case(queries=1, keys=1, d_head=3, d_value=2, dtype=torch.float32)
EASY = (ONE, ONE.but(values=Values.DENORMAL), ONE.but(values=Values.CANCELLATION, dtype=BF16))
"""One key; one whose value is next to nothing; one whose value is far from it, and coarse."""


def test_every_public_report_is_shown_or_given_up_and_never_both():
    assert len(IDS) == 101
    assert len(GIVEN_UP) == len(set(GIVEN_UP))
    assert not set(GIVEN_UP) & set(planted())
    assert SHOWN | set(GIVEN_UP) == IDS


@pytest.mark.parametrize("id", sorted(SHOWN))
def test_what_repeats_a_report_says_where_it_was_reported(id):
    assert planted()[id].source.startswith("https://")


@pytest.mark.parametrize("unshown", UNSHOWN, ids=lambda each: each.id)
def test_what_is_given_up_says_where_it_was_reported_and_why(unshown):
    assert unshown.source.startswith("https://")
    assert unshown.title
    assert unshown.reason


def test_every_id_is_that_of_a_report_or_a_name_of_its_own():
    for id in planted():
        assert id in IDS or re.fullmatch(r"own-[a-z0-9-]+", id), id


def test_only_a_mistake_of_our_own_may_have_no_source():
    for id, mutant in planted().items():
        assert mutant.source.startswith("https://") or (id.startswith("own-") and not mutant.source)


@pytest.mark.parametrize(
    ("id", "law"), [(id, law) for id, each in MUTANTS.items() for law in each.kills]
)
def test_mutant_is_killed_by_the_pinned_cases_of_each_law_it_names(id, law):
    with pytest.raises(Raised if id in CRASHES else Violation):
        pinned_on(registered()[law], subject_of(MUTANTS[id]))


@pytest.mark.parametrize("id", ATTENTION)
def test_attention_mutant_is_right_on_an_easy_input(id):
    subject = Subject(MUTANTS[id].subject)

    def is_right(case: Case) -> bool:
        call = subject.draw(case)
        try:
            subject.judge(call, subject.call(call), "wrong")
        except Violation:
            return False
        return True

    assert any(map(is_right, EASY))


@pytest.mark.parametrize("id", MODELS)
def test_model_mutant_is_right_where_nothing_is_padded(id):
    pinned_on(registered()["logits-equal-the-oracles"], MUTANTS[id].subject)
