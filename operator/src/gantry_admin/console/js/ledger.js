// The durability ledger of one shard (the data at risk) as a live picture.
//
//     wrote      ===================================================O
//     committed  ==============================================O/////      the hatched part is at risk;
//     flushed    ======================O/////////////////////////////      the grid moves as the
//     acked      ================================================O///      log grows
//
// A lane is the bar of one log position or slave, and its head is the mark at its right end. All lanes share one axis,
// whose right end is `wrote` and whose width follows the largest gap. Between two updates the heads are animated, unless
// the user prefers reduced motion. The exact figures beside the lanes are those of the last update and are never
// interpolated.

import { h } from "./dom.js";
import { bytes, count, duration } from "./format.js";
import { LEVELS, LOSSES } from "./model.js";
import { icon } from "./parts.js";

const WINDOW_MIN = 64 * 1024; // The least width of the axis, in bytes.
const TICKS = 6; // The number of lines of the grid.
const HEAD = 0.965; // The position of `wrote` on the axis, as a share of its width.
const FRAME_MS = 30; // The least time between two frames.
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

/** Return the lanes from top to bottom: the levels, then every slave. */
function lanesOf(status) {
  const levels = LEVELS.map(({ name, means }) => ({ key: name, name, means, tone: name, value: status[name] }));
  const slaves = status.slaves.map((slave) => ({
    key: `slave-${slave.slave_id}`, name: `slave ${slave.slave_id}`, tone: "acked", isSlave: true,
    value: slave.received, second: slave.flushed,
    means: slave.silent_ms === null ? "received by the slave" : `received by the slave; last seen ${duration(slave.silent_ms / 1000)} ago`,
  }));
  return [...levels, ...slaves];
}

/** Return the ledger. `isNow` is whether the figures are of a running broker. */
export function ledger(status, isNow) {
  const lanes = lanesOf(status);
  const update = (element) => animationOf(element).feed(lanes, isNow);
  return h("div", { class: `ledger${isNow ? "" : " stale"}`, key: "ledger", created: update, updated: update },
    h("div", { class: "ledger-grid", "aria-hidden": "true", key: "grid" },
      Array.from({ length: TICKS }, (_, index) => h("div", { class: "tick", key: index }, h("span", { opaque: true })))),
    lanes.map((lane) => laneOf(lane, status.wrote)),
    h("div", { class: "ledger-foot", key: "foot" },
      h("span", { class: "ledger-window", opaque: true, "aria-hidden": "true" }),
      isNow ? null : h("span", null, "the last report of a broker that is not running")));
}

function laneOf(lane, wrote) {
  const behind = lane.value === null || wrote === null ? null : wrote - lane.value;
  const lag = behind === null ? "unknown" : behind <= 0 ? "in sync" : `−${bytes(behind)}`;
  return h("div", { class: `lane ${lane.tone}${lane.isSlave ? " slave" : ""}${lane.value === null ? " unknown" : ""}`, key: lane.key, "data-lane": lane.key },
    h("div", { class: "lane-name", title: lane.means }, h("i", { class: "swatch" }), h("span", null, lane.name)),
    h("div", { class: "rail", "aria-hidden": "true" }, h("div", { class: "bar" }), h("div", { class: "gap" }),
      lane.second === undefined || lane.second === null ? null : h("div", { class: "second", title: "flushed by the slave" }),
      h("div", { class: "head" })),
    h("div", { class: "lane-value" },
      h("span", { class: "number exact", "data-offset": lane.key, "data-value": lane.value ?? "" }, count(lane.value)),
      lane.key === "wrote" ? h("span", { class: "behind" }, "head") : h("span", { class: `behind${behind > 0 ? " some" : ""}` }, lag)));
}

/** Return the data at risk for each kind of failure. */
export function risks(status) {
  return h("div", { class: "risks", key: "risks" }, status.at_risk.map((risk) => {
    const { title, what } = LOSSES[risk.loss];
    const isAll = isOnlyCopy(risk, status);
    const tone = isAll ? "warn" : risk.bytes === null ? "unknown" : risk.bytes === 0 ? "good" : risk.loss === "process" ? "bad" : "warn";
    return h("div", { class: `risk ${tone}`, key: risk.loss, "data-risk": risk.loss },
      h("div", { class: "risk-name" }, icon(risk.loss), h("span", null, title)),
      h("div", { class: "risk-bytes number" }, isAll ? "everything" : risk.bytes === null ? "unknown" : bytes(risk.bytes)),
      h("div", { class: "risk-words" }, wordsOf(risk, status), h("span", { class: "faint" }, what)));
  }));
}

const FAULTS = { process: "the process", machine: "the machine", disk: "the disk", slave: "a slave, then the disk" };

/** Return the acknowledged data at risk for each fault, where every copy counts; rolling updates wait by it. */
export function acknowledgedRisks(shardLedger) {
  if (!shardLedger?.is_fresh) return null;
  return h("p", { class: "acknowledged-risks", key: "acknowledged-risks" }, h("span", null, "Acknowledged data at risk, counting slaves:"),
    shardLedger.risks.map((risk) => h("span", { key: risk.fault, "data-fault": risk.fault, class: risk.bytes > 0 ? "some" : "" },
      `${FAULTS[risk.fault]} `, h("b", { class: "number" }, risk.bytes === null ? "unknown" : bytes(risk.bytes)))),
    shardLedger.bottleneck === null || !shardLedger.risks.some((risk) => risk.bytes > 0) ? null : h("span", null, `waiting for the ${shardLedger.bottleneck}`));
}

/** Return whether the whole log is on this broker alone, because it has no slave. */
const isOnlyCopy = (risk, status) => risk.loss === "master" && risk.bytes === null && status.role === "master" && status.slaves.length === 0;

function wordsOf(risk, status) {
  if (isOnlyCopy(risk, status)) return h("span", null, "no slave holds a copy");
  if (risk.bytes === null) return h("span", null, "no figures");
  if (risk.bytes > 0) return h("span", null, risk.seconds === null ? "of unknown age" : `up to ${duration(risk.seconds)} old`);
  if (risk.loss === "process" && status.buffer?.is_crash_safe) return h("span", null, status.buffer.buffers_total ? "the write buffer survives it" : "the page cache survives it");
  return h("span", null, "nothing would be lost");
}

const animations = new WeakMap();

function animationOf(element) {
  if (!animations.has(element)) animations.set(element, new LaneAnimation(element));
  return animations.get(element);
}

/** Animates the lanes of one ledger between two updates. */
class LaneAnimation {
  constructor(element) {
    this.element = element;
    this.lanes = [];
    this.shown = new Map();
    this.fedMs = 0;
    this.tookMs = 500;
    this.window = WINDOW_MIN * 4;
    this.isRunning = false;
    this.drawnMs = 0;
  }

  /** Move all heads to the positions of an update. */
  feed(lanes, isNow) {
    const isNew = lanes.some((lane, index) => lane.value !== this.lanes[index]?.value || lane.second !== this.lanes[index]?.second);
    if (!isNew && lanes.length === this.lanes.length) return;
    const nowMs = performance.now();
    for (const lane of lanes) {
      this.aim(lane.key, lane.value, isNow, nowMs);
      if (lane.second !== undefined) this.aim(`${lane.key}/second`, lane.second, isNow, nowMs);
    }
    this.tookMs = Math.min(Math.max(nowMs - this.fedMs, 200), 1200);
    this.fedMs = nowMs;
    this.lanes = lanes;
    if (!this.isRunning) {
      this.isRunning = true;
      requestAnimationFrame((atMs) => this.frame(atMs));
    }
  }

  /** Set where a head moves to; without an animation if it jumps, or if the figures are not of a running broker. */
  aim(key, value, isNow, nowMs) {
    const now = this.at(key, nowMs);
    const isFar = now === null || value === null || value < now - 1 || !isNow || reducedMotion.matches || this.fedMs === 0;
    this.shown.set(key, { from: isFar ? value : now, to: value });
  }

  /** Return the offset at which a head is drawn at this moment. */
  at(key, nowMs) {
    const movement = this.shown.get(key);
    if (movement === undefined || movement.to === null) return null;
    const part = Math.min((nowMs - this.fedMs) / this.tookMs, 1);
    return movement.from + (movement.to - movement.from) * part;
  }

  frame(nowMs) {
    if (!this.element.isConnected) {
      this.isRunning = false;
      return;
    }
    if (nowMs - this.drawnMs >= FRAME_MS) {
      this.drawnMs = nowMs;
      if (!this.draw(nowMs)) {
        this.isRunning = false;
        return;
      }
    }
    requestAnimationFrame((atMs) => this.frame(atMs));
  }

  /** Draw one frame. Returns whether another one is needed. */
  draw(nowMs) {
    const head = this.at("wrote", nowMs);
    if (head === null) return false;
    const places = this.lanes.map((lane) => [lane, this.at(lane.key, nowMs)]);
    const gap = Math.max(...places.map(([, place]) => (place === null ? 0 : head - place)));
    const isSettled = this.zoom(gap);
    const x = (offset) => Math.min(Math.max(HEAD - ((head - offset) / this.window) * HEAD, 0.004), 0.998);
    for (const [lane, place] of places) {
      const row = this.element.querySelector(`[data-lane="${lane.key}"]`);
      row?.style.setProperty("--x", place === null ? "0" : x(place).toFixed(5));
      const second = lane.second === undefined ? null : this.at(`${lane.key}/second`, nowMs);
      if (second !== null) row?.style.setProperty("--y", x(second).toFixed(5));
    }
    this.ticks(head);
    return !isSettled || nowMs < this.fedMs + this.tookMs;
  }

  /** Move the width smoothly to the power of two that fits the largest gap. Returns whether it has been reached. */
  zoom(gap) {
    const wanted = Math.max(2 ** Math.ceil(Math.log2(Math.max(gap * 1.25, 1))), WINDOW_MIN);
    const isNear = Math.abs(Math.log2(this.window / wanted)) < 0.01;
    this.window = isNear || reducedMotion.matches ? wanted : 2 ** (Math.log2(this.window) * 0.88 + Math.log2(wanted) * 0.12);
    return isNear || reducedMotion.matches;
  }

  ticks(head) {
    const step = 2 ** Math.floor(Math.log2(this.window / 3));
    const newest = Math.floor(head / step) * step;
    const label = this.element.querySelector(".ledger-window");
    if (label !== null) label.textContent = `${bytes(2 ** Math.round(Math.log2(this.window)))} wide, a line every ${bytes(step)}`;
    for (const [index, tick] of this.element.querySelectorAll(".tick").entries()) {
      const offset = newest - index * step;
      const place = HEAD - ((head - offset) / this.window) * HEAD;
      const isShown = place > 0.02 && offset >= 0;
      tick.style.setProperty("--x", place.toFixed(5));
      tick.classList.toggle("hidden", !isShown);
    }
  }
}
