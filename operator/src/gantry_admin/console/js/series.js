// Short histories, kept in the page: five minutes of the group's rates, one point for each update.
//
// An unknown value leaves a gap. Messages are received by masters only; they are delivered by every broker.

export const SPAN_MS = 300_000;
const POINTS_MAX = 600;

// The last bucket of acknowledgement waits has no upper end: a quantile in it is shown as its lower end, and `ackOver`
// is this lower end while the 99th percentile is in it.
export const series = {
  putIn: [], getOut: [], bytesIn: [], bytesOut: [], ackMedian: [], ackHigh: [], ackOver: [], answer: [],
};

/** Add one point of each series from a document of the group. */
export function record(group, atMs) {
  const rates = group.members
    .filter((member) => member.is_reachable && member.status?.rates && member.status.loop_state.state === "running")
    .map((member) => ({ ...member.status.rates, role: member.status.role }));
  const masters = rates.filter((rate) => rate.role === "master");
  add("putIn", atMs, sum(masters, "put_per_second"));
  add("getOut", atMs, sum(rates, "get_per_second"));
  add("bytesIn", atMs, sum(masters, "put_bytes_per_second"));
  add("bytesOut", atMs, sum(rates, "get_bytes_per_second"));
  const waits = masters.map((rate) => rate.ack_wait).filter((wait) => wait !== null);
  add("ackMedian", atMs, highest(waits.map((wait) => wait.median_ms ?? lastBucketMs(wait))));
  add("ackHigh", atMs, highest(waits.map((wait) => wait.p99_ms ?? lastBucketMs(wait))));
  add("ackOver", atMs, highest(waits.map((wait) => (wait.p99_ms === null ? lastBucketMs(wait) : null))));
  add("answer", atMs, highest(rates.map((rate) => rate.answer_ms)));
}

/** Return the lower end of the last bucket, for a quantile that is null because it is in there; null without sends. */
const lastBucketMs = (wait) => (wait.sends === 0 ? null : 2 ** (wait.buckets.length - 2) / 1000);

function sum(rates, name) {
  const known = rates.map((rate) => rate[name]).filter((value) => value !== null);
  return known.length === 0 ? null : known.reduce((total, value) => total + value, 0);
}

function highest(values) {
  const known = values.filter((value) => value !== null);
  return known.length === 0 ? null : Math.max(...known);
}

function add(name, atMs, value) {
  const points = series[name];
  points.push({ atMs, value });
  while (points.length > POINTS_MAX || (points.length > 0 && points[0].atMs < atMs - SPAN_MS)) points.shift();
}

/** Return the newest value of a series; null if it is too old. */
export function newest(name) {
  const last = series[name].at(-1);
  return last === undefined || Date.now() - last.atMs > 5000 ? null : last.value;
}
