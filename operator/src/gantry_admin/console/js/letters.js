// The dead letters of a group, and resending those that are selected, or all that a filter matches, after a preview.

import { changeFault, withToken } from "./access.js";
import { get, path } from "./api.js";
import { h } from "./dom.js";
import { count, plain, plural } from "./format.js";
import { messageItem, messageLink } from "./messages.js";
import { badge, button, empty, note } from "./parts.js";
import { isResending, loadRecent, outcomes, recentResends, resend } from "./resend.js";
import { currentView, go } from "./router.js";
import { changed, state, withShard } from "./store.js";
import { shardSelector } from "./topics.js";

const WHY = "Reading dead letters requires a token.";
const open = new Set();
const selected = new Set(); // `queue/offset` of the shown dead letters
const shown = { group: null, shard: null, document: null, fault: null };
const choice = { how: "all", text: "", since: "", until: "", target: "", includesResent: false };
const HOW = [["all", "all"], ["tags", "with tags"], ["sql", "with properties (SQL92)"], ["key", "with key"]];
const HINTS = { tags: "new || paid", sql: "region = 'eu' AND total > 10", key: "order-17" };

/** Return the view of dead letters. */
export function lettersView() {
  const groups = (state.groups?.groups ?? []).filter((group) => group.dead_letters > 0);
  const wanted = currentView().parameters.get("group") ?? groups[0]?.name ?? null;
  if (wanted !== shown.group || state.shard !== shown.shard) {
    Object.assign(shown, { group: wanted, shard: state.shard, document: null, fault: null });
    open.clear();
    selected.clear();
    if (wanted !== null) queueMicrotask(load);
  }
  const names = [...new Set([...groups.map((group) => group.name), ...(wanted === null ? [] : [wanted])])];
  return h("div", { class: "stack" },
    h("section", { class: "panel", "aria-labelledby": "title", key: "head" },
      h("header", { class: "panel-head wrap" }, h("h1", { id: "title" }, "Dead letters"), h("span", { class: "grow" }), recentResends(), shardSelector(),
        names.length === 0 ? null : h("label", { class: "field row" }, h("span", null, "Group"),
          h("select", { onchange: (event) => go("letters", { group: event.target.value }) }, names.map((name) =>
            h("option", { key: name, value: name, selected: name === wanted }, name))))),
      h("p", { class: "lead" }, "Messages that a group failed to consume after the maximum number of retries. Resending sends a message to its original topic or to another one, with its id and keys; all groups of that topic receive it."),
      shown.fault === null ? null : h("div", { role: "alert" }, note("bad", shown.fault)),
      wanted === null ? null : selection()),
    outcomes(),
    wanted === null ? h("section", { class: "panel", key: "none" }, empty("No dead letters", state.tablesFault ?? "No group has dead letters on this broker.")) : list());
}

function selection() {
  const submit = (event) => {
    event.preventDefault();
    resendAndReload(matching());
  };
  const set = (name) => (event) => { choice[name] = event.target.value; };
  const topics = (state.topics?.topics ?? []).filter((topic) => topic.kind === "user").map((topic) => topic.name);
  return h("form", { class: "ask", "aria-label": "Select dead letters", onsubmit: submit },
    h("div", { class: "fields" },
      h("label", { class: "field" }, h("span", null, "Dead letters"), h("select", { name: "how", onchange: (event) => { choice.how = event.target.value; changed(); } }, HOW.map(([name, title]) =>
        h("option", { key: name, value: name, selected: choice.how === name }, title)))),
      choice.how === "all" ? null : h("label", { class: "field wide", key: "text" }, h("span", null, "Filter"),
        h("input", { class: "mono", name: "filter", placeholder: HINTS[choice.how], value: choice.text, autocomplete: "off", spellcheck: "false", oninput: set("text") })),
      h("label", { class: "field", key: "since" }, h("span", null, "Stored from"), h("input", { type: "datetime-local", name: "since", value: choice.since, oninput: set("since") })),
      h("label", { class: "field", key: "until" }, h("span", null, "until"), h("input", { type: "datetime-local", name: "until", value: choice.until, oninput: set("until") })),
      h("label", { class: "field", key: "target" }, h("span", null, "Send to"),
        h("input", { class: "mono", name: "target", list: "resend-targets", placeholder: "the original topic", value: choice.target, autocomplete: "off", spellcheck: "false", oninput: set("target") })),
      h("label", { class: "check", key: "resent" }, h("input", { type: "checkbox", checked: choice.includesResent, onchange: (event) => { choice.includesResent = event.target.checked; } }), "resent before, too"),
      h("button", { type: "submit", class: "button primary", key: "submit", disabled: isResending(), title: changeFault() || null }, "Preview resend")),
    h("datalist", { id: "resend-targets" }, topics.map((name) => h("option", { value: name, key: name }))));
}

const target = () => (choice.target.trim() === "" ? {} : { to_topic: choice.target.trim() });
const bound = (name, text) => (text === "" ? {} : { [name]: new Date(text).getTime() });

/** Return the body of a request for everything that the form selects. */
const matching = () => ({
  group: shown.group, include_resent: choice.includesResent, ...target(), ...bound("since_ms", choice.since), ...bound("until_ms", choice.until),
  ...(choice.how === "all" || choice.text === "" ? {} : { [choice.how]: choice.text }),
});

/** Return the body of a request for messages at these places, which are sent even if they were resent before. */
const chosen = (places) => ({
  group: shown.group, include_resent: true, ...target(),
  positions: places.map((place) => {
    const [queue, offset] = place.split("/").map(Number);
    return { broker_name: shown.document.broker_name, queue_id: queue, offset };
  }),
});

const placeOf = (message) => `${message.queue_id}/${message.queue_offset}`;

async function resendAndReload(body) {
  await resend(body);
  selected.clear();
  await load();
}

function list() {
  if (shown.document === null) return h("section", { class: "panel", key: "list" }, empty("Reading…", `The dead letters of ${shown.group}.`));
  const { queues, broker_name: broker } = shown.document;
  const total = queues.reduce((sum, queue) => sum + queue.end - queue.begin, 0);
  const messages = queues.flatMap((queue) => queue.messages.map((message) => ({ message, isSent: message.queue_offset < (queue.resent_end ?? 0) })));
  return h("section", { class: "panel", key: "list", "aria-label": `Dead letters of ${shown.group}`, "aria-busy": String(isResending()) },
    h("header", { class: "panel-head wrap" }, h("h2", null, shown.group), h("span", { class: "faint" }, `${plural(total, "dead letter")} on ${broker}; the newest are shown`),
      h("span", { class: "grow" }),
      button(`Resend selected (${count(selected.size)})`, () => resendAndReload(chosen([...selected])), { icon: "resend", disabled: isResending() || selected.size === 0 })),
    messages.length === 0 ? empty("No messages", "The dead letters have expired.")
      : h("ol", { class: "messages" }, messages.toReversed().map(({ message, isSent }) =>
          messageItem(message, open, [
            isSent ? badge("plain", "resent") : null,
            messageLink({ ...message, shard: shown.document.broker_name }),
            h("label", { class: "check" }, h("input", { type: "checkbox", checked: selected.has(placeOf(message)), "aria-label": `Select dead letter ${message.queue_offset}`,
              onchange: (event) => { event.target.checked ? selected.add(placeOf(message)) : selected.delete(placeOf(message)); changed(); } })),
            button("Resend", () => resendAndReload(chosen([placeOf(message)])), { class: "quiet", disabled: isResending(), "aria-label": `Resend dead letter ${message.queue_offset}`, title: plain(message.message_id) }),
          ]))));
}

async function load() {
  const { group } = shown;
  const { shard } = state;
  if (group === null) return;
  const isShown = () => shown.group === group && shown.shard === shard; // else this answer is of another group or shard
  try {
    const document = await withToken(() => get(withShard(`${path("dead-letters", group)}?count=50`)), WHY);
    if (isShown()) Object.assign(shown, { document, fault: null });
    await loadRecent();
  } catch (error) {
    if (isShown()) shown.fault = error.message;
  }
  changed();
}
