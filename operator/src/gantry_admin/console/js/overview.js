// The first view: is all well, what flows, who is who, and what would be lost now.

import { chart } from "./charts.js";
import { h } from "./dom.js";
import { bytes, duration, millis, plural, short } from "./format.js";
import { ledger, promised, risks } from "./ledger.js";
import { healthOf, healthOfShard, hostOf, problemsOf, shardsOf, strangersOf, titleOf } from "./model.js";
import { badge, command, dot, empty, icon } from "./parts.js";
import { newest, series } from "./series.js";
import { changed, state } from "./store.js";
import { topology } from "./topology.js";

/** The whole view. */
export function overview() {
  const { group } = state;
  if (group === null) return empty("Waiting for the sidecar", state.fault ?? "It was asked how things are.");
  const shards = shardsOf(group);
  return h("div", { class: "stack" },
    h("h1", { class: "sr-only" }, "Overview"),
    tiles(shards),
    problems(group, shards),
    shards.map(shardPanel),
    strangers(group),
    charts());
}

function tiles(shards) {
  const statuses = shards.map((shard) => shard.lastLeader?.status).filter((status) => status != null);
  const atRisk = worst(statuses, "machine");
  const lags = shards.flatMap((shard) => shard.leader?.status.slaves ?? []).map((slave) => slave.behind_bytes).filter((lag) => lag !== null);
  const lag = lags.length === 0 ? null : Math.max(...lags);
  return h("section", { class: "tiles", "aria-label": "Now", key: "tiles" },
    tile("Messages in", short(newest("putIn")), "per second", "in"),
    tile("Messages out", short(newest("getOut")), "per second", "out"),
    tile("Bytes in", rateOf(newest("bytesIn")), "per second, as stored", "in"),
    tile("Acknowledged in", millis(newest("ackHigh")), ackWords(), "ack"),
    tile("Not on disk yet", bytes(atRisk.bytes), atRisk.seconds === null ? "the machine would take it" : atRisk.bytes === 0 ? "nothing at risk" : `up to ${duration(atRisk.seconds)} old`, atRisk.bytes > 0 ? "warn" : "good"),
    tile("Slowest slave", bytes(lag), lag === null ? "nobody follows" : "behind its master", lag > 0 ? "warn" : "good"));
}

const rateOf = (value) => (value === null ? "–" : bytes(value));
const ackWords = () => (newest("ackMedian") === null ? "no sends now" : "at most, 99% of sends");

function worst(statuses, loss) {
  const found = statuses.flatMap((status) => status.at_risk).filter((risk) => risk.loss === loss && risk.bytes !== null);
  if (found.length === 0) return { bytes: null, seconds: null };
  return { bytes: found.reduce((sum, risk) => sum + risk.bytes, 0), seconds: Math.max(...found.map((risk) => risk.seconds ?? 0)) };
}

const tile = (name, value, words, tone) =>
  h("div", { class: `tile ${tone}`, key: name }, h("span", { class: "tile-name" }, name),
    h("span", { class: "tile-value number" }, value), h("span", { class: "tile-words" }, words));

function problems(group, shards) {
  const found = problemsOf(group, shards);
  if (found.length === 0) return h("div", { key: "problems", class: "problems none" });
  return h("ul", { key: "problems", class: "problems", "aria-label": "What is not well" },
    found.map((problem) =>
      h("li", { key: problem.text, class: problem.tone }, dot(problem.tone), h("b", null, problem.text), h("span", { class: "muted" }, problem.why ?? ""))));
}

function shardPanel(shard) {
  const leader = shard.lastLeader;
  const isNow = shard.leader !== null && leader.is_reachable && leader.status.motion.state === "moving" && state.connection !== "lost";
  const { tone, word } = healthOfShard(shard);
  return h("section", { class: "panel shard", key: shard.name, "data-shard": shard.name, "aria-label": `Shard ${shard.name}` },
    h("header", { class: "panel-head" },
      h("h2", null, shard.name), badge(tone, word), h("span", { class: "epoch big", "data-epoch": shard.epoch ?? "" }, `epoch ${shard.epoch ?? "–"}`),
      h("span", { class: "grow" }), h("span", { class: "faint" }, plural(shard.members.length, "broker"))),
    topology(shard),
    leader === null ? null : h("div", { class: "durability", key: "durability" },
      h("div", { class: "durability-head" }, h("h3", null, "Durability"),
        h("span", { class: "faint" }, `${shard.leader === null ? "last word of " : ""}${titleOf(leader)}`),
        h("span", { class: "grow" }),
        h("span", { class: "faint number" }, `${rateOf(leader.status.written_bytes_per_second)}/s`)),
      ledger(leader.status, isNow), risks(leader.status), promised(shard.counted)),
    move(shard));
}

/** Moving the role is for the command line, which sees all members and keeps the order of the steps. */
function move(shard) {
  const number = /-(\d+)$/.exec(shard.name)?.[1] ?? (/^\d+$/.test(shard.name) ? shard.name : null);
  const others = shard.members.filter((member) => member !== shard.leader && member.status?.said?.broker_id != null);
  return h("details", { class: "move", key: "move" },
    h("summary", null, icon("chevron"), "Move the master"),
    h("div", { class: "move-body" },
      h("p", null, "This page moves no roles: a promotion needs promises of several brokers in the right order, and one sidecar sees one broker. These do it, and say first what it would cost:"),
      command("gantry explain"),
      others.map((member) => command(number === null ? `gantry ha promote --to ${member.status.said.broker_id}` : `gantry promote ${number}=${member.status.said.broker_id}`))));
}

function strangers(group) {
  const found = strangersOf(group);
  if (found.length === 0) return null;
  return h("section", { class: "panel", key: "strangers", "aria-label": "Unknown brokers" },
    h("header", { class: "panel-head" }, h("h2", null, "Nobody knows these yet")),
    h("div", { class: "strangers" }, found.map((member) => {
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
      h("span", { class: "faint" }, "since this page is open")),
    h("div", { class: "charts" },
      chart({ title: "Messages", hint: "By the brokers' own counters", format: perSecond, redraw: changed, lines: [line("in", "wrote", series.putIn), line("out", "acked", series.getOut)] }),
      chart({ title: "Bytes", base: 1024, hint: "In: as stored in the log. Out: as sent to consumers.", format: bytesPerSecond, redraw: changed, lines: [line("in", "wrote", series.bytesIn), line("out", "acked", series.bytesOut)] }),
      chart({ title: "Wait for acknowledgement", hint: "From the write to the answer, in the broker: what disk and slaves took. Counted in powers of two.", format: millis, redraw: changed, lines: [line("99%", "committed", series.ackHigh), line("half", "flushed", series.ackMedian)] }),
      chart({ title: "Broker's answer", hint: "How long a small question of the sidecar took over the broker's own port; the slowest broker", format: millis, redraw: changed, lines: [line("took", "confirmed", series.answer)] })));
}

