// The clients of a consumer group that are connected now, on all shards, and what they subscribe to.

import { path } from "./api.js";
import { faultState } from "./faults.js";
import { h } from "./dom.js";
import { plain, plural } from "./format.js";
import { button, empty, link, note, table } from "./parts.js";
import { currentView } from "./router.js";
import { allShards, askShards, hasShards, ownShard } from "./shards.js";
import { changed, state } from "./store.js";

const shown = { group: null, knewShards: false, answers: null, faults: [], error: null };

/** Return the view of the clients of the group in the address. */
export function clientsView() {
  const group = currentView().parameters.get("group") ?? "";
  if (hasShards() && (group !== shown.group || (!shown.knewShards && allShards().length > 1))) {
    Object.assign(shown, { group, knewShards: state.group !== null, answers: null, faults: [], error: null });
    if (group !== "") queueMicrotask(load);
  }
  return h("section", { class: "panel", "aria-labelledby": "title", "aria-busy": String(shown.answers === null && shown.error === null) },
    h("header", { class: "panel-head wrap" }, h("h1", { id: "title" }, "Clients"), link("groups", { group }, plain(group), { class: "mono" }), h("span", { class: "grow" }),
      button("Refresh", load, { class: "quiet" })),
    content(group));
}

async function load() {
  const { group } = shown;
  try {
    const { answers, faults } = await askShards(allShards(), path("groups", group, "clients"), "The clients of a group require a token.");
    if (shown.group === group) Object.assign(shown, { answers, faults, error: null });
  } catch (error) {
    if (shown.group === group) Object.assign(shown, { error });
  }
  changed();
}

function content(group) {
  if (group === "") return empty("No group chosen", "Choose a group in the view of consumer groups.");
  if (shown.error !== null) return faultState(shown.error, load);
  if (shown.answers === null) return empty("Reading…", group);
  const rows = shown.answers.flatMap(({ shard, document }) => document.clients.map((client) => ({ ...client, shard: shard ?? ownShard() })));
  const model = shown.answers.map(({ document }) => document).find((document) => document.message_model);
  const left = shown.answers.reduce((sum, { document }) => sum + document.left_out, 0);
  return [
    shown.faults.map(({ shard, error }) => h("div", { role: "alert", key: shard }, note("warn", `Shard ${shard} is missing here: ${error.message}`))),
    rows.length === 0 ? empty("No clients", "No consumer of this group is connected now. Its committed offsets remain, and its lag grows with each message.")
      : table("Clients table", [{ title: "Client" }, { title: "Address" }, { title: "Shard" }, { title: "Language" }], rows.map((row) =>
          h("tr", { key: `${row.shard}/${row.client_id}`, "data-client": row.client_id }, h("td", { class: "mono" }, plain(row.client_id)), h("td", { class: "mono" }, plain(row.address)), h("td", null, row.shard ?? ""), h("td", null, plain(row.language ?? ""))))),
    left > 0 ? note("plain", `${plural(left, "further client")} not shown.`) : null,
    model ? subscriptions(model) : null,
  ];
}

const subscriptions = (document) =>
  h("div", { class: "section-body", key: "subscriptions" }, h("h2", null, "Subscriptions"),
    h("p", { class: "faint" }, document.message_model === "BROADCASTING" ? "Broadcast: each client receives all messages, and keeps its own offsets." : "The clients share the queues of each topic."),
    h("dl", { class: "facts" }, document.subscriptions.map((one) =>
      h("div", { key: one.topic }, h("dt", null, link("messages", { topic: one.topic }, plain(one.topic), { class: "mono" })),
        h("dd", { class: "mono" }, `${plain(one.expression ?? "*")}${one.expression_type === "SQL92" ? " (SQL92)" : ""}`)))));
