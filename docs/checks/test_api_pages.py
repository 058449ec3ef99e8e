"""The API pages: they list every public name, with the texts of the code."""

import dataclasses
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import attnspec.reference
import attnspec.spec
from attnspec.conformance.cli.app import app
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.report.run import Run

DOCS = Path(__file__).parents[1]
sys.path.insert(0, str(DOCS / "_ext"))

import api  # noqa: E402  (found by the line above)
import command_line  # noqa: E402
import record_fields  # noqa: E402

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md")}


def documented():
    """Return the modules and names that the pages document from docstrings."""
    entries = set()
    for text in PAGES.values():
        for module, names in re.findall(r"^```\{api\} (\S+)\n(.*?)^```$", text, re.M | re.S):
            imported = importlib.import_module(module)
            entries |= {(imported, name) for name in names.split() or api._public(imported)}
    return entries


def test_every_public_name_has_an_entry():
    names = {name for module, name in documented() if module is attnspec.spec}
    assert names == set(attnspec.spec.__all__)
    listed = {
        name for module, name in documented() if module.__name__.startswith("attnspec.reference")
    }
    assert set(attnspec.reference.__all__) - {"MODEL", "REFERENCE"} <= listed


def test_every_name_with_an_entry_has_a_docstring():
    for module, name in documented():
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{module.__name__}.{name}"


def test_fields_are_listed_with_type_default_and_meaning():
    @dataclasses.dataclass(frozen=True)
    class Example:
        first: int
        second: tuple[int, ...] = dataclasses.field(default_factory=tuple)
        """Two: and more."""
        _third: int = 3

    assert api._fields(Example, {"first": "one of them."}) == [
        ".. py:attribute:: first",
        "   :type: int",
        "",
        "   one of them.",
        "",
        ".. py:attribute:: second",
        "   :type: tuple[int, ...]",
        "   :value: tuple()",
        "",
        "   Two: and more.",
        "",
    ]


def test_a_docstring_keeps_its_words():
    lines = [
        "Weigh `Case`s by |i - j|.",
        "",
        "Args:",
        "    x: any.",
        "",
        "Returns:",
        "    A view: not a copy.",
        "",
        "Clauses:",
        "    ATT-1, MSK-12",
    ]
    api.describe(None, "function", "f", lambda: None, None, lines)
    assert lines == [
        r"Weigh `Case`\ s by \|i - j\|.",
        "",
        "Args:",
        "    x: any.",
        "",
        ":returns:",
        "    A view: not a copy.",
        "",
        "Clauses:",
        "    :ref:`ATT-1 <att-1>`, :ref:`MSK-12 <msk-12>`",
    ]


@pytest.mark.parametrize("kind", [Run, Record])
def test_the_schema_names_every_field_with_its_meaning(kind):
    rows = record_fields.table(kind).splitlines()[2:]
    assert len(rows) == len(dataclasses.fields(kind))
    for row in rows:
        assert all(cell.strip() for cell in row.strip("|").split("|")), row


def test_the_schema_agrees_with_written_records():
    """Each value of a record has the type that its row names."""
    kinds = {"text": str, "integer": int, "number": float, "object": dict, "array": list}
    kinds |= {"null": type(None), '"inf"': str}
    record = Record(
        subject="mine",
        law="no-future",
        clauses=("MSK-1",),
        outcome=Outcome.FAILED,
        worst=float("inf"),
        figures={"error": float("nan"), "other": 0.5},
        seconds={"total": 1.0},
        mismatch={"what": "out"},
        seed=3,
    )
    for written in (record, dataclasses.replace(record, worst=0.5, mismatch=None, seed=None)):
        data = json.loads(written.to_json())
        for row in record_fields.table(Record).splitlines()[2:]:
            name, kind = (cell.strip() for cell in row.strip("|").split("|")[:2])
            allowed = {kinds[word] for word in kinds if re.search(rf"{word}(?!\w)", kind)}
            assert type(data[name.strip("`")]) in allowed, row


def test_every_command_and_option_is_on_the_page():
    text = command_line.markdown()
    group = get_command(app)
    for name, command in group.commands.items():
        section = text.partition(f"## `attnspec {name}`\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            for option in parameter.opts:
                assert option in section or option == "--help", (name, option)
        assert f"[`{name}`](#attnspec-{name})" in text
    assert "completion" not in text
    assert not re.search(r"--workers.*default: \d", text)
