"""Sphinx: a page of all laws with their source, and a link to it wherever a law is named."""

import inspect
import re
import textwrap

from docutils import nodes
from docutils.transforms import Transform
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401  (importing registers them)
from attnspec.conformance.law import Law, registered
from attnspec.conformance.mutants.registry import planted
from attnspec.spec import clause, clauses

_NAME = re.compile(r"law_[a-z0-9_]+")


class Laws(SphinxDirective):
    """`{laws} chapter`: every law whose first clause stands in that chapter."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make one section per law, in the order of the clauses."""
        chapter = self.arguments[0]
        order = list(clauses())
        here = [law for law in registered().values() if clause(law.clauses[0]).chapter == chapter]
        here.sort(key=lambda law: order.index(law.clauses[0]))
        if not here:
            raise self.error(f"no law cites a clause of chapter {chapter!r} first")
        return [self._section(law) for law in here]

    def _section(self, law: Law) -> nodes.section:
        function = law.check.__name__
        identifier = nodes.make_id(function)
        section = nodes.section(ids=[identifier], names=[function])
        section += nodes.title("", law.name.replace("-", " "))
        domain = self.env.domains.standard_domain
        domain.note_hyperlink_target(function, self.env.docname, identifier, law.name)
        cited = nodes.paragraph("", "Clauses ")
        for number, each in enumerate(law.clauses):
            cited += nodes.Text(", " if number else "")
            cited += _link(each.lower(), nodes.inline("", f"{each} {clause(each).title}"))
        section += cited
        source = textwrap.dedent(inspect.getsource(law.check))
        section += nodes.literal_block(source, source, language="python")
        killed = [each.title for each in planted().values() if law.name in each.kills]
        if killed:
            section += nodes.paragraph("", "It kills:")
            items = (nodes.list_item("", nodes.paragraph("", each)) for each in killed)
            section += nodes.bullet_list("", *items)
        return section


class LinkLaws(Transform):
    """Make a link of every `law_...` in code type; a law that does not exist is a warning."""

    default_priority = 500

    def apply(self, **options: object) -> None:
        """Wrap each name."""
        for literal in list(self.document.findall(nodes.literal)):
            name = literal.astext()
            if _NAME.fullmatch(name) and not isinstance(literal.parent, nodes.reference):
                literal.replace_self(_link(name, literal.deepcopy()))


def _link(label: str, shown: nodes.Node) -> addnodes.pending_xref:
    """A link to a label, shown as given."""
    options = {"refdomain": "std", "reftype": "ref", "reftarget": label, "refexplicit": True}
    return addnodes.pending_xref("", shown, refwarn=True, **options)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register both."""
    app.add_directive("laws", Laws)
    app.add_transform(LinkLaws)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
