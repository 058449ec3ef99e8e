"""Tests of the pages of a report: every outcome is distinct, and untrusted text is escaped."""

import dataclasses
import html
import html.parser
import io
import re
from dataclasses import fields
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.file import Report
from attnspec.conformance.report.html import report_page
from attnspec.conformance.report.markdown import fenced, plain, report_document
from attnspec.conformance.report.record import CONFORMING, Outcome, Record
from attnspec.conformance.report.run import Run
from attnspec.conformance.report.terminal import print_report
from attnspec.conformance.report.text import clause_html, mathml
from attnspec.conformance.report.view import GLYPHS, Badge, verdict
from attnspec.spec import all_clauses, clause

VOID = {"meta", "input", "br"}


class Elements(html.parser.HTMLParser):
    """The elements of a page in order; fails unless they are properly nested."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_shown_by_a_word_and_a_shape(make_record, outcome):
    report = Report(run=None, records=(make_record(outcome),))
    badge = Badge(outcome=outcome)
    for text in (report_page(report), report_document(report)):
        assert badge.glyph in text
        assert badge.word in text
    assert f"law-{badge.css}" in report_page(report)
    says_nothing = outcome is Outcome.INTERNAL_ERROR
    assert ("not conforming" in verdict(report)) == (outcome not in CONFORMING and not says_nothing)
    assert ("attnspec itself failed" in verdict(report)) == says_nothing


def test_every_page_shows_undeclared_features(make_record):
    record = dataclasses.replace(
        make_record(Outcome.NOT_CLAIMED),
        undeclared="window: accepted, but wrong: by far",
    )
    report = Report(run=None, records=(record,))
    console = Console(file=io.StringIO(), width=220)
    print_report(report, console)
    for text in (report_page(report), report_document(report), console.file.getvalue()):
        assert "does not claim window: accepted, but wrong" in text
        assert "by far" in text


def test_every_page_shows_the_profile_under_which_a_case_would_hold(make_record):
    record = dataclasses.replace(make_record(Outcome.FAILED), holds_under="rounding=eager")
    report = Report(run=None, records=(record,))
    console = Console(file=io.StringIO(), width=220)
    print_report(report, console)
    assert "--profile rounding=eager" in console.file.getvalue()
    assert "Would hold under" in report_page(report)
    assert "Would hold under: rounding=eager" in report_document(report)


def test_every_outcome_has_its_own_shape():
    assert len(set(GLYPHS.values())) == len(Outcome)
    assert set(GLYPHS) == set(Outcome)


def test_the_page_is_self_contained(broken_run):
    elements = Elements(report_page(broken_run))
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in elements.elements}
    assert not [attributes for _, attributes in elements.elements if "src" in attributes]
    assert not re.search(r"url\(|@import", report_page(broken_run).partition("</style>")[0])
    links = [attributes["href"] for attributes in elements.named("a")]
    assert {link for link in links if not link.startswith("#")} == {"https://example.org/thread"}
    anchors = {attributes.get("id") for _, attributes in elements.elements}
    assert {link[1:] for link in links if link.startswith("#")} <= anchors


def test_a_failure_is_shown_with_all_its_details(broken_run):
    text = report_page(broken_run)
    for detail in (
        "1e-07",
        "2 of 20 elements wrong",
        "the future moves it<",
        "block 0, attention: mask",
    ):
        assert detail in text
        assert detail.strip("<") in report_document(broken_run)
    assert "print(torch.zeros(2) &lt; 1)" in text
    assert "<title>query 3, channel 2: 30</title>" in text
    assert "<title>query 4, channel 0: inf</title>" in text
    assert "5 queries ↓ × 4 channels →" in text
    assert "visible, batch 1, head 2: 5 queries ↓ × 7 keys →" in text
    assert "visible <span>(15)</span>" in text
    assert "fresh cases of" not in text
    assert "its sentence." in text
    assert '<rect class="worst" x="2" y="3"' in text


def test_pages_escape_untrusted_strings(broken_run, hostile):
    text = report_page(broken_run)
    elements = Elements(text)
    assert len(elements.named("script")) == 1
    assert "".join(elements.text).count(escape_controls(hostile)) >= 10
    markdown = report_document(broken_run)
    rendered = MarkdownIt("gfm-like", {"linkify": False}).render(markdown)
    for output in (text, markdown):
        assert "\x1b" not in output
        assert "\u202e" not in output
        output.encode()
    assert not re.search(r"<(script|img|a|em|code>c)\b", rendered)
    assert rendered.count("<td>") == rendered.count("</td>")
    assert (
        markdown.count("<details>") == markdown.count("</details>") == rendered.count("</details>")
    )


def test_the_terminal_escapes_untrusted_strings(broken_run, hostile):
    for width in (60, 1000):
        file = io.StringIO()
        print_report(broken_run, Console(file=file, width=width))
        assert "\x1b" not in file.getvalue()
        assert "\u202e" not in file.getvalue()
    assert escape_controls(hostile) in file.getvalue()


@pytest.mark.parametrize(
    ("ended", "ending"),
    [
        ("complete", None),
        ("interrupted", "interrupted"),
        ("stopped at the first failure", "stopped at the first failure"),
        ("partial", "partial"),
    ],
)
def test_a_partial_report_says_so_first(broken_run, ended, ending):
    run = dataclasses.replace(broken_run.run, ended=ended, trials=99)
    report = Report(run=run, records=broken_run.records)
    for text in (report_page(report), report_document(report)):
        assert ("This report is partial" in text) == (ending is not None)
    assert ending is None or ending in verdict(report)
    assert ("12 of 99 trials" in report_page(report)) == (ending is not None)


def test_a_run_that_tried_nothing_is_never_called_conforming(make_record):
    for outcomes in ((), (Outcome.NOT_CLAIMED,), (Outcome.NOT_AVAILABLE,)):
        records = tuple(make_record(outcome, examples=0) for outcome in outcomes)
        report = Report(run=None, records=records)
        assert verdict(report) == "nothing was tried"
        assert "nothing was tried" in report_page(report).lower()
        assert "nothing was tried" in report_document(report)


def test_a_summary_keeps_its_size_and_counts_omitted_failures(make_record):
    records = tuple(make_record(Outcome.FAILED, f"kernel {number}") for number in range(50))
    report = Report(run=None, records=records)
    whole = report_document(report)
    assert whole.count("<details>") == 51
    for largest in (len(whole.encode()), 12_000, 300):
        text = report_document(report, largest=largest)
        assert len(text.encode()) <= largest
    assert re.search(r"… and \d+ more\.", report_document(report, largest=12_000))


@pytest.mark.parametrize("text", ["a", "```", "x\n````\ny", "", "~~~"])
def test_a_block_of_code_holds_any_text(text):
    (token,) = MarkdownIt().parse(fenced(text, "python"))
    assert (token.type, token.content) == ("fence", f"{text}\n")


@pytest.mark.parametrize(
    "text",
    ["a | b", "# a", "- a", "1. a", "<b>", "`a`", "&lt;", "*a*", "_a_b_", "12) a", "a_b c_d"],
)
def test_plain_text_is_unchanged_when_rendered(text):
    table = f"| {plain(text)} |\n| --- |\n| {plain(text)} |\n"
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(table)
    cells = [token.children for token in tokens if token.type == "inline"]
    assert ["".join(part.content for part in cell) for cell in cells] == [text, text]
    paragraph = MarkdownIt("gfm-like", {"linkify": False}).render(plain(text))
    assert paragraph == f"<p>{html.escape(text, quote=False)}</p>\n"


@pytest.mark.parametrize("text", ["https://example.org", "www.example.org", ":tada:", "@someone"])
def test_plain_text_has_no_links_emoji_or_mentions(text):
    assert text not in plain(text)
    assert html.unescape(plain(text)) == text


def test_every_formula_of_the_specification_becomes_mathml():
    drawn = 0
    for known in all_clauses().values():
        text = clause_html(known)
        assert 'class="tex"' not in text, known.id
        assert not re.search(r">[^<]*\\[^<]*</m", text), known.id
        assert "$" not in re.sub(r"<[^>]*>", "", text), known.id
        Elements(text)
        drawn += text.count("<math")
    assert drawn > 200


def test_a_formula_that_cannot_be_converted_is_shown_as_tex():
    assert mathml(r"\begin{nonsense} <&") == '<code class="tex">\\begin{nonsense} &lt;&amp;</code>'


def test_a_clause_is_quoted_with_its_formula_and_allowed_results():
    text = clause_html(clause("MSK-2"))
    assert "<strong>MUST</strong>" in text
    assert "lower_right</mtext>" in text
    assert "<strong>Allowed results.</strong>" in text
    assert "literalinclude" not in text


def colours():
    """Return the colours of the page by name, light and dark."""
    style = report_page(Report(run=None, records=())).partition("<style>")[2]
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    return [dict(re.findall(r"--(\w+): #([0-9a-f]{6});", rules)) for rules in (light, dark)]


def luminance(colour):
    """Return the relative luminance of the Web Content Accessibility Guidelines 2.2."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(part * share for part, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def contrast(one, two):
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", colours(), ids=["light", "dark"])
def test_colours_contrast_with_their_background(theme):
    for background in ("paper", "panel"):
        for name in ("ink", "soft", "link", "good", "bad", "warn", "known"):
            assert contrast(theme[name], theme[background]) >= 4.5, (name, background)
        for name in ("h3", "h4", "h5", "h6", "h7", "seen"):
            assert contrast(theme[name], theme[background]) >= 2, (name, background)


@pytest.mark.parametrize("kind", [Run, Record])
def test_the_docs_of_reports_name_every_field(kind):
    text = (Path(__file__).parents[3] / "docs" / "reports.md").read_text(encoding="utf-8")
    header, _, records = text.partition("## The file")[2].partition("\nA record is ")
    section = header if kind is Run else records
    assert not [field.name for field in fields(kind) if f"`{field.name}`" not in section]


@pytest.mark.parametrize("outcome", Outcome)
def test_the_docs_of_reports_name_every_outcome(outcome):
    text = (Path(__file__).parents[3] / "docs" / "reports.md").read_text(encoding="utf-8")
    badge = Badge(outcome=outcome)
    assert f"| {outcome} | {badge.glyph} {badge.word} |".replace("– - |", "– |") in text


def test_failures_come_before_errors_and_are_grouped_by_cause(make_record):
    failed = [
        make_record(Outcome.FAILED, law=law, stage="", holds_under="empty_row=nan") for law in "ab"
    ]
    errored = [make_record(Outcome.ERRORED, law=law, reason="no kernel") for law in "cdef"]
    known = [make_record(Outcome.EXPECTED_FAILURE, law="g")]
    page = report_page(Report(run=None, records=(*errored, *known, *failed)))
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert len(titles) == 3
    assert "it does not return: no kernel" in titles[1]
    assert titles[2] == "Warnings and known deviations"
    assert "empty_row=nan" in titles[0]
    assert "<summary>1 more law</summary>" in page
    assert "<summary>3 more laws</summary>" in page
