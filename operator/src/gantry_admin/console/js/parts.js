// Shared parts of all views, such as icons, badges, meters, notes, buttons and tables. Each is a function from values to
// elements.

import { h } from "./dom.js";
import { exactly, isKnown, moment, UNKNOWN, utc } from "./format.js";
import { hasView, hrefOf } from "./router.js";

const PATHS = {
  moon: "M13.5 9.4A5.8 5.8 0 0 1 6.6 2.5a5.8 5.8 0 1 0 6.9 6.9Z",
  sun: "M8 4.8a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 0 0 0-6.4ZM8 1v1.4M8 13.6V15M1 8h1.4M13.6 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  key: "M10.2 2a3.8 3.8 0 0 0-3.6 5L2 11.6V14h2.4v-1.6H6v-1.6h1.6l1.2-1.2A3.8 3.8 0 1 0 10.2 2ZM11 5h.01",
  help: "M8 14.5A6.5 6.5 0 1 0 8 1.500a6.500 6.500 0 0 0 0 13ZM6.200 6.200a1.800 1.800 0 1 1 2.600 1.600c-.5.3-.8.6-.8 1.200M8 11.300h.01",
  process: "M4.500 4.500h7v7h-7zM6 1.500v3M10 1.500v3M6 11.500v3M10 11.500v3M1.500 6h3M1.500 10h3M11.500 6h3M11.500 10h3",
  machine: "M9 1.500 3.500 9H8l-1 5.500L12.500 7H8z",
  master: "M2 4c0-1.100 2.700-2 6-2s6 .9 6 2-2.700 2-6 2-6-.9-6-2ZM2 4v8c0 1.100 2.700 2 6 2s6-.9 6-2V4M2 8c0 1.100 2.700 2 6 2s6-.9 6-2",
  chevron: "M6 3.500 10.500 8 6 12.500",
  copy: "M5.500 5.500v-3h8v8h-3M2.500 5.500h8v8h-8z",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.700 10.700 14 14",
  resend: "M13.500 8a5.500 5.500 0 1 1-1.700-4M13.500 1.500V4.500H10.500",
};

/** Return an icon, 16 by 16, hidden from screen readers: the caller adds a label where one is needed. */
export const icon = (name) =>
  h("svg", { class: "icon", viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, h("path", { d: PATHS[name] }));

export const badge = (tone, text, title) => h("span", { class: `badge ${tone}`, title }, text);

export const dot = (tone, isLive = false) => h("span", { class: `dot ${tone}${isLive ? " live" : ""}`, "aria-hidden": "true" });

export const note = (tone, ...children) => h("p", { class: `note ${tone}` }, ...children);

export const empty = (title, text) => h("div", { class: "empty" }, h("strong", null, title), h("p", null, text));

/** Return a meter that shows how full something is. */
export function meter(label, share, text, tone = "plain") {
  const part = Math.min(Math.max(share ?? 0, 0), 1);
  return h("div", { class: "meter" },
    h("div", { class: "meter-words" }, h("span", null, label), h("span", { class: "number" }, text)),
    h("div", { class: "meter-rail" }, h("div", { class: `meter-bar ${tone}`, style: { "--part": part.toFixed(4) } })));
}

/** Return the choice of a shard, or null with fewer than two. `own` is this sidecar's shard. */
export function shardChoice(names, own, chosen, onchoose) {
  if (names.length < 2) return null;
  return h("label", { class: "field row", key: "shard" }, h("span", null, "Shard"),
    h("select", { name: "shard", onchange: (event) => onchoose(event.target.value === own ? null : event.target.value) }, names.map((name) =>
      h("option", { key: name, value: name, selected: name === (chosen ?? own) }, name))));
}

/** Return a table that can be scrolled with the keyboard if it is wider than the page. */
export const table = (label, columns, rows) =>
  h("div", { class: "table-box", tabindex: 0, role: "region", "aria-label": label },
    h("table", null,
      h("thead", null, h("tr", null, columns.map((column) => h("th", { scope: "col", class: column.class }, column.title)))),
      h("tbody", null, rows)));

/** Return a button with a text. */
export const button = (text, onclick, props = {}) =>
  h("button", { type: "button", ...props, class: `button ${props.class ?? ""}`, onclick }, props.icon ? icon(props.icon) : null, text);

/** Return a command with a button that copies it; this page does not run commands. */
export const command = (text) => h("div", { class: "command" }, h("code", null, text), copyButton(null, `Copy: ${text}`, () => text));

/** Return a time in the reader's zone, with UTC in its tooltip; `isExact` shows milliseconds, and UTC beside it. */
export function time(wallMs, isExact = false) {
  if (!isKnown(wallMs) || wallMs <= 0) return h("span", null, UNKNOWN);
  const attributes = { datetime: new Date(wallMs).toISOString(), title: utc(wallMs) };
  if (!isExact) return h("time", attributes, moment(wallMs));
  const isUtc = new Date(wallMs).getTimezoneOffset() === 0;
  return h("span", null, h("time", attributes, exactly(wallMs)), " ", h("span", { class: "faint" }, isUtc ? "UTC" : `(${utc(wallMs)})`));
}

/** Return a link to a view of this console. */
export const link = (view, parameters, text, props = {}) => h("a", { ...props, href: hrefOf(view, parameters) }, text);

const VIEWS_OF_TOPIC = [["messages", "Messages"], ["search", "Search"], ["tail", "Tail"], ["topics", "Topic"]];

/** Return links to the views of a topic, except the current one and those that this console does not have. */
export function topicLinks(topic, current, ...more) {
  if (topic === "") return null;
  const views = VIEWS_OF_TOPIC.filter(([view]) => view !== current && hasView(view));
  return h("p", { class: "link-row" }, views.map(([view, title]) => link(view, { topic }, title, { key: view })), more);
}

/** Return a button that copies the text that `copied` returns; the button shows for a moment whether that worked. */
export function copyButton(text, label, copied) {
  const copy = async (event) => {
    const { currentTarget } = event;
    currentTarget.dataset[(await copyText(copied())) ? "done" : "failed"] = "";
    setTimeout(() => { delete currentTarget.dataset.done; delete currentTarget.dataset.failed; }, 1200);
  };
  return h("button", { type: "button", class: "button quiet copy", "aria-label": label, title: label, onclick: copy }, icon("copy"), text);
}

/** Copy a text, and return whether that worked. Browsers have no clipboard object on pages over plain HTTP. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    return isCopied;
  }
}

/** Return a list of names and values. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter((pair) => pair !== null).map(([name, value, key]) =>
    h("div", { key: key ?? name }, h("dt", null, name), h("dd", null, value))));
