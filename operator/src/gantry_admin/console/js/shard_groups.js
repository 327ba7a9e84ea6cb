// The consumer groups of all shards in one table: the sum of the lag, the longest wait, and the shard that has it.
//
// It is shown only if there are several shards. Each shard's own table, below it, has the queues.

import { askShards, allShards, ownShard } from "./shards.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { waitCell } from "./lag.js";
import { button, note, table } from "./parts.js";
import { go } from "./router.js";
import { changed, selectShard } from "./store.js";

const REFRESH_MS = 15_000; // The interval at which sidecars measure the lag.
const shown = { atMs: -Infinity, isBusy: false, answers: [], faults: [], error: null };

/** Return the section with the groups of all shards; null with one shard. */
export function groupsOfShards() {
  const names = allShards();
  if (names.length < 2) return null;
  if (!shown.isBusy && performance.now() - shown.atMs >= REFRESH_MS) {
    shown.isBusy = true;
    queueMicrotask(() => load(names));
  }
  if (shown.answers.length === 0 && shown.error === null) return null; // it is read for the first time
  return h("section", { class: "panel", "aria-labelledby": "title", key: "all-shards" },
    h("header", { class: "panel-head wrap" }, h("h1", { id: "title" }, "Consumer groups"), h("span", { class: "faint" }, "all shards: the sum of the lag, and the longest wait")),
    shown.error === null ? null : h("div", { role: "alert", key: "error" }, note("bad", shown.error)),
    shown.faults.map(({ shard, error }) => h("div", { role: "alert", key: shard }, note("warn", `Shard ${shard} is missing here: ${error.message}`))),
    table("Groups of all shards", [
      { title: "Group" }, { title: "Lag", class: "right" }, { title: "Waiting", class: "right" }, { title: "Retries", class: "right" }, { title: "Dead letters", class: "right" }, { title: "Longest wait in" },
    ], merged().map((group) => h("tr", { key: group.name, "data-all-shards": group.name },
      h("td", { class: "mono" }, group.name), h("td", { class: "right number", "data-lag": group.lag }, count(group.lag)), waitCell(group),
      h("td", { class: "right number" }, count(group.retry_lag)), h("td", { class: "right number" }, count(group.dead_letters)),
      h("td", null, group.lag === 0 ? "–" : button(group.shard, () => open(group), { class: "quiet", "aria-label": `Show ${group.name} in ${group.shard}` }))))));
}

async function load(names) {
  try {
    const { answers, faults } = await askShards(names, "/v1/groups", "The groups of other shards require a token.");
    Object.assign(shown, { answers, faults, error: null });
  } catch (error) {
    shown.error = error.message;
  }
  Object.assign(shown, { atMs: performance.now(), isBusy: false });
  changed();
}

/** Return one row for each group, the longest wait first. A wait that is unknown in any shard with lag is unknown. */
function merged() {
  const groups = new Map();
  for (const { shard, document } of shown.answers) {
    for (const one of document.groups) {
      const known = groups.get(one.name);
      if (known === undefined) {
        groups.set(one.name, { ...one, shard });
        continue;
      }
      if ((one.lag_s ?? Infinity) > (known.lag_s ?? Infinity) || known.lag === 0) known.shard = shard;
      known.lag_s = known.lag_s === null || one.lag_s === null ? null : Math.max(known.lag_s, one.lag_s);
      for (const name of ["lag", "retry_lag", "dead_letters"]) known[name] += one[name];
      known.is_behind ||= one.is_behind;
    }
  }
  return [...groups.values()].toSorted((a, b) => (b.lag_s ?? Infinity) - (a.lag_s ?? Infinity) || b.lag - a.lag || (a.name < b.name ? -1 : 1));
}

function open({ name, shard }) {
  selectShard(shard === ownShard() ? null : shard);
  go("groups", { group: name });
}
