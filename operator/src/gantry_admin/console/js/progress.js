// The way of a message: sent, stored, and per consumer group passed or waiting, retried, given up; and its trace.
//
// The words are exact: a committed offset shows that a group has passed a message, not that its handler succeeded.

import { h } from "./dom.js";
import { count, millis, plain, plural } from "./format.js";
import { badge, button, command, link, note, time } from "./parts.js";

const TRACE_OFF = "The broker stores no traces. To see what clients did with a message, set traceTopicEnable=true on the brokers, and enable traces in the clients (in RocketMQ's Java client: enableMsgTrace). Traces are made only for messages that are sent from then on.";

/** Return the section with the progress of the message that is shown. */
export function progressSection(shown, reload) {
  return h("section", { class: "panel", "aria-labelledby": "progress-title", "aria-busy": String(shown.progress === null && shown.progressError === null), key: "progress" },
    h("header", { class: "panel-head wrap" }, h("h2", { id: "progress-title" }, "Progress"), h("span", { class: "grow" }), button("Refresh", reload, { class: "quiet", "aria-label": "Refresh the progress" })),
    h("div", { class: "section-body" },
      shown.progressError === null ? null : h("div", { role: "alert" }, note("warn", `The progress of the groups is not known: ${shown.progressError.message}`)),
      h("ol", { class: "way" }, sentStep(shown.message), storedStep(shown.message), shown.progress === null ? null : shown.progress.groups.map((group) => groupStep(group, shown.message))),
      shown.progress === null ? null : [groupNotes(shown.progress), traceOf(shown.progress.trace)]));
}

const step = (key, tone, word, ...children) => h("li", { key, "data-step": key }, badge(tone, word), h("div", null, ...children));

const sentStep = (message) => step("sent", "plain", "sent", time(message.born_wall_ms, true), ` by ${message.born_host}`);

function storedStep(message) {
  const tookMs = message.stored_wall_ms - message.born_wall_ms;
  return step("stored", "plain", "stored", time(message.stored_wall_ms, true), ` by ${message.store_host}${message.shard ? ` of ${plain(message.shard)}` : ""}`,
    tookMs >= 0 ? `, ${tookMs === 0 ? "less than 1 ms" : millis(tookMs)} after it was sent` : ", which has another clock than the sender");
}

const WORDS = { passed: ["good", "passed"], waiting: ["warn", "waiting"], unknown: ["plain", "no offset"] };

function groupStep(group, message) {
  const isLeftOut = group.retries.length === 0 && group.reading?.is_accepted === false;
  const [tone, word] = group.dead_letters.length > 0 ? ["bad", "dead letter"] : isLeftOut ? ["warn", "left out"] : WORDS[group.state];
  return step(`group-${group.group}`, tone, word,
    h("p", null, link("groups", { group: group.group }, plain(group.group), { class: "mono" }), " ", stateText(group), readingText(group.reading)),
    copies(group.retries, "Retry", message, (copy) => `, delivery ${count(copy.reconsume_times + 1)}`),
    copies(group.dead_letters, "Given up", message, (copy) => `, after ${plural(copy.reconsume_times, "delivery", "deliveries")}`),
    group.dead_letters.length > 0 ? h("p", null, link("letters", { group: group.group }, `Dead letters of ${plain(group.group)}`)) : null,
    group.is_search_complete ? null : note("warn", "The search for retries and dead letters reached its limit, so there may be further ones."));
}

function stateText(group) {
  if (group.state === "unknown") return "consumes this topic, but has committed no offset in this queue.";
  if (group.state === "waiting") return `has not passed it: its offset is ${count(group.consumed)}, ${group.waiting_before === 0 ? "so this message is next" : `${plural(group.waiting_before, "message")} before this one`}.`;
  return `has passed it: its offset in this queue is ${count(group.consumed)}.`;
}

/** Return why a group may not consume the message: no consumer is connected, or its filter does not accept it. */
function readingText(reading) {
  if (reading === null) return "";
  if (reading.clients === 0) return " No consumer of the group is connected.";
  return reading.is_accepted === false ? ` The filter of its consumers does not accept it: ${plain(reading.filter)}.` : "";
}

/** Return the list of copies of the message; `words` returns what is said of one. */
function copies(found, title, message, words) {
  if (found.length === 0) return null;
  return h("ul", { class: "copies" }, found.map((copy) =>
    h("li", { key: `${copy.topic}/${copy.queue_id}/${copy.queue_offset}` },
      `${title} `, time(copy.stored_wall_ms), words(copy), copy.is_passed === null ? "" : copy.is_passed ? ", passed" : ", waiting", " · ",
      link("message", { topic: copy.topic, queue: copy.queue_id, offset: copy.queue_offset, shard: message.shard }, `offset ${count(copy.queue_offset)} of ${plain(copy.topic)}`))));
}

function groupNotes(progress) {
  return [
    progress.groups.length === 0 ? h("p", { class: "faint", key: "none" }, "No consumer group has committed an offset for this topic on this broker.")
      : h("p", { class: "faint", key: "words" }, "“Passed” means that the group's committed offset is beyond this message, not that its handler succeeded. A failed message has a retry or a dead letter; a retry whose delay has not elapsed is not shown."),
    progress.groups_left_out > 0 ? note("plain", `${plural(progress.groups_left_out, "further group")} not shown.`) : null,
    progress.source === "disk" ? note("warn", `The offsets are from the broker's files, because it does not answer: ${progress.reason ?? ""}`) : null,
  ];
}

function traceOf(trace) {
  return h("div", { class: "trace", key: "trace" }, h("h3", null, "Trace"), {
    off: () => [h("p", { class: "faint" }, TRACE_OFF), command("traceTopicEnable=true")],
    none: () => h("p", { class: "faint" }, "This broker has no trace of this message. Clients send traces if they are enabled in the client, some seconds after the message, and to any broker with the topic of traces."),
    unavailable: () => note("warn", `Traces are not available: ${trace.reason ?? ""}`),
    found: () => h("ol", { class: "way" }, trace.steps.map(traceStep)),
  }[trace.state]?.());
}

function traceStep(one, at) {
  const tone = one.is_success === false ? "bad" : "plain";
  const words = [
    one.group === "" ? null : plain(one.group), `at ${plain(one.client_host)}`, one.cost_ms === null ? null : `took ${millis(one.cost_ms)}`,
    one.attempt === null ? null : `delivery ${count(one.attempt + 1)}`, one.is_success === null ? null : one.is_success ? "succeeded" : "failed",
  ].filter((word) => word !== null);
  return step(`trace-${at}`, tone, one.step, time(one.wall_ms, true), `, ${words.join(", ")}`);
}
