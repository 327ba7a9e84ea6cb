// The overview: problems, rates, members with their roles, the data at risk, and the gRPC proxies.

import { chart } from "./charts.js";
import { h } from "./dom.js";
import { bytes, duration, millis, plural, short } from "./format.js";
import { acknowledgedRisks, ledger, risks } from "./ledger.js";
import { healthOf, healthOfShard, hostOf, membersWithoutReport, problemsOf, shardsOf, titleOf } from "./model.js";
import { badge, command, dot, empty, icon } from "./parts.js";
import { proxiesPanel } from "./proxies.js";
import { newest, series } from "./series.js";
import { changed, state } from "./store.js";
import { topology } from "./topology.js";

/** Return the overview. */
export function overview() {
  const { group } = state;
  if (group === null) return empty("Waiting for the sidecar", state.fault ?? "The status has been requested.");
  const shards = shardsOf(group);
  return h("div", { class: "stack" },
    h("h1", { class: "sr-only" }, "Overview"),
    tiles(shards),
    problems(group, shards),
    shards.map(shardPanel),
    withoutReport(group),
    proxiesPanel(group),
    charts());
}

function tiles(shards) {
  const lag = greatestLag(shards);
  return h("section", { class: "tiles", "aria-label": "Now", key: "tiles" },
    tile("Messages in", short(newest("putIn")), "per second", "in"),
    tile("Messages out", short(newest("getOut")), "per second", "out"),
    tile("Bytes in", rateOf(newest("bytesIn")), "per second, as stored", "in"),
    tile("Acknowledgement latency", ...acknowledgementTexts(), "ack"),
    tile("Not flushed", ...notFlushedTexts(shards)),
    tile("Replication lag", bytes(lag), lag === null ? "no slaves, or unknown" : "of the slowest slave", lag > 0 ? "warn" : "good"));
}

const rateOf = (value) => (value === null ? "–" : bytes(value));

/** Return the figure of the acknowledgement latency, and the words that explain it. */
export function acknowledgementTexts() {
  const over = newest("ackOver");
  if (over !== null) return [`over ${millis(over)}`, "99th percentile"];
  return [millis(newest("ackHigh")), newest("ackMedian") === null ? "no sends now" : "99th percentile, at most"];
}

/** Return the sum of the bytes of all shards that are not flushed, the age of the oldest in words, and the tone. An unknown part makes the sum unknown. */
export function notFlushedTexts(shards) {
  const found = shards.map((shard) => shard.lastMaster?.status?.at_risk.find((risk) => risk.loss === "machine") ?? null);
  if (found.length === 0 || found.some((risk) => risk === null || risk.bytes === null)) return [bytes(null), "unknown", "warn"];
  const sum = found.reduce((total, risk) => total + risk.bytes, 0);
  if (sum === 0) return [bytes(0), "nothing at risk", "good"];
  const ages = found.map((risk) => risk.seconds);
  return [bytes(sum), ages.includes(null) ? "of unknown age" : `up to ${duration(Math.max(...ages))} old`, "warn"];
}

/** Return the lag of the slowest slave; null if there is no slave, or if the lag of one is unknown. */
export function greatestLag(shards) {
  const lags = shards.flatMap((shard) => shard.master?.status.slaves ?? [null]).map((slave) => slave?.behind_bytes ?? null);
  return lags.length === 0 || lags.includes(null) ? null : Math.max(...lags);
}

const tile = (name, value, words, tone) =>
  h("div", { class: `tile ${tone}`, key: name }, h("span", { class: "tile-name" }, name),
    h("span", { class: "tile-value number" }, value), h("span", { class: "tile-words" }, words));

function problems(group, shards) {
  const found = problemsOf(group, shards);
  if (found.length === 0) return h("div", { key: "problems", class: "problems none" });
  return h("ul", { key: "problems", class: "problems", "aria-label": "Problems" },
    found.map((problem) =>
      h("li", { key: problem.text, class: problem.tone }, dot(problem.tone), h("b", null, problem.text), h("span", { class: "muted" }, problem.why ?? ""))));
}

function shardPanel(shard) {
  const master = shard.lastMaster;
  const isNow = shard.master !== null && master.is_reachable && master.status.loop_state.state === "running" && state.connection !== "lost";
  const { tone, word } = healthOfShard(shard);
  return h("section", { class: "panel shard", key: shard.name, "data-shard": shard.name, "aria-label": `Shard ${shard.name}` },
    h("header", { class: "panel-head" },
      h("h2", null, shard.name), badge(tone, word), h("span", { class: "epoch big", "data-epoch": shard.epoch ?? "" }, `epoch ${shard.epoch ?? "–"}`),
      h("span", { class: "grow" }), h("span", { class: "faint" }, plural(shard.members.length, "broker"))),
    topology(shard),
    master === null ? null : h("div", { class: "durability", key: "durability" },
      h("div", { class: "durability-head" }, h("h3", null, "Durability"),
        h("span", { class: "faint" }, `${shard.master === null ? "last report of " : ""}${titleOf(master)}`),
        h("span", { class: "grow" }),
        h("span", { class: "faint number" }, `${rateOf(master.status.written_bytes_per_second)}/s`)),
      ledger(master.status, isNow), risks(master.status), acknowledgedRisks(shard.ledger)),
    move(shard));
}

/** Return the commands that move the master role; the command line does it, because it reaches all members. */
function move(shard) {
  const number = /-(\d+)$/.exec(shard.name)?.[1] ?? (/^\d+$/.test(shard.name) ? shard.name : null);
  const others = shard.members.filter((member) => member !== shard.master && member.status?.reported_role?.broker_id != null);
  return h("details", { class: "move", key: "move" },
    h("summary", null, icon("chevron"), "Move the master"),
    h("div", { class: "move-body" },
      h("p", null, "This page cannot move roles, because a promotion needs promises of several brokers in the right order, and one sidecar controls one broker. Use these commands, which show the possible loss first:"),
      command("gantry explain"),
      others.map((member) => command(number === null ? `gantry ha promote --to ${member.status.reported_role.broker_id}` : `gantry promote ${number}=${member.status.reported_role.broker_id}`))));
}

function withoutReport(group) {
  const found = membersWithoutReport(group);
  if (found.length === 0) return null;
  return h("section", { class: "panel", key: "without-report", "aria-label": "Brokers without a report" },
    h("header", { class: "panel-head" }, h("h2", null, "Brokers without a report")),
    h("div", { class: "without-report" }, found.map((member) => {
      const health = healthOf(member);
      return h("article", { class: `card member ${health.tone}`, key: member.url, "data-member": member.url, "data-state": health.word },
        h("header", { class: "card-head" }, dot(health.tone), h("h3", null, hostOf(member))),
        h("p", { class: `member-health ${health.tone}` }, h("b", null, health.word), h("span", null, health.reason)));
    })));
}

function charts() {
  const perSecond = (value) => `${short(value)}/s`;
  const bytesPerSecond = (value) => `${bytes(value)}/s`;
  const line = (name, tone, points) => ({ name, tone, points });
  return h("section", { class: "panel", key: "charts", "aria-label": "The last five minutes" },
    h("header", { class: "panel-head" }, h("h2", null, "The last five minutes"), h("span", { class: "grow" }),
      h("span", { class: "faint" }, "since this page was opened")),
    h("div", { class: "charts" },
      chart({ title: "Messages", hint: "By the brokers' own counters", format: perSecond, redraw: changed, lines: [line("in", "wrote", series.putIn), line("out", "acked", series.getOut)] }),
      chart({ title: "Bytes", base: 1024, hint: "In: as stored in the log. Out: as sent to consumers.", format: bytesPerSecond, redraw: changed, lines: [line("in", "wrote", series.bytesIn), line("out", "acked", series.bytesOut)] }),
      chart({ title: "Acknowledgement latency", hint: "Time from the write to the acknowledgement in the broker, spent on disk and slaves. Counted in powers of two; waits over 18 min are shown as 18 min.", format: millis, redraw: changed, lines: [line("99%", "committed", series.ackHigh), line("median", "flushed", series.ackMedian)] }),
      chart({ title: "Broker response time", hint: "Time of a small request of the sidecar on the broker's own port; the slowest broker", format: millis, redraw: changed, lines: [line("time", "confirmed", series.answer)] })));
}

