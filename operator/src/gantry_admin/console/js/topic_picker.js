// The field in which a topic is picked from a list with search: a combobox with a listbox, as screen readers expect one.
//
// The list has the topics of all shards. Typing filters it: names that begin with the text come first. A name that is not
// in the list can be typed, too, because a sidecar lists a limited number of topics.

import { get } from "./api.js";
import { h } from "./dom.js";
import { plural } from "./format.js";
import { badge } from "./parts.js";
import { allShards, atShard } from "./shards.js";
import { changed, state } from "./store.js";

const SHOWN_MAX = 100; // The most options of the list: more would make drawing slow, and are too many to read.
const FRESH_MS = 10_000; // The age up to which the topics of other shards are used without a new request.
const RANK = { user: 0, retry: 1, "dead-letter": 2, system: 3 };

const others = { topics: [], atMs: -Infinity };
const picker = { isOpen: false, active: -1, typed: null };

/** Return the topics of all shards as `[{name, kind}]`, by kind and name. */
export function knownTopics() {
  const kinds = new Map([...(state.topics?.topics ?? []), ...others.topics].map((topic) => [topic.name, topic.kind]));
  return [...kinds].map(([name, kind]) => ({ name, kind })).toSorted((a, b) => RANK[a.kind] - RANK[b.kind] || (a.name < b.name ? -1 : 1));
}

/** Request the topics of the other shards, if the last answers are old. A shard that does not answer is left out. */
async function refreshOthers() {
  if (performance.now() - others.atMs < FRESH_MS) return;
  others.atMs = performance.now();
  const answers = await Promise.allSettled(allShards().map((name) => get(atShard("/v1/topics", name))));
  others.topics = answers.flatMap((answer) => answer.value?.topics ?? []);
  changed();
}

/** Return the topics whose names contain the text, those that begin with it first. */
function matching(text) {
  const words = text.toLowerCase();
  const found = knownTopics().filter((topic) => topic.name.toLowerCase().includes(words));
  return words === "" ? found : found.toSorted((a, b) => Number(!a.name.toLowerCase().startsWith(words)) - Number(!b.name.toLowerCase().startsWith(words)));
}

/**
 * Return the field. `value` is the chosen topic. `onpick` is called with the name that was picked or typed, and whether it
 * was confirmed: a name that is left in the field is used by the next search, but starts none.
 */
export function topicPicker(value, onpick) {
  const text = picker.typed ?? value;
  const found = picker.isOpen ? matching(picker.typed ?? "") : [];
  const shown = found.slice(0, SHOWN_MAX);
  const active = picker.active < shown.length ? picker.active : -1;
  const open = () => { picker.isOpen = true; picker.active = -1; refreshOthers(); changed(); };
  const close = () => { Object.assign(picker, { isOpen: false, active: -1, typed: null }); changed(); };
  const pick = (name, isConfirmed = true) => { close(); onpick(name, isConfirmed); };
  return h("div", { class: "field wide picker", key: "topic" },
    h("label", { for: "topic-input", id: "topic-label" }, "Topic"),
    h("input", {
      id: "topic-input", name: "topic", type: "text", class: "mono", role: "combobox", autocomplete: "off", spellcheck: "false",
      placeholder: "Pick or type a topic", "aria-autocomplete": "list", "aria-expanded": String(picker.isOpen), "aria-controls": "topic-list",
      "aria-activedescendant": active >= 0 ? `topic-option-${active}` : null, value: text,
      onfocus: open, onclick: () => picker.isOpen || open(),
      onblur: (event) => leave(event.target, value, pick, close),
      oninput: (event) => { Object.assign(picker, { typed: event.target.value, isOpen: true, active: -1 }); changed(); },
      onkeydown: (event) => onKey(event, shown, pick, close),
      updated: (element) => { if (document.activeElement === element && picker.typed === null && element.value !== value) element.value = value; },
    }),
    h("ul", { id: "topic-list", role: "listbox", class: "options", "aria-labelledby": "topic-label", hidden: !picker.isOpen || shown.length === 0 },
      shown.map((topic, at) => h("li", {
        key: topic.name, id: `topic-option-${at}`, role: "option", class: `option${at === active ? " active" : ""}`, "aria-selected": String(at === active || topic.name === value),
        onmousedown: (event) => { event.preventDefault(); pick(topic.name); event.currentTarget.closest(".picker").querySelector("input").blur(); },
        updated: (element) => { if (at === active) element.scrollIntoView({ block: "nearest" }); },
      }, h("span", { class: "mono" }, topic.name), topic.kind === "user" ? null : badge("plain", topic.kind)))),
    picker.isOpen ? h("span", { class: "faint picker-count", role: "status" }, countText(found.length)) : null);
}

function countText(number) {
  if (state.topics === null && others.topics.length === 0) return state.tablesFault ?? "Loading topics…";
  if (number === 0) return "No topic has this text in its name.";
  return number > SHOWN_MAX ? `${plural(number, "topic")}; type to narrow the list` : plural(number, "topic");
}

/** Use a name that was typed, and close the list. */
function leave(input, value, pick, close) {
  const typed = input.value.trim();
  if (picker.typed !== null && typed !== "" && typed !== value) pick(typed, false);
  else { input.value = value; close(); }
}

function onKey(event, shown, pick, close) {
  const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (move !== undefined) {
    event.preventDefault();
    picker.active = !picker.isOpen || shown.length === 0 ? 0 : (picker.active + move + shown.length + (picker.active < 0 && move < 0 ? 1 : 0)) % shown.length;
    picker.isOpen = true;
    changed();
  } else if (event.key === "Enter") {
    const name = shown[picker.active]?.name ?? (shown.length === 1 ? shown[0].name : event.target.value.trim());
    if (name === "") return;
    event.preventDefault();
    event.target.value = name;
    pick(name);
  } else if (event.key === "Escape" && picker.isOpen) {
    event.preventDefault();
    close();
  }
}
