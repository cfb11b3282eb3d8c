"use strict";
/* What all pages share: times that tick, parts that a fragment of the server replaces, forms that ask first. */
const Themis = (() => {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  function duration(seconds) {
    let left = Math.max(Math.round(seconds), 0);
    const parts = [];
    for (const [name, size] of units) {
      const count = Math.floor(left / size);
      left -= count * size;
      if (count) parts.push(`${count} ${name}`);
    }
    return parts.slice(0, 2).join(" ") || "0 s";
  }
  const whole = new Intl.DateTimeFormat(undefined, {dateStyle: "medium", timeStyle: "medium"});
  /* Seconds since 1970 by the service's clock: that of the browser may be wrong. */
  let ahead = 0;
  const time = () => Date.now() / 1000 - ahead;
  function tick(root = document) {
    const now = time();
    for (const place of root.querySelectorAll("time[data-ago], time[data-left], time[data-for]")) {
      const at = Number(place.dataset.ago ?? place.dataset.left ?? place.dataset.for), gone = now - at;
      const text = place.dataset.for !== undefined ? duration(gone) : place.dataset.ago !== undefined ? `${duration(gone)} ago` : gone < 0 ? `in ${duration(-gone)}` : "now";
      if (place.textContent !== text) place.textContent = text;
      if (!place.title) place.title = whole.format(at * 1000);
    }
  }
  const before = new WeakMap();
  /* Replaces the content where the text changed; scrolling, focus, opened parts and the order of tables stay. */
  function fill(place, html) {
    if (before.get(place) === html) return false;
    before.set(place, html);
    const active = document.activeElement, inside = place.contains(active);
    const key = inside ? [active.tagName, active.getAttribute("href"), active.textContent.trim()].join() : "";
    const scrolls = [...place.querySelectorAll(".scroll")].map(e => [e.scrollLeft, e.scrollTop]);
    const sorts = [...place.querySelectorAll("table.sortable")].map(table =>
      [...table.querySelectorAll("thead th")].map((th, i) => [i, th.getAttribute("aria-sort")]).find(([, s]) => s && s !== "none"));
    const parsed = new DOMParser().parseFromString(html, "text/html");
    place.replaceChildren(...parsed.body.childNodes);
    tick(place);
    [...place.querySelectorAll("table.sortable")].forEach((table, i) => {
      const [column, way] = sorts[i] ?? [];
      const button = column !== undefined && table.querySelectorAll("thead th")[column]?.querySelector("button");
      if (button) for (let n = 0; n < (way === "descending" ? 2 : 1); n++) button.click();
    });
    [...place.querySelectorAll(".scroll")].forEach((e, i) => { if (scrolls[i]) [e.scrollLeft, e.scrollTop] = scrolls[i]; });
    if (inside) {
      const again = [...place.querySelectorAll("a, button, input, [tabindex]")].find(e =>
        [e.tagName, e.getAttribute("href"), e.textContent.trim()].join() === key);
      again?.focus({preventScroll: true});
    }
    return true;
  }
  let note = null;
  function live(yes, text = "Not live: the service does not answer. Trying again.") {
    if (yes) { note?.remove(); note = null; return; }
    if (!note) { note = document.createElement("div"); note.className = "stale"; note.setAttribute("role", "status"); document.body.append(note); }
    note.textContent = text;
  }
  async function load(url) {
    let answer;
    try { answer = await fetch(url, {headers: {"X-Themis": "1"}, credentials: "same-origin"}); }
    catch { live(false); return null; }
    if (answer.status === 401) { location.reload(); return null; }
    live(true);
    return answer;
  }
  async function part(place, url) {
    const answer = await load(url);
    if (answer?.ok) return fill(place, await answer.text());
    if (answer) { before.delete(place); place.textContent = await answer.text(); }
    return false;
  }
  /* Calls again and again while the page is seen; never two at a time. */
  function every(seconds, work) {
    let busy = false;
    const go = async () => { if (busy || document.hidden) return; busy = true; try { await work(); } finally { busy = false; } };
    setInterval(go, seconds * 1000);
    document.addEventListener("visibilitychange", go);
    return go;
  }
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  document.addEventListener("submit", event => {
    const words = event.target.dataset?.ask;
    if (words && !confirm(words)) event.preventDefault();
  });
  document.addEventListener("toggle", event => {
    const place = event.target.open && event.target.dataset?.src && event.target.querySelector(".scroll");
    if (place) part(place, event.target.dataset.src);
  }, true);
  document.addEventListener("click", async event => {
    const button = event.target.closest?.("[data-again]"), place = button && document.getElementById(button.dataset.again);
    if (!place) return;
    button.disabled = true;
    try { await part(place, place.dataset.full ?? place.dataset.once); } finally { button.disabled = false; }
  });
  addEventListener("DOMContentLoaded", () => {
    ahead = Date.now() / 1000 - Number(document.body.dataset.now ?? Date.now() / 1000);
    tick();
    setInterval(tick, 1000);
    for (const place of document.querySelectorAll("[data-live]")) every(Number(place.dataset.every), () => part(place, place.dataset.live));
    for (const place of document.querySelectorAll("[data-once]")) part(place, place.dataset.once);
  });
  return {duration, tick, fill, time, load, part, every, live, css};
})();
