// One message: its body as text, JSON or hex, its properties, its progress through consumer groups, and its neighbours in
// the queue. The address names shard, topic, queue and offset, or the broker's id of the message.

import { get, path, Refused } from "./api.js";
import { withToken } from "./access.js";
import { faultState } from "./faults.js";
import { h } from "./dom.js";
import { bytes, count, hexDump, hexOf, plain } from "./format.js";
import { prettyJson } from "./json.js";
import { messageFacts, messageProperties, resendButton } from "./messages.js";
import { badge, copyButton, empty, link, note, topicLinks } from "./parts.js";
import { progressSection } from "./progress.js";
import { outcomes } from "./resend.js";
import { currentView, hrefOf } from "./router.js";
import { atShard, hasShards, ownShard } from "./shards.js";
import { changed } from "./store.js";

const BODY_BYTES = 65_536; // The most that the sidecar returns of one body.
const WHY = "Reading messages requires a token.";
const FORMS = [["text", "Text"], ["json", "JSON"], ["hex", "Hex"]];

const shown = { address: null, message: null, queue: null, error: null, progress: null, progressError: null, form: null };

/** Return the view of one message. */
export function messageView() {
  const { parameters } = currentView();
  const address = parameters.toString();
  if (address !== shown.address && hasShards()) {
    Object.assign(shown, { address, message: null, queue: null, error: null, progress: null, progressError: null, form: null });
    queueMicrotask(load);
  }
  const topic = shown.message?.topic ?? parameters.get("topic") ?? "";
  return h("div", { class: "stack" },
    h("section", { class: "panel", "aria-labelledby": "title", key: "head" },
      h("header", { class: "panel-head wrap" }, h("h1", { id: "title" }, "Message"), trail(parameters), h("span", { class: "grow" }), topicLinks(topic, "messages")),
      shown.error !== null ? faultState(shown.error, load) : shown.message === null ? empty("Reading…", topic) : head()),
    outcomes(),
    shown.message === null ? null : [bodySection(), progressSection(shown, loadProgress), propertiesSection()]);
}

/** Return the way to this message: its topic and its queue, as links. */
function trail(parameters) {
  const [topic, queue, offset, shard] = ["topic", "queue", "offset", "shard"].map((name) => parameters.get(name));
  if (topic === null) return null;
  return h("nav", { class: "link-row trail", "aria-label": "Place" },
    link("messages", { topic }, plain(topic), { class: "mono", key: "topic" }), link("messages", { topic, queue, shard }, `queue ${queue}`, { key: "queue" }),
    h("span", { class: "number", key: "offset" }, count(Number(offset))), shard === null ? null : badge("plain", plain(shard)));
}

async function load() {
  const { address } = shown;
  Object.assign(shown, { error: null });
  changed();
  try {
    const parameters = new URLSearchParams(address);
    const found = await withToken(() => (parameters.has("id") ? readById(parameters) : readAt(parameters)), WHY);
    if (shown.address !== address) return;
    Object.assign(shown, found, { form: defaultForm(found.message, parameters.get("as")) });
    loadProgress();
  } catch (error) {
    if (shown.address === address) shown.error = error;
  }
  changed();
}

async function readAt(parameters) {
  const [topic, queue, offset, shard] = ["topic", "queue", "offset", "shard"].map((name) => parameters.get(name));
  const wanted = `${path("queues", topic, queue, "messages")}?from=${encodeURIComponent(offset)}&count=1&body_bytes=${BODY_BYTES}`;
  const document = await get(atShard(wanted, shard));
  const message = document.messages.find((one) => String(one.queue_offset) === offset);
  if (message === undefined) throw new Refused(404, `queue ${queue} of ${topic} has no readable message at offset ${offset}`);
  return { message: { ...message, shard: shard ?? ownShard() }, queue: { begin: document.begin, end: document.end } };
}

/** Read a message by its id, and put its place into the address. */
async function readById(parameters) {
  const query = new URLSearchParams({ id: parameters.get("id"), body_bytes: 0, ...(parameters.has("topic") ? { topic: parameters.get("topic") } : {}) });
  const shard = parameters.get("shard");
  const { messages: [message] } = await get(atShard(`/v1/messages?${query}`, shard));
  if (message === undefined) throw new Refused(404, "no message of this broker has that id");
  const place = new URLSearchParams(hrefOf("message", { topic: message.topic, queue: message.queue_id, offset: message.queue_offset, shard }).split("?")[1]);
  history.replaceState(null, "", `#/message?${place}`);
  shown.address = place.toString();
  const found = await readAt(place);
  Object.assign(shown, found, { form: defaultForm(found.message, null) });
  loadProgress();
  return found;
}

async function loadProgress() {
  const { address, message } = shown;
  shown.progressError = null;
  changed();
  try {
    const progress = await withToken(() => get(atShard(path("queues", message.topic, message.queue_id, message.queue_offset, "progress"), message.shard)), WHY);
    if (shown.address === address) shown.progress = progress;
  } catch (error) {
    if (shown.address === address) shown.progressError = error;
  }
  changed();
}

function head() {
  const { message, queue } = shown;
  const neighbour = (offset, text, rel) =>
    offset < queue.begin || offset >= queue.end ? h("span", { class: "button", "aria-disabled": "true", key: rel }, text)
      : link("message", { topic: message.topic, queue: message.queue_id, offset, shard: message.shard }, text, { class: "button", rel, key: rel });
  const original = message.properties.ORIGIN_MESSAGE_ID;
  const deadOf = /^%DLQ%(.+)$/.exec(message.topic)?.[1] ?? null;
  return h("div", { class: "message-head" },
    h("div", { class: "message-tools" },
      neighbour(message.queue_offset - 1, "Previous", "prev"), neighbour(message.queue_offset + 1, "Next", "next"),
      copyButton("Address", "Copy the address of this message", () => location.href), copyButton("Id", "Copy the message id", () => message.message_id), resendButton(message),
      original ? link("message", { id: original, shard: message.shard }, `Original in ${plain(message.properties.RETRY_TOPIC ?? "its topic")}`, { class: "button", key: "original" }) : null,
      deadOf === null ? null : link("letters", { group: deadOf }, `Dead letters of ${plain(deadOf)}`, { class: "button", key: "letters" })),
    messageFacts(message));
}

// -- body ----------------------------------------------------------------------------------------------------------------

/** Return the form in which a body is shown first: the one in the address, else JSON if it is an object or an array. */
function defaultForm(message, wanted) {
  if (message.body.form === "hex") return "hex";
  if (FORMS.some(([name]) => name === wanted)) return wanted;
  return prettyJson(message.body.shown) === null ? "text" : "json";
}

function setForm(form) {
  shown.form = form;
  const { parameters } = currentView();
  parameters.set("as", form);
  shown.address = parameters.toString();
  history.replaceState(null, "", `#/message?${parameters}`);
  changed();
}

/** Return the body in the chosen form; null if it does not have that form. */
function bodyText(form) {
  const { body } = shown.message;
  if (form === "hex") return hexDump(body.form === "hex" ? body.shown : hexOf(body.shown));
  if (body.form === "hex") return null;
  return form === "json" ? prettyJson(body.shown) : body.shown;
}

function bodySection() {
  const { message: { body, body_bytes: size } } = shown;
  const text = bodyText(shown.form);
  const facts = [bytes(size), body.is_compressed ? "stored compressed, shown decompressed" : null].filter((one) => one !== null);
  return h("section", { class: "panel", "aria-labelledby": "body-title", key: "body" },
    h("header", { class: "panel-head wrap" }, h("h2", { id: "body-title" }, "Body"), h("span", { class: "faint" }, facts.join(", ")), h("span", { class: "grow" }),
      h("div", { class: "segments", role: "radiogroup", "aria-label": "Form of the body" }, FORMS.map(([name, title]) =>
        h("label", { class: "segment", key: name }, h("input", { type: "radio", name: "form", value: name, checked: shown.form === name, onchange: () => setForm(name) }), h("span", null, title)))),
      copyButton("Copy", "Copy the body", () => text ?? "")),
    h("div", { class: "section-body" },
      body.fault === null ? null : note("warn", `It is shown as stored, because it cannot be decompressed: ${body.fault}`),
      size === 0 ? h("p", { class: "faint" }, "The body is empty.")
        : text === null ? h("p", { class: "faint" }, shown.form === "json" ? `The body is no JSON object or array${body.is_cut ? ", or only its beginning is shown" : ""}.` : "The body is no readable text. Choose Hex.")
        : h("pre", { class: "body whole", tabindex: 0, role: "region", "aria-label": "Content of the body" }, shown.form === "hex" ? text : plain(text)),
      body.is_cut ? h("p", { class: "faint" }, `The first ${bytes(BODY_BYTES)} are shown.`) : null));
}

const propertiesSection = () =>
  h("section", { class: "panel", "aria-labelledby": "properties-title", key: "properties" },
    h("header", { class: "panel-head" }, h("h2", { id: "properties-title" }, "Properties")),
    h("div", { class: "section-body" }, messageProperties(shown.message)));
