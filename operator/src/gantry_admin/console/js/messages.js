// Messages: the newest of a topic over all queues and shards, or of one queue, from an offset, before a time, by id or by
// key. What is shown is in the address. Also the element of one message, here and among dead letters: all of its content
// is shown as text.

import { path } from "./api.js";
import { faultState } from "./faults.js";
import { h } from "./dom.js";
import { bytes, count, hexDump, plain, plural, utc, zoneName } from "./format.js";
import { MessagePages } from "./message_pages.js";
import { badge, button, command, empty, facts, icon, link, note, time, topicLinks } from "./parts.js";
import { isResending, outcomes, resendMessage } from "./resend.js";
import { currentView, go } from "./router.js";
import { allShards, askShards, hasShards, ownShard } from "./shards.js";
import { changed, state } from "./store.js";
import { knownTopics, topicPicker } from "./topic_picker.js";

const WAYS = [["newest", "Newest"], ["offset", "From offset"], ["time", "Before a time"], ["id", "By id"], ["key", "By key"]];
const FIELDS = { newest: ["topic", "queue", "shard"], offset: ["topic", "queue", "offset", "shard"], time: ["topic", "queue", "time", "shard"], id: ["id", "topic"], key: ["topic", "key"] };
const COUNT = 20;
const BODY_BYTES = 4096;
const WHY = "Reading messages requires a token.";

const EMPTY_FORM = { how: "newest", topic: "", queue: "", offset: "0", time: "", id: "", key: "", shard: "" };
const form = { ...EMPTY_FORM };
const found = { pages: null, messages: null, words: "", error: null, faults: [], isBusy: false };
const open = new Set();
let executed = null; // the address of the last search
let knewShards = false; // whether the shards were known to the last search

/** Return the view of messages. A search in the address is executed at once. */
export function messagesView() {
  const now = currentView().parameters.toString();
  if (hasShards() && (now !== executed || (!knewShards && allShards().length > 1))) {
    executed = now;
    knewShards = state.group !== null;
    Object.assign(form, EMPTY_FORM, Object.fromEntries([...currentView().parameters].filter(([name]) => name in form)));
    if (!(form.how in FIELDS)) form.how = "newest";
    queueMicrotask(isComplete() ? search : clear);
  }
  return h("div", { class: "stack" },
    h("section", { class: "panel", "aria-labelledby": "title", key: "form" },
      h("header", { class: "panel-head wrap" }, h("h1", { id: "title" }, "Messages"), h("span", { class: "grow" }), topicLinks(form.topic, "messages")), searchForm()),
    outcomes(),
    h("section", { class: "panel results", "aria-label": "Found", "aria-busy": String(found.isBusy), key: "found" }, results()));
}

/** Return whether the form has all that its search needs. */
const isComplete = () => (form.how === "id" ? form.id !== "" : form.topic !== "" && (form.how === "newest" || form[form.how] !== ""));

function clear() {
  Object.assign(found, { pages: null, messages: null, error: null, faults: [], isBusy: false });
  changed();
}

function submit(event) {
  event?.preventDefault();
  if (!isComplete()) return;
  const query = Object.fromEntries(FIELDS[form.how].map((name) => [name, form[name]]));
  const before = location.hash;
  go("messages", { how: form.how === "newest" ? null : form.how, ...query });
  if (location.hash === before) search();
}

function searchForm() {
  const setHow = (how) => {
    form.how = how;
    if (how === "offset" && form.queue === "") form.queue = "0";
    changed();
  };
  const pick = (topic, isConfirmed) => {
    Object.assign(form, { topic, queue: form.how === "offset" ? form.queue : "" });
    if (form.how === "newest" && isConfirmed) submit();
    else changed();
  };
  return h("form", { class: "ask", onsubmit: submit },
    h("div", { class: "segments", role: "radiogroup", "aria-label": "Show messages" }, WAYS.map(([name, title]) =>
      h("label", { class: "segment", key: name }, h("input", { type: "radio", name: "how", value: name, checked: form.how === name, onchange: () => setHow(name) }), h("span", null, title)))),
    h("div", { class: "fields" },
      topicPicker(form.topic, pick),
      form.how === "newest" || form.how === "time" ? queueField() : null,
      form.how === "offset" ? field("queue", "Queue", { inputmode: "numeric", pattern: "[0-9]+", class: "narrow" }) : null,
      form.how === "offset" ? field("offset", "Offset", { inputmode: "numeric", pattern: "[0-9]+" }) : null,
      form.how === "time" ? timeField() : null,
      form.how === "id" ? field("id", "Message id", { class: "wide" }) : null,
      form.how === "key" ? field("key", "Key", { class: "wide" }) : null,
      FIELDS[form.how].includes("shard") ? shardField() : null,
      h("button", { type: "submit", class: "button primary", key: "submit" }, icon("search"), form.how === "newest" ? "Show" : "Search")));
}

const field = (name, title, props) =>
  h("label", { class: `field ${props.class ?? ""}`, key: name }, h("span", null, title),
    h("input", { ...props, class: "mono", name, value: form[name], autocomplete: "off", spellcheck: "false", oninput: (event) => (form[name] = event.target.value.trim()) }));

function choice(name, title, options, onchoose) {
  return h("label", { class: "field", key: name }, h("span", null, title),
    h("select", { name, onchange: (event) => { form[name] = event.target.value; onchoose(); } }, options.map(([value, text]) =>
      h("option", { key: value, value, selected: value === form[name] }, text))));
}

function queueField() {
  const own = (state.topics?.topics ?? []).find((topic) => topic.name === form.topic)?.queues.map((queue) => queue.queue_id) ?? [];
  const ids = [...new Set([...own, ...(found.pages?.topic === form.topic ? found.pages.queueIds() : []), ...(form.queue === "" ? [] : [Number(form.queue)])])].toSorted((a, b) => a - b);
  return choice("queue", "Queue", [["", "All queues"], ...ids.map((id) => [String(id), `Queue ${id}`])], () => form.how === "newest" && submit());
}

function shardField() {
  const names = allShards();
  if (names.length < 2) return null;
  const all = form.how === "offset" ? [] : [["", "All shards"]];
  if (form.how === "offset" && form.shard === "") form.shard = ownShard() ?? names[0];
  return choice("shard", "Shard", [...all, ...names.map((name) => [name, name])], () => form.how === "newest" && submit());
}

/** Return the field for a time in the reader's zone; the address has it in UTC. */
function timeField() {
  const at = Date.parse(form.time);
  const local = Number.isNaN(at) ? "" : new Date(at - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
  const set = (event) => {
    const chosen = new Date(event.target.value);
    form.time = Number.isNaN(chosen.getTime()) ? "" : chosen.toISOString();
    changed();
  };
  return h("label", { class: "field", key: "time" }, h("span", null, `Stored before (${zoneName()})`),
    h("input", { type: "datetime-local", step: 1, name: "time", value: local, onchange: set }), h("span", { class: "faint", key: "utc" }, Number.isNaN(at) ? "" : utc(at)));
}

/** Execute the search in the form. An answer that arrives after another search was started is dropped. */
async function search() {
  const wanted = executed;
  open.clear();
  Object.assign(found, { isBusy: true, error: null, faults: [], pages: null, messages: null, words: "" });
  changed();
  try {
    const outcome = await (form.how === "newest" || form.how === "time" ? searchPages() : searchOnce());
    if (executed === wanted) Object.assign(found, outcome, { isBusy: false });
  } catch (error) {
    if (executed === wanted) Object.assign(found, { error, isBusy: false });
  }
  changed();
}

const chosenShards = () => (form.shard === "" ? allShards() : [form.shard]);

async function searchPages() {
  const query = { body_bytes: BODY_BYTES };
  if (form.queue !== "") query.queue_id = form.queue;
  if (form.how === "time") query.until_ms = Date.parse(form.time);
  const pages = new MessagePages(chosenShards(), form.topic, query);
  await pages.more();
  return { pages, faults: pages.faults };
}

async function searchOnce() {
  if (form.how === "offset") {
    const query = `count=${COUNT}&from=${encodeURIComponent(form.offset)}&body_bytes=${BODY_BYTES}`;
    const { answers: [{ document }] } = await askShards([form.shard === "" ? ownShard() : form.shard], `${path("queues", form.topic, form.queue, "messages")}?${query}`, WHY);
    const left = document.left_out ? `; ${plural(document.left_out, "message")} left out, because together they are too long` : "";
    return { messages: document.messages.map((one) => ({ ...one, shard: form.shard || ownShard() })), words: `${document.topic}, queue ${document.queue_id}, holds ${count(document.begin)} – ${count(document.end)}${left}` };
  }
  const query = new URLSearchParams({ [form.how]: form[form.how], body_bytes: BODY_BYTES });
  if (form.topic !== "") query.set("topic", form.topic);
  const { answers, faults } = await askShards(allShards(), `/v1/messages?${query}`, WHY);
  const messages = answers.flatMap(({ shard, document }) => document.messages.map((one) => ({ ...one, shard: shard ?? ownShard() })));
  if (messages.length === 1) open.add(keyOf(messages[0]));
  return { messages, faults: faults.filter(({ error }) => error.status !== 404), words: answers[0].document.source === "disk" ? "from the log's files" : "from the brokers' index" };
}

async function older() {
  const { pages } = found;
  found.isBusy = true;
  changed();
  try {
    await pages.more();
  } catch (error) {
    if (found.pages === pages) found.error = error;
  }
  if (found.pages === pages) found.isBusy = false;
  changed();
}

function results() {
  const { pages } = found;
  const messages = pages?.shown() ?? found.messages;
  if (found.error !== null) return faultState(found.error, search);
  if (messages === null) return found.isBusy || !hasShards() ? empty("Reading…", form.topic) : start();
  const words = pages === null ? found.words : `${pages.topic} holds ${plural(pages.total(), "message")}${form.queue === "" ? "" : ` in queue ${form.queue}`}`;
  const faults = found.faults.map(({ shard, error }) => h("div", { role: "alert", key: `fault-${shard}` }, note("warn", `Shard ${shard} is missing here: ${error.message}`)));
  const unreadable = pages?.unreadable() ? note("warn", `${plural(pages.unreadable(), "message")} could not be read, and are not shown.`) : null;
  if (messages.length === 0) return [faults, none(pages?.total() ?? 0)];
  return [
    h("header", { class: "panel-head wrap", key: "head" }, h("h2", { role: "status" }, plural(messages.length, "message")), h("span", { class: "faint" }, words), h("span", { class: "grow" }), button("Refresh", search, { class: "quiet" })),
    faults, unreadable,
    h("ol", { class: "messages", key: "list" }, messages.map((one) => messageItem(one, open, [resendButton(one), messageLink(one)]))),
    pages?.hasMore() ? h("div", { class: "more", key: "more" }, button(found.isBusy ? "Reading…" : "Older", older, { disabled: found.isBusy })) : null,
  ];
}

/** Return the state before a search: what can be done, or how to send a first message. */
function start() {
  if (state.topics !== null && knownTopics().every((topic) => topic.kind !== "user")) {
    return h("div", { class: "empty" }, h("strong", null, "No topics yet"), h("p", null, "A topic appears here with its first message. To send one:"), command("gantry produce orders 'first message'"));
  }
  const recent = (state.topics?.topics ?? []).filter((topic) => topic.kind === "user" && topic.messages > 0).toSorted((a, b) => b.messages - a.messages).slice(0, 6);
  return h("div", { class: "empty" }, h("strong", null, "Pick a topic"), h("p", null, "Its newest messages are shown, of all queues and shards. Reading messages changes no consumer offsets."),
    h("p", { class: "link-row" }, recent.map((topic) => link("messages", { topic: topic.name }, topic.name, { key: topic.name, class: "mono" }))));
}

/** Return the state without a result. */
function none(total) {
  if (form.how === "key") return empty("No messages", "No message of this topic has this key.");
  if (total > 0) return empty("No messages", "No message of this topic was stored before that time.");
  return h("div", { class: "empty" }, h("strong", null, "No messages"), h("p", null, "This topic holds no messages: none was sent, or all have expired. To send one:"), command(`gantry produce ${form.topic} 'first message'`));
}

export const keyOf = (message) => `${message.shard ?? ""}/${message.topic}/${message.queue_id}/${message.queue_offset}/${message.physical_offset}`;

/** Return the link to the view of one message. */
export const messageLink = (message) =>
  link("message", { topic: message.topic, queue: message.queue_id, offset: message.queue_offset, shard: message.shard }, "Open", { class: "button quiet", "aria-label": `Open message ${message.queue_offset} of queue ${message.queue_id}` });

/** Return the button that sends a message again; null for one of a system topic. */
export const resendButton = (message) =>
  message.topic.startsWith("%") ? null : button("Resend", () => resendMessage(message, message.shard ?? ownShard() ?? ""), { class: "quiet", disabled: isResending(), "aria-label": `Resend message ${message.queue_offset}` });

/** Return the element of one message: a line, and all of its content while it is open. `actions` are its buttons. */
export function messageItem(message, openOnes, actions = null) {
  const key = keyOf(message);
  const isOpen = openOnes.has(key);
  const toggle = () => { isOpen ? openOnes.delete(key) : openOnes.add(key); changed(); };
  const place = message.shard && allShards().length > 1 ? `${message.shard} · ${message.queue_id}` : `queue ${message.queue_id}`;
  return h("li", { class: `message${isOpen ? " open" : ""}`, key, "data-message": message.message_id },
    h("div", { class: "message-line" },
      h("button", { type: "button", class: "message-open", "aria-expanded": String(isOpen), onclick: toggle },
        h("svg", { class: "icon turn", viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" }, h("path", { d: "M6 3.500 10.500 8 6 12.500" })),
        h("span", { class: "faint message-place" }, place), h("span", { class: "number message-offset" }, count(message.queue_offset)),
        h("span", { class: "number faint" }, time(message.stored_wall_ms)),
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

/** Return the facts of a message: its ids, keys, times and places. Keys are links to a search by key. */
export const messageFacts = (message) =>
  facts([
    ["id", h("span", { class: "mono" }, plain(message.message_id))],
    message.offset_message_id === message.message_id ? null : ["broker's id", h("span", { class: "mono" }, message.offset_message_id)],
    ["topic", h("span", { class: "mono" }, `${plain(message.topic)} · queue ${message.queue_id} · offset ${count(message.queue_offset)}`)],
    ["keys", message.keys.length === 0 ? "none" : h("span", { class: "link-row" }, message.keys.map((key) => link("messages", { how: "key", topic: message.topic, key }, plain(key), { key, class: "mono" })))],
    message.tags ? ["tag", plain(message.tags)] : null,
    ["sent", h("span", null, time(message.born_wall_ms, true), ` from ${message.born_host}`)],
    ["stored", h("span", null, time(message.stored_wall_ms, true), ` at ${count(message.physical_offset)}, ${bytes(message.bytes)}`)],
    message.reconsume_times > 0 ? ["retries", count(message.reconsume_times)] : null,
  ]);

export const messageProperties = (message) =>
  h("dl", { class: "properties" }, Object.entries(message.properties).map(([name, value]) =>
    h("div", { key: name }, h("dt", null, plain(name)), h("dd", null, plain(value)))));

function messageDetails(message) {
  const { body } = message;
  return h("div", { class: "message-whole" },
    messageFacts(message), h("h3", null, "Properties"), messageProperties(message),
    h("h3", null, `Body, ${bytes(message.body_bytes)}${body.is_compressed ? ", decompressed" : ""}`),
    body.fault === null ? null : note("warn", body.fault),
    h("pre", { class: "body", tabindex: 0, role: "region", "aria-label": "Body" }, body.form === "hex" ? hexDump(body.shown) : plain(body.shown)),
    body.is_cut ? h("p", { class: "faint" }, `The first ${bytes(BODY_BYTES)} are shown.`) : null);
}
