// The timeline of the slots: one canvas, with zoom, drag, follow, keyboard and hover. The server bins the time at the
// resolution of the screen, so a day of many slots is as quick to draw as a minute of few.

import { clock, duration, exactClock } from "./formats.js";
import { Palette, layerOf, layoutOf, paintFrame } from "./timeline_paint.js";

const MARGIN = 0.25;
const MOST_BINS = 3600;
const LEAST_SPAN = 0.05;
const HOUR = 3600;
const SETTLE_MS = 70;
const REFRESH_MS = 1000;
const REFINE_MS = 400;
const HOVER_MS = 140;

export class Timeline {
  constructor(root, run, place, key, at, isLive) {
    Object.assign(this, { root, run, place, key, at });
    this.seq = -1;
    this.codes = JSON.parse(root.dataset.codes);
    this.labels = JSON.parse(root.dataset.labels);
    this.chosen = -1;
    this.pointers = new Map();
    this.build();
    this.restore(isLive);
    this.palette = new Palette(this.codes);
    addEventListener("spotlight:theme", () => { this.palette = new Palette(this.codes); this.paintLayer(); });
    new ResizeObserver(() => this.resize()).observe(this.stage);
    this.load();
  }

  build() {
    const make = (tag, css, text) => {
      const element = document.createElement(tag);
      element.className = css;
      if (text) element.textContent = text;
      return element;
    };
    const bar = make("div", "timeline-bar");
    this.buttons = {};
    const actions = [
      ["out", "−", "zoom out", () => this.zoom(2)], ["in", "+", "zoom in", () => this.zoom(0.5)],
      ["left", "◂", "earlier", () => this.pan(-0.4)], ["right", "▸", "later", () => this.pan(0.4)],
      ["all", "All", "the whole run", () => this.setMode("all")],
      ["follow", "Follow", "follow the newest hour", () => this.setMode("follow")],
    ];
    for (const [name, text, label, act] of actions) {
      const button = this.buttons[name] = make("button", "quiet", text);
      button.type = "button";
      button.title = label;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", act);
      bar.append(button);
    }
    this.range = make("output", "timeline-range");
    bar.append(this.range, make("span", "timeline-hint", "Drag to move, Ctrl and wheel to zoom, arrow keys and + − 0 F on the keyboard"));
    this.stage = make("div", "timeline-stage");
    this.canvas = make("canvas", "timeline-canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "timeline");
    this.canvas.setAttribute("aria-label", "timeline of the slots; the table below has the same");
    this.tip = make("div", "timeline-tip");
    this.tip.hidden = true;
    this.words = make("p", "visually-hidden");
    this.words.setAttribute("aria-live", "polite");
    this.stage.append(this.canvas, this.tip);
    this.root.replaceChildren(bar, this.stage, this.words);
    this.pen = this.canvas.getContext("2d");
    this.listen();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / 600);
      else this.zoom(Math.exp(event.deltaY * 0.0022), this.timeAt(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, event.offsetX);
      this.hideTip();
    });
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.hideTip());
    canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.timeAt(event.offsetX)));
    canvas.addEventListener("keydown", (event) => this.keyed(event));
    canvas.addEventListener("blur", () => { this.chosen = -1; this.hideTip(); this.draw(); });
  }

  moved(event) {
    if (!this.pointers.has(event.pointerId)) {
      this.hover(event.offsetX, event.offsetY);
      return;
    }
    const before = this.pointers.get(event.pointerId);
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
    this.pointers.set(event.pointerId, event.offsetX);
    if (others.length) {
      const [fixed] = others;
      const ratio = Math.abs(before - fixed) / Math.max(8, Math.abs(event.offsetX - fixed));
      this.zoom(ratio, this.timeAt(fixed));
    } else {
      this.pan((before - event.offsetX) / this.plotWidth());
    }
  }

  keyed(event) {
    const span = this.end - this.start;
    const actions = {
      ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), "+": () => this.zoom(0.6), "=": () => this.zoom(0.6),
      "-": () => this.zoom(1 / 0.6), 0: () => this.setMode("all"), Home: () => this.setMode("all"), f: () => this.setMode("follow"),
      F: () => this.setMode("follow"), End: () => this.setMode("follow"), ArrowUp: () => this.choose(-1), ArrowDown: () => this.choose(1),
      Escape: () => this.hideTip(),
    };
    const act = !event.ctrlKey && !event.metaKey && !event.altKey && actions[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    if (this.chosen >= 0 && span) this.describe(this.chosen, (this.start + this.end) / 2, true);
  }

  choose(move) {
    if (!this.layout) return;
    this.chosen = Math.min(this.layout.rows.length - 1, Math.max(0, this.chosen + move));
    this.draw();
  }

  // -- what is looked at ----------------------------------------------------------------------------------------------

  restore(isLive) {
    const [mode, start, end] = (this.place.get(this.key) || "").split(",");
    if (mode === "at" && Number(end) > Number(start)) Object.assign(this, { mode: "at", start: Number(start), end: Number(end) });
    else this.mode = mode === "all" || mode === "follow" ? mode : isLive && this.at > HOUR ? "follow" : "all";
    this.span = mode === "follow" && Number(start) > 0 ? Number(start) : HOUR;
    this.fit();
  }

  fit() {
    if (this.mode === "all") Object.assign(this, { start: 0, end: Math.max(1, this.at) });
    if (this.mode === "follow") Object.assign(this, { start: Math.max(0, this.at - this.span), end: Math.max(1, this.at) });
    this.shownRange();
  }

  setMode(mode) {
    this.mode = mode;
    if (mode === "follow") this.span = Math.min(HOUR, Math.max(60, this.at));
    this.fit();
    this.keep();
    this.changed();
  }

  keep() {
    const text = { all: "all", follow: `follow,${this.span.toFixed(0)}`, at: `at,${this.start.toFixed(3)},${this.end.toFixed(3)}` };
    this.place.set(this.key, text[this.mode]);
  }

  zoom(ratio, around = (this.start + this.end) / 2) {
    const span = Math.min(Math.max(LEAST_SPAN, (this.end - this.start) * ratio), Math.max(this.at * 1.5, 10));
    const share = (around - this.start) / (this.end - this.start);
    if (this.mode === "follow" && share > 0.999) this.span = span;
    this.look(around - share * span, around + (1 - share) * span);
  }

  pan(share) {
    const by = share * (this.end - this.start);
    this.look(this.start + by, this.end + by);
  }

  look(start, end) {
    const span = end - start;
    const low = Math.max(-0.2 * span, Math.min(start, this.at - 0.2 * span));
    Object.assign(this, { mode: "at", start: low, end: low + span });
    this.shownRange();
    clearTimeout(this.keeping);
    this.keeping = setTimeout(() => this.keep(), 200);
    this.changed();
  }

  follow(at, seq) {
    const isNew = seq !== this.seq;
    Object.assign(this, { at, seq });
    if (this.mode !== "at") this.fit();
    if (isNew && (this.mode !== "at" || this.end >= this.data?.at)) this.refresh();
  }

  shownRange() {
    const span = this.end - this.start;
    this.range.textContent = `${exactClock(Math.max(0, this.start), span)} to ${exactClock(this.end, span)} (${duration(span)})`;
    for (const name of ["all", "follow"]) this.buttons[name].setAttribute("aria-pressed", String(this.mode === name));
    this.root.dataset.ownMode = this.mode;
  }

  // -- data -----------------------------------------------------------------------------------------------------------

  changed() {
    this.draw();
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.load(), SETTLE_MS);
    // A long movement gets new data on the way.
    if (performance.now() - (this.loadedAt || 0) > REFINE_MS) this.load();
  }

  refresh() {
    if (this.refreshing) return;
    this.refreshing = setTimeout(() => { this.refreshing = 0; this.load(); }, REFRESH_MS);
  }

  async load() {
    this.loadedAt = performance.now();
    const span = this.end - this.start;
    const start = Math.max(0, this.start - MARGIN * span);
    const end = this.end + MARGIN * span;
    const bins = Math.min(MOST_BINS, Math.ceil(this.plotWidth() * devicePixelRatio * (end - start) / span / 100) * 100);
    this.loading?.abort();
    this.loading = new AbortController();
    try {
      const query = new URLSearchParams({ start: start.toFixed(3), end: end.toFixed(3), bins });
      const response = await fetch(`/runs/${this.run}/timeline?${query}`, { signal: this.loading.signal });
      if (!response.ok) throw new Error(String(response.status));
      this.wanted = await response.json();
    } catch {
      return; // A newer request replaces this one, or the server is away: the next update asks again.
    }
    this.paintLayer();
  }

  paintLayer() {
    if (!this.wanted) return;
    const data = this.wanted;
    const layout = layoutOf(data, this.stage.clientWidth);
    const painting = this.painting = layerOf(data, layout, this.palette, devicePixelRatio);
    const step = () => {
      if (painting !== this.painting) return;
      const layer = painting.next().value;
      if (!layer) {
        requestAnimationFrame(step);
        return;
      }
      Object.assign(this, { data, layout, layer });
      this.resize();
      this.root.dataset.ownSeq = data.seq;
    };
    step();
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  plotWidth() {
    return Math.max(80, this.stage.clientWidth - (this.layout?.gutter ?? 132));
  }

  resize() {
    if (!this.layout) return;
    const width = this.stage.clientWidth;
    if (this.sized !== width) {
      this.layout = layoutOf(this.data, width);
      this.sized = width;
    }
    const [wide, high] = [Math.round(width * devicePixelRatio), Math.round(this.layout.height * devicePixelRatio)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      Object.assign(this.canvas, { width: wide, height: high });
      this.canvas.style.height = `${this.layout.height}px`;
    }
    this.draw();
  }

  draw() {
    if (this.drawing || !this.layout) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      const began = performance.now();
      this.pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
      paintFrame(this.pen, this, this.layer, this.data, this.layout, this.palette, this.stage.clientWidth, this.chosen);
      this.root.dispatchEvent(new CustomEvent("spotlight:frame", { detail: performance.now() - began, bubbles: true }));
    });
  }

  timeAt(x) {
    return this.start + (x - this.layout.gutter) / this.plotWidth() * (this.end - this.start);
  }

  // -- hover ----------------------------------------------------------------------------------------------------------

  hover(x, y) {
    if (!this.layout) return;
    const index = this.layout.rows.findIndex(({ top, height }) => y >= top - 2 && y <= top + height + 2);
    const at = this.timeAt(x);
    if (index < 0 || x < this.layout.gutter || at < 0 || at > this.at) {
      this.hideTip();
      return;
    }
    this.describe(index, at, false, x, y);
  }

  describe(index, at, isSpoken, x = this.plotWidth() / 2 + this.layout.gutter, y = this.layout.rows[index].top) {
    const { row, top, height } = this.layout.rows[index];
    const head = `${row.name}, ${exactClock(at, this.end - this.start)}`;
    const lines = [head, ...this.stateLines(row, at)];
    this.showTip(lines, x, Math.max(y, top + height));
    if (isSpoken) this.words.textContent = lines.join(". ");
    clearTimeout(this.hovering);
    if (row.slots > 1) return;
    this.hovering = setTimeout(async () => {
      const query = new URLSearchParams({ row: row.name, at: at.toFixed(3) });
      let moment;
      try {
        moment = await (await fetch(`/runs/${this.run}/moment?${query}`)).json();
      } catch { return; }
      if (this.tip.hidden || this.tip.dataset.head !== head) return;
      const leases = moment.leases.map(leaseLine);
      if (moment.more) leases.push(`and ${moment.more} more leases`);
      const none = lines.includes(this.labels.preview) ? "previews have no leases" : "no lease";
      const all = [...lines, ...(leases.length ? leases : [none])];
      this.showTip(all, x, Math.max(y, top + height));
      if (isSpoken) this.words.textContent = all.join(". ");
    }, HOVER_MS);
  }

  stateLines(row, at) {
    const { data } = this;
    const bin = Math.floor((at - data.start) / (data.end - data.start) * data.bins);
    if (row.slots > 1) {
      const parts = Object.entries(row.stack).map(([code, values]) => [values[bin] || 0, this.labels[this.codes[code]]]);
      const shown = parts.filter(([slots]) => slots >= 0.5).map(([slots, label]) => `${label}: ${Math.round(slots)} slots`);
      return [`${Math.round(row.present[bin] || 0)} of ${row.slots} slots present`, ...shown];
    }
    const lines = [];
    const held = row.held.find(([start, end]) => start <= at && at <= end);
    if (!held) lines.push("no machine");
    else lines.push(...(this.activities(row, bin) || ["idle or starting"]));
    const notice = row.notices.find(([start, end]) => start <= at && at <= end);
    if (notice) lines.push(`${notice[2]} notice since ${clock(notice[0])}${notice[3] ? ", withdrawn" : ""}`);
    const loss = row.losses.find(([time]) => Math.abs(time - at) < (this.end - this.start) / 200);
    if (loss) lines.push(`lost at ${clock(loss[0])} ${loss[1] ? "after a notice" : "without notice"}`);
    return lines;
  }

  // The dominant activity at a bin, or the shares of several; null if there is none.
  activities(row, bin) {
    for (let n = 0; n < row.runs.length; n += 3) {
      if (row.runs[n] <= bin && bin < row.runs[n + 1]) return [this.labels[this.codes[row.runs[n + 2]]]];
    }
    const shares = Object.entries(row.shares).map(([code, digits]) => {
      const share = parseInt(digits[Math.floor(bin / this.data.bins * digits.length)] || "0", 36) / 35;
      return [Math.round(100 * share), this.labels[this.codes[code]]];
    });
    const shown = shares.filter(([percent]) => percent > 2).map(([percent, label]) => `${label} ${percent} %`);
    return shown.length ? shown : null;
  }

  showTip(lines, x, y) {
    this.tip.dataset.head = lines[0];
    this.tip.replaceChildren(...lines.map((text) => {
      const line = document.createElement("div");
      line.textContent = text;
      return line;
    }));
    this.tip.hidden = false;
    const room = this.stage.clientWidth;
    this.tip.style.left = `${Math.max(0, Math.min(x + 14, room - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${y + 10}px`;
  }

  hideTip() {
    clearTimeout(this.hovering);
    this.tip.hidden = true;
  }
}

function leaseLine(lease) {
  const began = `${lease.step ? `, from step ${lease.step}` : ""}: ${clock(lease.start)}`;
  const ended = lease.end === null ? "still held" : `${lease.outcome} after ${duration(lease.end - lease.start)}`;
  return `lease ${lease.request}, attempt ${lease.attempt}${began}, ${ended}`;
}
