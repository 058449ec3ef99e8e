"""Sphinx: how attention functions of libraries differ, from what the probe has found."""

import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from building import Cell, Folded, Summary, link, table, text
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance.evidence.libraries import (
    FEATURES,
    FURTHER,
    NONE,
    PROFILE,
    LibraryRecord,
    read,
    rows,
)
from attnspec.conformance.report.record import Outcome
from attnspec.spec import Profile

STORED = Path(__file__).parents[1] / "results" / "libraries.json"

SECTIONS = {"Conventions": PROFILE, "Features": FEATURES, "Calls": FURTHER}
"""The rows of each table."""

TITLES = {
    "causal": "causal flag",
    "gqa": "grouped heads",
    "lse": "log-sum-exp",
    "alibi": "ALiBi",
    "key_lengths": "key lengths",
    "query_offset": "query offset",
    "validates": "invalid arguments raise",
    "causal_alignment": "causal diagonal",
    "causal_single_query": "causal flag, one query",
    "empty_row": "empty row, causal",
    "empty_row_bool_mask": "empty row, bool mask",
    "empty_row_float_mask": "empty row, float mask",
    "masked_keys": "NaN in hidden keys",
    "masked_values": "NaN in hidden values",
    "grouping": "grouping of heads",
    "softcap_order": "softcap and bias",
    "float64_precision": "float64 is computed in",
    "batch_invariant": "batch invariant",
}
"""The words for rows whose names are those of the code."""

LONGEST = 48
"""Characters of an answer in a cell; the evidence has all of it."""


@functools.cache
def records() -> tuple[LibraryRecord, ...]:
    """Return the stored records."""
    return tuple(read(STORED))


class Libraries(SphinxDirective):
    """`{libraries} columns`, `Conventions`, `Features`, `Calls`, `laws` or `evidence`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the requested part; without stored records this is an error."""
        self.env.note_dependency(str(STORED))
        if not records():
            raise self.error("no records are stored: run attnspec.conformance.evidence.libraries")
        part = self.arguments[0]
        if part in SECTIONS:
            return [_table(SECTIONS[part])]
        writers: dict[str, Callable[[], list[nodes.Node]]] = {
            "columns": _columns,
            "differences": _differences,
            "laws": _laws,
            "evidence": _evidence,
        }
        return writers[part]()


def _columns() -> list[nodes.Node]:
    """Return a table of the implementations, with versions and dates."""
    heads = ["implementation", "library", "torch", "device", "date"]
    lines = [
        [
            [link(_label(record), nodes.literal("", record.name))],
            text(record.title),
            text(record.torch.partition("+")[0]),
            text(record.device),
            text(record.date),
        ]
        for record in records()
    ]
    return [table(heads, lines)]


def _table(questions: dict[str, str]) -> nodes.table:
    """Return a table with a row for each question and a column for each implementation."""
    heads = ["question", *(f"{record.name} ({record.title})" for record in records())]
    lines: list[list[Cell]] = []
    for row in questions:
        usual = _usual(row)
        cells = [_cell(record, row, usual) for record in records()]
        lines.append([text(TITLES.get(row, row.replace("_", " "))), *cells])
    return table(heads, lines, "libraries")


def _usual(row: str) -> str:
    """Return the answer that is compared with: the default of the profile, else the commonest."""
    if row in Profile.QUESTIONS:
        default = getattr(Profile(), row)
        return str(default or Profile().empty_row)
    given = Counter(record.answers[row] for record in records() if record.answers[row])
    return given.most_common(1)[0][0] if given else NONE


def _cell(record: LibraryRecord, row: str, usual: str) -> Cell:
    """Return an answer that links to its evidence; one that differs from the usual is marked."""
    answer = record.answers[row]
    if answer == NONE:
        return text("–")
    shown = answer if len(answer) <= LONGEST else f"{answer[: LONGEST - 1]}…"
    evidence = link(_label(record, rows()[row]), shown)
    differs = answer != usual and row not in FURTHER
    return [nodes.strong("", "", evidence, classes=["differs"]) if differs else evidence]


def _differences() -> list[nodes.Node]:
    """Return a list of the conventions on which implementations differ, with who answers what."""
    items = []
    for row in PROFILE:
        groups: dict[str, list[str]] = {}
        for record in records():
            if record.answers[row] not in (NONE, "unknown"):
                groups.setdefault(record.answers[row], []).append(record.name)
        if len(groups) < 2:
            continue
        words: list[nodes.Node] = [
            nodes.strong("", TITLES.get(row, row.replace("_", " "))),
            nodes.Text(": "),
        ]
        for number, (answer, names) in enumerate(sorted(groups.items())):
            words.append(nodes.Text(f"{'; ' if number else ''}{answer} in {', '.join(names)}"))
        items.append(nodes.list_item("", nodes.paragraph("", "", *words, nodes.Text("."))))
    return [nodes.bullet_list("", *items)]


def _laws() -> list[nodes.Node]:
    """Return the counts of laws of each implementation, and its pinned deviations."""
    shown = [
        outcome for outcome in Outcome if any(record.laws.get(str(outcome)) for record in records())
    ]
    heads = ["implementation", "effort", "checked", *map(str, shown)]
    lines = []
    for record in records():
        counts = [str(record.laws.get(str(outcome), "") or "") for outcome in shown]
        effort, day = "not run", ""
        if record.laws:
            effort, day = record.effort, record.checked or record.date
        lines.append([*map(text, (record.name, effort, day, *counts))])
    parts: list[nodes.Node] = [table(heads, lines, "numbers")]
    reasons: dict[str, list[str]] = {}
    for record in records():
        for reason in record.reasons:
            reasons.setdefault(reason, []).append(record.name)
    if reasons:
        items = [
            nodes.list_item("", nodes.paragraph("", f"{', '.join(names)}: {reason}."))
            for reason, names in reasons.items()
        ]
        parts.append(nodes.bullet_list("", *items))
    return parts


def _evidence() -> list[nodes.Node]:
    """Return, for each implementation, the calls that were made and what they gave."""
    parts: list[nodes.Node] = []
    for record in records():
        label = _label(record)
        title = f"{record.name}, {record.title}, {record.date}"
        section = nodes.section("", nodes.title("", title), ids=[label], names=[label])
        for finding in record.findings:
            lines = [nodes.list_item("", nodes.paragraph("", each)) for each in finding.evidence]
            answer = f"{finding.question}: {finding.deviation or finding.answer}"
            # a link to what is inside of a folded part unfolds it
            inside = nodes.bullet_list("", *lines, ids=[_label(record, finding.question)])
            section += Folded("", Summary("", answer), inside, classes=["behaviour"])
        parts.append(section)
    return parts


def _label(record: LibraryRecord, question: str = "") -> str:
    """Return the label of the evidence about an implementation, or about one question.

    It is in a thousand links, so it names versions only where records differ in nothing else.
    """
    is_one = sum(each.name == record.name for each in records()) == 1
    versions = "" if is_one else f"{record.version} {record.torch} {record.device}"
    return nodes.make_id(f"evidence {record.name} {versions} {question}")


def register_labels(app: Sphinx, doctree: nodes.document) -> None:
    """Make the evidence known as labels, so that other pages can link to it."""
    labels = app.env.domains.standard_domain
    for node in doctree.findall(lambda each: isinstance(each, nodes.section | nodes.bullet_list)):
        for identifier in node["ids"]:
            if identifier.startswith("evidence-"):
                labels.labels[identifier] = (app.env.docname, identifier, identifier)
                labels.anonlabels[identifier] = (app.env.docname, identifier)


def shorten_download(app: Sphinx, error: Exception | None) -> None:
    """Leave the calls out of the file that is offered, nine tenths of it: the page shows them."""
    if error is not None or app.builder.name != "html":
        return
    for path in Path(app.outdir, "_downloads").rglob(STORED.name):
        stored = json.loads(path.read_text(encoding="utf-8"))
        short = [{key: each[key] for key in each if key != "findings"} for each in stored]
        path.write_text(json.dumps(short, indent=1), encoding="utf-8")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.setup_extension("building")
    app.add_directive("libraries", Libraries)
    app.connect("doctree-read", register_labels)
    app.connect("build-finished", shorten_download)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
