// Dead letters of a group: what it has given up, and sending that again, one or all, after a question.
//
// Sending again is bounded by the sidecar; "all" is as many orders as it takes, and can be stopped between two. How far it
// has come lies on the brokers, so what was sent is not sent twice by another try.

import { withToken } from "./access.js";
import { get, path, post } from "./api.js";
import { confirm } from "./dialogs.js";
import { h } from "./dom.js";
import { count, plain, plural } from "./format.js";
import { keyOf, messageItem } from "./messages.js";
import { badge, button, empty, note } from "./parts.js";
import { go, here } from "./router.js";
import { changed, state, within } from "./store.js";
import { shards } from "./topics.js";

const BATCH = 200;
const WHY = "Dead letters hold messages.";
const open = new Set();
const shown = { group: null, shard: null, document: null, fault: null, result: null, isBusy: false, isStopped: false };

/** The view. */
export function lettersView() {
  const groups = (state.groups?.groups ?? []).filter((group) => group.dead_letters > 0);
  const wanted = here().given.get("group") ?? groups[0]?.name ?? null;
  if (wanted !== shown.group || state.shard !== shown.shard) {
    Object.assign(shown, { group: wanted, shard: state.shard, document: null, fault: null, result: null });
    open.clear();
    if (wanted !== null) queueMicrotask(load);
  }
  const names = [...new Set([...groups.map((group) => group.name), ...(wanted === null ? [] : [wanted])])];
  return h("div", { class: "stack" },
    h("section", { class: "panel", "aria-labelledby": "title", key: "head" },
      h("header", { class: "panel-head wrap" }, h("h1", { id: "title" }, "Dead letters"), h("span", { class: "grow" }), shards(),
        names.length === 0 ? null : h("label", { class: "field row" }, h("span", null, "Group"),
          h("select", { onchange: (event) => go("letters", { group: event.target.value }) }, names.map((name) =>
            h("option", { key: name, value: name, selected: name === wanted }, name))))),
      h("p", { class: "lead" }, "What a group gave up after too many tries. Sent again, a message goes to the topic it came from, with the id and keys it had: all groups of that topic get it."),
      outcome()),
    wanted === null ? h("section", { class: "panel", key: "none" }, empty("No dead letters", state.tablesFault ?? "No group has given up a message on this broker.")) : list());
}

function outcome() {
  return h("div", { class: "outcome", role: "status", "aria-live": "polite", key: "outcome" },
    shown.fault === null ? null : note("bad", shown.fault), shown.result === null ? null : note(shown.result.tone, shown.result.text));
}

function list() {
  if (shown.document === null) return h("section", { class: "panel", key: "list" }, empty("Reading…", `The dead letters of ${shown.group}.`));
  const { queues, broker_name: broker } = shown.document;
  const fresh = queues.reduce((sum, queue) => sum + Math.max(queue.end - Math.max(queue.sent_again_end ?? 0, queue.begin), 0), 0);
  const total = queues.reduce((sum, queue) => sum + queue.end - queue.begin, 0);
  const messages = queues.flatMap((queue) => queue.messages.map((message) => ({ message, isSent: message.queue_offset < (queue.sent_again_end ?? 0) })));
  return h("section", { class: "panel", key: "list", "aria-label": `Dead letters of ${shown.group}`, "aria-busy": String(shown.isBusy) },
    h("header", { class: "panel-head wrap" }, h("h2", null, shown.group), h("span", { class: "faint" }, `${plural(total, "dead letter")} on ${broker}, ${count(fresh)} not sent again`),
      h("span", { class: "grow" }),
      shown.isBusy ? button("Stop", () => { shown.isStopped = true; }, {}) : null,
      button(`Send ${count(fresh)} again`, () => sendAll(fresh), { class: "primary", icon: "resend", disabled: shown.isBusy || fresh === 0 })),
    messages.length === 0 ? empty("Nothing there", "They have expired.")
      : h("ol", { class: "messages" }, messages.toReversed().map(({ message, isSent }) =>
          messageItem(message, open, [
            isSent ? badge("plain", "sent again") : null,
            button("Send again", () => sendOne(message), { class: "quiet", disabled: shown.isBusy, "aria-label": `Send dead letter ${message.queue_offset} again` }),
          ]))));
}

async function load() {
  const { group } = shown;
  try {
    const document = await withToken(() => get(within(`${path("dead-letters", group)}?count=50`)), WHY);
    if (shown.group === group) Object.assign(shown, { document, fault: null });
  } catch (error) {
    if (shown.group === group) shown.fault = error.message;
  }
  changed();
}

async function sendOne(message) {
  // What was asked about is what is sent, whatever is looked at by the time it is confirmed.
  const target = within(path("dead-letters", shown.group, message.queue_id, message.queue_offset, "resend"));
  const origin = message.properties.RETRY_TOPIC ?? "the topic it came from";
  const isMeant = await confirm("Send this dead letter again?", [
    h("p", null, "It goes to ", h("b", { class: "mono" }, plain(origin)), ", to every group that reads it, also if it was sent again before."),
    h("p", { class: "faint mono" }, plain(message.message_id)),
  ], "Send it again");
  if (!isMeant) return;
  await order(() => post(target, {}), false);
  open.delete(keyOf(message));
}

async function sendAll(fresh) {
  const target = path("dead-letters", shown.group, "resend");
  const isMeant = await confirm(`Send ${plural(fresh, "dead letter")} again?`, [
    h("p", null, "Each goes to the topic it came from, and to every group that reads it. Of all brokers of the topic, not only this one; what was sent again already is left out."),
  ], `Send ${count(fresh)} again`);
  if (isMeant) await order(() => post(target, { messages_max: BATCH }), true);
}

/** Give one order, or the same one until nothing is left, and say what came of it. */
async function order(give, isRepeated) {
  Object.assign(shown, { isBusy: true, isStopped: false, fault: null, result: null });
  changed();
  const sum = { sent: {}, passed: 0, left: 0 };
  try {
    do {
      const done = await withToken(give, "Sending dead letters again needs a token that may change things.");
      for (const [topic, number] of Object.entries(done.sent)) sum.sent[topic] = (sum.sent[topic] ?? 0) + number;
      sum.passed += done.passed_over_count;
      sum.left = done.left;
      shown.result = { tone: "good", text: words(sum) };
      changed();
    } while (isRepeated && sum.left > 0 && !shown.isStopped);
  } catch (error) {
    shown.fault = `${error.message}. ${Object.keys(sum.sent).length > 0 ? words(sum) : ""}`;
  }
  shown.isBusy = false;
  await load();
}

function words(sum) {
  const topics = Object.entries(sum.sent);
  const sent = topics.length === 0 ? "Nothing was sent" : `Sent again: ${topics.map(([topic, number]) => `${count(number)} to ${plain(topic)}`).join(", ")}`;
  const passed = sum.passed === 0 ? "" : `; passed over, since they do not say where they came from or cannot be unpacked: ${count(sum.passed)}`;
  return `${sent}${passed}${sum.left > 0 ? `; ${count(sum.left)} left` : ""}.`;
}
