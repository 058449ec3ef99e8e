"""Sphinx: the laws and the mutants with their sources, and links from the names of laws."""

import functools
import inspect
import re
import textwrap
from pathlib import Path

from building import external, joined, link, text
from docutils import nodes
from docutils.transforms import Transform
from planted_source import source_of
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance import laws, mutants
from attnspec.conformance.evidence.mutation.kill_matrix import KillMatrix
from attnspec.conformance.evidence.mutation.kills import Kills
from attnspec.conformance.laws.law import Law
from attnspec.conformance.mutants.registry import Mutant
from attnspec.spec import all_clauses, clause

MATRIX = Path(__file__).parents[1] / "results" / "mutants.jsonl"

SHOWN = 5
"""Number of mutants shown on the page of a law, if fewer name it."""

_NAME = re.compile(r"law_[a-z0-9_]+")

logger = logging.getLogger(__name__)


def law_link(name: str) -> nodes.Node:
    """Return a link to the source of a law."""
    return link(f"law_{name.replace('-', '_')}", name)


def mutant_link(mutant: Mutant) -> nodes.Node:
    """Return a link to the source of a mutant."""
    return link(f"mutant-{mutant.id.lower()}", mutant.title)


@functools.cache
def kills() -> dict[str, Kills]:
    """Return the stored results of all laws on each mutant, by its id."""
    return {result.mutant: result for result in KillMatrix.read(MATRIX).mutants}


def mutants_killed(name: str) -> list[Mutant]:
    """Return the mutants that a law kills in the stored matrix, first those that name it.

    Of the others, those that the fewest laws kill come first.
    """
    catalogue, results = mutants.load(), kills()
    killed = [
        mutant for id, mutant in catalogue.items() if id in results and name in results[id].pinned
    ]
    return sorted(killed, key=lambda m: (m.killed_by != name, len(results[m.id].pinned)))


class _Sections(SphinxDirective):
    """A directive that writes a section for each law or mutant of a chapter."""

    required_arguments = 1

    def section(self, label: str, title: str, *inside: nodes.Node) -> nodes.section:
        """Return a section with a label."""
        identifier = nodes.make_id(label)
        section = nodes.section("", nodes.title("", title), *inside, ids=[identifier])
        section["names"].append(label)
        domain = self.env.domains.standard_domain
        domain.note_hyperlink_target(label, self.env.docname, identifier, title)
        return section


class Laws(_Sections):
    """`{laws} chapter`: every law whose first clause is in that chapter."""

    def run(self) -> list[nodes.Node]:
        """Make one section per law, in the order of the clauses."""
        chapter = self.arguments[0]
        order = list(all_clauses())
        here = [law for law in laws.load().values() if clause(law.clauses[0]).chapter == chapter]
        here.sort(key=lambda law: order.index(law.clauses[0]))
        if not here:
            raise self.error(f"no law cites a clause of chapter {chapter!r} first")
        return [self._law(law) for law in here]

    def _law(self, law: Law) -> nodes.section:
        named = [link(name.lower(), f"{name} {clause(name).title}") for name in law.clauses]
        source = textwrap.dedent(inspect.getsource(law.check))
        inside = [
            nodes.paragraph("", "", *text("Clauses "), *joined(named)),
            nodes.literal_block(source, source, language="python"),
        ]
        if killed := mutants_killed(law.name):
            named = [mutant for mutant in killed if mutant.killed_by == law.name]
            shown = killed[: max(len(named), SHOWN)]
            items = [nodes.paragraph("", "", mutant_link(mutant)) for mutant in shown]
            if more := len(killed) - len(shown):
                items.append(nodes.paragraph("", f"and {more} more"))
            inside += [
                nodes.paragraph("", "It kills:"),
                nodes.bullet_list("", *(nodes.list_item("", item) for item in items)),
            ]
        return self.section(law.check.__name__, law.name.replace("-", " "), *inside)


class Planted(_Sections):
    """`{planted} chapter`: every mutant whose named law is of that chapter."""

    def run(self) -> list[nodes.Node]:
        """Make one section per mutant, in the order of the catalogue."""
        known = laws.load()
        here = [
            mutant
            for mutant in mutants.load().values()
            if clause(known[mutant.killed_by].clauses[0]).chapter == self.arguments[0]
        ]
        return [self._mutant(mutant) for mutant in here]

    def _mutant(self, mutant: Mutant) -> nodes.section:
        source = source_of(mutant.id)
        origin = [nodes.literal("", mutant.id)]
        if mutant.source:
            origin += [nodes.Text(", as in "), external(mutant.source)]
        stored = kills().get(mutant.id)  # none for a mutant that is newer than the matrix
        more = len(set(stored.pinned if stored else ()) - {mutant.killed_by})
        others = {0: ".", 1: " and one other law."}.get(more, f" and {more} other laws.")
        killing = [*text(". Killed by "), law_link(mutant.killed_by), *text(others)]
        return self.section(
            f"mutant-{mutant.id.lower()}",
            mutant.title,
            nodes.paragraph("", "", *origin, *killing),
            nodes.literal_block(source, source, language="python"),
        )


class LinkLaws(Transform):
    """Link every `law_...` in code type; a law that does not exist causes a warning."""

    default_priority = 500

    def apply(self, **options: object) -> None:
        """Wrap each name in a link."""
        for literal in list(self.document.findall(nodes.literal)):
            name = literal.astext()
            if _NAME.fullmatch(name) and not isinstance(literal.parent, nodes.reference):
                literal.replace_self(link(name, literal.deepcopy()))


def check_chain(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of clauses without laws, laws without clauses, and laws without mutants."""
    for one in all_clauses().values():
        if not one.enforced_by:
            logger.warning("%s has no law", one.id, type="attnspec")
    known = {name for one in all_clauses().values() for name in one.enforced_by}
    killing = {name for result in kills().values() for name in result.pinned}
    for law in laws.load().values():
        if law.check.__name__ not in known:
            logger.warning("%s is named by no clause", law.check.__name__, type="attnspec")
        if law.name not in killing:
            logger.warning("%s kills no mutant", law.check.__name__, type="attnspec")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives, the links and the check."""
    app.setup_extension("building")
    app.add_directive("laws", Laws)
    app.add_directive("planted", Planted)
    app.add_transform(LinkLaws)
    app.connect("env-check-consistency", check_chain)
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
