// What the page knows now, and how it comes to know it: the group once a second, this broker's offsets by events, tables
// while somebody looks at them. Whoever draws is told once a frame at most.
//
// A sidecar that does not answer changes nothing that was known: it is shown as it was, and since when. Answers and events
// may overtake each other: of two the one that was looked at later counts, so no offset goes back.

import { events, get, Refused, Unreachable } from "./api.js";
import { note } from "./series.js";

const GROUP_MS = 1000;
const TABLES_MS = 2000;
const SELDOM = 5; // so many times as long while nobody looks at them; the count of dead letters is always shown
const BACK_OFF_MS = [500, 1000, 2000, 4000];

export const state = {
  group: null, // the last /v1/group, with the newest offsets of this broker in it
  groupAtMs: 0,
  liveAtMs: 0,
  topics: null,
  groups: null,
  shard: null, // whose tables are looked at; null: this sidecar's own broker's
  tablesFault: null,
  connection: "connecting", // live | polling | lost | refused | connecting
  sinceMs: Date.now(),
  fault: null,
  notice: null, // why the code in the address opened nothing
};

const listeners = new Set();
let isDue = false;
let wake = () => {};
let tablesWanted = false;
let heard = null; // the last offsets of this stream of events

/** Have `draw` called when something has changed. */
export const onChange = (draw) => listeners.add(draw);

/** Something has changed. */
export function changed() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    for (const draw of listeners) draw();
  });
}

/** Whether topics and groups are looked at now. */
export function wantTables(isWanted) {
  if (isWanted && !tablesWanted) lookAtTables();
  tablesWanted = isWanted;
}

/** A path, of the shard that is looked at. */
export function within(path) {
  return state.shard === null ? path : `${path}${path.includes("?") ? "&" : "?"}shard=${encodeURIComponent(state.shard)}`;
}

/** Look at another shard's topics, groups and messages. */
export function lookAtShard(name) {
  Object.assign(state, { shard: name, topics: null, groups: null });
  lookAtTables();
  changed();
}

/** Ask again at once: a token was given, or somebody came back. */
export function hurry() {
  wake();
  lookAtTables();
}

/** Watch for as long as the page is open. */
export function watch() {
  followGroup();
  followEvents();
  let turn = 0;
  lookAtTables();
  setInterval(() => {
    turn += 1;
    if (!document.hidden && (tablesWanted || turn % SELDOM === 0)) lookAtTables();
  }, TABLES_MS);
  document.addEventListener("visibilitychange", () => document.hidden || hurry());
}

const pause = (ms) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });

function become(connection, fault) {
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
      state.group = heard !== null && isOlder(own(group), heard) ? withOffsets(group, heard) : group;
      state.groupAtMs = Date.now();
      note(state.group, state.groupAtMs);
      become(performance.now() - state.liveAtMs < 15_000 ? "live" : "polling", null);
    } catch (error) {
      become(error instanceof Refused && error.status !== 429 ? "refused" : "lost", error.message);
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
        if (kind === "status") hear(facts);
        else if (state.group !== null) wake(); // a role, an epoch or a broker changed: see the whole group now
        changed();
      }
    } catch (error) {
      // The group is asked for every second all the same, and that says what is wrong. A mistake of ours is one.
      if (!(error instanceof Refused || error instanceof Unreachable)) reportError(error);
    }
    heard = null; // its machine may be started anew, and the clock with it
    await new Promise((resolve) => setTimeout(resolve, BACK_OFF_MS[Math.min(tries, BACK_OFF_MS.length - 1)]));
  }
}

function hear(facts) {
  heard = facts;
  if (state.group !== null && !isOlder(facts, own(state.group))) state.group = withOffsets(state.group, facts);
}

const own = (group) => group.members.find((member) => member.is_self)?.status ?? null;

/** Whether one was looked at before the other; a sidecar that does not say when is always believed. */
const isOlder = (one, other) => (one?.looked_ms ?? Infinity) < (other?.looked_ms ?? -Infinity);

/** The group with what an event said of this page's own broker. */
function withOffsets(group, { slaves, at_risk: risks, buffers_free: buffersFree, ...offsets }) {
  if (group === null) return group;
  const members = group.members.map((member) => {
    const { status } = member;
    if (!member.is_self || status === null) return member;
    const heard = new Map(slaves.map(([id, received, flushed]) => [id, { received, flushed }]));
    const newer = {
      ...offsets,
      slaves: status.slaves.map((slave) => behind({ ...slave, ...heard.get(slave.slave_id) }, offsets.wrote)),
      at_risk: risks.map(([loss, bytes, seconds]) => ({ loss, bytes, seconds })),
      buffer: status.buffer && { ...status.buffer, buffers_free: buffersFree },
    };
    return { ...member, status: { ...status, ...newer } };
  });
  return { ...group, members };
}

const behind = (slave, wrote) => ({ ...slave, behind_bytes: wrote === null || slave.received === null ? null : Math.max(wrote - slave.received, 0) });

async function lookAtTables() {
  try {
    const asked = state.shard;
    const [topics, groups] = await Promise.all([get(within("/v1/topics")), get(within("/v1/groups"))]);
    if (asked !== state.shard) return;
    Object.assign(state, { topics: withRates(topics, state.topics), groups, tablesFault: null });
  } catch (error) {
    state.tablesFault = error.message;
  }
  changed();
}

/** Messages a second of each topic, between two looks that are apart; a look that found nothing newer keeps the last. */
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
