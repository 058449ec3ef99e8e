"""Pages of a report: every outcome told apart, strangers' strings shown and never obeyed."""

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

from attnspec.conformance.record import CONFORMING, Outcome, Record
from attnspec.conformance.report_file import Report
from attnspec.conformance.report_html import page
from attnspec.conformance.report_markdown import document, fenced, plain
from attnspec.conformance.report_run import Run
from attnspec.conformance.report_terminal import print_report
from attnspec.conformance.report_text import clause_html, mathml
from attnspec.conformance.report_view import GLYPHS, Badge, verdict
from attnspec.conformance.unseen import clean
from attnspec.spec import clause, clauses

VOID = {"meta", "input", "br"}


class Elements(html.parser.HTMLParser):
    """The elements of a page in order, checked to be closed in the order of their opening."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.text = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_told_by_a_word_and_a_shape(make_record, outcome):
    report = Report(run=None, records=(make_record(outcome),))
    badge = Badge(outcome=outcome)
    for text in (page(report), document(report)):
        assert badge.glyph in text
        assert badge.word in text
    assert f"law-{badge.css}" in page(report)
    assert ("not conforming" in verdict(report)) == (outcome not in CONFORMING)


def test_what_is_accepted_and_not_claimed_is_told_on_every_page(make_record):
    record = dataclasses.replace(
        make_record(Outcome.NOT_CLAIMED), undeclared="window: accepted, and wrong: by far"
    )
    report = Report(run=None, records=(record,))
    console = Console(file=io.StringIO(), width=220)
    print_report(report, console)
    for text in (page(report), document(report), console.file.getvalue()):
        assert "does not claim window, and yet" in text
        assert "by far" in text


def test_under_what_it_would_hold_is_told_on_every_page(make_record):
    record = dataclasses.replace(make_record(Outcome.FAILED), holds_under="rounding=eager")
    report = Report(run=None, records=(record,))
    console = Console(file=io.StringIO(), width=220)
    print_report(report, console)
    assert "--profile rounding=eager" in console.file.getvalue()
    assert "Would hold under" in page(report)
    assert "Would hold under: rounding=eager" in document(report)


def test_no_two_outcomes_have_one_shape():
    assert len(set(GLYPHS.values())) == len(Outcome)
    assert set(GLYPHS) == set(Outcome)


def test_the_page_needs_nothing_beside_itself(broken_run):
    elements = Elements(page(broken_run))
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in elements.found}
    assert not [each for _, each in elements.found if "src" in each]
    assert not re.search(r"url\(|@import", page(broken_run).partition("</style>")[0])
    links = [each["href"] for each in elements.named("a")]
    assert {each for each in links if not each.startswith("#")} == {"https://example.org/thread"}
    there = {attributes.get("id") for _, attributes in elements.found}
    assert {each[1:] for each in links if each.startswith("#")} <= there


def test_a_failure_is_shown_with_all_that_is_known_of_it(broken_run):
    text = page(broken_run)
    for each in (
        "1e-07",
        "2 of 20 elements wrong",
        "the future moves it<",
        "block 0, attention: mask",
    ):
        assert each in text
        assert each.strip("<") in document(broken_run)
    assert "print(torch.zeros(2) &lt; 1)" in text
    assert "<title>query 3, channel 2: 30</title>" in text
    assert "<title>query 4, channel 0: inf</title>" in text
    assert "5 queries ↓ × 4 channels →" in text
    assert "visible, batch 1, head 2: 5 queries ↓ × 7 keys →" in text
    assert "visible <span>(15)</span>" in text
    assert "fresh cases of" not in text
    assert "its sentence." in text
    assert '<rect class="worst" x="2" y="3"' in text


def test_strings_of_strangers_are_shown_and_not_obeyed(broken_run, hostile):
    text = page(broken_run)
    elements = Elements(text)
    assert len(elements.named("script")) == 1
    assert "".join(elements.text).count(clean(hostile)) >= 10
    shown = document(broken_run)
    rendered = MarkdownIt("gfm-like", {"linkify": False}).render(shown)
    for each in (text, shown):
        assert "\x1b" not in each
        assert "\u202e" not in each
        each.encode()
    assert not re.search(r"<(script|img|a|em|code>c)\b", rendered)
    assert rendered.count("<td>") == rendered.count("</td>")
    assert shown.count("<details>") == shown.count("</details>") == rendered.count("</details>")


def test_the_terminal_obeys_no_stranger(broken_run, hostile):
    for width in (60, 1000):
        file = io.StringIO()
        print_report(broken_run, Console(file=file, width=width))
        assert "\x1b" not in file.getvalue()
        assert "\u202e" not in file.getvalue()
    assert clean(hostile) in file.getvalue()


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ("complete", None),
        ("interrupted", "interrupted"),
        ("stopped at the first failure", "stopped at the first failure"),
        ("partial", "partial"),
    ],
)
def test_a_partial_report_says_so_first(broken_run, ended, told):
    run = dataclasses.replace(broken_run.run, ended=ended, trials=99)
    report = Report(run=run, records=broken_run.records)
    for text in (page(report), document(report)):
        assert ("This report is partial" in text) == (told is not None)
    assert told is None or told in verdict(report)
    assert ("10 of 99 trials" in page(report)) == (told is not None)


def test_nothing_tried_is_never_called_conforming(make_record):
    for outcomes in ((), (Outcome.NOT_CLAIMED,), (Outcome.NOT_AVAILABLE,)):
        records = tuple(make_record(each, examples=0) for each in outcomes)
        report = Report(run=None, records=records)
        assert verdict(report) == "nothing was tried"
        assert "nothing was tried" in page(report).lower()
        assert "nothing was tried" in document(report)


def test_a_summary_keeps_to_its_size_and_counts_what_it_leaves_out(make_record):
    records = tuple(make_record(Outcome.FAILED, f"kernel {each}") for each in range(50))
    report = Report(run=None, records=records)
    whole = document(report)
    assert whole.count("<details>") == 51
    for largest in (len(whole.encode()), 12_000, 300):
        text = document(report, largest=largest)
        assert len(text.encode()) <= largest
    assert re.search(r"… and \d+ more\.", document(report, largest=12_000))


@pytest.mark.parametrize("text", ["a", "```", "x\n````\ny", "", "~~~"])
def test_a_block_of_code_holds_anything(text):
    (token,) = MarkdownIt().parse(fenced(text, "python"))
    assert (token.type, token.content) == ("fence", f"{text}\n")


@pytest.mark.parametrize(
    "text",
    ["a | b", "# a", "- a", "1. a", "<b>", "`a`", "&lt;", "*a*", "_a_b_", "12) a", "a_b c_d"],
)
def test_plain_text_stays_plain(text):
    table = f"| {plain(text)} |\n| --- |\n| {plain(text)} |\n"
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(table)
    cells = [each.children for each in tokens if each.type == "inline"]
    assert ["".join(part.content for part in each) for each in cells] == [text, text]
    paragraph = MarkdownIt("gfm-like", {"linkify": False}).render(plain(text))
    assert paragraph == f"<p>{html.escape(text, quote=False)}</p>\n"


@pytest.mark.parametrize("text", ["https://example.org", "www.example.org", ":tada:", "@someone"])
def test_plain_text_links_to_nothing_and_calls_nobody(text):
    assert text not in plain(text)
    assert html.unescape(plain(text)) == text


def test_every_formula_of_the_specification_is_drawn():
    drawn = 0
    for each in clauses().values():
        text = clause_html(each)
        assert 'class="tex"' not in text, each.id
        assert not re.search(r">[^<]*\\[^<]*</m", text), each.id
        assert "$" not in re.sub(r"<[^>]*>", "", text), each.id
        Elements(text)
        drawn += text.count("<math")
    assert drawn > 200


def test_a_formula_that_cannot_be_drawn_is_shown_as_it_is_written():
    assert mathml(r"\begin{nonsense} <&") == '<code class="tex">\\begin{nonsense} &lt;&amp;</code>'


def test_a_clause_is_quoted_with_its_formula_and_what_it_allows():
    text = clause_html(clause("MSK-2"))
    assert "<strong>MUST</strong>" in text
    assert "lower_right</mtext>" in text
    assert "<strong>Allowed results.</strong>" in text
    assert "literalinclude" not in text


def colours():
    """The colours of the page by name, light and dark."""
    style = page(Report(run=None, records=())).partition("<style>")[2]
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    return [dict(re.findall(r"--(\w+): #([0-9a-f]{6});", each)) for each in (light, dark)]


def luminance(colour):
    """As the Web Content Accessibility Guidelines 2.2 define it."""
    parts = [int(colour[each : each + 2], 16) / 255 for each in (0, 2, 4)]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return sum(part * share for part, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def contrast(one, two):
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", colours(), ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(theme):
    for behind in ("paper", "panel"):
        for name in ("ink", "soft", "link", "good", "bad", "warn", "known"):
            assert contrast(theme[name], theme[behind]) >= 4.5, (name, behind)
        for name in ("h3", "h4", "h5", "h6", "h7", "seen"):
            assert contrast(theme[name], theme[behind]) >= 2, (name, behind)


@pytest.mark.parametrize("kind", [Run, Record])
def test_the_page_about_reports_names_every_field(kind):
    text = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
    header, _, records = text.partition("## The file")[2].partition("A record is what became")
    told = header if kind is Run else records
    assert not [each.name for each in fields(kind) if f"`{each.name}`" not in told]


@pytest.mark.parametrize("outcome", Outcome)
def test_the_page_about_reports_names_every_outcome(outcome):
    text = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
    badge = Badge(outcome=outcome)
    assert f"| {outcome} | {badge.glyph} {badge.word} |".replace("– - |", "– |") in text
