"""The specification: its pages have the required form, and every clause has laws that can fail."""

import ast
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from attnspec.conformance import laws, mutants
from attnspec.conformance.laws.law import registered
from attnspec.spec import CHAPTERS, SPEC_VERSION, Level, all_clauses, chapter_text, clause

laws.load()
mutants.load()

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

**Enforced by** `law_one`, `law_two`.
**Since** 0.1.0.

*Why (not normative).* So.

(ATT-2)=
### ATT-2 Scale

An implementation **SHOULD NOT**
divide.

**Enforced by** `law_three`.
**Since** 0.10.0.
"""


def test_a_page_gives_its_clauses():
    first, second = PAGES.parse("page", GOOD)
    assert (first.id, first.title, first.level) == ("ATT-1", "Value", Level.MUST)
    assert first.sentence == "An implementation MUST return it."
    assert first.enforced_by == ("law_one", "law_two")
    assert (first.since, second.since) == ("0.1.0", "0.10.0")
    assert first.text.endswith("So.")
    assert (second.family, second.level) == ("ATT", Level.SHOULD_NOT)
    assert second.sentence == "An implementation SHOULD NOT divide."
    assert second.chapter == "page"


@pytest.mark.parametrize(
    ("old", "new", "message"),
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
        ("**Enforced by** `law_three`.", "`law_three`.", "ATT-2: one paragraph must name its laws"),
    ],
)
def test_a_page_without_the_required_form_is_refused(old, new, message):
    assert GOOD.count(old) == 1
    with pytest.raises(ValueError, match=re.escape(message)):
        PAGES.parse("page", GOOD.replace(old, new))


def test_a_clause_id_is_unique(monkeypatch):
    monkeypatch.setattr(PAGES, "CHAPTERS", ("one", "two"))
    monkeypatch.setattr(PAGES, "chapter_text", lambda chapter: GOOD)
    with pytest.raises(ValueError, match=re.escape("ATT-1 is in both one.md and two.md")):
        PAGES.all_clauses.__wrapped__()


def test_an_unknown_id_names_its_family():
    with pytest.raises(KeyError, match="ATT-1"):
        clause("ATT-999")
    with pytest.raises(KeyError, match="no chapter 'poetry'"):
        chapter_text("poetry")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_holds_clauses(chapter):
    clauses = PAGES.parse(chapter, chapter_text(chapter))
    assert bool(clauses) == (chapter != "conventions")
    titles = re.findall(r"^# (.+)$", chapter_text(chapter).partition("```")[0], re.MULTILINE)
    assert len(titles) == 1


def version(text: str) -> tuple[int, ...]:
    """Return a version as numbers, which can be compared."""
    return tuple(map(int, text.split(".")))


def test_no_clause_is_newer_than_the_specification():
    versions = {version(one.since) for one in all_clauses().values()}
    assert max(versions) <= version(SPEC_VERSION)
    assert len(versions) > 1


def test_the_changelog_names_the_new_clauses_of_every_version():
    """The entry of each version after the first names them, before its other changes."""
    entries = re.split(r"^## ", CHANGELOG.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    by_version = {
        match[1]: entry
        for entry in entries
        if (match := re.match(r"Specification ([0-9.]+)\n", entry))
    }
    assert set(by_version) == {one.since for one in all_clauses().values()} | {SPEC_VERSION}
    assert list(by_version) == sorted(by_version, key=version, reverse=True)
    assert entries[0].startswith("Specification "), "what changed in the specification comes first"
    first = min(by_version, key=version)
    for number, entry in by_version.items():
        if number != first:
            named = set(identifiers(entry.partition("Changed")[0]))
            new = {one.id for one in all_clauses().values() if one.since == number}
            assert named == new, number


def identifiers(text: str) -> list[str]:
    """Return the clauses that a text names, with all those of a range such as `ATT-1 to ATT-3`."""
    names = []
    for family, start, end in re.findall(r"\b([A-Z]{3})-(\d+)(?: to \1-(\d+))?", text):
        names += [f"{family}-{number}" for number in range(int(start), int(end or start) + 1)]
    return names


def test_numbers_follow_the_order_of_reading():
    numbers: dict[str, list[int]] = {}
    for each in all_clauses().values():
        numbers.setdefault(each.family, []).append(int(each.id.partition("-")[2]))
    assert numbers
    for family, sequence in numbers.items():
        assert sequence == list(range(1, len(sequence) + 1)), family


def test_a_family_is_contiguous():
    families = [each.family for each in all_clauses().values()]
    changes = [second for first, second in pairwise(families) if first != second]
    assert len(changes) == len(set(families)) - 1


def test_clauses_and_laws_name_each_other():
    cited: dict[str, set[str]] = {each: set() for each in all_clauses()}
    laws = registered()
    assert laws
    for law in laws.values():
        for each in law.clauses:
            assert each in cited, f"{law.name} cites {each}, which does not exist"
            cited[each].add(law.check.__name__)
    for each in all_clauses().values():
        assert len(each.enforced_by) == len(set(each.enforced_by)), f"{each.id} names a law twice"
        assert set(each.enforced_by) == cited[each.id], f"{each.id} and its laws disagree"
        assert each.enforced_by, f"{each.id} is held by no law"


def test_the_docstring_of_a_law_begins_with_its_clause():
    for law in registered().values():
        assert law.sentence.startswith(f"{law.clauses[0]}: "), law.name


def test_every_clause_has_an_example_and_allowed_results():
    clauses = all_clauses().values()
    assert not [one.id for one in clauses if "```{doctest}" not in one.text]
    assert not [one.id for one in clauses if "**Allowed results.**" not in one.text]


def axes() -> dict[str, str]:
    """Return the words of the axis table by their letters."""
    table = chapter_text("conventions").partition("## Axes")[2].partition("## ")[0]
    rows = re.findall(r"^\| \$[^|]+\$ \| `(\w+)` \| (\w) \|", table, re.MULTILINE)
    return {letter: word for word, letter in rows}


def test_each_axis_has_one_letter_and_one_word():
    words = axes()
    assert {"q": "queries", "k": "keys", "m": "d_model"}.items() <= words.items()
    assert len(set(words.values())) == len(words)


@pytest.mark.parametrize("path", sorted(REFERENCE.glob("*.py")), ids=lambda path: path.name)
def test_the_letters_of_the_reference_are_in_the_axis_table(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("einsum"):
            letters = set(re.findall(r"[a-zA-Z]", ast.literal_eval(node.args[0])))
            assert letters <= set(axes()), ast.unparse(node)


CALLS = ("attention", "attention_options", "masking", "positions", "cache", "gradients", "dropout")
"""Chapters on calls of an attention function, whose sequences and channels are those of a call."""


def formulas(text: str) -> str:
    """Return the mathematics of a page, without the words in it."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    maths = re.findall(r"\$\$.*?\$\$|\$[^$\n]+\$", text, re.DOTALL)
    words = r"\\(?:mathrm|text|texttt|mathsf|operatorname|widehat)\s*(?:\{[^{}]*\}|\w)"
    return "\n".join(re.sub(words, " ", formula) for formula in maths)


def math_of_calls() -> dict[str, str]:
    """Return the formulas on calls of attention, by chapter; NUM-16 and NUM-17 are not on calls."""
    texts = {name: chapter_text(name) for name in CALLS}
    texts["numerics"] = chapter_text("numerics").partition("(NUM-16)=")[0]
    return {name: formulas(text) for name, text in texts.items()}


@pytest.mark.parametrize(
    ("symbol", "meaning"),
    [
        (r"(?<![\\a-zA-Z])T(?![_a-zA-Z])", "the length of a text, not the number of keys"),
        (r"(?<![\\a-zA-Z_])d(?![_a-zA-Z])", "the channels of the residual stream, not of a head"),
        (r"(?<![\\a-zA-Z_])s_\{?[ij]", "the scale, not a score"),
    ],
)
def test_a_symbol_of_the_conventions_has_no_second_meaning(symbol, meaning):
    wrong = {name: re.findall(symbol, math) for name, math in math_of_calls().items()}
    assert not {name: symbols for name, symbols in wrong.items() if symbols}, meaning


def test_a_second_meaning_is_found():
    math = formulas("Row $i$ reads $T$ keys:\n\n$$\nd_h + d = s_{ij}\n$$ (eq-x)\n")
    assert re.findall(r"(?<![\\a-zA-Z])T(?![_a-zA-Z])", math) == ["T"]
    assert re.findall(r"(?<![\\a-zA-Z_])d(?![_a-zA-Z])", math) == ["d"]
    assert re.findall(r"(?<![\\a-zA-Z_])s_\{?[ij]", math) == ["s_{i"]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_headings_of_a_chapter_are_unique(chapter):
    headings = re.findall(r"^#+ .+$", chapter_text(chapter), re.MULTILINE)
    assert len(headings) == len(set(headings))


def test_the_pages_give_one_accumulator_of_tensor_cores():
    cuda = (ROOT / "implementations" / "cuda.py").read_text()
    (exponent,) = re.findall(r"^ACCUMULATOR = 2\.0\*\*-(\d+)$", cuda, re.MULTILINE)
    assert f"declares $2^{{-{exponent}}}$" in chapter_text("conventions")
    for page in ("gpu", "profile"):
        text = (ROOT / "docs" / "how_to" / f"{page}.md").read_text()
        assert f"2.0**-{exponent}" in text
