// The views of topics with their queues, and of consumer groups with their lag.

import { h } from "./dom.js";
import { deleteGroupDialog, deleteTopicDialog, groupDialog, newTopicDialog, topicDialog } from "./edits.js";
import { count, duration, plural, short } from "./format.js";
import { lagDetails, trendCell, waitCell, worstGroupCell } from "./lag.js";
import { resetDialog } from "./offsets.js";
import { badge, button, command, empty, link, note, shardChoice, table, time, topicLinks } from "./parts.js";
import { groupsOfShards } from "./shard_groups.js";
import { ownShard } from "./shards.js";
import { changed, selectShard, state } from "./store.js";
import { currentView, go, hrefOf } from "./router.js";

const filter = { topics: "", groups: "", isAll: false };
const openTopics = new Set();
const openGroups = new Set();

const addressed = { topic: null, group: null }; // the topic and the group of the last address, whose rows were opened

/** Open the row that the address names, once for each address, and show it. */
function openAddressed(name, filterName, openOnes) {
  const wanted = currentView().parameters.get(name);
  if (wanted === addressed[name]) return;
  addressed[name] = wanted;
  if (wanted === null) return;
  openOnes.add(wanted);
  filter[filterName] = "";
  if (name === "topic" && /^%(RETRY|DLQ)%/.test(wanted)) filter.isAll = true;
  requestAnimationFrame(() => document.querySelector(`[data-${name}="${CSS.escape(wanted)}"]`)?.scrollIntoView({ block: "nearest" }));
}

/** Return the view of topics. */
export function topicsView() {
  openAddressed("topic", "topics", openTopics);
  const { topics } = state;
  if (topics === null) return empty("No topics yet", state.tablesFault ?? "Loading…");
  const words = filter.topics.toLowerCase();
  const shown = topics.topics.filter((topic) => (filter.isAll || topic.kind === "user") && topic.name.toLowerCase().includes(words));
  const hidden = topics.topics.length - topics.topics.filter((topic) => topic.kind === "user").length;
  return h("section", { class: "panel", "aria-labelledby": "title" },
    h("header", { class: "panel-head wrap" }, h("h1", { id: "title" }, "Topics"), h("span", { class: "faint" }, plural(shown.length, "topic")),
      h("span", { class: "grow" }),
      button("New topic", () => newTopicDialog(), { class: "quiet" }), shardSelector(), search("topics", "Filter topics"),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: filter.isAll, onchange: (event) => { filter.isAll = event.target.checked; changed(); } }), `retry, dead letters, system (${hidden})`)),
    sourceNote(topics),
    shown.length === 0 ? words ? empty("No topics", "No topic name contains this text.") : h("div", { class: "empty" }, h("strong", null, "No topics"), h("p", null, "A topic appears here with its first message. To send one:"), command("gantry produce orders 'first message'"))
      : table("Topics table", [
          { title: "Topic" }, { title: "Messages", class: "right" }, { title: "Rate", class: "right" }, { title: "Queues", class: "right" }, { title: "Permission", class: "middle" }, { title: "Last message", class: "right" }, { title: "Longest wait", class: "right" },
        ], shown.flatMap(topicRows)));
}

/** Return the choice of a shard, for every view of tables and messages. */
export function shardSelector() {
  const names = state.group?.shards.map((shard) => shard.broker_name) ?? [];
  const own = state.group?.members.find((member) => member.is_self)?.status?.broker_name ?? null;
  return shardChoice(names, own, state.shard, selectShard);
}

function topicRows(topic) {
  const isOpen = openTopics.has(topic.name);
  const last = Math.max(0, ...topic.queues.map((queue) => queue.last_stored_ms ?? 0));
  const row = h("tr", { key: topic.name, class: isOpen ? "open" : "", "data-topic": topic.name },
    h("td", null, opener(openTopics, topic.name, "topics", "topic"), topic.kind === "user" ? null : badge("plain", topic.kind), link("messages", { topic: topic.name }, "Messages", { class: "row-link", "aria-label": `Messages of ${topic.name}` })),
    h("td", { class: "right number" }, count(topic.messages)),
    h("td", { class: "right number" }, topic.rate === undefined ? "–" : `${short(topic.rate)}/s`),
    h("td", { class: "right number" }, topic.read_queues === topic.write_queues ? count(topic.read_queues) : `${topic.read_queues} / ${topic.write_queues}`),
    h("td", { class: "middle" }, { "rw": "read, write", "r-": "read", "-w": "write", "--": "none" }[topic.permission] ?? topic.permission),
    h("td", { class: "right number" }, time(last)),
    worstGroupCell(topic.name));
  return isOpen ? [row, h("tr", { key: `${topic.name}/queues`, class: "inner" }, h("td", { colspan: 7 }, linksOf(topic), queues(topic), topic.kind === "user" ? topicButtons(topic) : null))] : [row];
}

/** Return links from a topic to its messages, and to the groups that consume it. */
function linksOf(topic) {
  const names = (state.groups?.groups ?? []).filter((group) => group.queues.some((queue) => queue.topic === topic.name)).map((group) => group.name);
  return topicLinks(topic.name, "topics", h("span", { class: "faint" }, names.length === 0 ? "no group consumes it" : "consumed by"), names.map((group) => link("groups", { group }, group, { class: "mono", key: group })));
}

const topicButtons = (topic) =>
  h("div", { class: "change-buttons" },
    button("Settings", () => topicDialog(topic), { class: "quiet", "aria-label": `Settings of topic ${topic.name}` }),
    button("Delete", () => deleteTopicDialog(topic), { class: "quiet bad", "aria-label": `Delete topic ${topic.name}` }));

const queues = (topic) =>
  h("div", { class: "queues" }, topic.queues.map((queue) =>
    h("div", { class: "queue", key: queue.queue_id }, h("b", null, `queue ${queue.queue_id}`),
      h("span", { class: "number" }, `${count(queue.begin)} – ${count(queue.end)}`),
      h("span", { class: "faint number" }, queue.last_stored_ms ? time(queue.last_stored_ms) : "empty"),
      button("Newest", () => go("messages", { topic: topic.name, queue: queue.queue_id }), { class: "quiet", "aria-label": `Newest messages of ${topic.name}, queue ${queue.queue_id}` }))));

/** Return the view of consumer groups. */
export function groupsView() {
  openAddressed("group", "groups", openGroups);
  const { groups } = state;
  if (groups === null) return empty("No groups yet", state.tablesFault ?? "Loading…");
  const words = filter.groups.toLowerCase();
  const shown = groups.groups.filter((group) => group.name.toLowerCase().includes(words));
  const whole = groupsOfShards();
  const heading = whole === null ? h("h1", { id: "title" }, "Consumer groups") : h("h2", { id: "shard-title" }, `On ${state.shard ?? ownShard()}`);
  const own = h("section", { class: "panel", "aria-labelledby": whole === null ? "title" : "shard-title", key: "shard" },
    h("header", { class: "panel-head wrap" }, heading, h("span", { class: "faint" }, plural(shown.length, "group")),
      h("span", { class: "grow" }), shardSelector(), search("groups", "Filter groups")),
    sourceNote(groups),
    shown.length === 0 ? empty("No groups", words ? "No group name contains this text." : "No group has consumed from this broker yet.")
      : table("Consumer groups table", [
          { title: "Group" }, { title: "Lag", class: "right" }, { title: "Waiting", class: "right" }, { title: "Trend", class: "middle" }, { title: "Retries", class: "right" }, { title: "Dead letters", class: "right" }, { title: "Topics", class: "right" },
        ], shown.flatMap(groupRows)));
  return h("div", { class: "stack" }, whole, own);
}

function groupRows(group) {
  const isOpen = openGroups.has(group.name);
  const topics = new Set(group.queues.map((queue) => queue.topic));
  const row = h("tr", { key: group.name, class: isOpen ? "open" : "", "data-group": group.name },
    h("td", null, opener(openGroups, group.name, "groups", "group")),
    h("td", { class: `right number${group.lag > 0 ? " some" : ""}`, "data-lag": group.lag }, count(group.lag)),
    waitCell(group), trendCell(group),
    h("td", { class: "right number" }, count(group.retry_lag)),
    h("td", { class: "right number" }, group.dead_letters === 0 ? "0"
      : button(count(group.dead_letters), () => go("letters", { group: group.name }), { class: "quiet bad", "aria-label": `${group.dead_letters} dead letters of ${group.name}` })),
    h("td", { class: "right number" }, count(topics.size)));
  return isOpen ? [row, h("tr", { key: `${group.name}/queues`, class: "inner" }, h("td", { colspan: 7 }, groupLinks(group, topics), lagDetails(group), groupButtons(group)))] : [row];
}

/** Return links from a group to its clients, its dead letters and its topics. */
const groupLinks = (group, topics) =>
  h("p", { class: "link-row" }, link("clients", { group: group.name }, "Clients", { key: "clients" }), link("letters", { group: group.name }, "Dead letters", { key: "letters" }),
    topics.size === 0 ? null : h("span", { class: "faint" }, "consumes"), [...topics].filter((topic) => !topic.startsWith("%RETRY%")).map((topic) => link("messages", { topic }, topic, { class: "mono", key: `topic-${topic}` })));

const groupButtons = (group) =>
  h("div", { class: "change-buttons" },
    button("Reset offsets", () => resetDialog(group), { class: "quiet", "aria-label": `Reset offsets of ${group.name}` }),
    button("Settings", () => groupDialog(group), { class: "quiet", "aria-label": `Settings of group ${group.name}` }),
    button("Delete", () => deleteGroupDialog(group), { class: "quiet bad", "aria-label": `Delete group ${group.name}` }));

/** Return the button that opens a row; the address of the view names the row that was opened last in `parameter`. */
const opener = (open, name, view, parameter) =>
  h("button", {
    type: "button", class: "opener", "aria-expanded": open.has(name) ? "true" : "false",
    onclick: () => {
      const isOpened = !open.has(name);
      isOpened ? open.add(name) : open.delete(name);
      nameInAddress(view, parameter, isOpened ? name : null);
      changed();
    },
  }, h("svg", { class: "icon turn", viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" }, h("path", { d: "M6 3.500 10.500 8 6 12.500" })), h("span", { class: "mono" }, name));

/** Put a row's name into the address without going there, so that the place on the page stays. */
function nameInAddress(view, parameter, name) {
  addressed[parameter] = name;
  history.replaceState(null, "", hrefOf(view, { [parameter]: name }));
}

const search = (what, label) =>
  h("input", { type: "search", class: "search", placeholder: label, "aria-label": label, "data-search": true, value: filter[what], oninput: (event) => { filter[what] = event.target.value; changed(); } });

/** Return a note if a table is outdated, comes from disk, or leaves rows out; otherwise null. */
function sourceNote(document) {
  if (state.tablesFault !== null) return note("warn", `Outdated: ${state.tablesFault}`);
  if (document.source === "disk") return note("warn", `From the broker's files, ${duration(document.age_ms / 1000)} old: ${document.reason ?? ""}`);
  return document.left_out > 0 ? note("plain", `${count(document.left_out)} more are not shown.`) : null;
}
