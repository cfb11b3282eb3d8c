"use strict";
/* GPUs of all machines on one canvas: a frame for each machine, a cell for each GPU, coloured by user. */
class GpuMap {
  constructor(canvas, tip) {
    [this.canvas, this.tip, this.machines, this.cells, this.apps] = [canvas, tip, [], {}, {}];
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    canvas.addEventListener("pointermove", event => this.point(event));
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", event => {
      const found = this.at(event), app = found && [this.cells[found.machine][found.gpu]].flat()[0];
      if (app >= 0) location.href = `/console/apps/${app}`;
    });
  }

  change(parts) {
    if (parts.machines) this.machines = parts.machines;
    if (parts.cells) Object.assign(this.cells, parts.cells);
    if (parts.apps) this.apps = parts.apps;
    if (parts.machines || parts.cells || parts.apps) this.draw();
  }

  /* The largest cells with which all machines fit into the width and 420 px of height, or 600 px if they are many. */
  lay(width) {
    const count = this.machines.length || 1, most = Math.max(1, ...this.machines.map((_, i) => (this.cells[i] ?? []).length));
    const columns = most <= 4 ? most : most <= 8 ? 4 : 8, rows = Math.ceil(most / columns);
    for (let cell = count <= 12 ? 46 : 34; ; cell -= cell > 8 ? 2 : 1) {
      const gap = cell > 12 ? 3 : cell > 6 ? 2 : 1, named = cell >= 16 && count <= 200;
      const wide = columns * cell + 2 * gap + (cell > 10 ? 8 : 3), high = rows * cell + 2 * gap + (named ? 17 : 0) + (cell > 10 ? 8 : 3);
      const across = Math.max(1, Math.floor(width / wide)), down = Math.ceil(count / across);
      if (down * high <= (count > 200 ? 600 : 420) || cell <= 4) return {cell, gap, named, wide, high, across, down, columns};
    }
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth, l = this.layout = this.lay(width), ratio = devicePixelRatio || 1;
    const height = Math.max(l.down * l.high, 20);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    const c = this.canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
    const users = Array.from({length: 16}, (_, i) => colour(`--a${i}`)), [free, rule, soft, bad] = ["--ground", "--rule", "--soft", "--bad"].map(colour);
    c.font = "11px system-ui, sans-serif";
    this.machines.forEach(([name, , state], m) => {
      const x = (m % l.across) * l.wide, y = Math.floor(m / l.across) * l.high, top = l.named ? 15 : 0;
      if (l.named) { c.fillStyle = state === "up" ? soft : bad; c.fillText(this.fit(c, state === "up" ? name : `${name} ${state}`, l.wide - 8), x + 1, y + 11); }
      (this.cells[m] ?? []).forEach((app, g) => {
        const cx = x + (g % l.columns) * l.cell, cy = y + top + Math.floor(g / l.columns) * l.cell, size = l.cell - (l.cell > 6 ? 2 : 1);
        const fill = a => a >= 0 ? users[this.apps[a]?.[2] ?? 0] : a === -1 ? free : rule;
        if (Array.isArray(app)) app.forEach((a, i) => { c.fillStyle = fill(a); c.fillRect(cx, cy + i * size / app.length, size, size / app.length); });
        else { c.fillStyle = fill(app); c.fillRect(cx, cy, size, size); }
        if (app < 0 && l.cell > 6) { c.strokeStyle = rule; c.strokeRect(cx + .5, cy + .5, size - 1, size - 1); }
        if (app === -2 && l.cell > 6) { c.strokeStyle = bad; c.beginPath(); c.moveTo(cx + 2, cy + size - 2); c.lineTo(cx + size - 2, cy + 2); c.stroke(); }
      });
    });
  }

  fit(c, text, width) {
    if (c.measureText(text).width <= width) return text;
    while (text.length > 1 && c.measureText(`${text}…`).width > width) text = text.slice(0, -1);
    return `${text}…`;
  }

  at(event) {
    const l = this.layout, x = event.offsetX, y = event.offsetY;
    if (!l || x >= l.across * l.wide) return null;
    const machine = Math.floor(y / l.high) * l.across + Math.floor(x / l.wide), top = l.named ? 15 : 0;
    const column = Math.floor((x % l.wide) / l.cell), row = Math.floor(((y % l.high) - top) / l.cell), gpu = row * l.columns + column;
    return column < l.columns && row >= 0 && this.cells[machine]?.[gpu] !== undefined ? {machine, gpu} : null;
  }

  point(event) {
    const found = this.at(event);
    this.canvas.style.cursor = "";
    if (!found) { this.tip.hidden = true; return; }
    const [name, type, state] = this.machines[found.machine], on = [this.cells[found.machine][found.gpu]].flat();
    const who = on.map(a => a >= 0 ? `${this.apps[a]?.[0] ?? a} of ${this.apps[a]?.[1] ?? "?"}` : a === -1 ? "free" : "not in service");
    if (on[0] >= 0) this.canvas.style.cursor = "pointer";
    this.tip.textContent = `${name}, GPU ${found.gpu} (${type})${state === "up" ? "" : `, ${state}`}\n${who.join("\n")}`;
    this.tip.hidden = false;
    this.tip.style.left = `${Math.min(event.offsetX + 14, this.canvas.clientWidth - this.tip.offsetWidth)}px`;
    this.tip.style.top = `${event.offsetY + 16}px`;
  }
}
