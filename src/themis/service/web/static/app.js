"use strict";
/* The page of an app: its leases as a timeline, its learning curves, the end of its output. */
addEventListener("DOMContentLoaded", () => {
  const leases = document.getElementById("leases"), learning = document.getElementById("learning"), place = document.getElementById("curves");
  const log = document.getElementById("log"), of = document.getElementById("log-of");
  const space = "http://www.w3.org/2000/svg";
  let data = null, text = "", plots = [];

  function shape(name, values, content) {
    const made = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    if (content !== undefined) made.textContent = content;
    return made;
  }
  function timeline() {
    const rows = [...new Set(data.leases.map(l => l.job))].sort((a, b) => a - b).slice(0, 80), row = 18, side = 64;
    if (!rows.length) { leases.textContent = "It has had no lease yet."; return; }
    const width = Math.max(leases.clientWidth, 300), from = Math.min(data.submitted, ...data.leases.map(l => l.since));
    const to = Math.max(...data.leases.map(l => l.ended ?? data.now), from + 1), x = t => side + (t - from) / (to - from) * (width - side - 8);
    const most = Math.max(...data.leases.map(l => l.gpus)), height = rows.length * row + 22;
    const svg = shape("svg", {width, height, role: "img", "aria-label": `${data.leases.length} leases of ${rows.length} jobs over ${Themis.duration(to - from)}`});
    const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200];
    const least = (to - from) / (width < 520 ? 3 : 7), step = steps.find(s => s >= least) ?? Math.ceil(least / 86400) * 86400;
    for (let at = from; at <= to; at += step)
      svg.append(shape("line", {x1: x(at), x2: x(at), y1: 0, y2: rows.length * row, class: "grid"}),
        shape("text", {x: x(at), y: height - 6, "text-anchor": at === from ? "start" : x(at) > width - 40 ? "end" : "middle"}, at === from ? "submitted" : `+${Themis.duration(at - from)}`));
    rows.forEach((job, i) => svg.append(shape("text", {x: 0, y: i * row + 13}, `job ${job}`)));
    for (const l of data.leases) {
      const i = rows.indexOf(l.job);
      if (i < 0) continue;
      const thick = 5 + 9 * l.gpus / most, end = l.ended ?? data.now, bar = shape("g", {});
      bar.append(shape("title", {}, `job ${l.job}, attempt ${l.attempt}: ${l.gpus} GPU${l.gpus === 1 ? "" : "s"} (${l.gpu_type}) for ${Themis.duration(end - l.since)}${l.cause ? `; ${l.cause}` : l.ended === null ? "; held now" : ""}`),
        shape("rect", {x: x(l.since), width: Math.max(x(end) - x(l.since), 1.5), y: i * row + 9 - thick / 2, height: thick, rx: 1.5, class: `lease${l.cause === "failed" ? " bad" : ""}`}));
      const begun = l.started ?? end;
      if (begun > l.since) bar.append(shape("rect", {x: x(l.since), width: Math.max(x(begun) - x(l.since), 0), y: i * row + 9 - thick / 2, height: thick, class: "begin"}));
      svg.append(bar);
    }
    leases.replaceChildren(svg);
  }
  function curves() {
    learning.hidden = !data.curves.length;
    if (learning.hidden) return;
    const axis = {stroke: Themis.css("--soft"), grid: {stroke: Themis.css("--rule"), width: 1}, ticks: {show: false}};
    for (const one of plots) one.destroy();
    place.replaceChildren();
    plots = [...new Set(data.curves.map(c => c.metric))].map(name => {
      const here = data.curves.filter(c => c.metric === name), panel = place.appendChild(document.createElement("div"));
      const series = here.map(c => ({label: `job ${c.job}`, stroke: Themis.css(`--a${c.job % 16}`), width: 1.5, spanGaps: true, points: {show: c.steps.length < 30, size: 4}}));
      return new uPlot({width: place.clientWidth, height: 240, scales: {x: {time: false}}, legend: {show: series.length <= 16},
        axes: [{...axis, label: "steps", labelSize: 18}, {...axis, size: 56, label: name, labelSize: 18}], series: [{label: "steps"}, ...series]},
        uPlot.join(here.map(c => [c.steps, c.values])), panel);
    });
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${plots.length} metrics of ${new Set(data.curves.map(c => c.job)).size} jobs by steps`);
  }
  async function course() {
    const answer = await Themis.load(leases.dataset.src);
    if (!answer?.ok) return;
    const found = await answer.text();
    data = JSON.parse(found);
    timeline();
    const key = JSON.stringify(data.curves);
    if (key !== text) { text = key; curves(); }
  }
  async function output() {
    const answer = await Themis.load(`${log.dataset.src}?${new URLSearchParams(new FormData(of))}`);
    if (!answer) return;
    const now = await answer.text(), down = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    if (now === log.textContent) return;
    log.textContent = now;
    if (down) log.scrollTop = log.scrollHeight;
  }
  Themis.every(3, course)();
  if (log) {
    Themis.every(2, output)();
    of.addEventListener("submit", event => event.preventDefault());
    of.addEventListener("change", output);
  }
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { if (data) { timeline(); curves(); } }, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && curves());
});
