"""The catalogue of mutants and the list of public reports agree: no report is missing or double."""

import re

import pytest

from attnspec.conformance import laws, mutants
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.mutants.unrepeated import UNREPEATED

laws.load()
mutants.load()

REPORTED = {
    "ADD": range(1, 5),
    "BWD": (1, 2, 3, 6, 8, 9, 10, 11, 15, 16),
    "CAC": (1, 2, 3, 4, 9, 14, 15),
    "CMP": (2, 5, 6),
    "CRS": range(1, 13),
    "DRP": (3,),
    "DST": (2, 3),
    "DTY": (1, 2, 3, 5, 6),
    "ENC": range(1, 10),
    "GQA": (1, 3, 4, 5, 6, 7, 8, 10, 12),
    "LEN": range(1, 6),
    "MDL": (3, 4, 5, 7, 8, 9, 10, 12),
    "MSK": (1, 4, 5, 8, 10, 11, 17, 21, 22, *range(25, 34), *range(36, 41)),
    "NUM": (2, 5, 6, 7, 9),
    "ONL": range(1, 10),
    "PGD": range(1, 14),
    "PKD": range(1, 12),
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
REPEATED = {id for id in planted() if PUBLIC.fullmatch(id)}
UNREPEATED_IDS = [report.id for report in UNREPEATED]


def test_every_public_report_is_either_repeated_or_explained():
    assert len(IDS) == 164
    assert len(UNREPEATED_IDS) == len(set(UNREPEATED_IDS))
    assert not set(UNREPEATED_IDS) & set(planted())
    assert REPEATED | set(UNREPEATED_IDS) == IDS


@pytest.mark.parametrize("id", sorted(REPEATED))
def test_a_mutant_that_repeats_a_report_names_its_address(id):
    assert planted()[id].source.startswith("https://")


@pytest.mark.parametrize("report", UNREPEATED, ids=lambda report: report.id)
def test_an_unrepeated_report_has_an_address_and_a_reason(report):
    assert report.source.startswith("https://")
    assert report.title
    assert report.reason


def test_every_id_is_of_a_report_or_a_name_of_its_own():
    for id in planted():
        assert id in IDS or re.fullmatch(r"own-[a-z0-9-]+", id), id


def test_only_a_mutant_without_a_report_may_have_no_source():
    for id, mutant in planted().items():
        assert mutant.source.startswith("https://") or (id.startswith("own-") and not mutant.source)
