// Charts by uPlot from the numbers that their table shows. Charts of one name in two runs share their vertical scale.

import { colour, number } from "./formats.js";

const DASHES = [[], [7, 4], [2, 4], [9, 3, 2, 3], [4, 2], [1, 3]];
const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'DejaVu Sans', sans-serif";
const MOST_POINTS = 80;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
const plots = new Map();

export function syncCharts(root) {
  for (const element of root.querySelectorAll("[data-chart]")) {
    const known = plots.get(element);
    if (known) known.update();
    else plots.set(element, new Plot(element));
  }
  for (const [element, plot] of plots) {
    if (!element.isConnected) {
      plot.destroy();
      plots.delete(element);
    }
  }
}

class Plot {
  constructor(element) {
    this.element = element;
    this.readout = document.createElement("p");
    this.readout.className = "readout";
    this.readout.setAttribute("aria-live", "polite");
    this.frame = document.createElement("div");
    this.frame.className = "plot-frame";
    this.frame.tabIndex = 0;
    this.frame.setAttribute("role", "img");
    element.append(this.frame, this.readout);
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(element);
    this.rebuild = () => { this.plot?.destroy(); this.plot = null; this.text = ""; this.update(); };
    addEventListener("spotlight:theme", this.rebuild);
    this.update();
  }

  destroy() {
    removeEventListener("spotlight:theme", this.rebuild);
    this.resizing.disconnect();
    this.plot?.destroy();
  }

  update() {
    if (this.text === this.element.dataset.chart) return;
    this.text = this.element.dataset.chart;
    const before = this.chart;
    this.chart = JSON.parse(this.text);
    this.extent = extentOf(this.chart);
    this.frame.setAttribute("aria-label", `${this.chart.caption}; the table below has the values`);
    const isSame = this.plot && before.lines.length === this.chart.lines.length && before.kind === this.chart.kind;
    if (isSame) this.plot.setData(dataOf(this.chart));
    else this.build();
    for (const other of this.alike()) if (other !== this) other.plot?.setData(other.plot.data, true);
  }

  alike() {
    return [...plots.values(), this].filter((other) => other.chart?.key === this.chart.key);
  }

  range() {
    const { unit, kind } = this.chart;
    if (unit === "share") return [0, 1];
    const extents = this.alike().map((other) => other.extent);
    const low = Math.min(...extents.map((one) => one[0]));
    const high = Math.max(...extents.map((one) => one[1]));
    if (kind === "bars") return [0, Math.max(1, high * 1.08)];
    if (unit === "score") {
      const room = Math.max(0.04, 0.12 * (high - low));
      return [low >= 0 ? Math.max(0, low - room) : low - room, high <= 1 ? Math.min(1, high + room) : high + room];
    }
    const room = 0.08 * (high - low) || 0.1 * Math.abs(high) || 1;
    return [low < 0 ? low - room : Math.max(0, low - room), high + room];
  }

  build() {
    this.plot?.destroy();
    const { chart } = this;
    const axis = { stroke: colour("faint"), font: FONT, ticks: { show: false }, grid: { stroke: colour("rule"), width: 1 } };
    const options = {
      ...this.size(),
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, points: { size: 7 }, y: false },
      scales: { x: { time: false, range: (plot, low, high) => xRange(chart, low, high) }, y: { range: () => this.range() } },
      axes: [
        { ...axis, grid: { show: false }, incrs: STEPS, space: 40, size: 24, gap: 6, label: chart.x_label, labelFont: FONT, labelSize: 18, labelGap: 0,
          values: (plot, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en") : "")) },
        { ...axis, size: 48, gap: 6, values: (plot, ticks) => ticks.map((tick) => number(tick, chart.unit)) },
      ],
      series: [{}, ...seriesOf(chart)],
      bands: bandsOf(chart),
      hooks: { setCursor: [(plot) => this.read(plot.cursor.idx)], draw: [chart.kind === "bars" ? drawLevels(chart) : drawInterval(chart)] },
    };
    this.plot = new uPlot(options, dataOf(chart), this.frame);
  }

  size() {
    const width = Math.max(200, this.element.clientWidth);
    return { width, height: width < 400 ? 200 : 236 };
  }

  resize() {
    const { width, height } = this.size();
    if (this.plot && (this.plot.width !== width || this.plot.height !== height)) this.plot.setSize({ width, height });
  }

  read(index) {
    if (index === null || index === undefined) {
      this.readout.textContent = "";
      return;
    }
    const { chart } = this;
    const parts = chart.lines.map((line) => {
      const bounds = line.low ? ` (${number(line.low[index], chart.unit)} to ${number(line.high[index], chart.unit)})` : "";
      return `${line.label} ${number(line.values[index], chart.unit)}${bounds}`;
    });
    this.readout.textContent = `${chart.x_label} ${number(chart.x[index], "number")}: ${parts.join(", ")}`;
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.plot) return;
    event.preventDefault();
    const last = this.chart.x.length - 1;
    const index = Math.min(last, Math.max(0, (this.plot.cursor.idx ?? (move > 0 ? -1 : last + 1)) + move));
    this.plot.setCursor({ left: this.plot.valToPos(this.chart.x[index], "x"), top: 20 });
  }
}

function xRange(chart, low, high) {
  if (chart.x.length < 2) return [chart.x[0] - 1, chart.x[0] + 1];
  const room = chart.kind === "bars" ? 0.6 : (high - low) * 0.02;
  return [low - room, high + room];
}

// One evaluation has no band: its interval is an upright line.
function drawInterval(chart) {
  return (plot) => {
    const [line] = chart.lines;
    if (chart.x.length !== 1 || !line.low) return;
    const pen = plot.ctx;
    const left = plot.valToPos(chart.x[0], "x", true);
    pen.save();
    pen.strokeStyle = colour("line-1");
    pen.lineWidth = 2 * devicePixelRatio;
    pen.beginPath();
    pen.moveTo(left, plot.valToPos(line.low[0], "y", true));
    pen.lineTo(left, plot.valToPos(line.high[0], "y", true));
    pen.stroke();
    pen.restore();
  };
}

function extentOf(chart) {
  const values = chart.kind === "bars"
    ? chart.x.map((_, n) => Math.max(stackOf(chart, n), chart.lines.at(-1).values[n] || 0))
    : chart.lines.flatMap((line) => [...line.values, ...(line.low || []), ...(line.high || [])]);
  const known = values.filter((value) => value !== null);
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
}

function stackOf(chart, index) {
  return chart.lines.slice(0, -1).reduce((sum, line) => sum + (line.values[index] || 0), 0);
}

function dataOf(chart) {
  if (chart.kind === "bars") {
    // The whole stack first, then the first part over it.
    return [chart.x, chart.x.map((_, n) => stackOf(chart, n)), chart.lines[0].values];
  }
  return [chart.x, ...chart.lines.flatMap((line) => (line.low ? [line.values, line.low, line.high] : [line.values]))];
}

function seriesOf(chart) {
  if (chart.kind === "bars") {
    const paths = uPlot.paths.bars({ size: [0.7, 34] });
    return [
      { fill: () => hatch(), stroke: colour("preview"), width: 1, paths, points: { show: false } },
      { fill: colour("preview"), width: 0, paths, points: { show: false } },
    ];
  }
  return chart.lines.flatMap((line, n) => {
    const stroke = colour(`line-${1 + (n % 6)}`);
    const main = {
      stroke, width: 2.2, dash: DASHES[n % 6], spanGaps: true,
      points: { show: chart.x.length <= MOST_POINTS, size: 6.5, stroke, fill: n ? stroke : colour("card"), width: 1.8 },
    };
    const bound = { stroke: "transparent", width: 0, points: { show: false } };
    return line.low ? [main, bound, bound] : [main];
  });
}

function bandsOf(chart) {
  const bands = [];
  let place = 1;
  chart.lines.forEach((line, n) => {
    if (line.low && chart.kind !== "bars") bands.push({ series: [place + 2, place + 1], fill: washed(colour(`line-${1 + (n % 6)}`)) });
    place += line.low ? 3 : 1;
  });
  return bands;
}

function washed(hex) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, 0.16)`;
}

function hatch() {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour("preview");
  pen.lineWidth = 1.4;
  pen.beginPath();
  for (const at of [-3, 0, 3, 6]) { pen.moveTo(at, 6); pen.lineTo(at + 6, 0); }
  pen.stroke();
  return pen.createPattern(tile, "repeat");
}

// The planned number: a level across each bar.
function drawLevels(chart) {
  return (plot) => {
    const pen = plot.ctx;
    const step = chart.x.length > 1 ? plot.valToPos(chart.x[1], "x", true) - plot.valToPos(chart.x[0], "x", true) : 40;
    const half = Math.min(17 * devicePixelRatio, 0.35 * Math.abs(step)) + 2 * devicePixelRatio;
    pen.save();
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1.6 * devicePixelRatio;
    pen.beginPath();
    chart.x.forEach((x, n) => {
      const [left, top] = [plot.valToPos(x, "x", true), plot.valToPos(chart.lines.at(-1).values[n] || 0, "y", true)];
      pen.moveTo(left - half, top);
      pen.lineTo(left + half, top);
    });
    pen.stroke();
    pen.restore();
  };
}
