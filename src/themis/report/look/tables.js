"use strict";
/* Tables that sort: table.sortable, a button in each head. A row's cell sorts by data-sort, or by its text. */
(() => {
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

  /* Listens on the document, so that tables that arrive later sort too. */
  document.addEventListener("click", event => {
    const head = event.target.closest?.("table.sortable thead th button")?.closest("th");
    if (head) sort(head.closest("table"), head.cellIndex, head.getAttribute("aria-sort") === "ascending");
  });
  function define(event) {
    const head = event.target.closest?.("table[data-tip] thead th"), tip = head && document.getElementById(head.closest("table").dataset.tip);
    if (tip && head.title) tip.textContent = head.title;
  }
  document.addEventListener("focusin", define);
  document.addEventListener("pointerover", define);

  function select(button) {
    for (const other of button.parentElement.children) {
      other.setAttribute("aria-selected", String(other === button));
      other.tabIndex = other === button ? 0 : -1;
      document.getElementById(other.dataset.tab).hidden = other !== button;
    }
  }
  document.addEventListener("click", event => {
    const button = event.target.closest?.(".tabs button");
    if (button) select(button);
  });
  document.addEventListener("keydown", event => {
    const button = event.target.closest?.(".tabs button");
    const next = button && { ArrowRight: button.nextElementSibling, ArrowLeft: button.previousElementSibling }[event.key];
    if (next) { select(next); next.focus(); }
  });

  globalThis.themisTables = { sort };
})();
