"use strict";
// Tables that sort, a filter for the runs, commands to copy. The page reads without it.

function make(name, attributes = {}, text = "") {
  const element = Object.assign(document.createElement(name), { textContent: text });
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function say(text) {
  document.getElementById("said").textContent = text;
}

// ---- tables ----

const COLLATOR = new Intl.Collator("en", { numeric: true });

// Numbers by their value, which a cell holds where it shows another text; words by the alphabet.
function compare(a, b) {
  const [left, right] = [a, b].map((cell) => cell.textContent.trim());
  const difference = (a.dataset.value ?? left) - (b.dataset.value ?? right);
  return Number.isNaN(difference) ? COLLATOR.compare(left, right) : difference;
}

function sort(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const ascending = heads[column].getAttribute("aria-sort") !== "ascending";
  heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : ascending ? "ascending" : "descending"));
  const cells = [...table.tBodies[0].rows].map((row) => row.cells[column]);
  const empty = (cell) => cell.textContent.trim() === "";
  cells.sort((a, b) => empty(a) - empty(b) || (ascending ? compare(a, b) : compare(b, a)));
  table.tBodies[0].append(...cells.map((cell) => cell.parentElement));
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = make("button", { type: "button" }, head.textContent.trim());
    button.addEventListener("click", () => sort(table, column));
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
  });
}

const filter = document.getElementById("filter");
filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/);
  const rows = [...document.querySelectorAll("#runs > .scroll tbody tr")];
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
});

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", openTarget);
openTarget();

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      say("Copied.");
      button.firstChild.textContent = "copied";
      setTimeout(() => (button.firstChild.textContent = "copy"), 1500);
    } catch {
      getSelection().selectAllChildren(code);
      say("The command is selected; copy it from there.");
    }
  });
}
