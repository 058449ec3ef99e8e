"""What the extensions build pages of: links to labels, tables, and parts that unfold."""

from collections.abc import Iterable, Sequence

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

Cell = Sequence[nodes.Node]


class Folded(nodes.General, nodes.Element):
    """A part of a page that is seen when its summary, its first child, is clicked."""


class Summary(nodes.General, nodes.TextElement):
    """What is seen of a folded part at first."""


def link(label: str, shown: nodes.Node | str) -> addnodes.pending_xref:
    """A link to a label, shown as given; a label that does not exist is a warning."""
    options = {"refdomain": "std", "reftype": "ref", "reftarget": label, "refexplicit": True}
    inner = nodes.inline("", shown) if isinstance(shown, str) else shown
    return addnodes.pending_xref("", inner, refwarn=True, **options)


def external(address: str) -> nodes.reference:
    """A link to another site, shown without the protocol."""
    return nodes.reference("", address.removeprefix("https://"), refuri=address)


def text(words: str) -> Cell:
    """A cell of plain words."""
    return [nodes.Text(words)]


def joined(parts: Iterable[nodes.Node], between: str = ", ") -> list[nodes.Node]:
    """Parts of a sentence with something between them."""
    found: list[nodes.Node] = []
    for part in parts:
        found += [nodes.Text(between), part] if found else [part]
    return found


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], *classes: str) -> nodes.table:
    """A table with one line of headings, or with none where all of them are empty."""
    group = nodes.tgroup("", cols=len(heads))
    group += [nodes.colspec("", colwidth=1) for _ in heads]
    if any(heads):
        group += nodes.thead("", _row([text(each) for each in heads]))
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
