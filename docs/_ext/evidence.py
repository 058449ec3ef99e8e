"""Sphinx: the tables of the evidence pages, made from stored runs."""

from collections.abc import Callable, Sequence

from building import Cell, joined, link, table, text
from docutils import nodes
from laws import law_link
from results import WORDS, Behaviour, behaviours, paths, records, reports, subjects
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance.laws import load as load_laws
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.report.view import facts, figures, totals
from attnspec.conformance.runner.targets import every_name
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import all_clauses

_TITLES = {
    SubjectKind.ATTENTION: "Attention",
    SubjectKind.MODEL: "Models",
    SubjectKind.TOKENIZER: "Tokenizers",
    SubjectKind.SAMPLER: "Samplers",
    SubjectKind.LAYER_NORM: "LayerNorms",
    SubjectKind.GELU: "GELUs",
    SubjectKind.RMS_NORM: "RMSNorms",
    SubjectKind.ROTARY: "Rotary positions",
    SubjectKind.GATED_MLP: "Gated MLPs",
    SubjectKind.ROUTER: "Routers",
    SubjectKind.EXPERTS: "Experts",
    SubjectKind.ONLINE_SOFTMAX: "Online softmax",
    SubjectKind.SOFTMAX_MERGE: "Merging of softmax parts",
    SubjectKind.ADDITIVE_ATTENTION: "Additive attention",
    SubjectKind.BERT: "BERTs",
    SubjectKind.ENCODER_DECODER: "Encoder-decoders",
    SubjectKind.PACKED: "Packed attention",
    SubjectKind.PAGED: "Paged attention",
}

_OMITTED = ("seed", "took", "ended")
"""Facts of a run that are left out: every stored run is complete."""


class Evidence(SphinxDirective):
    """`{evidence} runs`, `totals`, `matrix`, `figures` or `findings`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the requested part; without a stored run this is an error."""
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
        """Return a section with a table for each kind of implementation."""
        sections: list[nodes.Node] = []
        for kind, title in _TITLES.items():
            names = {law.name for law in load_laws().values() if law.judges is kind}
            selected = [record for record in _present(records()) if record.law in names]
            identifier = nodes.make_id(f"matrix {title}")
            section = nodes.section("", nodes.title("", title), ids=[identifier], names=[title])
            if selected:
                section += _by_clause(selected)
                sections.append(section)
        return sections


def _runs() -> list[nodes.Node]:
    """Return a line of facts for each run."""
    rows = []
    for report in reports():
        if report.run is not None:
            named = [(name, value) for name, value in facts(report.run) if name not in _OMITTED]
            line = " · ".join(f"{name} {value}" for name, value in named)
            rows.append(nodes.paragraph("", line))
    return rows


def _present(several: Sequence[Record]) -> list[Record]:
    """Return the records of the subjects that some machine can run."""
    subjects_run = {r.subject for r in several if r.outcome is not Outcome.NOT_AVAILABLE}
    return [record for record in several if record.subject in subjects_run]


def _totals() -> list[nodes.Node]:
    """Return the counts of every subject."""
    every_record = records()
    present = {record.outcome for record in _present(every_record)}
    shown = [outcome for outcome in WORDS if outcome in present]
    heads = ["implementation", *(WORDS[outcome] for outcome in shown), "cases", "worst of bound"]
    rows: list[list[Cell]] = []
    absent: dict[str, list[str]] = {}
    order = every_name()
    for total in sorted(totals(every_record), key=lambda total: order.index(total.subject)):
        if total.absent:
            absent.setdefault(total.absent, []).append(total.subject)
            continue
        own = [record.outcome for record in every_record if record.subject == total.subject]
        counts = [str(own.count(outcome) or "") for outcome in shown]
        numbers = [*counts, f"{total.cases:,}", total.worst]
        rows.append([[nodes.literal("", total.subject)], *map(text, numbers)])
    parts: list[nodes.Node] = [table(heads, rows, "numbers")]
    for reason, names in absent.items():
        parts.append(
            nodes.paragraph(
                "",
                "",
                nodes.Text("Not available: "),
                *joined(nodes.literal("", name) for name in names),
                nodes.Text(f" ({reason})."),
            )
        )
    return parts


def _by_clause(several: Sequence[Record]) -> nodes.table:
    """Return a table with a row for each clause and a sign for each implementation."""
    names = sorted(subjects(several), key=every_name().index)
    rows: list[list[Cell]] = []
    for clause in all_clauses().values():
        groups = behaviours(clause.id, several)
        if groups:
            sign = {name: _sign(group) for group in groups for name in group.subjects}
            label = link(clause.id.lower(), nodes.inline("", clause.id))
            head = [label, nodes.Text(f" {clause.title}")]
            rows.append([head, *(sign.get(name, []) for name in names)])
    return table(["clause", *names], rows, "matrix")


def _sign(group: Behaviour) -> Cell:
    """Return the sign of an outcome, with its word for tooltips and screen readers."""
    sign, _, word = WORDS[group.outcome].partition(" ")
    shown = nodes.inline("", sign, classes=["sign", nodes.make_id(word)])
    if not group.links:
        return [shown]
    return [link(group.links[0].rpartition("#")[2], shown)]


def _figures() -> list[nodes.Node]:
    """Return the measurements that no law judges."""
    items = (nodes.list_item("", nodes.paragraph("", line)) for line in figures(records()))
    return [nodes.bullet_list("", *items)]


def _findings() -> list[nodes.Node]:
    """Return each known deviation that the runs show, with its subjects."""
    deviations: dict[tuple[str, str], dict[str, list[str]]] = {}
    for record in records():
        if record.outcome is Outcome.EXPECTED_FAILURE:
            key = record.link, record.law
            deviation = deviations.setdefault(key, {"subjects": [], "reasons": []})
            deviation["subjects"].append(record.subject)
            deviation["reasons"].append(record.reason)
    rows: list[list[Cell]] = []
    for (address, law), deviation in deviations.items():
        label = address.rpartition("#")[2]
        names = joined(nodes.literal("", name) for name in dict.fromkeys(deviation["subjects"]))
        rows.append([[link(label, deviation["reasons"][0])], names, [law_link(law)]])
    return [table(["finding", "seen in", "found by"], rows, "findings")]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.setup_extension("laws")
    app.add_directive("evidence", Evidence)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
