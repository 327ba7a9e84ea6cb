// Search of messages: the newest of a queue, from an offset on, by id, by key. Also the element of one message, here
// and among dead letters: all of its content is shown as text.

import { get, path } from "./api.js";
import { h } from "./dom.js";
import { withToken } from "./access.js";
import { bytes, count, exactly, hexDump, moment, plain, plural } from "./format.js";
import { badge, button, empty, facts, icon, note } from "./parts.js";
import { isResending, outcomes, resendMessage } from "./resend.js";
import { currentView, go } from "./router.js";
import { changed, state, withShard } from "./store.js";
import { shardSelector } from "./topics.js";

const WAYS = [["newest", "Newest"], ["offset", "From offset"], ["id", "By id"], ["key", "By key"]];
const COUNT = 20;
const BODY_BYTES = 4096;

const form = { how: "newest", topic: "", queue: "0", offset: "0", id: "", key: "" };
const found = { wanted: null, messages: null, words: "", fault: null, isBusy: false };
const open = new Set();
let executed = null; // the parameters of the last search

/** Return the view of messages. A search in the address is executed at once. */
export function messagesView() {
  const now = currentView().parameters.toString();
  if (now !== executed) {
    executed = now;
    for (const [name, value] of currentView().parameters) if (name in form) form[name] = value;
    if (now !== "") queueMicrotask(search);
  }
  return h("div", { class: "stack" },
    h("section", { class: "panel", "aria-labelledby": "title", key: "form" },
      h("header", { class: "panel-head" }, h("h1", { id: "title" }, "Messages"), h("span", { class: "grow" }), shardSelector()), searchForm()),
    outcomes(),
    h("section", { class: "panel results", "aria-label": "Found", "aria-busy": String(found.isBusy), key: "found" }, results()));
}

function searchForm() {
  const submit = (event) => {
    event.preventDefault();
    const fields = { newest: ["topic", "queue"], offset: ["topic", "queue", "offset"], id: ["id", "topic"], key: ["topic", "key"] }[form.how];
    const query = Object.fromEntries(fields.filter((name) => form[name] !== "").map((name) => [name, form[name]]));
    const before = location.hash;
    go("messages", { how: form.how, ...query });
    if (location.hash === before) search();
  };
  const names = state.topics?.topics.map((topic) => topic.name) ?? [];
  return h("form", { class: "ask", onsubmit: submit },
    h("div", { class: "segments", role: "radiogroup", "aria-label": "Search by" }, WAYS.map(([name, title]) =>
      h("label", { class: "segment", key: name }, h("input", { type: "radio", name: "how", value: name, checked: form.how === name, onchange: () => { form.how = name; changed(); } }), h("span", null, title)))),
    h("div", { class: "fields" },
      field("topic", form.how === "id" ? "Topic, unless it is a broker's message id" : "Topic", { list: "topic-names", class: "wide" }),
      form.how === "newest" || form.how === "offset" ? field("queue", "Queue", { inputmode: "numeric", class: "narrow" }) : null,
      form.how === "offset" ? field("offset", "Offset", { inputmode: "numeric" }) : null,
      form.how === "id" ? field("id", "Message id", { class: "wide" }) : null,
      form.how === "key" ? field("key", "Key", { class: "wide" }) : null,
      h("button", { type: "submit", class: "button primary", key: "submit" }, icon("search"), "Search")),
    h("datalist", { id: "topic-names" }, names.map((name) => h("option", { value: name, key: name }))));
}

const field = (name, title, props) =>
  h("label", { class: `field ${props.class ?? ""}`, key: name }, h("span", null, title),
    h("input", { ...props, class: "mono", name, value: form[name], autocomplete: "off", spellcheck: "false", oninput: (event) => (form[name] = event.target.value) }));

/** Return the path of the request for the search in the form. */
function searchPath() {
  const body = `body_bytes=${BODY_BYTES}`;
  if (form.how === "newest") return `${path("queues", form.topic, form.queue, "messages")}?count=${COUNT}&${body}`;
  if (form.how === "offset") return `${path("queues", form.topic, form.queue, "messages")}?count=${COUNT}&from=${encodeURIComponent(form.offset)}&${body}`;
  const query = new URLSearchParams(form.how === "id" ? { id: form.id } : { key: form.key });
  if (form.topic !== "") query.set("topic", form.topic);
  return `/v1/messages?${query}&${body}`;
}

async function search() {
  const wanted = searchPath();
  Object.assign(found, { isBusy: true, fault: null, wanted });
  changed();
  try {
    const document = await withToken(() => get(withShard(wanted)), "Reading messages requires a token.");
    if (found.wanted !== wanted) return;
    const isQueue = document.end !== undefined;
    open.clear();
    found.messages = form.how === "newest" ? document.messages.toReversed() : document.messages;
    if (found.messages.length === 1) open.add(keyOf(found.messages[0]));
    found.words = isQueue
      ? `${document.topic}, queue ${document.queue_id}, holds ${count(document.begin)} – ${count(document.end)}${document.left_out ? `; ${plural(document.left_out, "message")} left out, because together they are too long` : ""}`
      : `from the ${document.source === "disk" ? "log's files" : "broker's index"}`;
  } catch (error) {
    Object.assign(found, { messages: null, fault: error.message });
  }
  found.isBusy = false;
  changed();
}

function results() {
  if (found.fault !== null) return h("div", { role: "alert" }, note("bad", found.fault));
  if (found.messages === null) return empty(found.isBusy ? "Searching…" : "No search yet", "Enter a topic and a queue, or an id. Reading messages changes no consumer offsets.");
  return [
    h("header", { class: "panel-head", key: "head" }, h("h2", { role: "status" }, plural(found.messages.length, "message")), h("span", { class: "faint" }, found.words)),
    found.messages.length === 0 ? empty("No messages", "No message matches the search.") : h("ol", { class: "messages", key: "list" }, found.messages.map((one) => messageItem(one, open, [resendButton(one)]))),
  ];
}

const brokerName = () => state.shard ?? state.group?.members.find((member) => member.is_self)?.status?.broker_name ?? "";

const resendButton = (message) =>
  message.topic.startsWith("%") ? null : button("Resend", () => resendMessage(message, brokerName()), { class: "quiet", disabled: isResending(), "aria-label": `Resend message ${message.queue_offset}` });

export const keyOf = (message) => `${message.topic}/${message.queue_id}/${message.queue_offset}/${message.physical_offset}`;

/** Return the element of one message: a line, and all of its content while it is open. `actions` are its buttons. */
export function messageItem(message, openOnes, actions = null) {
  const key = keyOf(message);
  const isOpen = openOnes.has(key);
  const toggle = () => { isOpen ? openOnes.delete(key) : openOnes.add(key); changed(); };
  return h("li", { class: `message${isOpen ? " open" : ""}`, key, "data-message": message.message_id },
    h("div", { class: "message-line" },
      h("button", { type: "button", class: "message-open", "aria-expanded": String(isOpen), onclick: toggle },
        h("svg", { class: "icon turn", viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" }, h("path", { d: "M6 3.500 10.500 8 6 12.500" })),
        h("span", { class: "number message-offset" }, count(message.queue_offset)),
        h("span", { class: "number faint" }, moment(message.stored_wall_ms)),
        h("span", { class: "message-gist" }, summaryOf(message))),
      message.tags ? badge("plain", plain(message.tags)) : null,
      actions),
    isOpen ? messageDetails(message) : null);
}

/** Return the beginning of a message's body as one line, or a word on what it is. */
function summaryOf(message) {
  if (message.body_bytes === 0) return "empty body";
  if (message.body.form === "hex") return `${bytes(message.body_bytes)} of binary`;
  return plain(message.body.shown.slice(0, 160).replaceAll(/\s+/g, " "));
}

function messageDetails(message) {
  const { body } = message;
  return h("div", { class: "message-whole" },
    facts([
      ["id", h("span", { class: "mono" }, plain(message.message_id))],
      message.offset_message_id === message.message_id ? null : ["broker's id", h("span", { class: "mono" }, message.offset_message_id)],
      ["topic", h("span", { class: "mono" }, `${plain(message.topic)} · queue ${message.queue_id} · offset ${count(message.queue_offset)}`)],
      ["keys", message.keys.length === 0 ? "none" : plain(message.keys.join(", "))],
      ["sent", `${exactly(message.born_wall_ms)} from ${message.born_host}`],
      ["stored", `${exactly(message.stored_wall_ms)} at ${count(message.physical_offset)}, ${bytes(message.bytes)}`],
      message.reconsume_times > 0 ? ["retries", count(message.reconsume_times)] : null,
    ]),
    h("h4", null, "Properties"),
    h("dl", { class: "properties" }, Object.entries(message.properties).map(([name, value]) =>
      h("div", { key: name }, h("dt", null, plain(name)), h("dd", null, plain(value))))),
    h("h4", null, `Body, ${bytes(message.body_bytes)}${body.is_compressed ? ", decompressed" : ""}`),
    body.fault === null ? null : note("warn", body.fault),
    h("pre", { class: "body", tabindex: 0, role: "region", "aria-label": "Body" }, body.form === "hex" ? hexDump(body.shown) : plain(body.shown)),
    body.is_cut ? h("p", { class: "faint" }, `The first ${bytes(BODY_BYTES)} are shown.`) : null);
}

