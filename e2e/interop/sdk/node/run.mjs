// One flow of the Node.js SDK: its names, the helpers that send and receive, and the tally that judges.

import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

import rocketmq from 'rocketmq-client-nodejs';

const { Producer, PushConsumer, SimpleConsumer } = rocketmq;

export const AWAIT_MS = 6_000;
export const RECALLABLE_MS = 12_000;
const INVISIBLE_MS = 60_000;
const REQUEST_MS = 10_000;
const BATCH = 32;
const SENDERS = 16;
const RECEIVERS = 4;
const PATIENCE_MS = 90_000;
/** The number of messages a second that a run may at least expect of a busy machine. */
const SLOWEST = 40;
/** The time in which a push consumer begins to receive: a new group starts at the end of a queue. */
const JOINING_MS = 4_000;

export class Run {
  constructor(endpoints, suffix, flow, count) {
    Object.assign(this, { endpoints, suffix, flow, count, id: randomUUID() });
    this.patience = PATIENCE_MS + (count / SLOWEST) * 1_000;
    this.found = new Tally(this.id);
  }

  topic(kind) {
    return `sdk-${kind}${this.suffix}`;
  }

  #options(more) {
    return { endpoints: this.endpoints, namespace: '', requestTimeout: REQUEST_MS, ...more };
  }

  #groupOptions(kind, filter, more) {
    const subscriptions = new Map([[this.topic(kind), filter]]);
    return this.#options({ consumerGroup: `sdk-${this.flow}${this.suffix}`, subscriptions, ...more });
  }

  async producer(kind, more = {}) {
    const producer = new Producer(this.#options({ topics: [this.topic(kind)], ...more }));
    await producer.startup();
    return producer;
  }

  /** Start a simple consumer, and receive once: a group is known to a queue from its first receive on. */
  async consumer(kind, filter) {
    const consumer = new SimpleConsumer(this.#groupOptions(kind, filter, { awaitDuration: AWAIT_MS }));
    await consumer.startup();
    await receiveAndAck(consumer, () => {});
    return consumer;
  }

  async pushConsumer(kind, tag, consume) {
    const messageListener = { consume };
    const consumer = new PushConsumer(this.#groupOptions(kind, tag, { messageListener }));
    await consumer.startup();
    await sleep(JOINING_MS);
    return consumer;
  }

  /** Build a message whose properties contain the digest of its body and the id of this flow. */
  message(kind, index, fields = {}) {
    const body = Buffer.from(`${this.flow} ${index} ${randomUUID()} `.repeat(1 + (index % 16)));
    const properties = new Map([['sha', digest(body)], ['run', this.id], ['number', String(index)]]);
    return { topic: this.topic(kind), body, properties, ...fields };
  }

  /** Call send for each number below the count. Numbers of one lane are sent in order, one after the other. */
  async sendAll(send, lanes = SENDERS) {
    const sendLane = async lane => {
      for (let index = lane; index < this.count; index += lanes) await send(index);
    };
    await Promise.all(Array.from({ length: lanes }, (_, lane) => sendLane(lane)));
    this.found.isOpen = false;
  }

  /** Receive and acknowledge until every wanted message has arrived, or the time is over. */
  async receiveAll(consumer, patience = this.patience, receivers = RECEIVERS) {
    const deadline = Date.now() + patience;
    const receive = async () => {
      while (!this.found.isComplete && Date.now() < deadline) {
        await receiveAndAck(consumer, view => this.found.add(view));
      }
    };
    await Promise.all(Array.from({ length: receivers }, receive));
  }

  /** Receive for some time after the last wanted message, so that an unwanted one is noticed. */
  async receiveMore(consumer, longerMs) {
    for (const deadline = Date.now() + longerMs; Date.now() < deadline;) {
      await receiveAndAck(consumer, view => this.found.add(view));
    }
  }

  /** Wait until a push consumer has received every wanted message, or the time is over. */
  async waitForAll() {
    for (const deadline = Date.now() + this.patience; !this.found.isComplete && Date.now() < deadline;) {
      await sleep(50);
    }
  }
}

export async function receive(consumer) {
  return await consumer.receive(BATCH, INVISIBLE_MS);
}

async function receiveAndAck(consumer, handle) {
  for (const view of await receive(consumer)) {
    handle(view);
    await consumer.ack(view);
  }
}

function digest(body) {
  return createHash('sha256').update(body).digest('hex');
}

/** Counts what arrived of one flow, and what was wrong with it. */
export class Tally {
  wanted = new Set();
  copies = new Map();
  wrong = [];
  isOpen = true;
  /** Looks for further faults of a message of this flow. */
  check = () => {};
  #arrived = 0;

  constructor(id) {
    this.id = id;
  }

  want(message) {
    this.wanted.add(message.properties.get('sha'));
    return message;
  }

  /** Return whether a message is of this flow; an altered one is noted. */
  isOwn(view) {
    if (view.properties.get('run') !== this.id) return false;
    if (digest(view.body) !== view.properties.get('sha')) this.wrong.push(`the body of ${view.messageId} changed`);
    return true;
  }

  add(view) {
    if (!this.isOwn(view)) return;
    this.check(view);
    const key = view.properties.get('sha');
    const copies = (this.copies.get(key) ?? 0) + 1;
    this.copies.set(key, copies);
    if (copies === 1 && this.wanted.has(key)) this.#arrived += 1;
  }

  get isComplete() {
    return !this.isOpen && this.#arrived === this.wanted.size;
  }

  /** Return the verdict: every wanted message arrived, no other one, and nothing was wrong. */
  judge(note) {
    const isExact = this.#arrived === this.wanted.size && this.copies.size === this.wanted.size;
    const copies = [...this.copies.values()].reduce((sum, one) => sum + one, 0);
    const faults = this.wrong.length ? `; ${this.wrong.length} wrong, the first: ${this.wrong[0]}` : '';
    return {
      ok: isExact && !faults, expected: this.wanted.size, received: this.copies.size, copies, note: note + faults,
    };
  }
}
