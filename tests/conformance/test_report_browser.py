"""The page of a report in a real browser: from disk, in any width, and its filters."""

import html
import json
import re
import shutil
import subprocess

import pytest

from attnspec.conformance.report_compare import compare
from attnspec.conformance.report_html import comparison_page, page

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
PROBE = """
<!doctype html><meta charset="utf-8"><title>probe</title><pre id="found"></pre>
<script>
const found = {};
const load = (source, width) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.onload = () => done(frame.contentDocument);
  frame.src = source;
  document.body.append(frame);
});
const shown = (page, what) =>
  [...page.querySelectorAll(what)].filter((each) => each.getClientRects().length).length;
const beyond = (page, width) =>
  [...page.querySelectorAll("body *")]
    .filter((each) => !each.closest(".wide, pre, .formula, svg"))
    .filter((each) => each.getBoundingClientRect().right > width)
    .map((each) => each.outerHTML.slice(0, 60));
const over = ({ documentElement: root }) => root.scrollWidth - root.clientWidth;
(async () => {
  {steps}
  document.getElementById("found").textContent = JSON.stringify(found);
})().catch((error) => { found.error = String(error); });
</script>
"""


def browse(folder, name):
    """Load a page as a file, without a network; return its DOM and what the console said."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--allow-file-access-from-files", "--virtual-time-budget=20000"]
    command += ["--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}"]
    command += ["--proxy-server=http://127.0.0.1:9", "--no-first-run", "--disable-extensions"]
    done = subprocess.run(
        [*command, (folder / name).as_uri()], capture_output=True, text=True, timeout=120
    )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, said


def probe(folder, steps):
    """Run steps on pages in frames, and return what they found."""
    (folder / "probe.html").write_text(PROBE.replace("{steps}", steps), encoding="utf-8")
    dom, said = browse(folder, "probe.html")
    text = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert text, dom[:500]
    assert text[1], said
    return json.loads(html.unescape(text[1])), said


pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium here to open the page with")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, broken_run):
    """A folder with the page of a run in which everything happened."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "report.html").write_text(page(broken_run), encoding="utf-8")
    text = comparison_page(compare([broken_run, broken_run]), ["before.jsonl", "a" * 60])
    (folder / "compared.html").write_text(text, encoding="utf-8")
    return folder


def test_a_page_opens_from_disk_in_any_width_and_filters(folder):
    found, said = probe(
        folder,
        """
  for (const width of [360, 400, 800, 1400]) {
    const page = await load("report.html", width);
    found[`width ${width}`] = over(page);
    found[`beyond ${width}`] = beyond(page, width);
  }
  const compared = await load("compared.html", 400);
  found.compared = over(compared);
  let page = await load("report.html", 1000);
  found.all = shown(page, ".laws .item");
  found.rows = shown(page, ".matrix .row");
  found.form = shown(page, "#filters");
  page = await load("report.html?1#?outcome=failed&family=MSK", 1000);
  found.failed = shown(page, ".laws .item");
  found.failedRows = shown(page, ".matrix .row");
  found.count = page.getElementById("count").textContent;
  found.checked = page.querySelector("[value=failed]").checked;
  const form = page.getElementById("filters");
  form.elements.family.value = "";
  page.querySelector("[value=failed]").checked = false;
  form.elements.text.value = "flaked";
  form.dispatchEvent(new Event("input"));
  found.text = shown(page, ".laws .item");
  found.textTold = shown(page, ".failure");
  found.hash = page.location.hash;
  form.elements.text.value = "no law says this";
  form.dispatchEvent(new Event("input"));
  found.none = shown(page, ".none");
  form.reset();
  await new Promise((done) => setTimeout(done, 50));
  found.again = shown(page, ".laws .item");
  form.elements.subject.value = form.elements.subject.options[2].value;
  form.dispatchEvent(new Event("input"));
  found.columns = shown(page, ".matrix thead th");
  found.whose = shown(page, ".laws .item");
  const closed = [...page.querySelectorAll(".failure")].find((each) => !each.open);
  page.location.hash = closed.id;
  await new Promise((done) => setTimeout(done, 50));
  found.opened = closed.open;
  found.hostile = page.querySelectorAll("img, script[src], link, iframe").length;
  found.ran = String(frames[4].hacked);
  page.querySelector(".failure[open] .copy, .copy").click();
  await new Promise((done) => setTimeout(done, 100));
  found.copied = page.querySelector(".copy").textContent;
""",
    )
    assert said == []
    assert [found.pop(f"beyond {each}") for each in (360, 400, 800, 1400)] == [[]] * 4
    assert {found.pop(f"width {each}") for each in (360, 400, 800, 1400)} == {0}
    assert found == {
        "compared": 0,
        "all": 10,
        "rows": 9,
        "form": 1,
        "failed": 1,
        "failedRows": 1,
        "count": "1 of 10 laws shown",
        "checked": True,
        "text": 1,
        "textTold": 1,
        "hash": "#?text=flaked",
        "none": 1,
        "again": 10,
        "columns": 2,
        "whose": 1,
        "opened": True,
        "hostile": 0,
        "ran": "undefined",
        "copied": "copied",
    }


def test_what_is_injected_does_not_run(folder):
    # were it not escaped, the policy of the page would still stop it
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "<img" not in text
    bad = text.replace("</header>", "<script>document.title = 'hacked'</script></header>", 1)
    (folder / "bad.html").write_text(bad, encoding="utf-8")
    dom, said = browse(folder, "bad.html")
    assert "<title>hacked" not in dom
    assert any("Content Security Policy" in line for line in said)
