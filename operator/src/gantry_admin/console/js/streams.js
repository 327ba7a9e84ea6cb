// Shared parts of search and live tail: their forms, and streams of events from one sidecar for each shard.
//
// This sidecar relays the stream of another shard, so the page speaks to one sidecar only.

import { withToken } from "./access.js";
import { events, Refused, Unreachable } from "./api.js";
import { h } from "./dom.js";
import { messageItem, messageLink, resendButton } from "./messages.js";
import { currentView } from "./router.js";
import { changed, state } from "./store.js";

export const BODY_BYTES = 4096;
const BACK_OFF_MS = [500, 1000, 2000, 4000];

/** Return the shards to read, the own one first, which needs no parameter; null while the group is not known. */
export function shardsToRead() {
  if (state.group === null) return null;
  const own = state.group.members.find((member) => member.is_self)?.status?.broker_name ?? null;
  const others = state.group.shards.map((shard) => shard.broker_name).filter((name) => name !== own);
  return [{ name: own ?? "this shard", parameter: null }, ...others.map((name) => ({ name, parameter: name }))];
}

/** Return the path of a stream of one shard. Empty values are left out. */
export function streamPath(base, values, shard) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== false && value !== null).map(([name, value]) => [name, String(value)]));
  query.set("body_bytes", String(BODY_BYTES));
  if (shard.parameter !== null) query.set("shard", shard.parameter);
  return `${base}?${query}`;
}

/** Pass each event of a stream to `take`, after asking for a token if one is required. Raises Refused or Unreachable. */
export const readStream = (path, options, take, why) =>
  withToken(async () => {
    for await (const event of events(path, options)) take(event);
  }, why);

/** Read a stream again and again after its last event, until it is aborted or refused; `onFault` gets each fault. */
export async function followStream(path, signal, take, onFault, why) {
  let lastId = null;
  for (let tries = 0; !signal.aborted; tries += 1) {
    try {
      await readStream(path, { signal, lastId }, (event) => {
        tries = 0;
        lastId = event.id ?? lastId;
        take(event);
      }, why);
    } catch (error) {
      if (!(error instanceof Refused || error instanceof Unreachable)) throw error;
      if (signal.aborted) return;
      const isOver = error instanceof Refused && error.status !== 429 && error.status < 500;
      onFault(error.message, isOver);
      if (isOver) return;
    }
    await new Promise((resolve) => setTimeout(resolve, BACK_OFF_MS[Math.min(tries, BACK_OFF_MS.length - 1)]));
  }
}

/** Take the values of a form from the address, if it has changed; return whether it has and names a topic. */
export function takeAddress(form, last) {
  const { parameters } = currentView();
  const now = parameters.toString();
  if (now === last.parameters) return false;
  last.parameters = now;
  for (const name of Object.keys(form)) {
    const value = parameters.get(name);
    if (value !== null) form[name] = typeof form[name] === "boolean" ? value === "true" : value;
    else if (now !== "") form[name] = typeof form[name] === "boolean" ? false : "";
  }
  return parameters.get("topic") !== null;
}

/** Return the parameters of the address for a form: its values that are set. */
export const filled = (form) => Object.fromEntries(Object.entries(form).filter(([, value]) => value !== "" && value !== false));

/** Return a field of a form with its label. */
export const field = (form, name, title, props = {}) =>
  h("label", { class: `field ${props.class ?? ""}`, key: name }, h("span", null, title),
    h("input", { autocomplete: "off", spellcheck: "false", ...props, class: "mono", name, value: form[name], oninput: (event) => (form[name] = event.target.value) }));

/** Return the field of a topic, with the names of the topics that this page knows. */
export function topicField(form) {
  const names = state.topics?.topics.filter((topic) => topic.kind === "user").map((topic) => topic.name) ?? [];
  return [
    field(form, "topic", "Topic", { list: "stream-topics", required: true, class: "wide" }),
    h("datalist", { id: "stream-topics", key: "topics" }, names.map((name) => h("option", { value: name, key: name }))),
  ];
}

/** Return the fields of the conditions on messages that search and tail share. */
export const contentFields = (form) => [
  field(form, "tag", "Tag", { placeholder: "paid || sent" }),
  field(form, "sql", "Properties (SQL92)", { placeholder: "region = 'eu'", class: "wide" }),
  field(form, "text", "Body contains", { class: "wide" }),
  field(form, "json_path", "JSON path", { placeholder: "$.order.id = 17", class: "wide" }),
  h("label", { class: "check", key: "ignore_case" }, h("input", { type: "checkbox", name: "ignore_case", checked: form.ignore_case, onchange: (event) => { form.ignore_case = event.target.checked; changed(); } }), "ignore case"),
];

/** Return the elements of messages of several shards, each with a link to its view and a button to send it again. */
export const shardMessages = (entries, open) =>
  h("ol", { class: "messages", key: "list" }, entries.map((entry) => {
    const message = { ...entry.message, shard: entry.shard };
    return messageItem(message, open, [resendButton(message), messageLink(message)]);
  }));
