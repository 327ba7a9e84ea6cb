// The newest messages of a topic over all shards: pages of each shard, merged by store time.
//
// A shard's own messages come in the order of its log. Messages of two shards are only as comparable as the clocks of
// their brokers. A message is shown when no shard can have an unread message that is newer: so "Older" only adds messages
// at the end, and skips none.

import { path } from "./api.js";
import { askShards } from "./shards.js";

const ROUNDS_MAX = 10; // The most requests in a row to a shard: in pages of lost messages, "Older" continues the search.
export const PAGE = 20; // The messages that are requested of each shard, and added by "Older".

export class MessagePages {
  /** `query` has the parameters of the request, such as `{queue_id: "0"}`. */
  constructor(shards, topic, query) {
    this.topic = topic;
    this.query = query;
    this.sources = shards.map((shard) => ({ shard, messages: [], older: undefined, document: null }));
    this.shownMax = 0;
    this.faults = [];
  }

  /** Read until there is one more page to show, or nothing more to read. Raises Refused or Unreachable. */
  async more() {
    this.shownMax += PAGE;
    for (let round = 0; round < ROUNDS_MAX && this.safe().length < this.shownMax; round += 1) {
      const due = this.#due();
      if (due.length === 0) return;
      for (const older of new Set(due.map((source) => source.older))) await this.#read(due.filter((source) => source.older === older));
    }
  }

  /** Return the sources that determine where the safe part ends: those whose last message is the newest. */
  #due() {
    const unread = this.sources.filter((source) => source.older !== null && !this.#hasFailed(source));
    const cut = Math.max(...unread.map(endOf));
    return unread.filter((source) => endOf(source) === cut);
  }

  async #read(sources) {
    const query = new URLSearchParams({ count: PAGE, ...this.query });
    if (sources[0].older !== undefined) query.set("before", sources[0].older);
    const { answers, faults } = await askShards(sources.map((source) => source.shard), `${path("topics", this.topic, "messages")}?${query}`, "Reading messages requires a token.");
    // A shard on which the topic does not exist has no message of it.
    this.faults.push(...faults.filter(({ error }) => error.status !== 404));
    for (const { shard } of faults) this.sources.find((source) => source.shard === shard).older = null;
    for (const { shard, document } of answers) {
      const source = this.sources.find((one) => one.shard === shard);
      source.messages.push(...document.messages.map((message) => ({ ...message, shard: document.broker_name })));
      Object.assign(source, { older: document.older, document });
    }
  }

  #hasFailed(source) {
    return this.faults.some(({ shard }) => shard === source.shard);
  }

  /** Return the messages before which no unread one can come, the newest first. */
  safe() {
    const cut = Math.max(...this.sources.map((source) => (source.older === null ? -Infinity : endOf(source))));
    return this.sources.flatMap((source) => source.messages).filter((message) => message.stored_wall_ms > cut || this.sources.length === 1)
      .toSorted((a, b) => b.stored_wall_ms - a.stored_wall_ms || (a.shard === b.shard ? b.physical_offset - a.physical_offset : a.shard < b.shard ? -1 : 1));
  }

  /** Return the messages to show. */
  shown() {
    return this.safe().slice(0, this.shownMax);
  }

  /** Return whether there are older messages. */
  hasMore() {
    return this.safe().length > this.shownMax || this.sources.some((source) => source.older !== null);
  }

  /** Return the number of messages that the queues of all shards hold. */
  total() {
    const queues = this.sources.flatMap((source) => source.document?.queues ?? []);
    const wanted = this.query.queue_id === undefined ? queues : queues.filter((queue) => String(queue.queue_id) === this.query.queue_id);
    return wanted.reduce((sum, queue) => sum + queue.end - queue.begin, 0);
  }

  /** Return the ids of the queues of all shards. */
  queueIds() {
    return [...new Set(this.sources.flatMap((source) => (source.document?.queues ?? []).map((queue) => queue.queue_id)))].toSorted((a, b) => a - b);
  }

  unreadable() {
    return this.sources.reduce((sum, source) => sum + (source.document?.unreadable ?? 0), 0);
  }
}

/** Return the store time up to which a source was read: all of its unread messages are at most as new. */
const endOf = (source) => (source.older === undefined ? Infinity : source.messages.at(-1)?.stored_wall_ms ?? Infinity);
