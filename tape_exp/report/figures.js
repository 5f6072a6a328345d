"use strict";
// Figures: drawn by Bokeh when they come into view; pointer, finger and arrow keys read their values; so does a table.
//
// Why not Python's Bokeh: its description of the curves of 194 runs takes 1.34 MB, our data of the same curves 0.20 MB, of
// the 5 MB that the page may take; and it has no arrow keys, no words for those who do not see a figure, and one scheme of
// colours.

const figures = JSON.parse(document.getElementById("figures").textContent);
// A line brings its look: colours for a light and a dark page, and matplotlib's names of its marker and dash.
const MARKERS = {
  o: ["circle", "●"], s: ["square", "■"], D: ["diamond", "◆"], "^": ["triangle", "▲"], v: ["inverted_triangle", "▼"],
  P: ["plus", "✚"], X: ["x", "✖"], "*": ["star", "★"], h: ["hex", "⬢"], "": [null, "┅"],
};
const DASHES = { "-": "solid", "--": "dashed", "-.": "dashdot", ":": "dotted" };
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const colourOf = (line) => (dark() ? line.dark : line.colour);
const ONE_WAY = ["#ffffd9", "#edf8b1", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#253494", "#081d58"];
const TWO_WAYS = ["#053061", "#4393c3", "#d1e5f0", "#f7f7f7", "#fddbc7", "#d6604d", "#67001f"];

// ---- values as a table ----

function valuesOf(figure) {
  const table = make("table");
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  const grid = figure.kind === "grid";
  const columns = grid ? figure.x : [...new Set(figure.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  head.append(make("th", { scope: "col" }, grid ? `${figure.ylabel} \\ ${figure.xlabel}` : figure.xlabel));
  head.append(...columns.map((column) => make("th", { scope: "col" }, column)));
  const rows = grid
    ? figure.z.map((row, i) => [figure.y[i], row])
    : figure.lines.map((line) => [line.name, columns.map((column) => line.y[line.x.indexOf(column)])]);
  for (const [name, row] of rows) {
    const line = body.insertRow();
    line.append(make("th", { scope: "row" }, name), ...row.map((value) => make("td", {}, value ?? "")));
  }
  table.prepend(make("caption", {}, `${figure.title}: ${grid ? figure.label : figure.ylabel}`));
  return table;
}

for (const details of document.querySelectorAll("details.values")) {
  details.addEventListener("toggle", () => {
    const box = details.querySelector(".scroll");
    if (details.open && !box.firstChild) box.append(valuesOf(figures[details.closest(".plot").dataset.plot]));
  });
}

// ---- Bokeh ----

let library = null;

function load() {
  library ??= (async () => {
    const letters = document.getElementById("bokeh").textContent;
    const packed = Uint8Array.fromBase64?.(letters) ?? Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(make("script", {}, await new Response(stream).text()));
    Bokeh.set_log_level("warn");
    return Bokeh;
  })();
  return library;
}

// 256 colours through the given ones.
function ramp(stops) {
  const channels = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1);
    const [low, high] = [channels[Math.floor(at)], channels[Math.ceil(at)]];
    const mixed = low.map((value, k) => Math.round(value + (high[k] - value) * (at % 1)));
    return `rgb(${mixed.join()})`;
  });
}

// Colours of the page, in the light or in the dark.
function theme() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["paper", "ink", "soft", "line", "frame"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
}

function empty(Bokeh, figure, colour, ranges) {
  const plot = Bokeh.Plotting.figure({
    ...ranges,
    ...(figure.logarithmic ? { x_axis_type: "log" } : {}),
    ...(figure.powers ? { y_axis_type: "log" } : {}),
    sizing_mode: "stretch_both",
    tools: "",
    toolbar_location: null,
    background_fill_color: null,
    border_fill_color: null,
    outline_line_color: colour.line,
    stylesheets: [".bk-events { touch-action: pan-x pan-y !important; }"], // a finger on a figure scrolls the page
  });
  const text = { axis_label_text_color: colour.ink, axis_label_text_font_style: "normal", major_label_text_color: colour.soft };
  const lines = { axis_line_color: colour.line, major_tick_line_color: colour.line, minor_tick_line_color: null };
  Object.assign(plot.xaxis, { axis_label: figure.xlabel, ...text, ...lines });
  Object.assign(plot.yaxis, { axis_label: figure.ylabel, ...text, ...lines });
  return plot;
}

function addTooltip(Bokeh, plot, renderers) {
  plot.add_tools(new Bokeh.HoverTool({ renderers, tooltips: [["", "@words"]] }));
}

function named(Bokeh, axis, names) {
  const shown = names.map((_, i) => i).filter((i) => i % Math.ceil(names.length / 10) === 0);
  axis.ticker = new Bokeh.FixedTicker({ ticks: shown });
  axis.major_label_overrides = new Map(shown.map((i) => [i, names[i]]));
}

// A cursor is a mark that pointer and keys move: `show` puts it on a place.
function drawGrid(Bokeh, figure, colour) {
  const [rows, columns] = [figure.y.length, figure.x.length];
  const plot = empty(Bokeh, figure, colour, { x_range: [-0.5, columns - 0.5], y_range: [rows - 0.5, -0.5] });
  named(Bokeh, plot.xaxis, figure.x);
  named(Bokeh, plot.yaxis, figure.y);
  Object.assign(plot.xgrid, { visible: false });
  Object.assign(plot.ygrid, { visible: false });
  const cells = figure.z.flatMap((row, y) => row.map((value, x) => ({ x, y, value }))).filter(({ value }) => value !== null);
  const column = (name) => cells.map((cell) => cell[name]);
  const data = { x: column("x"), y: column("y"), value: column("value"), words: cells.map(({ value }) => `${value}`) };
  const [low, high] = figure.range;
  const mapper = new Bokeh.LinearColorMapper({ palette: ramp(figure.signed ? TWO_WAYS : ONE_WAY), low, high });
  const fill = { field: "value", transform: mapper };
  const source = new Bokeh.ColumnDataSource({ data });
  const drawn = plot.rect({ x: { field: "x" }, y: { field: "y" }, width: 1, height: 1, source, fill_color: fill, line_color: fill });
  const text = { major_label_text_color: colour.soft, background_fill_color: null, major_tick_line_color: null };
  plot.add_layout(new Bokeh.ColorBar({ color_mapper: mapper, width: 8, padding: 4, ...text }), "right");
  if (figure.trained) {
    const [bottom, right] = figure.trained.map((seen) => seen - 0.5);
    const line = { line_color: colour.frame, line_alpha: 1, line_dash: "dashed", line_width: 2, fill_color: null };
    plot.add_layout(new Bokeh.BoxAnnotation({ left: -0.5, right, top: -0.5, bottom, ...line }));
  }
  addTooltip(Bokeh, plot, [drawn]);
  const place = new Bokeh.ColumnDataSource({ data: { x: [], y: [] } });
  const mark = { width: 1, height: 1, fill_color: null, line_color: colour.frame, line_width: 3 };
  plot.rect({ x: { field: "x" }, y: { field: "y" }, source: place, ...mark });
  return { plot, show: ([y, x]) => (place.data = { x: [x], y: [y] }) };
}

function drawLines(Bokeh, figure, colour, hidden) {
  const ranges = {
    x_range: new Bokeh.DataRange1d(),
    y_range: figure.percent ? [-4, 104] : new Bokeh.DataRange1d({ only_visible: true }),
  };
  const plot = empty(Bokeh, figure, colour, ranges);
  Object.assign(plot.xgrid, { grid_line_color: colour.line });
  Object.assign(plot.ygrid, { grid_line_color: colour.line });
  if (figure.ticks.length) {
    plot.xaxis.ticker = plot.xgrid.ticker = new Bokeh.FixedTicker({ ticks: figure.ticks });
    plot.xaxis.major_label_overrides = new Map(figure.ticks.map((tick) => [tick, `${tick}`]));
  }
  for (const location of figure.marks) {
    plot.add_layout(new Bokeh.Span({ location, dimension: "height", line_color: colour.soft, line_dash: "dotted" }));
  }
  const parts = figure.lines.map((line) => {
    const ends = (name) => line.y.map((y, k) => line[name][k] ?? y);
    const data = { x: line.x, y: line.y, low: ends("low"), high: ends("high"), words: line.y.map((y) => `${line.name}: ${y}`) };
    const source = new Bokeh.ColumnDataSource({ data });
    const colour = colourOf(line);
    const marker = MARKERS[line.marker][0];
    const style = { line_color: colour, source };
    const [x, y] = [{ field: "x" }, { field: "y" }];
    const fill_color = line.hollow ? null : colour;
    // A line without a marker has points too, which the pointer finds.
    const seen = marker ? { marker, size: line.x.length > 20 ? 3 : 8 } : { marker: "circle", size: 8, alpha: 0 };
    const points = plot.scatter({ x, y, fill_color, ...style, ...seen, line_width: marker === "x" ? 2.5 : 1 });
    const between = { y1: { field: "low" }, y2: { field: "high" }, fill_color: colour, fill_alpha: 0.12, source };
    const bars = line.joined
      ? plot.varea({ x, ...between })
      : plot.segment({ x0: x, x1: x, y0: { field: "low" }, y1: { field: "high" }, line_alpha: 0.5, ...style });
    const each = new Bokeh.ColumnDataSource({ data: { x: line.each.map(([x]) => x), y: line.each.map(([, y]) => y) } });
    const dots = plot.scatter({ x, y, size: 4, source: each, fill_color: colour, line_color: null });
    return [points, bars, dots, ...(line.joined ? [plot.line({ x, y, line_width: 2, line_dash: DASHES[line.dash], ...style })] : [])];
  });
  const arrange = () => parts.forEach((some, i) => some.forEach((part) => (part.visible = !hidden.has(i))));
  arrange();
  addTooltip(Bokeh, plot, parts.map(([points]) => points));
  const place = new Bokeh.ColumnDataSource({ data: { x: [], y: [] } });
  const mark = { size: 16, fill_color: null, line_color: colour.frame, line_width: 3 };
  plot.scatter({ x: { field: "x" }, y: { field: "y" }, marker: "circle", source: place, ...mark });
  const show = ([i, k]) => (place.data = { x: [figure.lines[i].x[k]], y: [figure.lines[i].y[k]] });
  return { plot, show, arrange };
}

// ---- places: [row, column] of a grid, [line, point] of lines ----

function words(figure, [i, k]) {
  if (figure.kind === "grid") {
    return `${figure.ylabel} ${figure.y[i]}, ${figure.xlabel} ${figure.x[k]}: ${figure.z[i][k] ?? "nothing"}`;
  }
  const line = figure.lines[i];
  const ends = line.high[k] != null ? ` [${+line.low[k].toPrecision(4)}, ${+line.high[k].toPrecision(4)}]` : "";
  return `${line.name}, ${figure.xlabel || "at"} ${line.x[k]}: ${line.y[k]}${ends}`;
}

function clamp(value, length) {
  return Math.min(Math.max(value, 0), length - 1);
}

function moved(figure, hidden, [i, k], right, down) {
  if (figure.kind === "grid") return [clamp(i + down, figure.y.length), clamp(k + right, figure.x.length)];
  const shown = figure.lines.map((_, n) => n).filter((n) => !hidden.has(n));
  const line = shown[clamp(shown.indexOf(i) + down, shown.length)] ?? 0;
  return [line, clamp(k + right, figure.lines[line].x.length)];
}

// The place under the pointer, or nearest to it; null outside a grid.
function under(figure, hidden, plot, { x, y }) {
  if (figure.kind === "grid") {
    const [row, column] = [Math.round(y), Math.round(x)];
    return figure.z[row]?.[column] === undefined ? null : [row, column];
  }
  const wide = plot.x_range.end - plot.x_range.start;
  const tall = plot.y_range.end - plot.y_range.start;
  const far = (line, k) => Math.hypot((line.x[k] - x) / wide, (line.y[k] - y) / tall);
  const places = figure.lines.flatMap((line, i) => (hidden.has(i) ? [] : line.x.map((_, k) => [far(line, k), i, k])));
  const nearest = places.reduce((best, place) => (place[0] < best[0] ? place : best), [Infinity, 0, 0]);
  return nearest[0] < Infinity ? nearest.slice(1) : null;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// ---- one figure ----

class Shown {
  constructor(canvas) {
    this.canvas = canvas;
    this.figure = figures[canvas.id];
    this.readout = canvas.parentElement.querySelector(".readout");
    this.hidden = new Set((this.figure.lines ?? []).flatMap((line, i) => (line.hidden ? [i] : [])));
    this.place = null;
    this.signs = [];
    this.drawing = Promise.resolve();
    if (this.figure.kind === "lines") this.addLegend();
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  addLegend() {
    const legend = make("fieldset", { class: "legend" });
    legend.append(make("legend", { class: "unseen" }, `Lines of ${this.figure.title}`));
    this.figure.lines.forEach((line, i) => {
      const label = make("label");
      const box = make("input", { type: "checkbox" });
      box.checked = !this.hidden.has(i);
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(i);
        else this.hidden.add(i);
        this.drawn?.arrange();
      });
      const sign = make("span", { "aria-hidden": "true" }, ` ${MARKERS[line.marker][1]} `);
      this.signs.push([sign, line]);
      label.append(box, sign, line.name);
      legend.append(label);
    });
    this.colourSigns();
    this.canvas.after(legend);
  }

  colourSigns() {
    for (const [sign, line] of this.signs) {
      sign.style.webkitTextStroke = `1px ${colourOf(line)}`;
      sign.style.color = line.hollow ? "transparent" : colourOf(line);
    }
  }

  // One drawing after the other: two at once would both stay.
  draw() {
    return (this.drawing = this.drawing.then(() => this.redraw()).catch((error) => this.fail(error)));
  }

  fail(error) {
    this.readout.textContent = `This browser does not draw it (${error.message}); see values.`;
  }

  async redraw() {
    const Bokeh = await load();
    const draw = this.figure.kind === "grid" ? drawGrid : drawLines;
    this.colourSigns();
    this.drawn = draw(Bokeh, this.figure, theme(), this.hidden);
    for (const event of ["mousemove", "tap"]) {
      this.drawn.plot.on_event(event, (at) => this.read(under(this.figure, this.hidden, this.drawn.plot, at)));
    }
    this.view?.remove();
    this.canvas.replaceChildren();
    this.view = await Bokeh.Plotting.show(this.drawn.plot, this.canvas);
    performance.mark("drawn");
    this.canvas.dataset.drawn = "yes";
  }

  read(place) {
    if (place === null) return;
    this.place = place;
    this.drawn.show(place);
    this.readout.textContent = words(this.figure, place);
  }

  key(event) {
    const step = ARROWS[event.key];
    if (!step || !this.drawn || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.read(moved(this.figure, this.hidden, this.place ?? [0, 0], ...(this.place ? step : [0, 0])));
  }
}

const shown = new Map();

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      shown.set(target, new Shown(target));
      shown.get(target).draw();
    }
  },
  { rootMargin: "300px" },
);
for (const canvas of document.querySelectorAll(".canvas")) watcher.observe(canvas);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown.forEach((figure) => figure.draw()));
