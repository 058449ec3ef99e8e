"""Sphinx: the fields of a dataclass that a report is made of, as JSON holds them."""

import dataclasses
import inspect
import re
import typing
from enum import StrEnum
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance.record import Record
from attnspec.conformance.report_run import Run

KINDS = {"Run": Run, "Record": Record}
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
NOT_FINITE = {"worst", "figures"}
"""Fields whose numbers may be infinite or NaN, which JSON has no number for."""


def json_type(annotation: Any, *, not_finite: bool = False) -> str:
    """What JSON holds for an annotation, in words."""
    if annotation in WORDS:
        number = annotation is float and not_finite
        return 'number, or "inf" or "nan"' if number else WORDS[annotation]
    if inspect.isclass(annotation) and issubclass(annotation, StrEnum):
        return "text, one of: " + ", ".join(annotation)
    origin, given = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return f"array of {json_type(given[0])}"
    if origin is dict:
        is_open = given[1] is Any
        return "object" if is_open else f"object of {json_type(given[1], not_finite=not_finite)}"
    parts = (json_type(each, not_finite=not_finite) for each in given)
    return ", or ".join(parts)


def meanings(record: type) -> dict[str, str]:
    """`name: meaning` of the Attributes section of a docstring."""
    _, _, text = inspect.cleandoc(str(record.__doc__)).partition("Attributes:\n")
    found = {}
    for entry in re.split(r"\n(?=    \w+:)", "\n" + text.rstrip()):
        name, _, meaning = entry.strip().partition(":")
        found[name] = " ".join(meaning.split())
    return found


def table(record: type) -> str:
    """Name, type, default and meaning of every field, as a table in Markdown."""
    told, hints = meanings(record), typing.get_type_hints(record)
    rows = ["| name | JSON | |", "|---|---|---|"]
    for each in dataclasses.fields(record):
        kind = json_type(hints[each.name], not_finite=each.name in NOT_FINITE)
        rows.append(f"| `{each.name}` | {kind} | {told[each.name]} |")
    return "\n".join(rows)


class RecordFields(SphinxDirective):
    """`{record-fields} Run` or `{record-fields} Record`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write the table in Markdown and have it read."""
        parent = nodes.container(classes=["record-fields"])
        text = table(KINDS[self.arguments[0]])
        self.state.nested_parse(StringList(text.splitlines(), source=""), 0, parent)
        return parent.children


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("record-fields", RecordFields)
    return {"version": "1", "parallel_read_safe": True}
