"""The chapter on numerics and the code that computes its formulas name each other."""

import re
from pathlib import Path

import pytest

from attnspec.conformance.attention.bounds.roundoff import FLOOR, LOG_ERROR, UNIT
from attnspec.spec import Rounding, RoundingLevel, all_clauses, chapter_text

CODE = Path(__file__).parents[3] / "conformance" / "attention" / "bounds"
CHAPTER = chapter_text("numerics")
FILES = ("roundoff", "scores", "forward", "backward")


def test_formulas_cited_by_the_code_are_in_the_chapter():
    labels = set(re.findall(r"^\$\$ \((eq-num-[a-z0-9-]+)\)$", CHAPTER, re.MULTILINE))
    assert len(labels) > 20
    for name in FILES:
        text = (CODE / f"{name}.py").read_text(encoding="utf-8")
        cited = set(re.findall(r"eq-num-[a-z0-9-]+", text))
        assert cited, name
        assert cited <= labels, name
        assert set(re.findall(r"NUM-\d+", text)) <= all_clauses().keys(), name


def test_files_cited_by_the_chapter_exist():
    named = re.findall(r"`(\w+\.py)`", CHAPTER)
    assert set(named) == {f"{name}.py" for name in FILES}
    for path in re.findall(r"`(conformance/[\w/.]+)`", CHAPTER):
        assert (CODE.parents[2] / path).exists(), path
    assert all((CODE / name).exists() for name in named)


def test_units_and_floors_are_those_of_the_table():
    rows = re.findall(r"^\| (\w+) \| \$2\^\{-(\d+)\}\$ \| \$2\^\{-(\d+)\}\$ \|$", CHAPTER, re.M)
    table = {name: (2.0 ** -int(unit), 2.0 ** -int(floor)) for name, unit, floor in rows}
    assert table == {
        str(dtype).removeprefix("torch."): (UNIT[dtype], FLOOR[dtype]) for dtype in UNIT
    }


@pytest.mark.parametrize("level", RoundingLevel)
def test_every_level_has_a_row(level):
    assert f"| `{level}` |" in CHAPTER


def test_constants_are_those_of_the_text():
    assert f"$c_{{\\ln}} = {LOG_ERROR:.0f}$" in CHAPTER
    assert Rounding().exp_error == Rounding().tanh_error == 32
    assert CHAPTER.count("32 unless declared") == 2
