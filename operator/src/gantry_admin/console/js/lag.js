// The lag of consumer groups: for how long the oldest message waits, its trend, and what the sidecar has recorded.
//
// The history is requested while the view of groups is shown: the last hour of all groups for the small lines, and 24
// hours of each group whose row is open. A group is marked as behind by the sidecar, so the page has no rule of its own.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { h } from "./dom.js";
import { count, duration, plural, short } from "./format.js";
import { badge, note } from "./parts.js";
import { hrefOf } from "./router.js";
import { changed, state, withShard } from "./store.js";

const REFRESH_MS = 15_000; // The interval of the sidecar's samples.
const HOUR_MS = 3_600_000; // The shortest period that the charts show.
const DAY_MS = 86_400_000;
const SPARK_WIDTH = 72;
const SPARK_HEIGHT = 18;
const ARROWS = { grows: "↗", shrinks: "↘", steady: "→" };
const TREND_WORDS = { grows: "falls further behind", shrinks: "catches up", steady: "keeps its distance" };
const RETRY = "%RETRY%";

const requests = new Map(); // Path -> {atMs, isBusy, document, fault}.

/** Return the recorded lag at a path: the last answer, which is requested again if it is too old. */
function recorded(path) {
  const whole = withShard(path);
  const known = requests.get(whole) ?? { atMs: -Infinity, isBusy: false, document: null, fault: null };
  requests.set(whole, known);
  if (!known.isBusy && performance.now() - known.atMs >= REFRESH_MS) {
    known.isBusy = true;
    request(whole, known);
  }
  return known;
}

async function request(path, known) {
  try {
    Object.assign(known, { document: await get(path), fault: null });
  } catch (error) {
    known.fault = error.message;
  }
  Object.assign(known, { atMs: performance.now(), isBusy: false });
  for (const [other, { atMs, isBusy }] of requests) if (!isBusy && performance.now() - atMs > 4 * REFRESH_MS) requests.delete(other);
  changed();
}

/** Return the points of a group over all its topics but that of retries: the sum of the lag, and the longest wait. */
function pointsOf(answer, name) {
  const all = (answer?.series ?? []).filter((one) => one.group === name && !one.topic.startsWith(RETRY));
  if (all.length === 0) return [];
  return all[0].points.map(([atMs], index) => {
    const known = all.map((one) => one.points[index]).filter((point) => point[1] !== null);
    const waits = known.map((point) => point[2]).filter((wait) => wait !== null);
    return { atMs, lag: known.length === 0 ? null : known.reduce((sum, point) => sum + point[1], 0), waitS: waits.length === 0 ? null : Math.max(...waits) };
  });
}

/** Return the time that the oldest message waits as a text. */
export const waiting = (waitS) => (waitS === 0 ? "–" : duration(waitS));

/** Return the cell of a group's wait; a group that is behind is marked. */
export const waitCell = (group) =>
  h("td", { class: `right number${group.is_behind ? " some" : ""}`, "data-wait": group.lag_s ?? "" },
    group.lag > 0 && group.lag_s === null ? "unknown" : waiting(group.lag_s), group.is_behind ? badge("warn", "behind", "Its oldest message waits for more than five minutes, and the wait grows") : null);

/** Return the cell with the trend of a group's wait: an arrow, and a line of the last hour. */
export function trendCell(group) {
  const points = pointsOf(recorded("/v1/lag?minutes=60&points=30").document, group.name);
  const words = group.trend === null ? "trend not known yet" : TREND_WORDS[group.trend];
  return h("td", { class: "middle", title: words },
    h("span", { class: "trend", "data-trend": group.trend ?? "" },
      h("span", { class: `arrow ${group.trend ?? ""}`, "aria-hidden": "true" }, ARROWS[group.trend] ?? ""), h("span", { class: "sr-only" }, words), sparkline(points)));
}

function sparkline(points) {
  const top = Math.max(1, ...points.map((point) => point.waitS ?? 0));
  const place = (point, index) => `${((index / Math.max(points.length - 1, 1)) * SPARK_WIDTH).toFixed(1)} ${(SPARK_HEIGHT - 1 - (point.waitS / top) * (SPARK_HEIGHT - 3)).toFixed(1)}`;
  let path = "";
  for (const [index, point] of points.entries()) {
    if (point.waitS === null) continue;
    path += `${index === 0 || points[index - 1].waitS === null ? "M" : "L"}${place(point, index)}`;
    if (points[index - 1]?.waitS == null && points[index + 1]?.waitS == null) path += "h1"; // a point alone
  }
  return h("svg", { class: "spark", viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`, width: SPARK_WIDTH, height: SPARK_HEIGHT, "aria-hidden": "true" },
    h("path", { d: path || "M0 0" }));
}

/** Return what the open row of a group shows: its lag in each queue, and that of 24 hours. */
export function lagDetails(group) {
  return h("div", { class: "lag-details" }, dayCharts(group), queues(group));
}

function queues(group) {
  if (group.queues.length === 0) return h("p", { class: "faint" }, "This group has committed no offset on this broker.");
  const most = Math.max(1, ...group.queues.map((queue) => queue.lag));
  return h("div", { class: "queues" }, group.queues.map((queue) =>
    h("div", { class: "queue lag", key: `${queue.topic}/${queue.queue_id}` },
      h("a", { class: "mono", href: hrefOf("messages", nextMessage(queue)), "aria-label": `Messages of ${queue.topic}, queue ${queue.queue_id}, from offset ${queue.consumed}` }, `${queue.topic} · ${queue.queue_id}`),
      h("span", { class: "number" }, `${count(queue.consumed)} of ${count(queue.end)}`),
      h("span", { class: "lag-rail" }, h("span", { class: "lag-bar", style: { "--part": (queue.lag / most).toFixed(3) } })),
      h("span", { class: "number" }, queue.lag === 0 ? "no lag" : `−${count(queue.lag)}`),
      h("span", { class: "number", "data-queue-wait": queue.lag_s ?? "" }, queue.lag === 0 ? "" : queue.lag_s === null ? "unknown" : duration(queue.lag_s)))));
}

/** Return the search for the oldest message that the group has not consumed; without lag, for the newest ones. */
const nextMessage = ({ topic, queue_id: queue, consumed, end, lag }) =>
  lag === 0 ? { how: "newest", topic, queue } : { how: "offset", topic, queue, offset: Math.max(consumed, end - lag) };

function dayCharts({ name, lag, lag_s: waitS }) {
  const { document, fault } = recorded(`/v1/lag?group=${encodeURIComponent(name)}`);
  if (fault !== null) return note("warn", `The recorded lag is unavailable: ${fault}`);
  const points = pointsOf(document, name);
  if (points.every((point) => point.lag === null)) {
    return h("p", { class: "faint" }, document === null ? "Loading…" : "Nothing is recorded yet.", document?.series_left_out > 0 ? ` ${plural(document.series_left_out, "group")} with less lag are not recorded.` : "");
  }
  const nowMs = Date.now();
  points.push({ atMs: nowMs, lag, waitS });
  const line = (tone, values) => [{ name: "", tone, points: values }];
  const recordedMs = nowMs - points.find((point) => point.lag !== null).atMs;
  const common = { redraw: changed, spanMs: Math.min(Math.max(recordedMs, HOUR_MS), DAY_MS), gapMs: document.resolution_s * 1500 };
  return h("div", { class: "charts lag-charts" },
    chart({ ...common, title: "Waiting, 24 hours", id: `${name}/wait`, hint: "Age of the oldest message that is not consumed", format: duration, lines: line("committed", points.map((point) => ({ atMs: point.atMs, value: point.waitS }))) }),
    chart({ ...common, title: "Lag, 24 hours", id: `${name}/lag`, hint: "Messages that are not consumed", format: short, lines: line("acked", points.map((point) => ({ atMs: point.atMs, value: point.lag }))) }),
    document.kept_in === "memory" ? h("p", { class: "faint lag-note" }, "The history is kept in memory: it begins when the sidecar was started.") : null);
}

/** Return the cell of a topic with the group whose oldest message waits longest. */
export function worstGroupCell(topic) {
  let worst = null;
  for (const group of state.groups?.groups ?? []) {
    for (const queue of group.queues) {
      if (queue.topic !== topic || queue.lag === 0) continue;
      if (worst === null || (queue.lag_s ?? 0) > (worst.waitS ?? 0)) worst = { name: group.name, waitS: queue.lag_s, isBehind: group.is_behind };
    }
  }
  if (worst === null) return h("td", { class: "right number" }, "–");
  return h("td", { class: `right number${worst.isBehind ? " some" : ""}`, "data-worst": worst.name },
    worst.waitS === null ? "unknown" : duration(worst.waitS), " ",
    h("a", { class: "mono", href: hrefOf("groups", { name: worst.name }) }, worst.name));
}
