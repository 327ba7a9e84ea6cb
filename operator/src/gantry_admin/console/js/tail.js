// The live tail of a topic in all shards: new messages as they become visible. It can be paused; the number of messages
// that the sidecar left out, and of those that this page dropped, is always shown.

import { h } from "./dom.js";
import { count, plural, short } from "./format.js";
import { button, empty, icon, note } from "./parts.js";
import { outcomes } from "./resend.js";
import { go } from "./router.js";
import { changed } from "./store.js";
import { contentFields, filled, followStream, shardMessages, shardsToRead, streamPath, takeAddress, topicField } from "./streams.js";

const SHOWN_MAX = 300; // Older messages are dropped from the page, and also while it is paused.
const RATES = [10, 50, 200, 1000];
const WHY = "Reading messages requires a token.";

const form = { topic: "", tag: "", sql: "", text: "", json_path: "", ignore_case: false, rate: "50" };
const last = { parameters: null };
const open = new Set(); // the messages that are shown whole
let isWanted = false;
let tail = null;

/** Return the view of the live tail. */
export function tailView() {
  if (takeAddress(form, last)) isWanted = true;
  if (form.rate === "") form.rate = "50";
  if (isWanted && shardsToRead() !== null) {
    isWanted = false;
    queueMicrotask(begin);
  }
  return h("div", { class: "stack" },
    h("section", { class: "panel", "aria-labelledby": "title", key: "form" },
      h("header", { class: "panel-head" }, h("h1", { id: "title" }, "Live tail")),
      h("p", { class: "lead" }, "Shows new messages of a topic as they become visible to consumers. No consumer is affected."),
      tailForm()),
    outcomes(),
    h("section", { class: "panel results", "aria-label": "New messages", key: "found" }, results()));
}

function tailForm() {
  const submit = (event) => {
    event.preventDefault();
    const before = location.hash;
    go("tail", filled(form));
    if (location.hash === before) begin();
  };
  return h("form", { class: "ask", onsubmit: submit },
    h("div", { class: "fields" }, topicField(form),
      h("label", { class: "field", key: "rate" }, h("span", null, "At most"),
        h("select", { name: "rate", onchange: (event) => (form.rate = event.target.value) }, RATES.map((rate) =>
          h("option", { key: rate, value: rate, selected: String(rate) === form.rate }, `${rate} per second`))))),
    h("div", { class: "fields" }, contentFields(form),
      h("button", { type: "submit", class: "button primary", key: "submit" }, icon("chevron"), tail === null ? "Start" : "Start again")));
}

function begin() {
  stop();
  open.clear();
  const shards = shardsToRead();
  if (shards === null || form.topic === "") return;
  const own = { topic: form.topic, controller: new AbortController(), messages: [], waiting: [], isPaused: false, dropped: 0, parts: [] };
  tail = own;
  for (const shard of shards) {
    const part = { shard: shard.name, status: null, fault: null, before: null };
    own.parts.push(part);
    const take = ({ kind, facts }) => {
      if (own !== tail) return;
      part.fault = null;
      if (kind === "message") add(own, { shard: part.shard, message: facts });
      else part.status = facts;
      changed();
    };
    const onFault = (text, isOver) => {
      // The next stream counts from zero, so the counts of this one are kept.
      part.before = totals(part);
      Object.assign(part, { status: null, fault: isOver ? text : `${text}; retrying` });
      changed();
    };
    followStream(streamPath("/v1/tail", form, shard), own.controller.signal, take, onFault, WHY);
  }
  changed();
}

/** Add a message; while the tail is paused, it waits. The oldest are dropped beyond a limit. */
function add(own, entry) {
  const target = own.isPaused ? own.waiting : own.messages;
  target.unshift(entry);
  if (target.length > SHOWN_MAX) target.pop();
  if (own.isPaused && target.length === SHOWN_MAX) own.dropped += 1;
}

function togglePause() {
  if (tail.isPaused) {
    tail.messages = [...tail.waiting, ...tail.messages].slice(0, SHOWN_MAX);
    tail.waiting = [];
  }
  tail.isPaused = !tail.isPaused;
  changed();
}

function stop() {
  tail?.controller.abort();
  tail = null;
  changed();
}

addEventListener("hashchange", () => {
  if (location.hash.startsWith("#/tail")) return;
  last.parameters = null; // coming back to the address starts the tail again
  if (tail !== null) stop();
});

const NAMES = ["examined", "sent", "left_out", "skipped"];

const totals = (part) => Object.fromEntries(NAMES.map((name) => [name, (part.before?.[name] ?? 0) + (part.status?.[name] ?? 0)]));

function results() {
  if (tail === null) return empty("No tail yet", "Enter a topic. Messages that are stored from then on appear here.");
  const { parts, messages, waiting, isPaused } = tail;
  const all = parts.map(totals);
  const total = (name) => all.reduce((sum, one) => sum + one[name], 0);
  const rate = parts.reduce((sum, part) => sum + (part.status?.messages_per_second ?? 0), 0);
  const openCount = parts.filter((part) => part.status !== null).length;
  const missing = total("left_out") + total("skipped");
  return [
    h("header", { class: "panel-head wrap", key: "head" }, h("h2", { "data-open": openCount }, tail.topic),
      h("span", { class: "faint number", "data-rate": rate }, `${short(rate)} new messages/s`),
      h("span", { class: "faint number", "data-sent": total("sent") }, `${count(total("sent"))} of ${count(total("examined"))} examined received`),
      h("span", { class: "grow" }),
      button(isPaused ? `Resume${waiting.length > 0 ? ` (${waiting.length} new)` : ""}` : "Pause", togglePause, { key: "pause", "aria-pressed": String(isPaused) }),
      button("Stop", stop, { key: "stop" })),
    missing === 0 ? null : h("div", { key: "missing", "data-left-out": missing }, note("warn", `${plural(missing, "message")} not shown: ${count(total("left_out"))} beyond the rate, ${count(total("skipped"))} skipped without a test. Raise the rate, or filter.`)),
    tail.dropped === 0 ? null : h("div", { key: "dropped" }, note("warn", `Messages were dropped while the tail was paused: the page keeps ${SHOWN_MAX}.`)),
    ...parts.filter((part) => part.fault !== null).map((part) => h("div", { role: "alert", key: `fault-${part.shard}` }, note("bad", `${part.shard}: ${part.fault}`))),
    messages.length === 0 ? empty(openCount === 0 ? "Connecting…" : "Waiting for messages", "New messages appear here, the newest first.") : shardMessages(messages, open),
  ];
}
