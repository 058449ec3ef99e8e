"""The specification: its pages keep their form, and every clause has laws that can fail."""

import ast
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401  (importing registers them)
from attnspec.conformance.law import registered
from attnspec.conformance.mutants.registry import planted
from attnspec.spec import CHAPTERS, SPEC_VERSION, Level, chapter_text, clause, clauses

PAGES = sys.modules["attnspec.spec.clauses"]  # `attnspec.spec.clauses` is the function
ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "reference"
CHANGELOG = ROOT / "CHANGELOG.md"

GOOD = """\
# A chapter

Words.

(ATT-1)=
### ATT-1 Value

An implementation **MUST** return `it`.

```{doctest}
>>> 1  # comment
1
# no heading
```

**Held by** `law_one`, `law_two`.
**Since** 0.1.0.

*Why (not normative).* So.

(ATT-2)=
### ATT-2 Scale

An implementation **SHOULD NOT**
divide.

**Held by** `law_three`.
**Since** 0.10.0.
"""


def test_a_page_gives_its_clauses():
    first, second = PAGES.parse("page", GOOD)
    assert (first.id, first.title, first.level) == ("ATT-1", "Value", Level.MUST)
    assert first.sentence == "An implementation MUST return it."
    assert first.held_by == ("law_one", "law_two")
    assert (first.since, second.since) == ("0.1.0", "0.10.0")
    assert first.text.endswith("So.")
    assert (second.family, second.level) == ("ATT", Level.SHOULD_NOT)
    assert second.sentence == "An implementation SHOULD NOT divide."
    assert second.chapter == "page"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("(ATT-1)=", "(ATT-3)=", "anchor above must be"),
        ("(ATT-1)=\n", "", "1 anchors for 2 clause headings"),
        ("### ATT-2 Scale", "### Scale", "2 anchors for 1 clause headings"),
        ("(ATT-1)=\n", "(ATT-1)=\n\n", "anchor above must be"),
        ("**MUST**", "must", "ATT-1: one paragraph must hold its MUST, SHOULD or MAY, found 0"),
        ("So.", "It **MAY**.", "ATT-1: one paragraph must hold its MUST, SHOULD or MAY, found 2"),
        ("return `it`", "return it and **MUST NOT** fail", "ATT-1: one sentence"),
        ("**Since** 0.1.0.", "", "ATT-1: after its laws, it must say **Since** and a version"),
        ("**Since** 0.1.0.", "\n**Since** 0.1.0.", "ATT-1: after its laws"),
        ("**Since** 0.1.0.", "**Since** 0.1.", "ATT-1: after its laws"),
        ("**Since** 0.1.0.", "**Since** 0.1.0. **Since** 0.2.0.", "ATT-1: after its laws"),
        ("**Since** 0.1.0.", "**Since** 0.1.0, or so.", "ATT-1: after its laws"),
        ("**Held by** `law_three`.", "`law_three`.", "ATT-2: one paragraph must name its laws"),
    ],
)
def test_a_page_that_breaks_the_form_is_refused(old, new, told):
    assert GOOD.count(old) == 1
    with pytest.raises(ValueError, match=re.escape(told)):
        PAGES.parse("page", GOOD.replace(old, new))


def test_an_id_stands_only_once(monkeypatch):
    monkeypatch.setattr(PAGES, "CHAPTERS", ("one", "two"))
    monkeypatch.setattr(PAGES, "chapter_text", lambda chapter: GOOD)
    with pytest.raises(ValueError, match=re.escape("ATT-1 stands in one.md and two.md")):
        PAGES.clauses.__wrapped__()


def test_an_unknown_id_names_its_family():
    with pytest.raises(KeyError, match="ATT-1"):
        clause("ATT-999")
    with pytest.raises(KeyError, match="no chapter 'poetry'"):
        chapter_text("poetry")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_holds_clauses(chapter):
    found = PAGES.parse(chapter, chapter_text(chapter))
    assert bool(found) == (chapter != "conventions")
    titles = re.findall(r"^# (.+)$", chapter_text(chapter).partition("```")[0], re.MULTILINE)
    assert len(titles) == 1


def version(text: str) -> tuple[int, ...]:
    """A version that can be compared."""
    return tuple(map(int, text.split(".")))


def test_no_clause_is_younger_than_the_specification():
    versions = {version(each.since) for each in clauses().values()}
    assert max(versions) <= version(SPEC_VERSION)
    assert len(versions) > 1


def test_the_changelog_tells_of_every_version_which_clauses_are_new():
    """Each entry of a version after the first names them, before anything that it says besides."""
    entries = re.split(r"^## ", CHANGELOG.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    told = {
        found[1]: entry
        for entry in entries
        if (found := re.match(r"Specification ([0-9.]+)\n", entry))
    }
    assert set(told) == {each.since for each in clauses().values()} | {SPEC_VERSION}
    assert list(told) == sorted(told, key=version, reverse=True)
    assert entries[0].startswith("Specification "), "what changed in the specification comes first"
    first = min(told, key=version)
    for number, entry in told.items():
        if number != first:
            named = set(identifiers(entry.partition("Changed")[0]))
            new = {each.id for each in clauses().values() if each.since == number}
            assert named == new, number


def identifiers(text: str) -> list[str]:
    """The clauses that a text names, those of a range such as `ATT-1 to ATT-3` each for itself."""
    found = []
    for family, start, end in re.findall(r"\b([A-Z]{3})-(\d+)(?: to \1-(\d+))?", text):
        found += [f"{family}-{number}" for number in range(int(start), int(end or start) + 1)]
    return found


def test_numbers_follow_the_order_of_reading():
    numbers: dict[str, list[int]] = {}
    for each in clauses().values():
        numbers.setdefault(each.family, []).append(int(each.id.partition("-")[2]))
    assert numbers
    for family, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), family


def test_a_family_stands_together():
    families = [each.family for each in clauses().values()]
    changes = [second for first, second in pairwise(families) if first != second]
    assert len(changes) == len(set(families)) - 1


def test_clauses_and_laws_name_each_other():
    cited: dict[str, set[str]] = {each: set() for each in clauses()}
    laws = registered()
    assert laws
    for law in laws.values():
        for each in law.clauses:
            assert each in cited, f"{law.name} cites {each}, which does not exist"
            cited[each].add(law.check.__name__)
    for each in clauses().values():
        assert len(each.held_by) == len(set(each.held_by)), f"{each.id} names a law twice"
        assert set(each.held_by) == cited[each.id], f"{each.id} and its laws disagree"
        assert each.held_by, f"{each.id} is held by no law"


def test_the_docstring_of_a_law_begins_with_its_clause():
    for law in registered().values():
        assert law.sentence.startswith(f"{law.clauses[0]}: "), law.name


def test_every_law_kills_a_mutant_and_every_mutant_meets_a_law():
    killing = {name for mutant in planted().values() for name in mutant.kills}
    assert killing == set(registered())


def test_every_clause_has_an_example_and_says_what_is_allowed():
    every = clauses().values()
    assert not [each.id for each in every if "```{doctest}" not in each.text]
    assert not [each.id for each in every if "**Allowed results.**" not in each.text]


def axes() -> dict[str, str]:
    """Letter to word of the axis table."""
    table = chapter_text("conventions").partition("## Axes")[2].partition("## ")[0]
    rows = re.findall(r"^\| \$[^|]+\$ \| `(\w+)` \| (\w) \|", table, re.MULTILINE)
    return {letter: word for word, letter in rows}


def test_each_axis_has_one_letter_and_one_word():
    found = axes()
    assert {"q": "queries", "k": "keys", "m": "d_model"}.items() <= found.items()
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("path", sorted(REFERENCE.glob("*.py")), ids=lambda path: path.name)
def test_the_letters_of_the_reference_are_those_of_the_table(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("einsum"):
            letters = set(re.findall(r"[a-zA-Z]", ast.literal_eval(node.args[0])))
            assert letters <= set(axes()), ast.unparse(node)
