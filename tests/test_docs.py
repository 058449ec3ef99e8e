"""The pages: their extensions, their stored results, their glossary."""

import re
import sys
from pathlib import Path

import pytest

from attnspec import implementations
from attnspec.conformance import laws, mutants
from attnspec.conformance.evidence.conformance_run import objections
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.subjects import SUBJECTS
from attnspec.conformance.report.file import read_report
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.targets import every_name
from attnspec.spec import CHAPTERS, all_clauses, chapter_text, clause

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

import links  # noqa: E402  (found by the line above)
import planted_source  # noqa: E402
import results  # noqa: E402

laws.load()
mutants.load()

STORED = sorted((DOCS / "results").glob("conformance*.jsonl"))


def test_every_mutant_has_a_source():
    for identifier in planted():
        source = planted_source.source_of(identifier)
        compile(source, identifier, "exec")
        assert identifier in source or "own-{" in source, identifier
        assert len(source.splitlines()) < 80, identifier


def test_an_unknown_mutant_has_no_source():
    with pytest.raises(KeyError, match="own-nothing-of-the-kind"):
        planted_source.source_of("own-nothing-of-the-kind")


def test_a_source_has_the_definitions_that_it_names():
    sources = planted_source.planted_in(
        "import torch\n"
        "class Base: pass\n"
        "class Other: pass\n\n"
        '@mistake("own-a", "title")\n'
        "class Wrong(Base): pass\n\n"
        'plant_dense("own-b", "title", Base())\n'
        "ROWS = (\n"
        '    ("own-c", Other),\n'
        ")\n"
        'plant(title="t", id="own-d")\n'
        "for part in 'xy':\n"
        '    plant_dense(f"own-{part}-e", Other())\n'
    )
    assert sources["own-a"] == '@mistake("own-a", "title")\nclass Wrong(Base): pass'
    assert sources["own-b"] == 'class Base: pass\n\n\nplant_dense("own-b", "title", Base())'
    assert sources["own-c"] == 'class Other: pass\n\n\n("own-c", Other),'
    assert sources["own-d"] == 'plant(title="t", id="own-d")'
    assert sources["own-*-e"].startswith("class Other: pass\n\n\nfor part in 'xy':")


SITE = {
    "index.html": '<h1 id="top"></h1><a href="sub/page.html#here">x</a><a href="#top">x</a>'
    '<img src="picture.svg"><a href="https://example.org/a">x</a><a name="old"></a>',
    "sub/page.html": '<p id="here"></p><a href="../index.html#old">x</a><a href="../">x</a>',
}


def site(folder, **changes):
    pages = SITE | {"picture.svg": "<svg/>"} | changes
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return list(links.broken(folder))


def test_a_site_without_broken_links_passes(tmp_path):
    assert site(tmp_path, **{"sub/page.html": SITE["sub/page.html"].replace('"../"', '"#"')}) == []


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("nowhere.html", "leads to no file"),
        ("sub/page.html#gone", "leads to no element"),
        ("#gone", "leads to no element"),
        ("sub", "leads to no file"),
        ("../../etc/passwd", "leads out of the site"),
        ("http://example.org", "no whole address"),
        ("https://", "no whole address"),
        ("https://exam ple.org", "no whole address"),
        ("javascript:alert(1)", "no whole address"),
        ("https://[", "is no address"),
    ],
)
def test_a_broken_link_is_reported(tmp_path, link, message):
    reports = site(tmp_path, **{"other.html": f'<a href="{link}">x</a>'})
    assert [(page, reason) for page, reason in reports if page == "other.html"] == [
        ("other.html", reports[0][1])
    ]
    assert message in reports[0][1]
    assert link in reports[0][1]


def record(subject, outcome=Outcome.PASSED, clause="ATT-1", **more):
    return Record(subject=subject, law="a-law", clauses=(clause,), outcome=outcome, **more)


def test_subjects_with_equal_behaviour_are_grouped():
    known = {"reason": "because", "link": "docs/findings.md#it"}
    groups = results.behaviours(
        "ATT-1",
        [
            record("one"),
            record("two"),
            record("two", Outcome.EXPECTED_FAILURE, **known),
            record("three", Outcome.NOT_CLAIMED, reason="feature not claimed: lse"),
            record("four"),
            record("five", clause="ATT-2"),
            record("six", Outcome.FAILED, reason="wrong"),
        ],
    )
    assert [(group.outcome, group.subjects, group.reason) for group in groups] == [
        (Outcome.PASSED, ("one", "four"), ""),
        (Outcome.EXPECTED_FAILURE, ("two",), "because"),
        (Outcome.FAILED, ("six",), "wrong"),
        (Outcome.NOT_CLAIMED, ("three",), "feature not claimed: lse"),
    ]
    assert groups[1].links == ("docs/findings.md#it",)


def test_each_outcome_has_its_own_sign_and_word():
    assert set(results.WORDS) == set(Outcome)
    signs, words = zip(*(text.split(" ", 1) for text in results.WORDS.values()), strict=True)
    assert len(set(signs)) == len(set(words)) == len(Outcome)


def test_each_subject_is_taken_from_the_first_machine_that_can_run_it():
    here = [
        record("cpu"),
        record("gpu", Outcome.NOT_AVAILABLE),
        record("tpu", Outcome.NOT_AVAILABLE),
    ]
    there = [record("cpu", Outcome.FAILED), record("gpu"), record("tpu", Outcome.NOT_AVAILABLE)]
    merged = list(results.together([here, there]))
    assert [(record.subject, record.outcome) for record in merged] == [
        ("cpu", Outcome.PASSED),
        ("tpu", Outcome.NOT_AVAILABLE),
        ("gpu", Outcome.PASSED),
    ]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_a_stored_run_is_evidence_and_small(path):
    assert not objections(read_report(path))
    assert path.stat().st_size < 1_000_000


def test_stored_runs_are_of_existing_implementations():
    """New implementations may be missing; removed ones may not appear."""
    assert STORED
    records = results.records()
    assert {record.subject for record in records} <= set(every_name())
    assert {record.subject for record in records} >= {"reference", "eager", "sdpa", "compiled"}
    held = {identifier for record in records for identifier in record.clauses}
    # operators that a stored run does not have yet may be missing
    own = [law for law in laws.load().values() if law.judges not in SUBJECTS]
    tried = {clause for law in own for clause in law.clauses}
    assert len(held & tried) > 0.9 * len(tried)


def test_every_finding_is_pinned_and_reproduced_by_code():
    """Each link of a deviation has a section of findings, and each section has an example.

    No implementation claims to refuse the invalid arguments of the last section.
    """
    page = (DOCS / "findings.md").read_text(encoding="utf-8")
    text, _, invalid = page.partition("(invalid-arguments)=")
    labels = set(re.findall(r"^\(([a-z-]+)\)=$", text, re.MULTILINE))
    loaded = [implementations.load(name) for name in implementations.names()]
    known = {deviation.link for one in loaded for deviation in one.deviations}
    assert {f"docs/findings.md#{label}" for label in labels} == known
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(sections) == len(labels)
    sections += re.split(r"^### ", invalid, flags=re.MULTILINE)[1:]
    assert len(sections) == len(labels) + 2
    assert not [text.splitlines()[0] for text in sections if "```{doctest}" not in text]


def test_every_chapter_has_a_page_of_its_laws_and_mutants():
    laws = registered()
    chapters = {all_clauses()[law.clauses[0]].chapter for law in laws.values()}
    assert chapters == set(CHAPTERS) - {"conventions"}
    for chapter in chapters:
        text = (DOCS / "laws" / f"{chapter}.md").read_text(encoding="utf-8")
        assert f"```{{laws}} {chapter}\n" in text
        assert f"```{{planted}} {chapter}\n" in text


def glossary() -> dict[str, str]:
    """Return the definitions of the glossary by their terms."""
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    entries = text.partition("```{glossary}\n")[2].partition("```")[0].strip().split("\n\n")
    return {
        term: meaning.strip() for term, _, meaning in (entry.partition("\n") for entry in entries)
    }


def taught(link: str, target: str) -> str:
    """Return the text of a page with the chapter that it includes, or of a clause."""
    if link == "ref":
        target_clause = clause(target.upper())
        return f"{target_clause.title}\n{target_clause.text}"
    text = (DOCS / f"{target}.md").read_text(encoding="utf-8")
    included = set(re.findall(r"```\{include\} \.\./spec/(\w+)\.md", text))
    return "\n".join([text, *map(chapter_text, sorted(included))])


@pytest.mark.parametrize("term", glossary())
def test_the_page_that_a_glossary_entry_links_to_has_its_term(term):
    link, target = re.findall(r"\{(doc|ref)\}`(?:[^`<]*<)?([\w/-]+)>?`", glossary()[term])[0]
    text = taught(link, target).casefold()
    for name in re.findall(r"[^()]+", term):
        assert name.strip().casefold() in text, f"{target} has no {name.strip()!r}"


def test_the_glossary_is_in_alphabetical_order():
    assert list(glossary()) == sorted(glossary(), key=str.casefold)
