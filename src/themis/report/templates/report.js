"use strict";
const tables = [...document.querySelectorAll("table.sortable")];

function sort(table, index, down) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, i) => head.setAttribute("aria-sort", i === index ? (down ? "descending" : "ascending") : "none"));
  const key = row => {
    const cell = row.cells[index], text = cell.dataset.sort ?? cell.textContent.trim();
    return text === "" ? -Infinity : isNaN(text) ? text : Number(text);
  };
  const order = (a, b) => typeof a === typeof b ? (a > b) - (a < b) : typeof a === "number" ? -1 : 1;
  const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b)));
  table.tBodies[0].append(...rows);
}

for (const table of tables) {
  const tip = document.getElementById(table.dataset.tip);
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    head.querySelector("button").addEventListener("click", () => sort(table, i, head.getAttribute("aria-sort") === "ascending"));
    if (tip) for (const event of ["focusin", "pointerenter"]) head.addEventListener(event, () => { tip.textContent = head.title; });
  });
}

/* #sort=makespan or #sort=-makespan sorts the first table, so that a link can say how it is meant to be read. */
function sortByAddress() {
  const wanted = /^#sort=(-?)(\w+)$/.exec(location.hash);
  const head = wanted && document.querySelector(`#runs th[data-key="${wanted[2]}"]`);
  if (!head) return;
  if (head.classList.contains("extra")) showAll(true);
  sort(head.closest("table"), head.cellIndex, wanted[1] === "-");
}

const all = document.getElementById("all");
function showAll(shown) {
  all.checked = shown;
  for (const table of document.querySelectorAll("table.runs")) table.classList.toggle("all", shown);
}
all.addEventListener("change", () => showAll(all.checked));
addEventListener("hashchange", sortByAddress);
sortByAddress();

function select(button) {
  for (const other of button.parentElement.children) {
    other.setAttribute("aria-selected", String(other === button));
    other.tabIndex = other === button ? 0 : -1;
    document.getElementById(other.dataset.tab).hidden = other !== button;
  }
}
for (const button of document.querySelectorAll(".tabs button")) {
  button.addEventListener("click", () => select(button));
  button.addEventListener("keydown", event => {
    const next = { ArrowRight: button.nextElementSibling, ArrowLeft: button.previousElementSibling }[event.key];
    if (next) { select(next); next.focus(); }
  });
}

/* A printed report shows the definitions too; the long lists of apps stay folded. */
addEventListener("beforeprint", () => { document.getElementById("definitions").open = true; });
