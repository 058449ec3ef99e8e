/* The figure with sliders: softmax(scale * q·k, masked), and softmax(logits / temperature). */
"use strict";

for (const figure of document.querySelectorAll("figure.interactive-attention")) {
  const numbers = JSON.parse(figure.querySelector("script").textContent);
  const form = figure.querySelector("form");
  const control = (name) => form.querySelector(`#ia-${name}`);
  const rows = [...figure.querySelectorAll(".ia-weights tbody tr")];
  const words = rows.map((row) => row.querySelector("th").textContent);
  const nextRows = [...figure.querySelectorAll(".ia-next tr")];

  const softmax = (scores) => {
    const largest = Math.max(...scores);
    const masses = scores.map((score) => Math.exp(score - largest));
    const sum = masses.reduce((a, b) => a + b, 0);
    return masses.map((mass) => mass / sum);
  };

  const visible = (query, key) => {
    const mask = control("mask").value;
    if (mask === "none") return true;
    const reach = mask === "window" ? Number(control("window").value) : Infinity;
    return key <= query && query - key <= reach;
  };

  const draw = () => {
    const products = numbers.products[control("head").value];
    const scale = Number(control("scale").value) * numbers.scale;
    const reader = Number(control("query").value);
    control("window").disabled = control("mask").value !== "window";
    for (const input of form.querySelectorAll("input")) {
      const digits = Number(input.step) < 1 ? 1 : 0;
      input.parentElement.querySelector("output").value = Number(input.value).toFixed(digits);
    }
    let strongest = [0, 0];
    rows.forEach((row, query) => {
      const scores = products[query].map((product, key) =>
        visible(query, key) ? scale * product : -Infinity
      );
      const weights = softmax(scores);
      row.classList.toggle("ia-reads", query === reader);
      row.querySelectorAll("td").forEach((cell, key) => {
        cell.style.setProperty("--weight", weights[key].toFixed(3));
        cell.classList.toggle("ia-hidden", !visible(query, key));
        cell.textContent = weights[key] >= 0.005 ? Math.round(100 * weights[key]) : "";
      });
      if (query === reader) {
        const key = weights.indexOf(Math.max(...weights));
        strongest = [key, Math.round(100 * weights[key])];
      }
    });
    const temperature = Number(control("temperature").value);
    const shares = softmax(numbers.logits[reader].map((logit) => logit / temperature));
    const order = shares.map((_, word) => word).sort((a, b) => shares[b] - shares[a]);
    nextRows.forEach((row, place) => {
      const share = shares[order[place]];
      row.querySelector("th").textContent = numbers.words[order[place]];
      row.querySelector("td").style.setProperty("--weight", share.toFixed(3));
      row.querySelector("td").textContent = (100 * share).toFixed(1);
    });
    figure.querySelector(".ia-summary").textContent =
      `Word ${reader + 1}, ${words[reader]}, reads mostly word ${strongest[0] + 1}, ` +
      `${words[strongest[0]]}: ${strongest[1]} percent.`;
  };

  form.hidden = false;
  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  // The controls have their first values only after the event.
  form.addEventListener("reset", () => setTimeout(draw));
  // A browser may restore the values of an earlier visit.
  draw();
}
