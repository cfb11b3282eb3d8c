"use strict";
/* Makes drawn figures interactive. What it reads:
   svg[data-axes]       JSON, one object an axes, in the order of its g#axes_N: box [x, y, width, height] in the SVG's units, x and
                        y [low, high], log, seconds (of one unit of x; 0: x is no time), per_cent, name (of x), value (of y)
   g[data-series=p0]    what belongs to one series, in any figure; data-note: what of it this line is
   button[data-key=p0]  the legend's entry: pointed at, it lights its series in all figures; pressed, it hides it
   svg.latest          on a narrow screen its end is in sight
   [data-light="a1 a2"] rows that light series when pointed at
   A pointer over axes reads the values there; dragging over time shows that part of it in every figure with the same time. */
(() => {
  const SVG = document.querySelector("svg")?.namespaceURI;
  const figures = [];
  let range = null;   // seconds shown, null: all

  const element = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const number = value => {
    const size = Math.abs(value);
    return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : 2 });
  };

  /* ---- one series lit, others hidden ---- */
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  function light(names) {
    for (const lit of all(".on")) lit.classList.remove("on");
    const families = new Set(names.map(name => name[0]));
    for (const family of ["p", "a", "u"]) document.documentElement.classList.toggle(`lit-${family}`, families.has(family));
    for (const name of names) {
      for (const part of all(`[data-series="${CSS.escape(name)}"], tr[data-light="${CSS.escape(name)}"]`)) part.classList.add("on");
    }
  }
  const lights = target => {
    const from = target.closest?.("[data-key], [data-light], g[data-series^=a], g[data-series^=u]");
    return from ? (from.dataset.light ?? from.dataset.key ?? from.dataset.series).split(" ") : [];
  };
  let lit = "";
  function point(event) {
    const names = lights(event.target);
    if (names.join() === lit) return;
    lit = names.join();
    light(names.filter(Boolean));
  }
  document.addEventListener("pointerover", point);
  document.addEventListener("focusin", point);
  document.addEventListener("click", event => {
    const button = event.target.closest?.("button[data-key]");
    if (!button) return;
    const off = button.getAttribute("aria-pressed") !== "false";
    const name = CSS.escape(button.dataset.key);
    for (const other of all(`button[data-key="${name}"]`)) other.setAttribute("aria-pressed", String(!off));
    for (const part of all(`[data-series="${name}"]`)) part.classList.toggle("off", off);
  });

  /* ---- a figure ---- */
  class Figure {
    constructor(svg) {
      this.svg = svg;
      this.holder = svg.parentElement;
      this.holder.classList.add("figure");
      const groups = all("g[id^=axes_]", svg);
      this.axes = JSON.parse(svg.dataset.axes).map((axes, i) => ({ ...axes, group: groups[i], whole: axes.x }));
      this.readout = document.createElement("div");
      this.readout.className = "readout";
      this.readout.hidden = true;
      this.holder.append(this.readout);
      this.cursor = element("line", { class: "cursor", visibility: "hidden" });
      this.brush = element("rect", { class: "brush", visibility: "hidden" });
      svg.append(this.cursor, this.brush);
      for (const named of all("g[data-series] > title", svg)) {   // the readout says it, without a delay
        named.parentElement.dataset.title = named.textContent;
        named.remove();
      }
      svg.addEventListener("pointermove", event => this.move(event));
      svg.addEventListener("pointerleave", () => this.leave());
      svg.addEventListener("pointerdown", event => this.down(event));
      svg.addEventListener("pointerup", event => this.up(event));
      svg.addEventListener("dblclick", () => zoom(null));
      if (svg.classList.contains("latest")) this.holder.scrollLeft = this.holder.scrollWidth;
      if (this.times().length) this.holder.addEventListener("keydown", event => this.key(event));
    }

    times() { return this.axes.filter(axes => axes.seconds); }

    at(event) {
      const matrix = this.svg.getScreenCTM();
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
      const axes = this.axes.find(({ box: [x, y, w, h] }) => point.x >= x && point.x <= x + w && point.y >= y && point.y <= y + h);
      return { point, axes };
    }

    value(axes, x) {
      const [low, high] = axes.x, part = (x - axes.box[0]) / axes.box[2];
      return axes.log ? low * (high / low) ** part : low + part * (high - low);
    }

    move(event) {
      const { point, axes } = this.at(event);
      if (this.start) return this.drag(point);
      const named = event.target.closest("g[data-title]");
      if (!axes || (!named && !axes.name)) return this.leave();
      const [, top, , height] = axes.box;
      for (const [key, value] of Object.entries({ x1: point.x, x2: point.x, y1: top, y2: top + height })) this.cursor.setAttribute(key, value);
      this.cursor.setAttribute("visibility", "visible");
      this.show(event, named ? [named.dataset.title] : this.lines(axes, point.x));
    }

    lines(axes, x) {
      const rows = [];
      for (const part of all("g[data-series]:not(.off)", axes.group)) {
        const y = height(part, part.transform.baseVal.numberOfItems ? unzoomed(part, x) : x, axes.per_cent);
        if (y === null) continue;
        const [, top, , tall] = axes.box, [low, high] = axes.y;
        const value = low + (1 - (y - top) / tall) * (high - low);
        const key = document.querySelector(`button[data-key="${CSS.escape(part.dataset.series)}"]`);
        const label = [part.dataset.note ? "" : key?.textContent.trim(), part.dataset.note].filter(Boolean).join(", ");
        rows.push({ label, colour: key?.querySelector("line")?.getAttribute("stroke"), value: axes.per_cent ? `${number(100 * value)} %` : number(value) });
      }
      return [`${number(this.value(axes, x))} ${axes.name}`, ...rows, axes.value];
    }

    show(event, lines) {
      this.readout.replaceChildren(...lines.filter(Boolean).map((line, i) => {
        const row = document.createElement("div");
        if (typeof line === "string") {
          row.append(Object.assign(document.createElement(i ? "small" : "b"), { textContent: line }));
          return row;
        }
        if (line.colour) {
          const sample = document.createElement("i");
          sample.style.background = line.colour;
          row.append(sample);
        }
        row.append(line.label ? `${line.label}: ${line.value}` : line.value);
        return row;
      }));
      this.readout.hidden = false;
      const box = this.holder.getBoundingClientRect(), wide = this.readout.offsetWidth;
      const x = event.clientX - box.left + this.holder.scrollLeft, right = x + 14 + wide < box.width + this.holder.scrollLeft;
      this.readout.style.left = `${Math.max(right ? x + 14 : x - 14 - wide, this.holder.scrollLeft)}px`;
      this.readout.style.top = `${event.clientY - box.top + 14}px`;
    }

    leave() {
      this.readout.hidden = true;
      this.cursor.setAttribute("visibility", "hidden");
    }

    /* ---- a part of the time ---- */
    down(event) {
      const { point, axes } = this.at(event);
      if (!axes?.seconds || event.pointerType !== "mouse" || event.button) return;
      event.preventDefault();
      this.svg.setPointerCapture(event.pointerId);
      this.start = { x: point.x, axes };
      this.leave();
    }

    drag(point) {
      const [left, top, wide, tall] = this.start.axes.box, end = Math.min(Math.max(point.x, left), left + wide);
      const shape = { x: Math.min(this.start.x, end), y: top, width: Math.abs(end - this.start.x), height: tall, visibility: "visible" };
      for (const [key, value] of Object.entries(shape)) this.brush.setAttribute(key, value);
      this.end = end;
    }

    up() {
      const { start, end } = this;
      this.start = this.end = undefined;
      this.brush.setAttribute("visibility", "hidden");
      if (!start || end === undefined || Math.abs(end - start.x) < 4) return;
      const at = [start.x, end].sort((a, b) => a - b).map(x => this.value(start.axes, x) * start.axes.seconds);
      zoom(at);
    }

    key(event) {
      const { seconds, whole } = this.times()[0];
      const [low, high] = range ?? whole.map(x => x * seconds), span = high - low;
      const wanted = {
        "+": [low + span / 4, high - span / 4], "=": [low + span / 4, high - span / 4], "-": [low - span / 2, high + span / 2],
        ArrowLeft: range && [low - span / 4, high - span / 4], ArrowRight: range && [low + span / 4, high + span / 4],
      }[event.key];
      if (wanted) zoom(wanted, whole.map(x => x * seconds));
      else if (event.key === "Escape") zoom(null);
      else return;
      event.preventDefault();
    }

    zoom() {
      const times = this.times();
      if (!times.length) return;
      this.back?.remove();
      for (const axes of times) {
        const part = range ? range.map(s => s / axes.seconds) : axes.whole, wide = axes.whole[1] - axes.whole[0];
        const [from, to] = part.map(x => (x - axes.whole[0]) / wide), [left, , width] = axes.box;
        const scale = 1 / (to - from), shift = left - scale * (left + from * width);
        axes.x = part;
        for (const one of all("g[data-series], g[data-time]", axes.group)) {
          clip(one);
          if (range) one.setAttribute("transform", `translate(${shift} 0) scale(${scale} 1)`);
          else one.removeAttribute("transform");
        }
        ticks(axes, left, width);
      }
      if (!range) return;
      this.back = Object.assign(document.createElement("button"), { type: "button", className: "zoomed", textContent: "Show all of the time" });
      this.back.addEventListener("click", () => zoom(null));
      this.holder.append(this.back);
    }
  }

  function zoom(wanted, whole) {
    if (wanted && whole) {   // by keys: no further than the data
      const span = Math.min(wanted[1] - wanted[0], whole[1] - whole[0]), low = Math.min(Math.max(wanted[0], whole[0]), whole[1] - span);
      wanted = span < whole[1] - whole[0] ? [low, low + span] : null;
    }
    range = wanted;
    for (const figure of figures) figure.zoom();
  }

  /* What is clipped moves with the zoom, the clip does not: it goes onto a group around it. */
  function clip(part) {
    const clipped = part.hasAttribute("clip-path") ? [part] : all("[clip-path]", part);
    if (!clipped.length) return;
    const holder = element("g", { "clip-path": clipped[0].getAttribute("clip-path") });
    for (const one of clipped) one.removeAttribute("clip-path");
    for (const line of all("path", part)) line.setAttribute("vector-effect", "non-scaling-stroke");
    part.replaceWith(holder);
    holder.append(part);
  }

  function ticks(axes, left, width) {
    const group = axes.group.querySelector("g[data-xaxis]");
    if (!group) return;
    group.querySelector("g.ticks")?.remove();
    for (const old of all("g[id^=xtick]", group)) old.classList.toggle("off", Boolean(range));
    const text = group.querySelector("g[id^=xtick] text");
    if (!range || !text) return;
    const [low, high] = axes.x, raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
    const made = element("g", { class: "ticks" });
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) {
      const label = text.cloneNode();
      label.removeAttribute("transform");
      label.setAttribute("x", left + (at - low) / (high - low) * width);
      label.textContent = number(at);
      made.append(label);
    }
    group.append(made);
  }

  /* ---- values, from the lines as they are drawn ---- */
  const vertices = new WeakMap();
  function height(part, x, holds) {   // holds: a distribution stays at its last value
    if (!vertices.has(part)) {
      const path = part.querySelector("path")?.getAttribute("d") ?? "";
      const points = [...path.matchAll(/(-?[\d.]+) (-?[\d.]+)/g)].map(m => [Number(m[1]), Number(m[2])]);
      const back = points.findIndex(([at], i) => i && at < points[i - 1][0] - 1e-6);   // an area comes back along its base
      vertices.set(part, back < 0 ? points : points.slice(0, back));
    }
    const points = vertices.get(part);
    if (!points.length || x < points[0][0] || (!holds && x > points.at(-1)[0] + .5)) return null;
    let low = 0, high = points.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (points[middle][0] <= x) low = middle; else high = middle - 1;
    }
    return points[low][1];
  }
  function unzoomed(part, x) {
    const { a, e } = part.transform.baseVal.consolidate().matrix;
    return (x - e) / a;
  }

  for (const svg of all("svg[data-axes]")) figures.push(new Figure(svg));
})();
