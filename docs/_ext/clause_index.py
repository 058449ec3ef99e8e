"""Sphinx: the index of all clauses, from the chapters themselves."""

import re

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from attnspec.spec import CHAPTERS, all_clauses
from attnspec.spec.clauses import Clause, chapter_text


class ClauseIndex(SphinxDirective):
    """`{clause-index}`: a table for each chapter."""

    def run(self) -> list[nodes.Node]:
        """Write the tables in Markdown and parse them."""
        parent = nodes.section()
        parent.document = self.state.document
        lines = StringList(markdown().splitlines(), source="")
        self.state.nested_parse(lines, 0, parent, match_titles=True)
        return parent.children


def markdown() -> str:
    """Return a section for each chapter that has clauses, with a link to its page."""
    lines: list[str] = []
    for chapter in CHAPTERS:
        clauses = [one for one in all_clauses().values() if one.chapter == chapter]
        if clauses:
            title = chapter_text(chapter).partition("\n")[0].removeprefix("# ")
            lines += [f"## {title}", "", f"Chapter {{doc}}`{chapter}`.", ""]
            lines += ["| clause | sentence | laws | since |", "|---|---|---|---|"]
            lines += [*map(_row, clauses), ""]
    return "\n".join(lines)


def _row(clause: Clause) -> str:
    """Return the id, title, sentence, laws and first version of a clause."""
    label = f"{{ref}}`{clause.id} {clause.title} <{clause.id.lower()}>`"
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", clause.text))
    sentence = next(part for part in paragraphs if f"**{clause.level}**" in part)
    laws = ", ".join(f"`{name}`" for name in clause.enforced_by)
    return f"| {label} | {sentence.replace('|', chr(92) + '|')} | {laws} | {clause.since} |"


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive; the names of laws become links."""
    app.setup_extension("laws")
    app.add_directive("clause-index", ClauseIndex)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
