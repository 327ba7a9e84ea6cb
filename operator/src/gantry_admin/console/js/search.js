// Search of a topic in all shards: hits appear as they are found, newest first, with the share that was scanned. The
// search is in the address, so it can be sent to a colleague; it is executed when the address is opened.

import { h } from "./dom.js";
import { bytes, count, duration, plural, short } from "./format.js";
import { Refused, Unreachable } from "./api.js";
import { button, empty, icon, meter, note } from "./parts.js";
import { outcomes } from "./resend.js";
import { go } from "./router.js";
import { changed } from "./store.js";
import { contentFields, field, filled, readStream, shardMessages, shardsToRead, streamPath, takeAddress, topicField } from "./streams.js";

const LIMIT = 100; // The most hits of one shard.
const DEADLINE_S = 600;
const WHY = "Searching messages requires a token.";

const form = { topic: "", from: "", to: "", key: "", id: "", tag: "", sql: "", text: "", json_path: "", ignore_case: false };
const last = { parameters: null };
const open = new Set(); // the messages that are shown whole
let isWanted = false; // a search of the address that has not begun, because the group is not known yet
let search = null;

/** Return the view of the search. */
export function searchView() {
  if (takeAddress(form, last)) isWanted = true;
  if (isWanted && shardsToRead() !== null) {
    isWanted = false;
    queueMicrotask(begin);
  }
  return h("div", { class: "stack" },
    h("section", { class: "panel", "aria-labelledby": "title", key: "form" },
      h("header", { class: "panel-head" }, h("h1", { id: "title" }, "Search")),
      h("p", { class: "lead" }, "Searches the messages of a topic in all shards, newest first. All conditions must hold. No consumer is affected."),
      searchForm()),
    outcomes(),
    h("section", { class: "panel results", "aria-label": "Search results", "aria-busy": String(isRunning()), key: "found" }, results()));
}

const isRunning = () => search !== null && search.parts.some((part) => part.end === null && part.fault === null) && !search.isStopped;

function searchForm() {
  const submit = (event) => {
    event.preventDefault();
    const before = location.hash;
    go("search", filled(form));
    if (location.hash === before) begin();
  };
  return h("form", { class: "ask", onsubmit: submit },
    h("div", { class: "fields" }, topicField(form),
      field(form, "from", "Stored from", { type: "datetime-local", step: "1" }), field(form, "to", "Stored before", { type: "datetime-local", step: "1" })),
    h("div", { class: "fields" }, field(form, "key", "Key", { class: "wide" }), field(form, "id", "Message id", { class: "wide" }), contentFields(form),
      isRunning() ? button("Stop", stop, { key: "stop" }) : h("button", { type: "submit", class: "button primary", key: "submit" }, icon("search"), "Search")));
}

const milliseconds = (text) => (text === "" ? null : new Date(text).getTime());

function begin() {
  stop();
  open.clear();
  const shards = shardsToRead();
  if (shards === null || form.topic === "") return;
  const { from, to, ...values } = form;
  const own = { controller: new AbortController(), isStopped: false, hits: [], parts: [] };
  search = own;
  for (const shard of shards) {
    const part = { shard: shard.name, progress: null, end: null, fault: null };
    own.parts.push(part);
    const path = streamPath("/v1/search", { ...values, from_ms: milliseconds(from), to_ms: milliseconds(to), limit: LIMIT, deadline_s: DEADLINE_S }, shard);
    read(own, part, path);
  }
  changed();
}

async function read(own, part, path) {
  const take = ({ kind, facts }) => {
    if (own !== search || own.isStopped) return;
    if (kind === "hit") insert(own.hits, { shard: part.shard, message: facts });
    else part.progress = facts;
    if (kind === "end") part.end = facts;
    changed();
  };
  try {
    await readStream(path, { signal: own.controller.signal }, take, WHY);
    if (part.end === null && !own.isStopped) part.fault = "the stream ended before the search was over";
  } catch (error) {
    if (!(error instanceof Refused || error instanceof Unreachable)) throw error;
    if (!own.isStopped) part.fault = error.message;
  }
  changed();
}

/** Insert a hit so that the newest is first. Each shard sends its own in this order. */
function insert(hits, hit) {
  const at = hits.findIndex((one) => one.message.stored_wall_ms < hit.message.stored_wall_ms);
  hits.splice(at < 0 ? hits.length : at, 0, hit);
}

function stop() {
  if (search === null) return;
  if (isRunning()) search.isStopped = true;
  search.controller.abort();
  changed();
}

addEventListener("hashchange", () => location.hash.startsWith("#/search") || stop());

const sum = (parts, name) => parts.reduce((total, part) => total + (part.progress?.[name] ?? 0), 0);

function results() {
  if (search === null) return empty("No search yet", "Enter a topic and at least one condition. A key or an id is answered by the broker's index at once; anything else is searched in the messages themselves.");
  const { parts, hits } = search;
  const [scanned, total] = [sum(parts, "scanned_messages"), sum(parts, "total_messages")];
  const isIndex = parts.some((part) => part.progress?.source === "index");
  const share = total === 0 ? (isRunning() ? 0 : 1) : scanned / total;
  return [
    h("header", { class: "panel-head wrap", key: "head" }, h("h2", { role: "status", "aria-live": "polite", "data-hits": hits.length }, plural(hits.length, "message")), h("span", { class: "faint" }, stateText(parts))),
    isIndex && total === 0 ? null : h("div", { class: "search-progress", key: "progress", role: "progressbar", "aria-label": "Share scanned", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(share * 100), "data-share": share.toFixed(4) },
      meter(`${count(scanned)} of ${count(total)} messages scanned`, share, `${(share * 100).toFixed(1)}% · ${short(sum(parts, "messages_per_second"))}/s · ${bytes(sum(parts, "read_bytes"))} read`)),
    ...parts.filter((part) => part.fault !== null).map((part) => h("div", { role: "alert", key: `fault-${part.shard}` }, note("bad", `${part.shard}: ${part.fault}`))),
    leftOut(parts),
    hits.length === 0 ? empty(isRunning() ? "Searching…" : "No messages", isRunning() ? "Hits appear here as they are found." : "No message that was scanned meets the conditions.") : shardMessages(hits, open),
  ];
}

function stateText(parts) {
  if (search.isStopped) return "stopped; the share below is exact";
  if (isRunning()) return "searching…";
  const reasons = new Set(parts.map((part) => part.end?.reason ?? "failed"));
  const elapsed = duration(Math.max(0, ...parts.map((part) => part.end?.elapsed_ms ?? 0)) / 1000);
  if (reasons.has("failed")) return "incomplete: a shard did not answer";
  if (reasons.has("limit")) return `limit of ${LIMIT} messages per shard reached; narrow the search for more`;
  if (reasons.has("deadline")) return `the time limit of ${duration(DEADLINE_S)} was reached; narrow the time range`;
  if (reasons.has("stopped")) return `stopped: ${parts.find((part) => part.end?.fault)?.end.fault ?? ""}`;
  return parts.every((part) => part.end?.source === "index") ? "complete, from the broker's index" : `complete, in ${elapsed}`;
}

function leftOut(parts) {
  const [gone, unreadable] = [sum(parts, "deleted_messages"), sum(parts, "unreadable_messages")];
  if (gone === 0 && unreadable === 0) return null;
  const words = [gone > 0 ? `${plural(gone, "message")} deleted before the search reached them` : null, unreadable > 0 ? `${plural(unreadable, "message")} unreadable` : null];
  return h("div", { key: "left-out" }, note("warn", words.filter((one) => one !== null).join("; ")));
}
