// The topology of a shard: the master on one side, its slaves on the other, and whether replication runs between them.

import { openDetails } from "./details.js";
import { h } from "./dom.js";
import { bytes, count, duration } from "./format.js";
import { followingOf, healthOf, hostOf, titleOf } from "./model.js";
import { badge, dot, meter } from "./parts.js";

/** Return the topology of one shard. A *flow* is the state of the replication to one slave (`followingOf`). */
export function topology(shard) {
  const masters = shard.members.filter((member) => isMasterOf(member, shard));
  const others = shard.members.filter((member) => !isMasterOf(member, shard));
  const flows = others.map((member) => followingOf(member, shard.master));
  return h("div", { class: `topology${others.length === 0 ? " alone" : ""}`, key: "topology" },
    h("div", { class: "topology-side", key: "masters" },
      masters.length === 0 ? noMasterCard() : masters.map((member) => card(member, shard, null))),
    others.length === 0 ? null : links(flows),
    others.length === 0 ? null : h("div", { class: "topology-side", key: "others" },
      others.map((member, index) => card(member, shard, flows[index]))));
}

const isMasterOf = (member, shard) => shard.master === member || (shard.isSplit && member.status?.role === "master" && member.status.epoch === shard.epoch);

/** Return the card that stands for the master of a shard without one. */
const noMasterCard = () =>
  h("div", { class: "card vacant", key: "vacant" }, h("strong", null, "No master"),
    h("p", null, "No broker accepts sends in this shard. To see the candidates and the possible loss, run:"), h("code", null, "gantry explain"));

/** Return the lines from the master to the other members. */
function links(flows) {
  const middle = flows.length * 50;
  return h("svg", { class: "links", key: "links", viewBox: `0 0 100 ${flows.length * 100}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    flows.map((flow, index) => {
      const to = index * 100 + 50;
      const d = `M0 ${middle}C50 ${middle} 50 ${to} 100 ${to}`;
      return h("g", { key: index, class: flow.isRunning ? "runs" : "broken" }, h("path", { class: "link", d }),
        flow.isRunning ? h("path", { class: "flow", d }) : null);
    }));
}

/** Return the card of one member; `flow` is null for a master. */
function card(member, shard, flow) {
  const { status } = member;
  const health = healthOf(member);
  const role = status?.role ?? "unknown";
  return h("article", { class: `card member ${health.tone}`, key: member.url, "data-member": member.url, "data-role": role, "data-state": health.word },
    h("header", { class: "card-head" },
      dot(health.tone, health.tone === "good"),
      h("h3", null, titleOf(member)),
      badge(`role ${role}`, role),
      h("span", { class: "grow" }),
      status?.epoch === null || status === null ? null : h("span", { class: "epoch", title: "epoch of this broker" }, `epoch ${status.epoch}`)),
    h("p", { class: "member-where" }, h("span", { class: "mono" }, status?.reported_role?.address ?? hostOf(member)),
      member.is_self ? badge("plain", "this sidecar") : null),
    h("p", { class: `member-health ${health.tone}` }, h("b", null, health.word), h("span", null, health.reason)),
    status === null ? null : figures(member, flow, shard),
    h("footer", { class: "card-foot" },
      flow === null ? h("span", { class: "faint" }, slavesText(status)) : h("span", { class: "faint" }, masterText(flow)),
      h("button", { type: "button", class: "button quiet", "aria-label": `Details of ${titleOf(member)}`, onclick: () => openDetails(member.url) }, "Details")));
}

/** Return the text on a master's slaves. */
function slavesText(status) {
  const number = status?.slaves.length ?? 0;
  return number === 0 ? "no slaves" : `followed by ${number === 1 ? "slave" : "slaves"} ${status.slaves.map((slave) => slave.slave_id).join(", ")}`;
}

/** Return the text on the master that a slave follows. */
const masterText = (flow) => (flow.follows === null ? "follows no master" : `${flow.isRunning ? "follows" : "would follow"} ${flow.follows}`);

/** Return the figures in the card of a member. */
function figures(member, flow, shard) {
  const { status } = member;
  const { disk, buffer } = status;
  const behind = flow?.behind ?? null;
  return h("div", { class: "figures" },
    h("dl", { class: "pairs" },
      pair("log end", count(flow?.seen?.received ?? status.wrote)),
      flow === null ? pair("connections", count(status.connections)) : pair("replication lag", behind === null ? "–" : bytes(behind)),
      flow === null ? pair("held sends", count(status.held_sends)) : pair("last seen", flow.seen?.silent_ms == null ? "–" : `${duration(flow.seen.silent_ms / 1000)} ago`)),
    disk?.total_bytes ? meter("disk", disk.used_bytes / disk.total_bytes, `${Math.round((disk.used_bytes / disk.total_bytes) * 100)}%`, disk.used_bytes / disk.total_bytes > 0.85 ? "warn" : "plain") : null,
    buffer?.buffers_total
      ? meter("write buffer", 1 - buffer.buffers_free / buffer.buffers_total, `${buffer.buffers_free} of ${buffer.buffers_total} free`, buffer.buffers_free === 0 ? "warn" : "plain")
      : null);
}

const pair = (name, value) => h("div", { key: name }, h("dt", null, name), h("dd", { class: "number" }, value));
