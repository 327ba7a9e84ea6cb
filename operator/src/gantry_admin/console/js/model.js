// The model of the group, derived from its documents: the masters, the health of members, and the problems. Pure.
//
// No election takes place here: two masters are shown as two. A broker whose sidecar is unreachable is never shown as
// healthy, even if it was healthy before.

import { bytes, duration, isKnown, moment, plural } from "./format.js";

export const LEVELS = [
  { name: "wrote", means: "in the write buffer or, without one, in the page cache" },
  { name: "committed", means: "in the page cache of the log file" },
  { name: "flushed", means: "on the master's disk" },
  { name: "acked", means: "on enough slaves" },
  { name: "confirmed", means: "visible to consumers" },
];

export const LOSSES = {
  process: { title: "If the process dies", what: "kill −9, out of memory" },
  machine: { title: "If the machine fails", what: "power loss, kernel crash" },
  master: { title: "If the master is lost", what: "its disk or node is gone" },
};

/** Return the shards with their members in display order; `master` is the only master of the newest epoch, or null. */
export function shardsOf(group) {
  const byUrl = new Map(group.members.map((member) => [member.url, inOrder(member)]));
  return group.shards.map((shard) => {
    const members = shard.members.map((url) => byUrl.get(url)).filter((member) => member !== undefined);
    const masters = shard.masters.map((url) => byUrl.get(url)).filter((member) => member !== undefined);
    const master = masters.length === 1 ? masters[0] : null;
    return {
      name: shard.broker_name,
      epoch: shard.epoch,
      ledger: shard.ledger ?? null,
      master,
      lastMaster: master ?? findLastMaster(members),
      isSplit: masters.length > 1,
      members: members.toSorted((a, b) => rank(a, shard) - rank(b, shard) || order(a) - order(b)),
    };
  });
}

/** Return the member with its slaves sorted by number. */
const inOrder = (member) =>
  member.status === null ? member : { ...member, status: { ...member.status, slaves: member.status.slaves.toSorted((a, b) => a.slave_id - b.slave_id) } };

/** Return the members whose broker has not been reported yet. */
export const membersWithoutReport = (group) => group.members.filter((member) => !member.status?.broker_name);

const rank = (member, shard) => (shard.masters.includes(member.url) ? 0 : 1);
const order = (member) => member.status?.reported_role?.broker_id ?? 99;

/** Return the member that was master in the newest epoch, for a shard without a master now. */
function findLastMaster(members) {
  const were = members.filter((member) => member.status?.role === "master");
  return were.toSorted((a, b) => (b.status.epoch ?? 0) - (a.status.epoch ?? 0))[0] ?? null;
}

/** Return the title of a member, such as "broker-a · 1". */
export function titleOf(member) {
  const id = member.status?.reported_role?.broker_id;
  const name = member.status?.broker_name ?? "unknown broker";
  return id === null || id === undefined ? name : `${name} · ${id}`;
}

/** Return the health of one member: a tone, a state, and the reason with its time. */
export function healthOf(member, nowMs = Date.now()) {
  const { status } = member;
  if (!member.is_reachable) return silent(member, nowMs);
  if (status === null) return { tone: "idle", word: "not requested yet", reason: member.fault ?? "" };
  const { loop_state: loop, ready } = status;
  if (loop.state === "absent") return { tone: "idle", word: "absent", reason: loop.reason };
  const since = loop.last_heartbeat_wall_ms;
  const ago = since === null ? "" : ` since ${moment(since)}${isKnown(loop.since_ms) ? ` (${duration(loop.since_ms / 1000)})` : ""}`;
  if (loop.state === "crashed") return { tone: "bad", word: "crashed", reason: `killed or crashed${ago}` };
  if (loop.state === "stalled") return { tone: "bad", word: "stalled", reason: `publishes nothing${ago}` };
  if (loop.state === "ended") {
    return { tone: "idle", word: status.phase === "failed" ? "failed" : "stopped", reason: `${loop.reason}${ago}` };
  }
  if (status.phase === "recovering") return { tone: "warn", word: "recovering", reason: recovery(status) };
  if (!ready.ready) return { tone: "warn", word: "not ready", reason: ready.reason };
  if (status.reported_role?.is_draining) return { tone: "warn", word: "draining", reason: "refuses sends" };
  return { tone: "good", word: "ready", reason: ready.reason };
}

function silent(member, nowMs) {
  if (member.age_ms === null) return { tone: "idle", word: "sidecar silent", reason: `never seen: ${member.fault ?? "unknown"}` };
  const seen = `last seen ${duration(member.age_ms / 1000)} ago, at ${moment(nowMs - member.age_ms)}`;
  return { tone: "bad", word: "sidecar unreachable", reason: `${seen}: ${member.fault ?? ""}` };
}

function recovery(status) {
  const [done, total] = [status.recovery_done_bytes, status.recovery_total_bytes];
  return total ? `${bytes(done)} of ${bytes(total)} checked` : "reading the log";
}

/** Return the state of replication to a slave: it runs if the slave's event loop runs and the master lists the slave. */
export function followingOf(member, master) {
  const { status } = member;
  const reported = status?.reported_role;
  const follows = reported?.master ?? null;
  const isLoopRunning = member.is_reachable && status?.loop_state.state === "running";
  if (master === null) return { isRunning: false, follows, behind: null };
  const seen = master.status.slaves.find((slave) => slave.slave_id === reported?.broker_id);
  const end = master.status.wrote;
  const own = status?.wrote ?? null;
  const behind = seen?.behind_bytes ?? (end === null || own === null ? null : Math.max(end - own, 0));
  return { isRunning: isLoopRunning && seen !== undefined, follows, behind, seen: seen ?? null };
}

/** Return the health of one gRPC proxy: a tone, a state, and the reason. */
export function healthOfProxy(proxy) {
  if (!proxy.is_reachable) return { tone: "bad", word: "unreachable", reason: proxy.fault ?? "" };
  if (!proxy.is_ready) return { tone: "warn", word: "not ready", reason: proxy.not_ready_reason ?? "" };
  return { tone: "good", word: "ready", reason: "" };
}

/** Return the health of a shard: a tone and a short text. */
export function healthOfShard(shard) {
  if (shard.isSplit) return { tone: "bad", word: "two masters" };
  if (shard.master === null) return { tone: "bad", word: "no master" };
  const health = healthOf(shard.master);
  if (health.tone !== "good") return { tone: health.tone, word: `master ${health.word}` };
  return shard.members.every((member) => healthOf(member).tone === "good") ? { tone: "good", word: "healthy" } : { tone: "warn", word: "degraded" };
}

/** Return the problems, the worst first: `{tone, text, why}`; empty if the group is healthy. */
export function problemsOf(group, shards) {
  const found = [];
  for (const shard of shards) {
    if (shard.isSplit) found.push({ tone: "bad", text: `${shard.name} has ${shard.members.length} members and more than one master` });
    else if (shard.master === null) found.push({ tone: "bad", text: `${shard.name} has no master` });
    for (const member of shard.members) {
      const health = healthOf(member);
      if (health.tone !== "good") found.push({ tone: health.tone, text: `${titleOf(member)}: ${health.word}`, why: health.reason });
    }
    if (shard.master?.status.is_refusing_sends) found.push({ tone: "warn", text: `${shard.name} is refusing sends` });
  }
  for (const member of membersWithoutReport(group)) {
    const { word, reason } = healthOf(member);
    found.push({ tone: "warn", text: `${hostOf(member)}: ${word}`, why: reason });
  }
  for (const proxy of group.proxies) {
    const { tone, word, reason } = healthOfProxy(proxy);
    if (tone !== "good") found.push({ tone, text: `gRPC proxy ${proxy.address}: ${word}`, why: reason });
  }
  const severity = { bad: 0, warn: 1, idle: 2 };
  return found.toSorted((a, b) => severity[a.tone] - severity[b.tone]);
}

/** Return the state of the group as one line. */
export function headline(group, shards) {
  const problems = problemsOf(group, shards);
  if (problems.length > 0) {
    const more = problems.length > 1 ? ` and ${plural(problems.length - 1, "more problem")}` : "";
    return { tone: problems[0].tone, text: `${problems[0].text}${more}` };
  }
  const brokers = shards.reduce((sum, shard) => sum + shard.members.length, 0);
  const proxies = group.proxies.length > 0 ? `, ${plural(group.proxies.length, "gRPC proxy", "gRPC proxies")}` : "";
  return { tone: "good", text: `Healthy: ${plural(shards.length, "shard")}, ${plural(brokers, "broker")}${proxies}` };
}

export const hostOf = (member) => (member.is_self ? "this sidecar" : member.url.replace(/^https?:\/\//, ""));
