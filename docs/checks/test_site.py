"""The built site in a real browser: from disk, without a network, on a phone, by day and by night.

`nox -s docs` runs this after it has built the pages; `SITE` names the folder that holds them.
"""

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from built_site import PAGES, SITE

LARGEST = 12 * 10**6
"""Bytes of all pages together; a chapter with its laws and mutants has about 0.2 million."""

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
EVERY_RULE = "axe.getRules().map((rule) => rule.ruleId)"

CODE = "learn/score.html"
"""The page whose code is checked; the colours are the same on every page."""

TYPESET = "async () => { if (window.MathJax?.startup) await MathJax.startup.promise; }"
MATH = """() => ({
  formulas: document.querySelectorAll(".math").length,
  typeset: document.querySelectorAll(".math mjx-container").length,
  wrong: [...document.querySelectorAll("[data-mjx-error]")].map((each) => each.dataset.mjxError),
})"""
TEXT_ALONE = """() => {
  document.querySelectorAll(".highlight").forEach((each) => each.remove());
  document.querySelectorAll("mjx-container").forEach((each) => each.replaceWith("formula"));
}"""
"""Formulas have the colour of text; checking each of their letters takes minutes."""
SIGNATURES = """() => document.querySelectorAll(".sig dl, .sig dd")
  .forEach((each) => each.replaceWith(...each.childNodes))"""
"""Sphinx breaks a long signature into lines by a list without terms; its contents are checked."""
FEW_OF_A_KIND = """(few) => {
  const seen = new Map();
  for (const each of document.querySelectorAll("body *")) {
    if (!each.isConnected) continue;
    let kind = "";
    for (let at = each; at; at = at.parentElement)
      kind += `${at.tagName}.${at.getAttribute("class")}.${at.getAttribute("style")} `;
    seen.set(kind, (seen.get(kind) ?? 0) + 1);
    if (seen.get(kind) > few) each.remove();
  }
}"""
"""Colours follow from the kinds of an element and those around it; contrast takes most time."""
BROKEN = """async ([where, options]) =>
  (await axe.run(where ?? document, options)).violations"""
COLOURS = "axe.getRules(['cat.color']).map((rule) => rule.ruleId)"
REST = """axe.getRules().filter((rule) => !rule.tags.includes("cat.color"))
  .map((rule) => rule.ruleId)"""

TERMS = {
    "softmax": "learn/score.html",
    "self-attention": "learn/score.html",
    "multi-head": "learn/heads.html",
    "grouped-query": "learn/heads.html",
    "positional encoding": "learn/embeddings.html",
    "encoder": "glossary.html",
    "KV cache": "learn/cache.html",
    "feed-forward": "learn/block.html",
    "autoregressive": "learn/generation.html",
    "rotary": "concepts.html",
    "gradcheck": "comparison.html",
    "install": "start.html",
}
"""What a newcomer types into the search, and a page that the first three results must contain."""
BEYOND = """() => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const scrolls = (each) => {
    for (; each; each = each.parentElement)
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(each).overflowX)) return true;
    return false;
  };
  const beyond = [...document.querySelectorAll("article *")]
    .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && !scrolls(each))
    .map((each) => each.outerHTML.slice(0, 80));
  return wide > 0 ? [`${wide} pixels too wide`, ...beyond.slice(0, 3)] : [];
}"""


@pytest.fixture
def visit(browser):
    """Yield a function that opens a page in a colour scheme and width, and lists complaints."""
    contexts = []

    def opened(name, *, scheme, viewport):
        # the policy of the sample report keeps scripts out, those of the check as well
        context = browser.new_context(color_scheme=scheme, viewport=viewport, bypass_csp=True)
        contexts.append(context)
        page, complaints = context.new_page(), []

        def allow(route):
            url = route.request.url
            if url.startswith(("file:", "data:", "blob:")):
                return route.continue_()
            complaints.append(f"asks the network for {url}")
            return route.abort()

        context.route("**/*", allow)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(f"lacks {request.url}"))
        path, mark, query = str(name).partition("?")
        page.goto((SITE / path).as_uri() + mark + query)
        page.evaluate(TYPESET)
        return page, complaints

    yield opened
    for context in contexts:
        context.close()


def test_the_site_exists_and_is_small():
    assert "index.html" in PAGES, f"{SITE} holds no site: run nox -s docs"
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    assert size <= LARGEST, f"{size / 10**6:.2f} MB"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_sound_and_readable(name, visit):
    page, complaints = visit(name, scheme="light", viewport=DESK)
    math = page.evaluate(MATH)
    assert math["typeset"] == math["formulas"]
    assert not math["wrong"]
    page.set_viewport_size(PHONE)
    assert not page.evaluate(BEYOND)
    page.set_viewport_size(DESK)
    page.evaluate(TEXT_ALONE)
    assert not violations(page, rules=REST)
    page.evaluate(FEW_OF_A_KIND, 6)
    assert not violations(page, rules=COLOURS)
    page.emulate_media(color_scheme="dark")
    assert not violations(page, rules=COLOURS)
    assert not complaints


@pytest.mark.parametrize("term", TERMS)
def test_the_search_finds_a_term_where_it_is_taught(term, visit):
    page, complaints = visit(f"search.html?q={term}", scheme="light", viewport=DESK)
    page.wait_for_selector("#search-results li a")
    page.wait_for_function("document.querySelector('.search-summary')?.textContent")
    links = page.locator("#search-results li > a").evaluate_all("all => all.map((a) => a.href)")
    assert any(f"/{TERMS[term]}" in link for link in links[:3]), links[:5]
    assert not any("/laws/" in link for link in links[:10]), links[:10]
    assert not complaints


def test_the_contents_of_a_page_are_visible_on_a_small_desk(visit):
    page, _ = visit("attention.html", scheme="light", viewport=DESK)
    place = page.locator(".toc-drawer").bounding_box()
    assert place["x"] + place["width"] <= DESK["width"]
    assert page.locator(".toc-tree").get_by_text("ATT-1 The definition").is_visible()
    assert not page.evaluate(BEYOND)


def test_the_head_of_the_matrix_stays_in_view(visit):
    page, _ = visit("conformance.html", scheme="light", viewport=DESK)
    moved, distance = page.evaluate("""() => {
      const block = document.querySelector("table.matrix").parentElement;
      block.scrollTop = 300;
      const head = block.querySelector("thead th").getBoundingClientRect().top;
      return [block.scrollTop, Math.abs(head - block.getBoundingClientRect().top)];
    }""")
    assert moved == 300
    assert distance < 5


def test_the_keyboard_reaches_every_block_that_scrolls(visit):
    page, _ = visit("attention.html", scheme="light", viewport=PHONE)
    page.wait_for_selector("pre[tabindex]")
    unreachable = page.evaluate("""() => [...document.querySelectorAll("article *")]
      .filter((each) => ["auto", "scroll"].includes(getComputedStyle(each).overflowX))
      .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
      .filter((each) => each.tabIndex !== 0 || !each.getAttribute("aria-label"))
      .map((each) => each.outerHTML.slice(0, 90))""")
    assert unreachable == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_code_is_readable(scheme, visit):
    page, _ = visit(CODE, scheme=scheme, viewport=DESK)
    assert page.locator(".highlight").count()
    assert not violations(page, {"include": [[".highlight"]]})


def test_one_pale_word_among_many_of_another_kind_is_found(visit, tmp_path):
    words = "<p>dark</p>" * 40 + '<p style="color:#aaa">pale</p>'
    (tmp_path / "pale.html").write_text(f"<!doctype html>{words}", encoding="utf-8")
    page, _ = visit(tmp_path / "pale.html", scheme="light", viewport=DESK)
    page.evaluate(FEW_OF_A_KIND, 6)
    assert page.locator("p").count() == 7
    assert any("pale" in violation for violation in violations(page, rules=COLOURS))


def test_these_checks_find_a_bad_page(visit, tmp_path):
    (tmp_path / "bad.html").write_text(
        '<!doctype html><meta charset="utf-8"><p style="color:#aaa">pale</p><img src="none.png">'
        '<article><div style="width:900px">wide</div></article><script>lacking()</script>'
        '<span class="math">raw</span><script src="https://example.org/x.js"></script>',
        encoding="utf-8",
    )
    page, complaints = visit(tmp_path / "bad.html", scheme="light", viewport=PHONE)
    assert page.evaluate(BEYOND)
    assert {"color-contrast", "document-title", "image-alt"} <= {
        violation.split(":")[0] for violation in violations(page)
    }
    math = page.evaluate(MATH)
    assert math["typeset"] != math["formulas"]
    for part in ("lacking is not defined", "asks the network", "none.png"):
        assert any(part in complaint for complaint in complaints), part


def violations(page, where=None, rules=EVERY_RULE):
    """Return the violations of axe's rules, all or some, each with its first places."""
    page.evaluate(SIGNATURES)
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    selected = {"type": "rule", "values": page.evaluate(rules)}
    # a page from disk may not read its own style sheets
    options = {"resultTypes": ["violations"], "runOnly": selected, "preload": False}
    broken = page.evaluate(BROKEN, [where, options])
    return [
        f"{rule['id']}: {node['html'][:90]} ({node['any'][0]['message'] if node['any'] else ''})"
        for rule in broken
        for node in rule["nodes"][:4]
    ]
