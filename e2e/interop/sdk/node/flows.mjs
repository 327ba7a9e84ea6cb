// The flows of the Node.js SDK. Each takes a Run and returns its verdict.

import { setTimeout as sleep } from 'node:timers/promises';

import rocketmq from 'rocketmq-client-nodejs';
import definitions from 'rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js';

import { AWAIT_MS, RECALLABLE_MS, receive } from './run.mjs';

const { ConsumeResult, FilterExpression } = rocketmq;
const { FilterType, TransactionResolution } = definitions;

const CHANGED_INVISIBLE_MS = 3_000;
const MESSAGE_GROUPS = 16;
/** The priorities are 1 to 3: topics have four queues, and this SDK sends priority 0 as a normal message. */
const PRIORITY_MAX = 3;
/**
 * The time without a delivery after which messages that always fail are given up: longer than a long poll of 20 s, which
 * brokers of RocketMQ 5.3.3 do not end for a failed message. The proxy gives a message up when it receives it again.
 */
const SETTLED_MS = 30_000;
/** How often a message is delivered before it goes to the dead letters; the groups allow two retries. */
const DELIVERIES = 3;

async function withSimpleConsumer(run, kind, filter, producerOptions, exchange) {
  const consumer = await run.consumer(kind, filter);
  const producer = await run.producer(kind, producerOptions);
  try {
    return await exchange(consumer, producer);
  } finally {
    await producer.shutdown();
    await consumer.shutdown();
  }
}

function normal(run) {
  const { found } = run;
  found.check = view => {
    const expected = `key-${view.properties.get('number')}`;
    if (view.keys.join() !== expected) found.wrong.push(`the keys of ${view.messageId} are ${view.keys}`);
  };
  return withSimpleConsumer(run, 'normal', FilterExpression.SUB_ALL, {}, async (consumer, producer) => {
    await run.sendAll(index =>
      producer.send(found.want(run.message('normal', index, { tag: 'a', keys: [`key-${index}`] }))));
    await run.receiveAll(consumer);
    return found.judge('');
  });
}

/** Subscribe to a part of the messages, and wait whether others arrive, too. */
function filtered(run) {
  const isTag = run.flow === 'tag';
  const filter = isTag ? new FilterExpression('red') : new FilterExpression('price > 5', FilterType.SQL);
  return withSimpleConsumer(run, 'normal', filter, {}, async (consumer, producer) => {
    await run.sendAll(index => {
      const message = run.message('normal', index, { tag: ['red', 'green', 'blue'][index % 3] });
      message.properties.set('price', String(index % 10));
      if (isTag ? index % 3 === 0 : index % 10 > 5) run.found.want(message);
      return producer.send(message);
    });
    await run.receiveAll(consumer);
    await run.receiveMore(consumer, AWAIT_MS);
    return run.found.judge('');
  });
}

function delay(run) {
  const { found } = run;
  found.check = view => {
    const due = Number(view.properties.get('due'));
    if (Date.now() < due) found.wrong.push(`early by ${due - Date.now()} ms`);
  };
  return withSimpleConsumer(run, 'delay', FilterExpression.SUB_ALL, {}, async (consumer, producer) => {
    await run.sendAll(index => {
      const deliveryTimestamp = new Date(Date.now() + 3_000 + (index % 3) * 1_000);
      const message = run.message('delay', index, { deliveryTimestamp });
      message.properties.set('due', String(deliveryTimestamp.getTime()));
      return producer.send(found.want(message));
    });
    await run.receiveAll(consumer);
    return found.judge('none early');
  });
}

/** Take every other message back before it is due. */
function recall(run) {
  let recalled = 0;
  return withSimpleConsumer(run, 'delay', FilterExpression.SUB_ALL, {}, async (consumer, producer) => {
    await run.sendAll(async index => {
      const message = run.message('delay', index, { deliveryTimestamp: new Date(Date.now() + RECALLABLE_MS) });
      if (index % 2 === 0) return await producer.send(run.found.want(message));
      const receipt = await producer.send(message);
      await producer.recallMessage(message.topic, receipt.recallHandle);
      recalled += 1;
    });
    await run.receiveAll(consumer);
    await run.receiveMore(consumer, RECALLABLE_MS);
    return run.found.judge(`${recalled} recalled`);
  });
}

/** Send all messages, then check that one receiver gets those of higher priority first. */
function priority(run) {
  const { found } = run;
  let lowest = PRIORITY_MAX;
  found.check = view => {
    const expected = 1 + (Number(view.properties.get('number')) % PRIORITY_MAX);
    if (view.priority !== expected) found.wrong.push(`priority ${view.priority}, expected ${expected}`);
    if (expected > lowest) found.wrong.push(`priority ${expected} after ${lowest}`);
    lowest = Math.min(lowest, expected);
  };
  return withSimpleConsumer(run, 'priority', FilterExpression.SUB_ALL, {}, async (consumer, producer) => {
    await run.sendAll(index => {
      const message = run.message('priority', index, { priority: 1 + (index % PRIORITY_MAX) });
      return producer.send(found.want(message));
    });
    await run.receiveAll(consumer, run.patience, 1);
    return found.judge('highest first');
  });
}

/** Commit every other message; the outcome of a fifth of them is left to the checker. */
function transaction(run) {
  let checks = 0;
  const checker = {
    async check(view) {
      checks += 1;
      const isEven = Number(view.properties.get('number')) % 2 === 0;
      return isEven ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    },
  };
  const { found } = run;
  return withSimpleConsumer(run, 'transaction', FilterExpression.SUB_ALL, { checker }, async (consumer, producer) => {
    await run.sendAll(async index => {
      const message = run.message('transaction', index);
      if (index % 2 === 0) found.want(message);
      const opened = producer.beginTransaction();
      await producer.send(message, opened);
      if (index % 10 < 8) await (index % 2 === 0 ? opened.commit() : opened.rollback());
    });
    await run.receiveAll(consumer, 2 * run.patience);
    if (run.count > 8 && checks === 0) found.wrong.push('no transaction was checked');
    return found.judge(`${checks} checks`);
  });
}

/** Change the invisible time of every message, which brings it back with one more attempt. */
function changeInvisible(run) {
  const { found } = run;
  const changed = new Map();
  const settle = async (consumer, view) => {
    const key = view.properties.get('sha');
    const before = changed.get(key);
    if (before === undefined && found.isOwn(view)) {
      changed.set(key, Date.now());
      return await consumer.changeInvisibleDuration(view, CHANGED_INVISIBLE_MS);
    }
    if (before !== undefined && view.deliveryAttempt !== 2) found.wrong.push(`attempt ${view.deliveryAttempt}`);
    if (Date.now() - before < CHANGED_INVISIBLE_MS / 2) found.wrong.push(`back after ${Date.now() - before} ms`);
    found.add(view);
    await consumer.ack(view);
  };
  return withSimpleConsumer(run, 'normal', new FilterExpression('invisible'), {}, async (consumer, producer) => {
    await run.sendAll(index => producer.send(found.want(run.message('normal', index, { tag: 'invisible' }))));
    for (const deadline = Date.now() + run.patience; !found.isComplete && Date.now() < deadline;) {
      for (const view of await receive(consumer)) await settle(consumer, view);
    }
    return found.judge('all came back');
  });
}

/** Start a push consumer, send all messages, and wait for the wanted ones. Messages of other flows are acknowledged. */
async function withPushConsumer(run, kind, tag, listener, settle = async () => {}) {
  const consumer = await run.pushConsumer(kind, tag, async view =>
    (run.found.isOwn(view) ? listener(view) : ConsumeResult.SUCCESS));
  const producer = await run.producer(kind);
  try {
    await run.sendAll(index => {
      const group = kind === 'fifo' ? { messageGroup: `group-${index % MESSAGE_GROUPS}` } : {};
      return producer.send(run.found.want(run.message(kind, index, { tag: run.flow, ...group })));
    }, MESSAGE_GROUPS);
    await run.waitForAll();
    await settle();
  } finally {
    await producer.shutdown();
    await consumer.shutdown();
  }
}

/** Fail an eighth of the messages once; those must be delivered again. */
async function push(run) {
  const failed = new Set();
  await withPushConsumer(run, 'normal', 'push', view => {
    const key = view.properties.get('sha');
    if (key[0] < '2' && !failed.has(key)) {
      failed.add(key);
      return ConsumeResult.FAILURE;
    }
    run.found.add(view);
    return ConsumeResult.SUCCESS;
  });
  return run.found.judge(`${failed.size} failed once`);
}

/** Check that the messages of each message group arrive in the order in which they were sent. */
async function fifo(run) {
  const last = new Map();
  await withPushConsumer(run, 'fifo', '*', view => {
    const number = Number(view.properties.get('number'));
    const before = last.get(view.messageGroup);
    if (number < before) run.found.wrong.push(`${number} after ${before} in ${view.messageGroup}`);
    last.set(view.messageGroup, number);
    run.found.add(view);
    return ConsumeResult.SUCCESS;
  });
  return run.found.judge('in order');
}

/** Fail every message until it is given up; the harness reads the dead letters afterwards. */
async function deadLetters(run) {
  const attempts = new Map();
  let newest = Date.now();
  await withPushConsumer(run, run.flow === 'dead-letters' ? 'normal' : 'fifo', run.flow, view => {
    const key = view.properties.get('sha');
    const attempt = (attempts.get(key) ?? 0) + 1;
    attempts.set(key, attempt);
    newest = Date.now();
    if (attempt === DELIVERIES) run.found.add(view);
    if (attempt > DELIVERIES) run.found.wrong.push(`delivery ${attempt}`);
    return ConsumeResult.FAILURE;
  }, async () => {
    while (Date.now() - newest < SETTLED_MS) await sleep(1_000);
  });
  return run.found.judge(`${DELIVERIES} deliveries each`);
}

export const FLOWS = {
  normal, tag: filtered, sql: filtered, push, fifo, delay, recall, priority, transaction, invisible: changeInvisible,
  'dead-letters': deadLetters, 'fifo-dead-letters': deadLetters,
};
