// The dead letters of a group, and resending one or all of them after a confirmation.
//
// The sidecar bounds each order; "all" is a sequence of orders, and can be stopped between two of them. Its progress is
// stored on the brokers, so a second try does not resend the same messages. A single dead letter is always resent.

import { withToken } from "./access.js";
import { get, path, post } from "./api.js";
import { confirm } from "./dialogs.js";
import { h } from "./dom.js";
import { count, plain, plural } from "./format.js";
import { keyOf, messageItem, messageLink } from "./messages.js";
import { badge, button, empty, note } from "./parts.js";
import { currentView, go } from "./router.js";
import { changed, state, withShard } from "./store.js";
import { shardSelector } from "./topics.js";

const BATCH = 200; // The most dead letters of one order.
const WHY = "Reading dead letters requires a token.";
const open = new Set();
const shown = { group: null, shard: null, document: null, fault: null, result: null, isBusy: false, isStopped: false };

/** Return the view of dead letters. */
export function lettersView() {
  const groups = (state.groups?.groups ?? []).filter((group) => group.dead_letters > 0);
  const wanted = currentView().parameters.get("group") ?? groups[0]?.name ?? null;
  if (wanted !== shown.group || state.shard !== shown.shard) {
    Object.assign(shown, { group: wanted, shard: state.shard, document: null, fault: null, result: null });
    open.clear();
    if (wanted !== null) queueMicrotask(load);
  }
  const names = [...new Set([...groups.map((group) => group.name), ...(wanted === null ? [] : [wanted])])];
  return h("div", { class: "stack" },
    h("section", { class: "panel", "aria-labelledby": "title", key: "head" },
      h("header", { class: "panel-head wrap" }, h("h1", { id: "title" }, "Dead letters"), h("span", { class: "grow" }), shardSelector(),
        names.length === 0 ? null : h("label", { class: "field row" }, h("span", null, "Group"),
          h("select", { onchange: (event) => go("letters", { group: event.target.value }) }, names.map((name) =>
            h("option", { key: name, value: name, selected: name === wanted }, name))))),
      h("p", { class: "lead" }, "Messages that a group failed to consume after the maximum number of retries. Resending sends a message to its original topic, with its id and keys; all groups of that topic receive it."),
      outcome()),
    wanted === null ? h("section", { class: "panel", key: "none" }, empty("No dead letters", state.tablesFault ?? "No group has dead letters on this broker.")) : list());
}

function outcome() {
  return h("div", { class: "outcome", role: "status", "aria-live": "polite", key: "outcome" },
    shown.fault === null ? null : note("bad", shown.fault), shown.result === null ? null : note(shown.result.tone, shown.result.text));
}

function list() {
  if (shown.document === null) return h("section", { class: "panel", key: "list" }, empty("Reading…", `The dead letters of ${shown.group}.`));
  const { queues, broker_name: broker } = shown.document;
  const fresh = queues.reduce((sum, queue) => sum + Math.max(queue.end - Math.max(queue.resent_end ?? 0, queue.begin), 0), 0);
  const total = queues.reduce((sum, queue) => sum + queue.end - queue.begin, 0);
  const messages = queues.flatMap((queue) => queue.messages.map((message) => ({ message, isSent: message.queue_offset < (queue.resent_end ?? 0) })));
  return h("section", { class: "panel", key: "list", "aria-label": `Dead letters of ${shown.group}`, "aria-busy": String(shown.isBusy) },
    h("header", { class: "panel-head wrap" }, h("h2", null, shown.group), h("span", { class: "faint" }, `${plural(total, "dead letter")} on ${broker}, ${count(fresh)} not resent`),
      h("span", { class: "grow" }),
      shown.isBusy ? button("Stop", () => { shown.isStopped = true; }, {}) : null,
      button(`Resend ${count(fresh)}`, () => sendAll(fresh), { class: "primary", icon: "resend", disabled: shown.isBusy || fresh === 0 })),
    messages.length === 0 ? empty("No messages", "The dead letters have expired.")
      : h("ol", { class: "messages" }, messages.toReversed().map(({ message, isSent }) =>
          messageItem(message, open, [
            isSent ? badge("plain", "resent") : null,
            messageLink({ ...message, shard: shown.document.broker_name }),
            button("Resend", () => sendOne(message), { class: "quiet", disabled: shown.isBusy, "aria-label": `Resend dead letter ${message.queue_offset}` }),
          ]))));
}

async function load() {
  const { group } = shown;
  const { shard } = state;
  const isShown = () => shown.group === group && shown.shard === shard; // else this answer is of another group or shard
  try {
    const document = await withToken(() => get(withShard(`${path("dead-letters", group)}?count=50`)), WHY);
    if (isShown()) Object.assign(shown, { document, fault: null });
  } catch (error) {
    if (isShown()) shown.fault = error.message;
  }
  changed();
}

async function sendOne(message) {
  // The target is fixed before the confirmation, because another group may be shown by the time it is confirmed.
  const target = withShard(path("dead-letters", shown.group, message.queue_id, message.queue_offset, "resend"));
  const origin = message.properties.RETRY_TOPIC ?? "its original topic";
  const isConfirmed = await confirm("Resend this dead letter?", [
    h("p", null, "It is sent to ", h("b", { class: "mono" }, plain(origin)), " and received by every group of that topic, even if it was resent before."),
    h("p", { class: "faint mono" }, plain(message.message_id)),
  ], "Resend");
  if (!isConfirmed) return;
  await sendOrder(() => post(target, {}), false);
  open.delete(keyOf(message));
}

async function sendAll(fresh) {
  const target = path("dead-letters", shown.group, "resend");
  const isConfirmed = await confirm(`Resend ${plural(fresh, "dead letter")}?`, [
    h("p", null, "Each is sent to its original topic and received by every group of that topic. This includes the dead letters on all brokers of the topic; those that were resent already are left out."),
  ], `Resend ${count(fresh)}`);
  if (isConfirmed) await sendOrder(() => post(target, { messages_max: BATCH }), true);
}

/** Send one order, or repeat it until nothing is left, and show the result. */
async function sendOrder(send, isRepeated) {
  Object.assign(shown, { isBusy: true, isStopped: false, fault: null, result: null });
  changed();
  const sum = { sent: {}, passed: 0, left: 0 };
  try {
    do {
      const done = await withToken(send, "Resending dead letters requires a token that permits changes.");
      for (const [topic, number] of Object.entries(done.sent)) sum.sent[topic] = (sum.sent[topic] ?? 0) + number;
      sum.passed += done.passed_over_count;
      sum.left = done.left;
      shown.result = { tone: "good", text: summaryOf(sum) };
      changed();
    } while (isRepeated && sum.left > 0 && !shown.isStopped);
  } catch (error) {
    shown.fault = `${error.message}. ${Object.keys(sum.sent).length > 0 ? summaryOf(sum) : ""}`;
  }
  shown.isBusy = false;
  await load();
}

function summaryOf(sum) {
  const topics = Object.entries(sum.sent);
  const sent = topics.length === 0 ? "Nothing was resent" : `Resent: ${topics.map(([topic, number]) => `${count(number)} to ${plain(topic)}`).join(", ")}`;
  const passed = sum.passed === 0 ? "" : `; skipped, because their original topic is unknown or they cannot be sent unchanged: ${count(sum.passed)}`;
  return `${sent}${passed}${sum.left > 0 ? `; ${count(sum.left)} left` : ""}.`;
}
