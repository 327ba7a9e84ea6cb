// Charts of time series: up to five minutes or another given period, one scale, gaps where a value is unknown. They are SVGs that stretch to
// the available width; the pointer or the arrow keys select a point in time.

import { h } from "./dom.js";
import { duration, UNKNOWN } from "./format.js";
import { SPAN_MS } from "./series.js";

const SPAN_MIN_MS = 60_000; // The shortest period that a chart shows.

const WIDTH = 300;
const HEIGHT = 80;
const GAP_MS = 5000; // Points that are further apart are not connected.
const pointed = new Map(); // chart -> the selected position, as a share of its width

/**
 * Return a chart. `lines` are `{name, tone, points}`; `format` converts a value to a text. `redraw` is called when
 * another point in time is selected. `base` is 1024 for bytes. `spanMs` is the period that is shown, by default up to
 * five minutes, and points that are further apart than `gapMs` are not connected. `id` identifies a chart whose title is
 * not unique.
 */
export function chart({ title, hint, lines, format, redraw, base = 1000, spanMs: given = null, gapMs = GAP_MS, id = title }) {
  const nowMs = Date.now();
  const spanMs = given ?? Math.min(Math.max(nowMs - (lines[0].points[0]?.atMs ?? nowMs), SPAN_MIN_MS), SPAN_MS);
  const top = niceTop(Math.max(0, ...lines.flatMap((line) => line.points.map((point) => point.value ?? 0))), base);
  const place = pointed.get(id);
  const at = place === undefined ? null : nowMs - spanMs * (1 - place);
  const values = lines.map((line) => ({ ...line, value: at === null ? line.points.at(-1)?.value ?? null : valueAt(line.points, at, gapMs) }));
  const words = values.map((line) => `${line.name} ${line.value === null ? "unknown" : format(line.value)}`).join(", ");
  const point = (share) => {
    if (share === null) pointed.delete(id);
    else pointed.set(id, Math.min(Math.max(share, 0), 1));
    redraw();
  };
  return h("figure", { class: "chart", key: id, title: hint },
    h("figcaption", null, h("span", { class: "chart-title" }, title),
      h("span", { class: "chart-now" }, values.map((line) =>
        h("span", { class: `chart-value ${line.tone}`, key: line.name }, h("i", { class: "swatch" }), `${line.name} `, h("b", { class: "number", "data-series": `${title}/${line.name}` }, line.value === null ? UNKNOWN : format(line.value)))))),
    h("div", {
      class: "chart-plot", role: "img", tabindex: 0, "aria-label": `${title}, ${at === null ? "now" : `${duration((nowMs - at) / 1000)} ago`}: ${words}`,
      onpointermove: (event) => point(shareOf(event)), onpointerleave: () => point(null), onblur: () => point(null),
      onkeydown: (event) => moveWithKeys(event, place ?? 1, point),
    },
    h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      [0.25, 0.5, 0.75].map((part) => h("line", { class: "chart-line", key: part, x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part })),
      lines.map((line, index) => seriesElement(line, { nowMs, spanMs, gapMs, top }, index === 0)),
      place === undefined ? null : h("line", { class: "chart-cross", key: "cross", x1: place * WIDTH, x2: place * WIDTH, y1: 0, y2: HEIGHT })),
    h("span", { class: "chart-top number" }, format(top)),
    h("span", { class: "chart-when" }, at === null ? duration(spanMs / 1000) : `${duration((nowMs - at) / 1000)} ago`)));
}

function moveWithKeys(event, place, point) {
  const step = { ArrowLeft: -0.02, ArrowRight: 0.02, Home: -1, End: 1 }[event.key];
  if (step !== undefined) {
    event.preventDefault();
    point(place + step);
  } else if (event.key === "Escape") point(null);
}

function shareOf(event) {
  const box = event.currentTarget.getBoundingClientRect();
  return (event.clientX - box.left) / box.width;
}

function seriesElement(line, { nowMs, spanMs, gapMs, top }, isFilled) {
  const paths = pieces(line.points, gapMs).map((piece) =>
    piece.map((point) => [WIDTH * (1 - (nowMs - point.atMs) / spanMs), HEIGHT - (point.value / top) * (HEIGHT - 6)]));
  const strokes = paths.map((path) => `M${path.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`).join("");
  const areas = paths.map((path) => `M${path[0][0].toFixed(1)} ${HEIGHT}L${path.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}L${path.at(-1)[0].toFixed(1)} ${HEIGHT}Z`).join("");
  return h("g", { class: `chart-series ${line.tone}`, key: line.name },
    isFilled ? h("path", { class: "chart-area", key: "area", d: areas || "M0 0" }) : null,
    h("path", { class: "chart-stroke", key: "stroke", d: strokes || "M0 0" }));
}

/** Split the points into runs of known values that are not far apart; a point alone is left out. */
function pieces(points, gapMs) {
  const found = [];
  let piece = [];
  for (const point of points) {
    const isApart = piece.length > 0 && point.atMs - piece.at(-1).atMs > gapMs;
    if (point.value === null || isApart) {
      if (piece.length > 1) found.push(piece);
      piece = [];
    }
    if (point.value !== null) piece.push(point);
  }
  if (piece.length > 1) found.push(piece);
  return found;
}

function valueAt(points, atMs, gapMs) {
  let nearest = null;
  for (const point of points) {
    if (nearest === null || Math.abs(point.atMs - atMs) < Math.abs(nearest.atMs - atMs)) nearest = point;
  }
  return nearest === null || Math.abs(nearest.atMs - atMs) > gapMs ? null : nearest.value;
}

/** Return the next 1, 2 or 5 times a power of ten that is not below the value; for bytes a power of two. */
function niceTop(value, base) {
  if (value <= 0) return 1;
  if (base === 1024) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}
