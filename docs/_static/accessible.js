// What the theme leaves out of the pages, for keyboards and screen readers.

const SCROLLING = { code: "pre", table: ".table-wrapper", formula: "div.math" };
const names = new Map();

// The keyboard reaches a block if it scrolls, and only then.
function reach(element) {
  const scrolls =
    element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1;
  if (scrolls && element.clientWidth > 0) {
    element.tabIndex = 0;
    element.setAttribute("role", "region");
    element.setAttribute("aria-label", names.get(element));
  } else {
    ["tabindex", "role", "aria-label"].forEach((name) => element.removeAttribute(name));
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document
    .querySelectorAll("p.caption[role=heading]")
    .forEach((caption) => caption.setAttribute("aria-level", "2"));
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "contents of this page");
  // The theme's wrapper of a formula has the id as well, and links lead to the wrapper.
  document
    .querySelectorAll(".math-wrapper[id] > .math[id]")
    .forEach((formula) => formula.removeAttribute("id"));
  const article = document.querySelector("article");
  if (article && !document.querySelector("h1")) {
    const heading = document.createElement("h1");
    heading.textContent = "Search";
    article.prepend(heading);
  }
  // A formula that is typeset later may scroll although its block keeps its size.
  window.addEventListener("load", async () => {
    await window.MathJax?.startup?.promise;
    names.forEach((name, element) => reach(element));
  });
  const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => reach(target)));
  for (const [kind, selector] of Object.entries(SCROLLING)) {
    document.querySelectorAll(selector).forEach((element, place) => {
      names.set(element, `${kind} ${place + 1}`);
      observer.observe(element);
    });
  }
});
