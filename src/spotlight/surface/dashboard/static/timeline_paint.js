// Painting of the timeline: states by colour and pattern, into a layer that is stretched while a person zooms.

import { clock, colour, exactClock } from "./formats.js";

export const GUTTER = { wide: 132, narrow: 92 };
export const AXIS = 26;
const HEADING = 22;
const SLICE_MS = 7;
const GRAIN = 3;
const TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

const PATTERNS = {
  assist: (pen) => stripes(pen, colour("train"), 2.4, 1),
  preview: (pen) => stripes(pen, colour("pattern"), 1.6, 1),
  evaluation: (pen) => { pen.fillStyle = colour("pattern"); for (const at of [2, 6]) { pen.beginPath(); pen.arc(at, at, 1.1, 0, 7); pen.fill(); } },
  load: (pen) => { pen.fillStyle = colour("pattern"); pen.fillRect(0, 0, 8, 1.2); pen.fillRect(0, 4, 8, 1.2); },
  publish: (pen) => { pen.fillStyle = colour("pattern"); pen.fillRect(0, 0, 1.2, 8); pen.fillRect(4, 0, 1.2, 8); },
  switch: (pen) => stripes(pen, colour("pattern"), 2, -1),
  notice: (pen) => stripes(pen, colour("lost"), 1.8, -1),
};
const BASE = { assist: "rollout", notice: "" };

function stripes(pen, style, width, slope) {
  pen.strokeStyle = style;
  pen.lineWidth = width;
  pen.beginPath();
  for (const at of [-8, 0, 8]) { pen.moveTo(at, slope > 0 ? 8 : 0); pen.lineTo(at + 8, slope > 0 ? 0 : 8); }
  pen.stroke();
}

export class Palette {
  constructor(codes) {
    const pen = document.createElement("canvas").getContext("2d");
    this.solid = codes.map((name) => colour(BASE[name] ?? name));
    this.fill = codes.map((name, n) => (PATTERNS[name] ? tile(pen, name, this.solid[n]) : this.solid[n]));
    this.notice = tile(pen, "notice", "");
    for (const name of ["track", "lost", "card", "ink", "soft", "faint", "rule", "load"]) this[name] = colour(name);
  }
}

function tile(target, name, base) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 8;
  const pen = canvas.getContext("2d");
  if (base) { pen.fillStyle = base; pen.fillRect(0, 0, 8, 8); }
  PATTERNS[name](pen);
  return target.createPattern(canvas, "repeat");
}

// Rows from top to bottom with a heading for each class and zone.
export function layoutOf(data, width) {
  const tall = data.is_grouped ? 56 : Math.max(6, Math.min(18, Math.floor(620 / Math.max(1, data.rows.length)) - 3));
  const pitch = tall + (tall < 10 ? 2 : 4);
  const rows = [];
  const headings = [];
  let top = 4;
  let group = null;
  for (const row of data.rows) {
    if (row.group !== group) {
      group = row.group;
      headings.push({ text: group, top });
      top += HEADING;
    }
    rows.push({ row, top, height: tall });
    top += pitch;
  }
  return { rows, headings, tall, pitch, gutter: width < 520 ? GUTTER.narrow : GUTTER.wide, bottom: top, height: top + AXIS };
}

// Paint the window's data, a slice at a time, so that no frame waits for all rows.
export function* layerOf(data, layout, palette, ratio) {
  const canvas = document.createElement("canvas");
  canvas.width = data.bins;
  canvas.height = Math.max(1, Math.ceil(layout.bottom * ratio));
  const pen = canvas.getContext("2d");
  const at = (time) => (time - data.start) / (data.end - data.start) * data.bins;
  let began = performance.now();
  for (const { row, top, height } of layout.rows) {
    pen.setTransform(1, 0, 0, ratio, 0, 0);
    if (data.is_grouped) paintStack(pen, row, top, height, data.bins, palette);
    else paintRow(pen, row, top, height, at, palette);
    if (performance.now() - began > SLICE_MS) {
      yield null;
      began = performance.now();
    }
  }
  yield canvas;
}

function paintRow(pen, row, top, height, at, palette) {
  pen.fillStyle = palette.track;
  for (const [start, end] of row.held) pen.fillRect(at(start), top, Math.max(1, at(end) - at(start)), height);
  const { runs } = row;
  for (let n = 0; n < runs.length; n += 3) {
    const wide = runs[n + 1] - runs[n];
    pen.fillStyle = wide > GRAIN ? palette.fill[runs[n + 2]] : palette.solid[runs[n + 2]];
    pen.fillRect(runs[n], top, wide, height);
  }
  for (const [start, end] of row.notices) {
    pen.fillStyle = palette.notice;
    const wide = Math.max(2, at(end) - at(start));
    pen.fillRect(at(start), top, wide, height);
    pen.strokeStyle = palette.lost;
    pen.strokeRect(at(start) + 0.5, top + 0.5, wide - 1, height - 1);
  }
}

function paintStack(pen, row, top, height, bins, palette) {
  pen.fillStyle = palette.track;
  row.present.forEach((slots, bin) => {
    const high = Math.min(1, slots / row.slots) * height;
    if (high > 0) pen.fillRect(bin, top + height - high, 1, high);
  });
  const below = new Float64Array(bins);
  for (const [code, values] of Object.entries(row.stack)) {
    pen.fillStyle = palette.fill[code];
    values.forEach((slots, bin) => {
      const high = Math.min(1, slots / row.slots) * height;
      if (high > 0) pen.fillRect(bin, top + height - below[bin] - high, 1, high);
      below[bin] += high;
    });
  }
}

// One frame: the layer where its window lies in the view, then labels, marks and the time axis.
export function paintFrame(pen, view, layer, data, layout, palette, width, chosen) {
  pen.clearRect(0, 0, width, layout.height);
  const { gutter } = layout;
  const plot = width - gutter;
  const x = (time) => gutter + (time - view.start) / (view.end - view.start) * plot;
  paintAxis(pen, view, x, layout, palette, width);
  pen.save();
  pen.beginPath();
  pen.rect(gutter, 0, plot, layout.bottom);
  pen.clip();
  if (layer) {
    const left = x(data.start);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(layer, left, 0, x(data.end) - left, layout.bottom);
  }
  upright(pen, data.iterations, x, layout, palette.faint, [1, 3], 1);
  upright(pen, data.restarts, x, layout, palette.lost, [4, 3], 1.5);
  paintLosses(pen, x, layout, palette, gutter, width);
  pen.restore();
  ticksBelow(pen, data.regroups, x, layout, palette.ink, 1, gutter);
  ticksBelow(pen, data.reconnects, x, layout, palette.load, 2, gutter);
  paintLabels(pen, layout, palette, chosen);
}

function paintAxis(pen, view, x, layout, palette, width) {
  const span = view.end - view.start;
  const step = TICKS.find((each) => each / span * (width - layout.gutter) >= 74) || 604800;
  pen.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'DejaVu Sans', sans-serif";
  pen.textBaseline = "alphabetic";
  pen.textAlign = "center";
  pen.fillStyle = palette.faint;
  pen.strokeStyle = palette.rule;
  pen.lineWidth = 1;
  pen.setLineDash([]);
  pen.beginPath();
  for (let tick = Math.ceil(view.start / step) * step; tick <= view.end; tick += step) {
    const at = Math.round(x(tick)) + 0.5;
    pen.moveTo(at, 0);
    pen.lineTo(at, layout.bottom);
    const half = 24;
    if (at > layout.gutter + half - 8 && at < width - half + 8) pen.fillText(step < 1 ? exactClock(tick, 1) : clock(tick), at, layout.bottom + 18);
  }
  pen.stroke();
}

function upright(pen, times, x, layout, style, dash, wide) {
  pen.strokeStyle = style;
  pen.lineWidth = wide;
  pen.setLineDash(dash);
  pen.beginPath();
  let last = -9;
  for (const time of times) {
    const at = Math.round(x(time)) + 0.5;
    if (at - last < 4) continue;
    last = at;
    pen.moveTo(at, 0);
    pen.lineTo(at, layout.bottom);
  }
  pen.stroke();
  pen.setLineDash([]);
}

function ticksBelow(pen, marks, x, layout, style, wide, gutter) {
  pen.strokeStyle = style;
  pen.lineWidth = wide;
  pen.beginPath();
  for (const [time] of marks) {
    const at = Math.round(x(time)) + 0.5;
    if (at < gutter) continue;
    pen.moveTo(at, layout.bottom - 2);
    pen.lineTo(at, layout.bottom + 5);
  }
  pen.stroke();
}

function paintLosses(pen, x, layout, palette, gutter, width) {
  for (const noticed of [false, true]) {
    pen.strokeStyle = palette.lost;
    pen.fillStyle = noticed ? palette.card : palette.lost;
    pen.lineWidth = noticed ? 1.4 : 2;
    pen.beginPath();
    for (const { row, top, height } of layout.rows) {
      let last = -9;
      for (const [time, wasNoticed] of row.losses) {
        const at = x(time);
        if (wasNoticed !== noticed || at < gutter - 4 || at > width + 4 || at - last < 3) continue;
        last = at;
        pen.moveTo(at, top + height);
        pen.lineTo(at, top + 1);
        pen.moveTo(at, top + 3);
        pen.lineTo(at - 4, top - 4);
        pen.lineTo(at + 4, top - 4);
        pen.closePath();
      }
    }
    pen.fill();
    pen.stroke();
  }
}

function paintLabels(pen, layout, palette, chosen) {
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillStyle = palette.soft;
  pen.font = "650 12.5px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'DejaVu Sans', sans-serif";
  for (const { text, top } of layout.headings) pen.fillText(text, 0, top + HEADING / 2);
  const size = Math.max(8, Math.min(layout.gutter > 100 ? 12.5 : 11, layout.pitch - 1));
  const every = Math.max(1, Math.ceil(9 / layout.pitch));
  pen.font = `${size}px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'DejaVu Sans', sans-serif`;
  pen.textAlign = "right";
  layout.rows.forEach(({ row, top, height }, n) => {
    if (n === chosen) {
      pen.fillStyle = palette.rule;
      pen.fillRect(0, top - 1, layout.gutter - 4, height + 2);
    }
    if (n % every && n !== chosen) return;
    pen.fillStyle = palette.ink;
    pen.fillText(row.slots > 1 ? row.state : fitted(pen, row.name, layout.gutter - 14), layout.gutter - 8, top + height / 2);
  });
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let kept = text;
  while (kept.length > 2 && pen.measureText(`…${kept}`).width > width) kept = kept.slice(1);
  return `…${kept}`;
}
