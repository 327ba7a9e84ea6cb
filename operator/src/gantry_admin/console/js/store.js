// The state of the page, and its updates: the group is polled once a second, this broker's offsets come by events, and
// tables are polled more often while a view shows them. The page is drawn once per frame at most.
//
// While the sidecar does not answer, the last state remains, with its time. Answers and events may overtake each other:
// of two, the one that was observed later is used, so no offset goes back to an older observation.

import { events, get, Refused, Unreachable } from "./api.js";
import { record } from "./series.js";

const GROUP_MS = 1000;
const TABLES_MS = 2000;
const IDLE_FACTOR = 5; // While no view shows tables, they are polled this much less often, for the count of dead letters.
const BACK_OFF_MS = [500, 1000, 2000, 4000];

export const state = {
  group: null, // the last /v1/group, with the newest offsets of this broker in it
  groupAtMs: 0,
  liveAtMs: 0,
  topics: null,
  groups: null,
  shard: null, // the shard whose tables are shown; null for this sidecar's own broker
  tablesFault: null,
  connection: "connecting", // live | polling | lost | refused | connecting
  sinceMs: Date.now(),
  fault: null,
  notice: null, // why the code in the address was rejected
};

const listeners = new Set();
let isDue = false;
let wake = () => {};
let tablesWanted = false;
let lastOffsets = null; // the last offsets of this stream of events

/** Call `draw` when the state has changed. */
export const onChange = (draw) => listeners.add(draw);

/** Request a redraw, because the state has changed. */
export function changed() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    for (const draw of listeners) draw();
  });
}

/** Set whether a view shows topics and groups now. */
export function wantTables(isWanted) {
  if (isWanted && !tablesWanted) refreshTables();
  tablesWanted = isWanted;
}

/** Return a path with the chosen shard as a parameter. */
export function withShard(path) {
  return state.shard === null ? path : `${path}${path.includes("?") ? "&" : "?"}shard=${encodeURIComponent(state.shard)}`;
}

/** Show the topics, groups and messages of another shard. */
export function selectShard(name) {
  Object.assign(state, { shard: name, topics: null, groups: null });
  refreshTables();
  changed();
}

/** Refresh at once, because a token was entered or the page became visible. */
export function refreshNow() {
  wake();
  refreshTables();
}

/** Keep the state up to date for as long as the page is open. */
export function watch() {
  followGroup();
  followEvents();
  let ticks = 0;
  refreshTables();
  setInterval(() => {
    ticks += 1;
    if (!document.hidden && (tablesWanted || ticks % IDLE_FACTOR === 0)) refreshTables();
  }, TABLES_MS);
  document.addEventListener("visibilitychange", () => document.hidden || refreshNow());
}

const pause = (ms) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });

function setConnection(connection, fault) {
  if (state.connection !== connection) state.sinceMs = Date.now();
  state.connection = connection;
  state.fault = fault;
  changed();
}

async function followGroup() {
  for (;;) {
    const beganMs = performance.now();
    try {
      const group = await get("/v1/group");
      state.group = lastOffsets !== null && isOlder(own(group), lastOffsets) ? withOffsets(group, lastOffsets) : group;
      state.groupAtMs = Date.now();
      record(state.group, state.groupAtMs);
      setConnection(performance.now() - state.liveAtMs < 15_000 ? "live" : "polling", null);
    } catch (error) {
      setConnection(error instanceof Refused && error.status !== 429 ? "refused" : "lost", error.message);
    }
    await pause(Math.max(GROUP_MS - (performance.now() - beganMs), 200));
  }
}

async function followEvents() {
  for (let tries = 0; ; tries += 1) {
    try {
      for await (const { kind, facts } of events()) {
        tries = 0;
        state.liveAtMs = performance.now();
        if (kind === "status") takeOffsets(facts);
        else if (state.group !== null) wake(); // a role, an epoch or a broker changed: request the whole group now
        changed();
      }
    } catch (error) {
      // The group is polled anyway, and that shows the error to the user. Any other exception is a bug of the page.
      if (!(error instanceof Refused || error instanceof Unreachable)) reportError(error);
    }
    lastOffsets = null; // the machine may have been rebooted, which resets its clock
    await new Promise((resolve) => setTimeout(resolve, BACK_OFF_MS[Math.min(tries, BACK_OFF_MS.length - 1)]));
  }
}

function takeOffsets(facts) {
  lastOffsets = facts;
  if (state.group !== null && !isOlder(facts, own(state.group))) state.group = withOffsets(state.group, facts);
}

const own = (group) => group.members.find((member) => member.is_self)?.status ?? null;

/** Return whether one status was observed before the other; false if one of them has no time. */
const isOlder = (one, other) => (one?.observed_ms ?? Infinity) < (other?.observed_ms ?? -Infinity);

/** Return the group with the offsets of an event of this page's own broker. */
function withOffsets(group, { slaves, at_risk: risks, buffers_free: buffersFree, ...offsets }) {
  if (group === null) return group;
  const members = group.members.map((member) => {
    const { status } = member;
    if (!member.is_self || status === null) return member;
    const bySlave = new Map(slaves.map(([id, received, flushed]) => [id, { received, flushed }]));
    const newer = {
      ...offsets,
      slaves: status.slaves.map((slave) => behind({ ...slave, ...bySlave.get(slave.slave_id) }, offsets.wrote)),
      at_risk: risks.map(([loss, bytes, seconds]) => ({ loss, bytes, seconds })),
      buffer: status.buffer && { ...status.buffer, buffers_free: buffersFree },
    };
    return { ...member, status: { ...status, ...newer } };
  });
  return { ...group, members };
}

const behind = (slave, wrote) => ({ ...slave, behind_bytes: wrote === null || slave.received === null ? null : Math.max(wrote - slave.received, 0) });

async function refreshTables() {
  try {
    const asked = state.shard;
    const [topics, groups] = await Promise.all([get(withShard("/v1/topics")), get(withShard("/v1/groups"))]);
    if (asked !== state.shard) return;
    Object.assign(state, { topics: withRates(topics, state.topics), groups, tablesFault: null });
  } catch (error) {
    state.tablesFault = error.message;
  }
  changed();
}

/** Add the messages per second of each topic between two answers; an answer that is not newer keeps the last rates. */
function withRates(now, before) {
  now.atMs = performance.now() - now.age_ms;
  if (before === null || now.source !== before.source) return now;
  const tookS = (now.atMs - before.atMs) / 1000;
  const earlier = new Map(before.topics.map((topic) => [topic.name, topic]));
  for (const topic of now.topics) {
    const old = earlier.get(topic.name);
    if (old === undefined) continue;
    topic.rate = tookS < 0.5 ? old.rate : Math.max(ends(topic) - ends(old), 0) / tookS;
  }
  if (tookS < 0.5) now.atMs = before.atMs;
  return now;
}

const ends = (topic) => topic.queues.reduce((sum, queue) => sum + queue.end, 0);
