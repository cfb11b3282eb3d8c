"use strict";
(() => {
  /* #sort=makespan or #sort=-makespan sorts the first table, so that a link can say how it is meant to be read. */
  function sortByAddress() {
    const wanted = /^#sort=(-?)(\w+)$/.exec(location.hash);
    const head = wanted && document.querySelector(`#runs th[data-key="${wanted[2]}"]`);
    if (!head) return;
    if (head.classList.contains("extra")) showAll(true);
    themisTables.sort(head.closest("table"), head.cellIndex, wanted[1] === "-");
  }

  const all = document.getElementById("all");
  function showAll(shown) {
    all.checked = shown;
    for (const table of document.querySelectorAll("table.runs")) table.classList.toggle("all", shown);
  }
  all.addEventListener("change", () => showAll(all.checked));
  addEventListener("hashchange", sortByAddress);
  sortByAddress();

  /* A printed report shows the definitions too; the long lists of apps stay folded. */
  addEventListener("beforeprint", () => { document.getElementById("definitions").open = true; });
})();
