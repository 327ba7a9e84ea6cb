// Requests to all shards of the group at once, for views that merge their answers. This sidecar relays each request to
// a sidecar of the shard.

import { get, Refused } from "./api.js";
import { withToken } from "./access.js";
import { state } from "./store.js";

/** Return the name of this sidecar's shard; null if it is unknown. */
export const ownShard = () => state.group?.members.find((member) => member.is_self)?.status?.broker_name ?? null;

/** Return the names of all shards, or `[null]`, which stands for this sidecar's broker, if none is known. */
export function allShards() {
  const names = state.group?.shards.map((shard) => shard.broker_name).filter((name) => name) ?? [];
  return names.length === 0 ? [null] : names;
}

/** Return whether the shards are known, or will not become known because the sidecar refuses or does not answer. */
export const hasShards = () => state.group !== null || state.connection === "refused" || state.connection === "lost";

/** Return a path that is answered by a shard; by this sidecar's own broker if the name is null. */
export function atShard(path, name) {
  if (name === null || name === undefined || name === ownShard()) return path;
  return `${path}${path.includes("?") ? "&" : "?"}shard=${encodeURIComponent(name)}`;
}

/**
 * Send a GET request to each shard. Returns `{answers: [{shard, document}], faults: [{shard, error}]}`.
 *
 * The user is asked for a token at most once. Raises the error if every shard fails, or the token is still refused.
 */
export async function askShards(names, path, why) {
  return withToken(async () => {
    const results = await Promise.allSettled(names.map((name) => get(atShard(path, name))));
    const failed = results.map((result, at) => ({ shard: names[at], error: result.reason })).filter((one) => one.error);
    const refused = failed.find(({ error }) => error instanceof Refused && error.status === 401);
    if (refused !== undefined || failed.length === names.length) throw (refused ?? worst(failed)).error;
    const answers = results.map((result, at) => ({ shard: names[at], document: result.value })).filter((one) => one.document);
    return { answers, faults: failed };
  }, why);
}

/** Return the failure to show if all shards failed: "not found" only if no shard failed for another reason. */
const worst = (failed) => failed.find(({ error }) => error.status !== 404) ?? failed[0];
