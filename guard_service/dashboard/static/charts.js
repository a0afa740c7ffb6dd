/* Line charts in SVG. Charts that are drawn with one x range share one cursor.
   A missing value breaks the line; it is never drawn as 0. */

const NS = "http://www.w3.org/2000/svg";
const MARGIN = { top: 26, right: 14, bottom: 38, left: 54 };

function element(name, attributes, ...children) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** About `count` round values that cover [lo, hi]. */
export function ticks(lo, hi, count) {
  const raw = (hi - lo) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const first = Math.ceil(lo / step - 1e-9);
  const last = Math.floor(hi / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** A number for people: three significant digits, or three decimals where that is as short. */
export function short(value) {
  if (value === null || value === undefined) return "—";
  const size = Math.abs(value);
  if (size >= 10_000 || (size > 0 && size < 0.001)) return value.toExponential(1);
  return size >= 100 ? value.toFixed(0) : value.toFixed(size >= 10 ? 1 : 3);
}

/** Index of the last item whose x is at or before `x`, or -1. `items` are sorted by x. */
function lastAtOrBefore(items, x, xOf = (item) => item.x) {
  let lo = 0;
  let hi = items.length;
  while (lo < hi) {
    const middle = (lo + hi) >> 1;
    if (xOf(items[middle]) <= x) lo = middle + 1;
    else hi = middle;
  }
  return lo - 1;
}

/** Runs of consecutive points of one attempt that all have a value. */
function segments(points) {
  const runs = [];
  let run = null;
  for (const point of points) {
    if (point.y === null || (run && run[0].attempt !== point.attempt)) run = null;
    if (point.y === null) continue;
    if (run) run.push(point);
    else runs.push((run = [point]));
  }
  return runs;
}

export class Chart {
  /** `lines`: [{key, name, style, dots?}]; `onCursor(x | null)` is called when the reader points at a step. */
  constructor({ title, unit, height, lines, onCursor }) {
    Object.assign(this, { unit, height, lines, onCursor, view: null, cursor: null });
    this.svg = element("svg", { class: "plot", role: "slider", "aria-label": `${title}: step`, height });
    const heading = document.createElement("h2");
    heading.textContent = title;
    this.values = {};
    const legend = document.createElement("ul");
    legend.className = "legend";
    for (const line of lines) {
      const item = document.createElement("li");
      const swatch = element("svg", { class: `swatch ${line.style}`, viewBox: "0 0 22 10", "aria-hidden": "true" });
      if (!line.dots) swatch.append(element("path", { d: "M1 5H21" }));
      else swatch.append(element("circle", { cx: 11, cy: 5, r: 3.2 }));
      this.values[line.key] = document.createElement("output");
      item.append(swatch, line.name, this.values[line.key]);
      legend.append(item);
    }
    this.above = document.createElement("li");
    legend.append(this.above);
    this.figure = document.createElement("figure");
    this.figure.className = "card";
    this.figure.append(heading, legend, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerdown", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.onCursor(null));
    this.svg.addEventListener("blur", () => this.onCursor(null));
    this.svg.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Draw `data` = {points: {key: [{attempt, x, y}]}, xs, range, limit?, cap?, mark?, zero?, empty, newest}. */
  update(data) {
    this.data = data;
    this.sorted = {};
    for (const { key } of this.lines) {
      this.sorted[key] = [...data.points[key]].sort((a, b) => a.x - b.x || a.attempt - b.attempt);
    }
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!this.data || width === 0) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.svg.replaceChildren();
    const { data } = this;
    const shown = this.lines.flatMap(({ key }) => data.points[key]).filter((p) => p.y !== null);
    this.svg.toggleAttribute("data-empty", shown.length === 0);
    if (shown.length === 0) {
      this.view = null;
      this.svg.removeAttribute("tabindex");
      const text = element("text", { x: width / 2, y: this.height / 2, class: "empty" }, data.empty);
      this.svg.append(text);
      wrap(text, width - 32);
      return;
    }
    this.svg.setAttribute("tabindex", "0");
    const [x0, x1] = data.range;
    const [y0, y1, clipped] = this.#yRange(shown.map((p) => p.y));
    const left = MARGIN.left;
    const right = width - MARGIN.right;
    const top = MARGIN.top;
    const bottom = this.height - MARGIN.bottom;
    const x = (value) => left + ((value - x0) / (x1 - x0)) * (right - left);
    const y = (value) => bottom - ((Math.min(value, y1) - y0) / (y1 - y0)) * (bottom - top);
    this.view = { x, y, left, right, top, bottom };
    this.#axes(x0, x1, y0, y1);
    this.above.textContent = clipped ? `▲ ${clipped.toLocaleString("en")} above the axis` : "";
    if (data.zero) this.svg.append(element("path", { d: `M${left} ${y(0)}H${right}`, class: "zero" }));
    for (const line of this.lines) this.#line(line);
    if (data.limit) {
      const height = y(data.limit.y);
      this.svg.append(element("path", { d: `M${left} ${height}H${right}`, class: "limit" }));
      this.#label(left + 6, height - 6, data.limit.text, "start", "limit");
    }
    if (data.mark) {
      const at = x(data.mark.x);
      const late = at > (left + right) / 2;
      this.svg.append(element("path", { d: `M${at} ${top - 14}V${bottom}`, class: "mark" }));
      this.#label(late ? at - 6 : at + 6, top - 4, data.mark.text, late ? "end" : "start", "mark");
    }
    this.overlay = element("g", { class: "cursor" });
    this.svg.append(this.overlay);
    this.moveTo(this.cursor);
  }

  /** Show the values at step `x`; for evaluations, those of the last one at or before it. */
  moveTo(x) {
    this.cursor = x;
    for (const output of Object.values(this.values)) output.textContent = "";
    if (!this.view) return;
    this.overlay.replaceChildren();
    const { xs } = this.data;
    const now = x ?? xs[xs.length - 1];
    this.svg.setAttribute("aria-valuemin", xs[0]);
    this.svg.setAttribute("aria-valuemax", xs[xs.length - 1]);
    this.svg.setAttribute("aria-valuenow", now);
    const said = [`step ${now.toLocaleString("en")}`];
    for (const { key, name } of this.lines) {
      const point = this.sorted[key][lastAtOrBefore(this.sorted[key], now)];
      said.push(`${name} ${point && point.y !== null ? `${short(point.y)} ${this.unit}` : "not reported"}`);
      if (x === null) continue;
      this.values[key].textContent = short(point?.y);
      if (point && point.y !== null) {
        const at = { cx: this.view.x(point.x), cy: this.view.y(point.y), r: 4, class: this.lines.find((l) => l.key === key).style };
        this.overlay.append(element("circle", at));
      }
    }
    this.svg.setAttribute("aria-valuetext", said.join(", "));
    if (x === null) return;
    const at = this.view.x(x);
    this.overlay.prepend(element("path", { d: `M${at} ${this.view.top}V${this.view.bottom}` }));
    const text = element("text", { y: this.view.bottom + 16 }, `step ${x.toLocaleString("en")}`);
    const half = 4 + text.textContent.length * 3.6;
    const middle = Math.min(Math.max(at, this.view.left + half), this.view.right - half);
    text.setAttribute("x", middle);
    this.overlay.append(
      element("rect", { x: middle - half, y: this.view.bottom + 4, width: 2 * half, height: 17, rx: 4 }),
      text,
    );
  }

  /** [lowest, highest, how many values lie above the highest]. One k3 spike must not flatten the rest. */
  #yRange(values) {
    const { limit, cap, zero } = this.data;
    const all = [...values, ...(limit ? [limit.y] : []), ...(zero ? [0] : [])];
    const lo = all.reduce((a, b) => Math.min(a, b));
    const top = all.reduce((a, b) => Math.max(a, b));
    const hi = cap === undefined ? top : Math.min(top, cap);
    const pad = (hi - lo) * 0.1 || Math.abs(hi) * 0.1 || 0.5;
    const floor = lo >= 0 && lo < 0.5 * hi ? 0 : lo - pad;
    return [floor, hi + pad, values.filter((v) => v > hi + pad).length];
  }

  #axes(x0, x1, y0, y1) {
    const { x, y, left, right, top, bottom } = this.view;
    const yTicks = ticks(y0, y1, Math.max(2, Math.round((bottom - top) / 42)));
    const decimals = Math.max(...yTicks.map((t) => (String(t).split(".")[1] ?? "").length));
    const long = decimals > 5 || Math.max(...yTicks.map(Math.abs)) >= 1e6;
    for (const value of yTicks) {
      this.svg.append(element("path", { d: `M${left} ${y(value)}H${right}`, class: "grid" }));
      const text = long && value !== 0 ? value.toExponential(1) : value.toFixed(long ? 0 : decimals);
      this.#label(left - 8, y(value) + 4, text, "end", "tick");
    }
    const count = Math.min(10, Math.max(2, Math.floor((right - left) / 70)));
    for (const value of ticks(x0, x1, count).filter(Number.isInteger)) {
      this.svg.append(element("path", { d: `M${x(value)} ${bottom}v4`, class: "grid" }));
      const anchor = x(value) > right - 20 ? "end" : "middle";
      this.#label(x(value), bottom + 16, value.toLocaleString("en"), anchor, "tick");
    }
    this.svg.append(element("path", { d: `M${left} ${bottom}H${right}`, class: "axis" }));
    this.#label(left - 46, top - 12, this.unit, "start", "tick");
    this.#label((left + right) / 2, bottom + 33, "training step", "middle", "tick");
  }

  #line({ key, style, dots }) {
    const { x, y } = this.view;
    for (const run of segments(this.data.points[key])) {
      const old = run[0].attempt === this.data.newest ? "" : " old";
      if (dots) {
        for (const p of run) this.svg.append(element("circle", { cx: x(p.x), cy: y(p.y), r: 2.4, class: style + old }));
        continue;
      }
      const place = (p) => `${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`;
      // A run of one point becomes a line of length 0, which a round cap draws as a dot.
      const path = `M${place(run[0])}L${(run.length > 1 ? run.slice(1) : run).map(place).join("L")}`;
      this.svg.append(element("path", { d: path, class: style + old }));
    }
  }

  #label(x, y, text, anchor, style) {
    this.svg.append(element("text", { x, y, class: style, "text-anchor": anchor }, text));
  }

  #point(event) {
    if (!this.view) return;
    const { xs, range } = this.data;
    const { left, right } = this.view;
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    const value = range[0] + ((at - left) / (right - left)) * (range[1] - range[0]);
    const before = Math.max(0, lastAtOrBefore(xs, value, (x) => x));
    const after = Math.min(xs.length - 1, before + 1);
    this.onCursor(value - xs[before] <= xs[after] - value ? xs[before] : xs[after]);
  }

  #key(event) {
    if (!this.view) return;
    const { xs } = this.data;
    const last = xs.length - 1;
    const now = this.cursor === null ? last : xs.indexOf(this.cursor);
    const jump = Math.max(1, Math.round(xs.length / 20));
    const moves = {
      ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1,
      PageDown: now - jump, PageUp: now + jump, Home: 0, End: last,
    };
    if (event.key === "Escape") this.onCursor(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.onCursor(xs[Math.min(last, Math.max(0, moves[event.key]))]);
  }
}

/** Break a text element into lines that fit `width`. */
function wrap(text, width) {
  const words = text.textContent.split(" ");
  const x = text.getAttribute("x");
  text.replaceChildren();
  let line = element("tspan", { x });
  text.append(line);
  for (const word of words) {
    const before = line.textContent;
    line.textContent = before ? `${before} ${word}` : word;
    if (before && line.getComputedTextLength() > width) {
      line.textContent = before;
      line = element("tspan", { x, dy: "1.4em" }, word);
      text.append(line);
    }
  }
}
