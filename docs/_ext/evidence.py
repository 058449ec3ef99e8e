"""Sphinx: the tables of the evidence pages, drawn from what sessions have stored."""

from collections.abc import Callable, Sequence

from building import Cell, joined, link, table, text
from docutils import nodes
from laws import law_link
from results import WORDS, Behaviour, behaviours, paths, records, reports, subjects
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance.law import Judged, registered
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.report_view import facts, figures, totals
from attnspec.conformance.targets import every_name
from attnspec.spec import clauses

_TITLES = {
    Judged.ATTENTION: "Attention",
    Judged.MODEL: "Models",
    Judged.TOKENIZER: "Tokenizers",
    Judged.SAMPLER: "Samplers",
}

_UNTOLD = ("seed", "took", "ended")
"""What of a run says nothing about what it found: all of them are whole."""


class Evidence(SphinxDirective):
    """`{evidence} runs`, `totals`, `matrix`, `figures` or `findings`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Draw what is asked for; without a stored run, that is a mistake."""
        writers: dict[str, Callable[[], list[nodes.Node]]] = {
            "runs": _runs,
            "totals": _totals,
            "matrix": self._matrix,
            "figures": _figures,
            "findings": _findings,
        }
        for path in paths():
            self.env.note_dependency(str(path))
        if not reports():
            raise self.error("no run is stored: nox -s evidence")
        return writers[self.arguments[0]]()

    def _matrix(self) -> list[nodes.Node]:
        """A section and a table for each kind of thing that laws judge."""
        found: list[nodes.Node] = []
        for kind, title in _TITLES.items():
            names = {law.name for law in registered().values() if law.judges is kind}
            mine = [each for each in _present(records()) if each.law in names]
            identifier = nodes.make_id(f"matrix {title}")
            section = nodes.section("", nodes.title("", title), ids=[identifier], names=[title])
            if mine:
                section += _by_clause(mine)
                found.append(section)
        return found


def _runs() -> list[nodes.Node]:
    """How each run was made."""
    rows = []
    for report in reports():
        if report.run is not None:
            told = (f"{name} {value}" for name, value in facts(report.run) if name not in _UNTOLD)
            rows.append(nodes.paragraph("", " · ".join(told)))
    return rows


def _present(found: Sequence[Record]) -> list[Record]:
    """Without those for whom no machine has what they need."""
    here = {each.subject for each in found if each.outcome is not Outcome.NOT_AVAILABLE}
    return [each for each in found if each.subject in here]


def _totals() -> list[nodes.Node]:
    """Everyone who was judged, in numbers."""
    found = records()
    shown = [each for each in WORDS if any(each is some.outcome for some in _present(found))]
    heads = ["implementation", *(WORDS[each] for each in shown), "cases", "worst of bound"]
    rows: list[list[Cell]] = []
    absent: dict[str, list[str]] = {}
    order = every_name()
    for total in sorted(totals(found), key=lambda each: order.index(each.subject)):
        if total.absent:
            absent.setdefault(total.absent, []).append(total.subject)
            continue
        counts = [sum(r.subject == total.subject and r.outcome is o for r in found) for o in shown]
        numbers = [*(str(each or "") for each in counts), f"{total.cases:,}", total.worst]
        rows.append([[nodes.literal("", total.subject)], *map(text, numbers)])
    parts: list[nodes.Node] = [table(heads, rows, "numbers")]
    for reason, names in absent.items():
        parts.append(
            nodes.paragraph(
                "",
                "",
                nodes.Text("Not available: "),
                *joined(nodes.literal("", each) for each in names),
                nodes.Text(f" ({reason})."),
            )
        )
    return parts


def _by_clause(found: Sequence[Record]) -> nodes.table:
    """A row for each clause, a sign for each implementation."""
    names = sorted(subjects(found), key=every_name().index)
    rows: list[list[Cell]] = []
    for each in clauses().values():
        told = behaviours(each.id, found)
        if told:
            sign = {name: _sign(some) for some in told for name in some.subjects}
            head = [link(each.id.lower(), nodes.inline("", each.id)), nodes.Text(f" {each.title}")]
            rows.append([head, *(sign.get(name, []) for name in names)])
    return table(["clause", *names], rows, "matrix")


def _sign(each: Behaviour) -> Cell:
    """The sign of an outcome, with its word for those who hover or listen."""
    sign, _, word = WORDS[each.outcome].partition(" ")
    shown = nodes.inline("", sign, classes=["sign", nodes.make_id(word)])
    if not each.links:
        return [shown]
    return [link(each.links[0].rpartition("#")[2], shown)]


def _figures() -> list[nodes.Node]:
    """What was measured and is not judged."""
    items = (nodes.list_item("", nodes.paragraph("", each)) for each in figures(records()))
    return [nodes.bullet_list("", *items)]


def _findings() -> list[nodes.Node]:
    """Each known deviation that was seen again, and on whom."""
    told: dict[tuple[str, str], dict[str, list[str]]] = {}
    for each in records():
        if each.outcome is Outcome.EXPECTED_FAILURE:
            found = told.setdefault((each.link, each.law), {"subjects": [], "reasons": []})
            found["subjects"].append(each.subject)
            found["reasons"].append(each.reason)
    rows: list[list[Cell]] = []
    for (address, law), found in told.items():
        label = address.rpartition("#")[2]
        names = joined(nodes.literal("", name) for name in dict.fromkeys(found["subjects"]))
        rows.append([[link(label, found["reasons"][0])], names, [law_link(law)]])
    return [table(["finding", "seen in", "found by"], rows, "findings")]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.setup_extension("laws")
    app.add_directive("evidence", Evidence)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
