"use strict";
/* The page Now: applies the parts that the stream sends. */
addEventListener("DOMContentLoaded", () => {
  const texts = ["notice", "tiles", "users", "running", "waiting"].map(name => [name, document.getElementById(name)]);
  const map = new GpuMap(document.getElementById("map"), document.getElementById("tip"));
  let day = null, charts = [], source = null, full = "";

  const clock = (at, step) => new Date(at * 1000).toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit", ...(step < 60 ? {second: "2-digit"} : {})});
  function chart(id, label, values, most, bars) {
    const place = document.getElementById(id), axis = {stroke: Themis.css("--soft"), grid: {stroke: Themis.css("--rule"), width: 1}, ticks: {show: false}};
    const x = values.map((_, i) => day.start + day.width * (i + (bars ? .5 : 1)));
    const options = {
      width: place.clientWidth, height: 150, legend: {show: false}, cursor: {y: false, points: {show: false}},
      scales: {x: {time: true}, y: {range: (_, low, high) => [0, Math.max(most, high, 1)]}},
      axes: [{...axis, space: 70, values: (_, marks) => marks.map(at => clock(at, marks[1] - marks[0]))}, {...axis, size: 44, space: 24, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000]}],
      series: [{}, {label, stroke: Themis.css("--p0"), fill: `${Themis.css("--p0")}33`, width: 1.5, points: {show: false},
        paths: bars ? uPlot.paths.bars({size: [.8, 40]}) : uPlot.paths.stepped({align: -1})}],
    };
    place.replaceChildren();
    const made = new uPlot(options, [x, bars ? values.map(v => v || null) : values], place);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${label}: now ${values.at(-1) ?? 0}, at most ${Math.max(0, ...values)}`);
    return made;
  }
  function draw() {
    if (!day) return;
    charts.forEach(c => c.destroy());
    charts = [chart("day-leased", "GPUs leased", day.leased, day.gpus, false), chart("day-decisions", "Decisions", day.decisions, 1, true)];
  }
  function apply(parts) {
    for (const [name, place] of texts) if (parts[name] !== undefined) Themis.fill(place, parts[name]);
    map.change(parts);
    if (parts.day) { day = parts.day; draw(); }
    if (parts.record) document.body.dataset.record = parts.record;
  }
  function open() {
    source?.close();
    source = null;
    if (document.hidden) return;  // a browser holds few connections to one service
    source = new EventSource("/console/now/stream");
    source.addEventListener("open", () => { full = ""; Themis.live(true); });
    source.addEventListener("whole", event => { map.cells = {}; apply(JSON.parse(event.data)); });
    source.addEventListener("change", event => apply(JSON.parse(event.data)));
    source.addEventListener("full", event => { full = JSON.parse(event.data); });
    source.addEventListener("error", () => {
      Themis.live(false, full || undefined);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => Themis.load("/console/now/machines").then(open), 3000);
    });
  }
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.addEventListener("visibilitychange", open);
  addEventListener("pagehide", () => source?.close());
  open();
});
