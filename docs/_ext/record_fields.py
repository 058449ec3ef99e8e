"""Sphinx: the fields of a report's dataclasses, with their JSON types."""

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

from attnspec.conformance.report.record import Record
from attnspec.conformance.report.run import Run

KINDS = {"Run": Run, "Record": Record}
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
NOT_FINITE = {"worst", "figures"}
"""Fields whose numbers may be infinite or NaN, for which JSON has no numbers."""


def json_type(annotation: Any, *, not_finite: bool = False) -> str:
    """Return the JSON type of an annotation, in words."""
    if annotation in WORDS:
        number = annotation is float and not_finite
        return 'number, or "inf" or "nan"' if number else WORDS[annotation]
    if inspect.isclass(annotation) and issubclass(annotation, StrEnum):
        return "text, one of: " + ", ".join(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return f"array of {json_type(arguments[0])}"
    if origin is dict:
        if arguments[1] is Any:
            return "object"
        return f"object of {json_type(arguments[1], not_finite=not_finite)}"
    parts = (json_type(part, not_finite=not_finite) for part in arguments)
    return ", or ".join(parts)


def meanings(record: type) -> dict[str, str]:
    """Return the meanings in the Attributes section of a docstring by their names."""
    _, _, text = inspect.cleandoc(str(record.__doc__)).partition("Attributes:\n")
    by_name = {}
    for entry in re.split(r"\n(?=    \w+:)", "\n" + text.rstrip()):
        name, _, meaning = entry.strip().partition(":")
        by_name[name] = " ".join(meaning.split())
    return by_name


def table(record: type) -> str:
    """Return a Markdown table with the name, JSON type and meaning of every field."""
    by_name, hints = meanings(record), typing.get_type_hints(record)
    rows = ["| name | JSON | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(record):
        kind = json_type(hints[field.name], not_finite=field.name in NOT_FINITE)
        rows.append(f"| `{field.name}` | {kind} | {by_name[field.name]} |")
    return "\n".join(rows)


class RecordFields(SphinxDirective):
    """`{record-fields} Run` or `{record-fields} Record`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write the table in Markdown and parse it."""
        parent = nodes.container(classes=["record-fields"])
        text = table(KINDS[self.arguments[0]])
        self.state.nested_parse(StringList(text.splitlines(), source=""), 0, parent)
        return parent.children


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("record-fields", RecordFields)
    return {"version": "1", "parallel_read_safe": True}
