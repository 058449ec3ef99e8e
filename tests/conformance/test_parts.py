"""Parts of long tests: in some days each has its turn, and a selection is kept to."""

import datetime

import pytest
from parts import VARIABLE, selected


@pytest.mark.parametrize(
    ("selection", "parts"),
    [("all", [0, 1, 2, 3, 4, 5]), ("2", [2]), ("8", [2]), ("7,1,3", [1, 3])],
)
def test_the_parts_of_a_selection(monkeypatch, selection, parts):
    monkeypatch.setenv(VARIABLE, selection)
    assert selected(6) == parts


def test_each_part_has_its_day(monkeypatch):
    chosen = []
    for days in range(6):
        today = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC) + datetime.timedelta(days)
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setattr("parts.datetime", Calendar(today))
        chosen += selected(6)
    assert sorted(chosen) == [0, 1, 2, 3, 4, 5]


class Calendar:
    """The module `datetime` on a given day."""

    UTC = datetime.UTC

    def __init__(self, today):
        self.datetime = self
        self.now = {datetime.UTC: today}.get
