"""Sphinx: the laws and the planted bugs with their sources, and a link wherever a law is named."""

import inspect
import re
import textwrap

from building import external, joined, link, text
from docutils import nodes
from docutils.transforms import Transform
from planted_source import source_of
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401  (importing registers them)
from attnspec.conformance.law import Law, registered
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.spec import clause, clauses

_NAME = re.compile(r"law_[a-z0-9_]+")

logger = logging.getLogger(__name__)


def law_link(name: str) -> nodes.Node:
    """A link to the source of a law."""
    return link(f"law_{name.replace('-', '_')}", name)


def mutant_link(mutant: Mutant) -> nodes.Node:
    """A link to the source of a planted bug."""
    return link(f"mutant-{mutant.id.lower()}", mutant.title)


def killers(name: str) -> list[Mutant]:
    """The mutants that name a law, first those that fewest other laws are named for."""
    found = [each for each in planted().values() if name in each.kills]
    return sorted(found, key=lambda each: len(each.kills))


class _Sections(SphinxDirective):
    """A directive that writes a section for each of something that belongs to a chapter."""

    required_arguments = 1

    def section(self, label: str, title: str, *inside: nodes.Node) -> nodes.section:
        """A section that can be linked to by its label."""
        identifier = nodes.make_id(label)
        section = nodes.section("", nodes.title("", title), *inside, ids=[identifier])
        section["names"].append(label)
        domain = self.env.domains.standard_domain
        domain.note_hyperlink_target(label, self.env.docname, identifier, title)
        return section


class Laws(_Sections):
    """`{laws} chapter`: every law whose first clause stands in that chapter."""

    def run(self) -> list[nodes.Node]:
        """Make one section per law, in the order of the clauses."""
        chapter = self.arguments[0]
        order = list(clauses())
        here = [law for law in registered().values() if clause(law.clauses[0]).chapter == chapter]
        here.sort(key=lambda law: order.index(law.clauses[0]))
        if not here:
            raise self.error(f"no law cites a clause of chapter {chapter!r} first")
        return [self._law(law) for law in here]

    def _law(self, law: Law) -> nodes.section:
        named = [link(each.lower(), f"{each} {clause(each).title}") for each in law.clauses]
        source = textwrap.dedent(inspect.getsource(law.check))
        inside = [
            nodes.paragraph("", "", *text("Clauses "), *joined(named)),
            nodes.literal_block(source, source, language="python"),
        ]
        if found := killers(law.name):
            items = (nodes.list_item("", nodes.paragraph("", "", mutant_link(m))) for m in found)
            inside += [nodes.paragraph("", "It kills:"), nodes.bullet_list("", *items)]
        return self.section(law.check.__name__, law.name.replace("-", " "), *inside)


class Planted(_Sections):
    """`{planted} chapter`: every planted bug that is killed by a law of that chapter first."""

    def run(self) -> list[nodes.Node]:
        """Make one section per mutant, in the order of the catalogue."""
        laws = registered()
        here = [
            each
            for each in planted().values()
            if clause(laws[each.kills[0]].clauses[0]).chapter == self.arguments[0]
        ]
        return [self._mutant(each) for each in here]

    def _mutant(self, mutant: Mutant) -> nodes.section:
        source = source_of(mutant.id)
        told = [nodes.literal("", mutant.id)]
        if mutant.source:
            told += [nodes.Text(", as in "), external(mutant.source)]
        killing = joined([law_link(each) for each in mutant.kills])
        return self.section(
            f"mutant-{mutant.id.lower()}",
            mutant.title,
            nodes.paragraph("", "", *told, *text(". Killed by "), *killing, *text(".")),
            nodes.literal_block(source, source, language="python"),
        )


class LinkLaws(Transform):
    """Make a link of every `law_...` in code type; a law that does not exist is a warning."""

    default_priority = 500

    def apply(self, **options: object) -> None:
        """Wrap each name."""
        for literal in list(self.document.findall(nodes.literal)):
            name = literal.astext()
            if _NAME.fullmatch(name) and not isinstance(literal.parent, nodes.reference):
                literal.replace_self(link(name, literal.deepcopy()))


def check_chain(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of a clause without laws, of a law without a clause, and of one that kills nothing."""
    for each in clauses().values():
        if not each.held_by:
            logger.warning("%s is held by no law", each.id, type="attnspec")
    known = {name for each in clauses().values() for name in each.held_by}
    killing = {name for mutant in planted().values() for name in mutant.kills}
    for law in registered().values():
        if law.check.__name__ not in known:
            logger.warning("%s stands under no clause", law.check.__name__, type="attnspec")
        if law.name not in killing:
            logger.warning("%s kills no planted bug", law.check.__name__, type="attnspec")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives, the links and the check."""
    app.setup_extension("building")
    app.add_directive("laws", Laws)
    app.add_directive("planted", Planted)
    app.add_transform(LinkLaws)
    app.connect("env-check-consistency", check_chain)
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
