"""The page of a report in a real browser: from disk, in any width, and its filters."""

import html
import json
import re
import shutil
import subprocess

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from attnspec.conformance.report.comparison import compare_reports
from attnspec.conformance.report.html import comparison_page, report_page

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
PROBE = """
<!doctype html><meta charset="utf-8"><title>probe</title><pre id="results"></pre>
<script>
const results = {};
const load = (source, width) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.onload = () => done(frame.contentDocument);
  frame.src = source;
  document.body.append(frame);
});
const shown = (page, selector) =>
  [...page.querySelectorAll(selector)].filter((element) => element.getClientRects().length).length;
const beyond = (page, width) =>
  [...page.querySelectorAll("body *")]
    .filter((element) => !element.closest(".wide, pre, .formula, svg"))
    .filter((element) => element.getBoundingClientRect().right > width)
    .map((element) => element.outerHTML.slice(0, 60));
const overflow = ({ documentElement: root }) => root.scrollWidth - root.clientWidth;
(async () => {
  {steps}
  document.getElementById("results").textContent = JSON.stringify(results);
})().catch((error) => { results.error = String(error); });
</script>
"""


def browse(folder, name):
    """Load a page as a file, without a network; return its DOM and the messages of the console."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--allow-file-access-from-files", "--virtual-time-budget=20000"]
    command += ["--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}"]
    command += ["--proxy-server=http://127.0.0.1:9", "--no-first-run", "--disable-extensions"]
    done = subprocess.run(
        [*command, (folder / name).as_uri()], capture_output=True, text=True, timeout=120
    )
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, messages


def probe(folder, steps):
    """Run steps on pages in frames; return their results and the messages of the console."""
    (folder / "probe.html").write_text(PROBE.replace("{steps}", steps), encoding="utf-8")
    dom, messages = browse(folder, "probe.html")
    text = re.search(r'<pre id="results">(.*?)</pre>', dom, re.DOTALL)
    assert text, dom[:500]
    assert text[1], messages
    return json.loads(html.unescape(text[1])), messages


pytestmark = pytest.mark.skipif(not BROWSER, reason="needs Chromium to open the page")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, broken_run):
    """A folder with the page of a run that has every outcome, and a comparison."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "report.html").write_text(report_page(broken_run), encoding="utf-8")
    text = comparison_page(compare_reports([broken_run, broken_run]), ["before.jsonl", "a" * 60])
    (folder / "compared.html").write_text(text, encoding="utf-8")
    return folder


def test_a_page_opens_from_disk_in_any_width_and_filters(folder):
    results, messages = probe(
        folder,
        """
  for (const width of [360, 400, 800, 1400]) {
    const page = await load("report.html", width);
    results[`width ${width}`] = overflow(page);
    results[`beyond ${width}`] = beyond(page, width);
  }
  const compared = await load("compared.html", 400);
  results.compared = overflow(compared);
  let page = await load("report.html", 1000);
  results.all = shown(page, ".laws .item");
  results.rows = shown(page, ".matrix .row");
  results.form = shown(page, "#filters");
  page = await load("report.html?1#?outcome=failed&family=MSK", 1000);
  results.failed = shown(page, ".laws .item");
  results.failedRows = shown(page, ".matrix .row");
  results.count = page.getElementById("count").textContent;
  results.checked = page.querySelector("[value=failed]").checked;
  const form = page.getElementById("filters");
  form.elements.family.value = "";
  page.querySelector("[value=failed]").checked = false;
  form.elements.text.value = "flaked";
  form.dispatchEvent(new Event("input"));
  results.text = shown(page, ".laws .item");
  results.textFailures = shown(page, ".failure");
  results.hash = page.location.hash;
  form.elements.text.value = "no law says this";
  form.dispatchEvent(new Event("input"));
  results.none = shown(page, ".none");
  form.reset();
  await new Promise((done) => setTimeout(done, 50));
  results.again = shown(page, ".laws .item");
  form.elements.subject.value = form.elements.subject.options[2].value;
  form.dispatchEvent(new Event("input"));
  results.columns = shown(page, ".matrix thead th");
  results.subjectItems = shown(page, ".laws .item");
  const closed = [...page.querySelectorAll(".failure")].find((element) => !element.open);
  page.location.hash = closed.id;
  await new Promise((done) => setTimeout(done, 50));
  results.opened = closed.open;
  results.hostile = page.querySelectorAll("img, script[src], link, iframe").length;
  results.ran = String(frames[4].hacked);
  page.querySelector(".failure[open] .copy, .copy").click();
  await new Promise((done) => setTimeout(done, 100));
  results.copied = page.querySelector(".copy").textContent;
""",
    )
    assert messages == []
    assert [results.pop(f"beyond {width}") for width in (360, 400, 800, 1400)] == [[]] * 4
    assert {results.pop(f"width {width}") for width in (360, 400, 800, 1400)} == {0}
    assert results == {
        "compared": 0,
        "all": 12,
        "rows": 11,
        "form": 1,
        "failed": 1,
        "failedRows": 1,
        "count": "1 of 12 laws shown",
        "checked": True,
        "text": 1,
        "textFailures": 1,
        "hash": "#?text=flaked",
        "none": 1,
        "again": 12,
        "columns": 2,
        "subjectItems": 1,
        "opened": True,
        "hostile": 0,
        "ran": "undefined",
        "copied": "copied",
    }


@pytest.fixture(scope="module")
def open_page(folder):
    """A function that opens a page with everything unfolded, in a colour scheme and a width."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])

        def opened(name, scheme, width):
            page = browser.new_page(
                bypass_csp=True,  # or no rule could be checked inside of the page
                color_scheme=scheme,
                viewport={"width": width, "height": 900},
            )
            page.goto((folder / name).as_uri())
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            return page

        yield opened
        browser.close()


@pytest.mark.parametrize("name", ["report.html", "compared.html"])
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_every_rule_of_axe_holds(open_page, name, scheme, width):
    page = open_page(name, scheme, width)
    page.evaluate(Axe().axe_script)
    rules = page.evaluate("axe.getRules().map((rule) => rule.ruleId)")
    assert len(rules) > 90
    only = {"runOnly": {"type": "rule", "values": rules}}
    broken = Axe().run(page, None, only).response["violations"]
    places = [(each["id"], node["html"][:90]) for each in broken for node in each["nodes"][:3]]
    assert not places


def test_the_head_of_the_matrix_stays_in_view(open_page):
    page = open_page("report.html", "light", 1280)
    place = page.evaluate("""() => {
      const block = document.querySelector(".matrix").closest(".tall");
      block.style.maxHeight = "120px";
      block.scrollTop = 150;
      const head = block.querySelector("thead th").getBoundingClientRect().top;
      return [block.scrollTop > 0, Math.abs(head - block.getBoundingClientRect().top) < 3];
    }""")
    assert place == [True, True]


def test_the_keyboard_reaches_every_block_that_scrolls(open_page):
    page = open_page("report.html", "light", 390)
    unreachable = page.evaluate("""() => [...document.querySelectorAll("body *")]
      .filter((each) => ["auto", "scroll"].includes(getComputedStyle(each).overflowX))
      .filter((each) => each.tabIndex !== 0 || each.getAttribute("role") !== "region"
        || !each.getAttribute("aria-label"))
      .map((each) => each.outerHTML.slice(0, 90))""")
    assert unreachable == []


def test_an_injected_script_does_not_run(folder):
    # even without escaping, the content security policy of the page blocks it
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "<img" not in text
    bad = text.replace("</header>", "<script>document.title = 'hacked'</script></header>", 1)
    (folder / "bad.html").write_text(bad, encoding="utf-8")
    dom, messages = browse(folder, "bad.html")
    assert "<title>hacked" not in dom
    assert any("Content Security Policy" in line for line in messages)
