"""The pages: what their extensions find, what is stored for them, and that nothing is stale."""

import re
import sys
from pathlib import Path

import pytest

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401  (importing registers them)
from attnspec import implementations
from attnspec.conformance.evidence import objections
from attnspec.conformance.law import registered
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.report_file import read_report
from attnspec.conformance.targets import every_name
from attnspec.spec import CHAPTERS, clauses

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

import links  # noqa: E402  (found by the line above)
import planted_source  # noqa: E402
import results  # noqa: E402

STORED = sorted((DOCS / "results").glob("conformance*.jsonl"))


def test_every_planted_bug_shows_its_source():
    for identifier in planted():
        source = planted_source.source_of(identifier)
        compile(source, identifier, "exec")
        assert identifier in source or "own-{" in source, identifier
        assert len(source.splitlines()) < 80, identifier


def test_a_bug_that_is_nowhere_planted_has_no_source():
    with pytest.raises(KeyError, match="own-nothing-of-the-kind"):
        planted_source.source_of("own-nothing-of-the-kind")


def test_a_source_has_what_it_names_and_nothing_else():
    found = planted_source.planted_in(
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
    assert found["own-a"] == '@mistake("own-a", "title")\nclass Wrong(Base): pass'
    assert found["own-b"] == 'class Base: pass\n\n\nplant_dense("own-b", "title", Base())'
    assert found["own-c"] == 'class Other: pass\n\n\n("own-c", Other),'
    assert found["own-d"] == 'plant(title="t", id="own-d")'
    assert found["own-*-e"].startswith("class Other: pass\n\n\nfor part in 'xy':")


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


def test_a_site_whose_links_lead_somewhere_is_left_alone(tmp_path):
    assert site(tmp_path, **{"sub/page.html": SITE["sub/page.html"].replace('"../"', '"#"')}) == []


@pytest.mark.parametrize(
    ("link", "told"),
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
def test_a_link_that_leads_nowhere_is_told(tmp_path, link, told):
    found = site(tmp_path, **{"other.html": f'<a href="{link}">x</a>'})
    assert [(page, reason) for page, reason in found if page == "other.html"] == [
        ("other.html", found[0][1])
    ]
    assert told in found[0][1]
    assert link in found[0][1]


def record(subject, outcome=Outcome.PASSED, clause="ATT-1", **more):
    return Record(subject=subject, law="a-law", clauses=(clause,), outcome=outcome, **more)


def test_those_who_behave_alike_are_told_together():
    known = {"reason": "because", "link": "docs/findings.md#it"}
    found = results.behaviours(
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
    assert [(each.outcome, each.subjects, each.reason) for each in found] == [
        (Outcome.PASSED, ("one", "four"), ""),
        (Outcome.EXPECTED_FAILURE, ("two",), "because"),
        (Outcome.FAILED, ("six",), "wrong"),
        (Outcome.NOT_CLAIMED, ("three",), "feature not claimed: lse"),
    ]
    assert found[1].links == ("docs/findings.md#it",)


def test_each_outcome_has_a_sign_and_a_word_of_its_own():
    assert set(results.WORDS) == set(Outcome)
    signs, words = zip(*(each.split(" ", 1) for each in results.WORDS.values()), strict=True)
    assert len(set(signs)) == len(set(words)) == len(Outcome)


def test_a_machine_that_has_what_another_lacks_takes_over():
    here = [
        record("cpu"),
        record("gpu", Outcome.NOT_AVAILABLE),
        record("tpu", Outcome.NOT_AVAILABLE),
    ]
    there = [record("cpu", Outcome.FAILED), record("gpu"), record("tpu", Outcome.NOT_AVAILABLE)]
    found = list(results.together([here, there]))
    assert [(each.subject, each.outcome) for each in found] == [
        ("cpu", Outcome.PASSED),
        ("tpu", Outcome.NOT_AVAILABLE),
        ("gpu", Outcome.PASSED),
    ]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_what_is_stored_is_evidence_and_small(path):
    assert not objections(read_report(path))
    assert path.stat().st_size < 500_000


def test_what_is_stored_is_of_implementations_that_there_are():
    """What came later is not tried yet; of what went, nothing may be told."""
    assert STORED
    found = results.records()
    assert {each.subject for each in found} <= set(every_name())
    assert {each.subject for each in found} >= {"reference", "eager", "sdpa", "compiled"}
    held = {clause for each in found for clause in each.clauses}
    assert len(held & set(clauses())) > 0.9 * len(clauses())


def test_every_finding_is_pinned_and_shown_by_code_that_runs():
    """A section of findings for each link of a deviation, and code in each that is run."""
    text = (DOCS / "findings.md").read_text(encoding="utf-8")
    labels = set(re.findall(r"^\(([a-z-]+)\)=$", text, re.MULTILINE))
    every = [implementations.load(name) for name in implementations.names()]
    known = {each.link for one in every for each in one.deviations}
    assert {f"docs/findings.md#{each}" for each in labels} == known
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(sections) == len(labels)
    assert not [each.splitlines()[0] for each in sections if "```{doctest}" not in each]


def test_every_chapter_has_a_page_of_its_laws_and_planted_bugs():
    laws = registered()
    chapters = {clauses()[law.clauses[0]].chapter for law in laws.values()}
    assert chapters == set(CHAPTERS) - {"conventions"}
    for each in chapters:
        text = (DOCS / "laws" / f"{each}.md").read_text(encoding="utf-8")
        assert f"```{{laws}} {each}\n" in text
        assert f"```{{planted}} {each}\n" in text
