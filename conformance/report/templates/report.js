"use strict";
(() => {
  const form = document.getElementById("filters");
  if (!form) return;
  const chosen = () => {
    const data = new FormData(form);
    return {
      outcomes: data.getAll("outcome"),
      family: data.get("family"),
      subject: data.get("subject"),
      words: data.get("text").toLowerCase().split(/\s+/).filter(Boolean),
    };
  };
  const texts = new Map();
  const textOf = (element) => {
    if (!texts.has(element)) texts.set(element, element.textContent.toLowerCase());
    return texts.get(element);
  };
  const contains = (element, words) => words.every((word) => textOf(element).includes(word));

  function apply() {
    const { outcomes, family, subject, words } = chosen();
    const wanted = (outcome) => !outcomes.length || outcomes.includes(outcome);
    const clauses = new Set();
    let laws = 0, all = 0, failures = 0;
    for (const item of document.querySelectorAll(".item")) {
      const { outcome, subject: itemSubject } = item.dataset;
      const families = item.dataset.clauses.split(" ").map((clause) => clause.split("-")[0]);
      const isShown = wanted(outcome) && (!subject || itemSubject === subject)
        && (!family || families.includes(family)) && contains(item, words);
      item.hidden = !isShown;
      if (isShown) for (const clause of item.dataset.clauses.split(" ")) clauses.add(clause);
      if (item.matches("tr")) { all += 1; laws += isShown; } else { failures += isShown; }
    }
    for (const group of document.querySelectorAll(".cause, .others")) {
      group.hidden = !group.querySelector(".item:not([hidden])");
    }
    for (const cell of document.querySelectorAll(".matrix [data-subject]")) {
      cell.hidden = Boolean(subject) && cell.dataset.subject !== subject;
    }
    for (const row of document.querySelectorAll(".matrix .row")) {
      row.hidden = !clauses.has(row.dataset.clause) || (Boolean(family) && row.dataset.family !== family);
    }
    document.querySelector(".none").hidden = failures > 0 || !document.querySelector(".failure");
    document.getElementById("count").textContent = `${laws} of ${all} laws shown`;
  }

  function remember() {
    const state = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) state.append(name, value);
    try { history.replaceState(null, "", `#?${state}`); } catch { /* leave the address as it is */ }
  }

  function restore() {
    if (!location.hash.startsWith("#?")) return reveal();
    const state = new URLSearchParams(location.hash.slice(2));
    for (const box of form.querySelectorAll("[name=outcome]")) {
      box.checked = state.getAll("outcome").includes(box.value);
    }
    for (const name of ["family", "subject", "text"]) form.elements[name].value = state.get(name) || "";
    apply();
  }

  function reveal() {
    const target = /^#f\d+$/.test(location.hash) && document.querySelector(location.hash);
    if (!target) return;
    if (target.hidden) { form.reset(); apply(); }
    target.open = true;
    const others = target.closest(".others");
    if (others) others.open = true;
    target.scrollIntoView();
  }

  async function copy(button) {
    const code = button.closest(".snippet").querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  }

  form.hidden = false;
  form.addEventListener("input", () => { apply(); remember(); });
  form.addEventListener("reset", () => setTimeout(() => { apply(); remember(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", () => copy(button));
  }
  addEventListener("hashchange", restore);
  apply();
  restore();
})();
