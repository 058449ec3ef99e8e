"""Parts from which the extensions build pages: links to labels, tables, and folded parts."""

from collections.abc import Iterable, Sequence

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

Cell = Sequence[nodes.Node]


class Folded(nodes.General, nodes.Element):
    """A part of a page that a click on its summary, its first child, shows."""


class Summary(nodes.General, nodes.TextElement):
    """The visible line of a folded part."""


def link(label: str, shown: nodes.Node | str) -> addnodes.pending_xref:
    """Return a link to a label; a label that does not exist causes a warning."""
    options = {"refdomain": "std", "reftype": "ref", "reftarget": label, "refexplicit": True}
    inner = nodes.inline("", shown) if isinstance(shown, str) else shown
    return addnodes.pending_xref("", inner, refwarn=True, **options)


def external(address: str) -> nodes.reference:
    """Return a link to another site, shown without the protocol."""
    return nodes.reference("", address.removeprefix("https://"), refuri=address)


def text(words: str) -> Cell:
    """Return a cell of plain words."""
    return [nodes.Text(words)]


def joined(parts: Iterable[nodes.Node], between: str = ", ") -> list[nodes.Node]:
    """Return the parts of a sentence with a separator between them."""
    sentence: list[nodes.Node] = []
    for part in parts:
        sentence += [nodes.Text(between), part] if sentence else [part]
    return sentence


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], *classes: str) -> nodes.table:
    """Return a table with a line of headings, or without one if all headings are empty."""
    group = nodes.tgroup("", cols=len(heads))
    group += [nodes.colspec("", colwidth=1) for _ in heads]
    if any(heads):
        group += nodes.thead("", _row([text(head) for head in heads]))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group, classes=list(classes))


def _row(cells: Sequence[Cell]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def _enter_folded(writer: HTML5Translator, node: Folded) -> None:
    writer.body.append(writer.starttag(node, "details"))


def _leave_folded(writer: HTML5Translator, node: Folded) -> None:
    writer.body.append("</details>\n")


def _enter_summary(writer: HTML5Translator, node: Summary) -> None:
    writer.body.append(writer.starttag(node, "summary", suffix=""))


def _leave_summary(writer: HTML5Translator, node: Summary) -> None:
    writer.body.append("</summary>\n")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the nodes."""
    app.add_node(Folded, html=(_enter_folded, _leave_folded))
    app.add_node(Summary, html=(_enter_summary, _leave_summary))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
