// Painting of the timeline: states by colour and pattern, into a layer that is stretched while a person zooms.

import { clock, colour, exactClock } from "./formats.js";

export const GUTTER = { wide: 132, narrow: 92 };
export const AXIS = 26;
const HEADING = 22;
const SLICE_MS = 7;
const TILE = 8;
const TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

const PATTERNS = {
  assist: (pen) => stripes(pen, colour("train"), 2.4, 1),
  preview: (pen) => stripes(pen, colour("pattern"), 1.6, 1),
  evaluation: (pen) => { pen.fillStyle = colour("pattern"); for (const at of [2, 6]) { pen.beginPath(); pen.arc(at, at, 1.1, 0, 7); pen.fill(); } },
  load: (pen) => { pen.fillStyle = colour("pattern"); pen.fillRect(0, 0, 8, 1.2); pen.fillRect(0, 4, 8, 1.2); },
  publish: (pen) => { pen.fillStyle = colour("pattern"); pen.fillRect(0, 0, 1.2, 8); pen.fillRect(4, 0, 1.2, 8); },
  rollout: (pen) => { pen.fillStyle = colour("pattern"); pen.fillRect(3, 3, 1.4, 1.4); },
  start: (pen) => { pen.fillStyle = colour("pattern"); pen.fillRect(0, 2, 4, 1.4); pen.fillRect(4, 6, 4, 1.4); },
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
    this.tiles = codes.map((name) => tile(name, colour(BASE[name] ?? name)));
    this.trackTile = tile("", colour("track"));
    this.noticeTile = tile("notice", "");
    for (const name of ["lost", "card", "ink", "soft", "faint", "rule", "load"]) this[name] = colour(name);
  }
}

// The pixels of a state's pattern.
function tile(name, base) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = TILE;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  if (base) { pen.fillStyle = base; pen.fillRect(0, 0, TILE, TILE); }
  PATTERNS[name]?.(pen);
  return new Uint32Array(pen.getImageData(0, 0, TILE, TILE).data.buffer);
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

// Paint the window's data pixel by pixel, a slice of rows at a time, so that no frame waits for all of them. One bin is
// one pixel wide, and rows have the screen's height; frames stretch the result.
export function* layerOf(data, layout, palette, ratio) {
  const canvas = document.createElement("canvas");
  canvas.width = data.bins;
  canvas.height = Math.max(1, Math.ceil(layout.bottom * ratio));
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(canvas.width, canvas.height);
  const surface = { pixels: new Uint32Array(image.data.buffer), width: data.bins };
  const at = (time) => (time - data.start) / (data.end - data.start) * data.bins;
  let began = performance.now();
  for (const { row, top, height } of layout.rows) {
    const box = { top: Math.round(top * ratio), bottom: Math.round((top + height) * ratio) };
    if (data.is_grouped) paintStack(surface, row, box, palette);
    else paintRow(surface, row, box, at, palette);
    if (performance.now() - began > SLICE_MS) {
      yield null;
      began = performance.now();
    }
  }
  pen.putImageData(image, 0, 0);
  yield canvas;
}

function fill({ pixels, width }, left, right, top, bottom, tile) {
  const [first, end] = [Math.max(0, Math.floor(left)), Math.min(width, Math.ceil(right))];
  for (let y = top; y < bottom; y += 1) {
    const line = y * width;
    const pattern = (y % TILE) * TILE;
    for (let x = first; x < end; x += 1) {
      const pixel = tile[pattern + (x % TILE)];
      if (pixel >>> 24 > 127) pixels[line + x] = pixel | 0xff000000;
    }
  }
}

function paintRow(surface, row, { top, bottom }, at, palette) {
  for (const [start, end] of row.held) fill(surface, at(start), Math.max(at(start) + 1, at(end)), top, bottom, palette.trackTile);
  const { runs } = row;
  for (let n = 0; n < runs.length; n += 3) fill(surface, runs[n], runs[n + 1], top, bottom, palette.tiles[runs[n + 2]]);
  paintShares(surface, row, top, bottom, palette);
  for (const [start, end] of row.notices) {
    const [left, right] = [at(start), Math.max(at(start) + 2, at(end))];
    fill(surface, left, right, top, bottom, palette.noticeTile);
  }
}

// Where many activities share a bin, heights show their shares.
function paintShares(surface, row, top, bottom, palette) {
  const codes = Object.keys(row.shares);
  if (!codes.length) return;
  const digits = row.shares[codes[0]].length;
  const wide = surface.width / digits;
  for (let n = 0; n < digits; n += 1) {
    let low = bottom;
    for (const code of codes) {
      const high = Math.max(top, low - Math.round(parseInt(row.shares[code][n], 36) / 35 * (bottom - top)));
      fill(surface, n * wide, (n + 1) * wide, high, low, palette.tiles[code]);
      low = high;
    }
  }
}

function paintStack(surface, row, { top, bottom }, palette) {
  const high = (slots) => Math.round(Math.min(1, slots / row.slots) * (bottom - top));
  row.present.forEach((slots, bin) => fill(surface, bin, bin + 1, bottom - high(slots), bottom, palette.trackTile));
  const lows = new Int32Array(surface.width).fill(bottom);
  for (const [code, values] of Object.entries(row.stack)) {
    values.forEach((slots, bin) => {
      const upper = Math.max(top, lows[bin] - high(slots));
      fill(surface, bin, bin + 1, upper, lows[bin], palette.tiles[code]);
      lows[bin] = upper;
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
  if (layer) drawVisible(pen, view, layer, data, layout, x);
  const shown = data.iterations.filter((time) => time >= view.start && time <= view.end);
  if (shown.length < plot / 12) upright(pen, shown, x, layout, palette.faint, [1, 3], 1);
  upright(pen, data.restarts, x, layout, palette.lost, [4, 3], 1.5);
  paintLosses(pen, x, layout, palette, gutter, width);
  pen.restore();
  ticksBelow(pen, data.regroups, x, layout, palette.ink, 1, gutter);
  ticksBelow(pen, data.reconnects, x, layout, palette.load, 2, gutter);
  paintLabels(pen, layout, palette, chosen);
}

// Only the part of the layer that the view shows: at a deep zoom the whole would be stretched to millions of pixels.
function drawVisible(pen, view, layer, data, layout, x) {
  const [start, end] = [Math.max(view.start, data.start), Math.min(view.end, data.end)];
  if (end <= start) return;
  const scale = data.bins / (data.end - data.start);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(layer, (start - data.start) * scale, 0, (end - start) * scale, layer.height, x(start), 0, x(end) - x(start), layout.bottom);
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
