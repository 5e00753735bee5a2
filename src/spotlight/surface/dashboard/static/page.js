// The page of one run, or of two side by side: applies updates, and hands charts, timeline and pictures what changed.

import { syncCharts } from "./charts.js";
import { duration } from "./formats.js";
import { syncGallery } from "./gallery.js";
import { morph, parsed } from "./morph.js";
import { Place } from "./place.js";
import { RunStream } from "./stream.js";
import { Timeline } from "./timeline.js";

const LINES = 200;
const WORDS = { live: "connected", reconnecting: "connecting again", paused: "paused", connecting: "connecting" };
const place = new Place();

class RunColumn {
  constructor(run, cells, number) {
    this.run = run;
    this.number = number;
    this.cells = Object.fromEntries(cells.map((cell) => [cell.parentElement.id, cell]));
    this.at = Number(cells[0].dataset.at);
    this.state = "connecting";
    this.sync();
    this.stream = new RunStream(run, Number(cells[0].dataset.seq), (update) => this.apply(update), (state) => {
      this.state = state;
      showLink();
    });
  }

  key(name) { return this.number ? `${name}.${this.number}` : name; }

  sync() {
    for (const cell of Object.values(this.cells)) syncCharts(cell);
    syncGallery(this.cells.gallery, this.run, place, this.key("version"));
    const root = this.cells.timeline.querySelector("[data-timeline]");
    if (root && this.timeline?.root !== root) {
      this.timeline = new Timeline(root, this.run, place, this.key("view"), this.at, this.isLive());
    }
  }

  isLive() {
    return /state-(starting|running|draining)/.test(this.cells.summary.querySelector(".state").className);
  }

  apply(update) {
    for (const [panel, html] of Object.entries(update.panels)) {
      const cell = this.cells[panel];
      morph(cell.querySelector(":scope > [data-panel]"), parsed(html).firstElementChild);
    }
    this.addLines(update.lines);
    this.at = update.at;
    this.sync();
    this.timeline?.follow(update.at, update.seq);
    showAgo();
    for (const cell of Object.values(this.cells)) cell.dataset.seq = update.seq;
    const records = document.querySelector(`[data-position="${CSS.escape(this.run)}"]`);
    if (records) records.textContent = `${(update.seq + 1).toLocaleString("en")} journal records`;
  }

  addLines(lines) {
    const list = this.cells.feed.querySelector("[data-feed]");
    if (!list) return;
    let newest = Number(list.firstElementChild?.dataset.seq ?? -1);
    for (const line of lines) {
      const element = parsed(line).firstElementChild;
      if (Number(element.dataset.seq) <= newest) continue;
      newest = Number(element.dataset.seq);
      list.prepend(element);
    }
    while (list.children.length > LINES) list.lastElementChild.remove();
  }
}

function showLink() {
  const states = columns.map((column) => column.state);
  const worst = ["reconnecting", "paused", "connecting", "live"].find((state) => states.includes(state)) || "connecting";
  const link = document.querySelector("[data-link]");
  link.textContent = WORDS[worst];
  link.dataset.state = worst;
}

function showAgo() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const since = Date.now() / 1000 - Number(time.dataset.ago);
    const text = since < 2 ? "just now" : `${duration(since)} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
}

// Anchors scroll without replacing the fragment, which holds what is looked at.
document.querySelector(".sections").addEventListener("click", (event) => {
  const target = document.getElementById(event.target.getAttribute("href")?.slice(1));
  if (!target) return;
  event.preventDefault();
  target.scrollIntoView({ block: "start" });
  target.querySelector("h2")?.setAttribute("tabindex", "-1");
  target.querySelector("h2")?.focus({ preventScroll: true });
});

const columns = [];
const cells = [...document.querySelectorAll("[data-run]")];
const runs = [...new Set(cells.map((cell) => cell.dataset.run))];
runs.forEach((run, number) => columns.push(new RunColumn(run, cells.filter((cell) => cell.dataset.run === run), number)));
showAgo();
setInterval(showAgo, 1000);
