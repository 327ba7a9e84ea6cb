package dev.gantry.interop;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Progress that survives a consumer: a restart from the committed offset, and queues that change hands. */
final class ConsumerChanges {
    /** The broker announces a change of the group's consumers; without that a client notices after 20 s. */
    private static final long REBALANCE_MILLIS_MAX = 10_000;

    private ConsumerChanges() {
    }

    /**
     * A consumer is stopped half way while messages still come in. The next one of its group must begin, in every
     * queue, exactly at the offset that the first one committed.
     */
    static void restart(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received received = new Received(sent, content);
        Reader first = new Reader(stage, received);
        List<Thread> threads = Senders.startEach(sent,
            number -> sent.acknowledge(number, producer.send(content.make(number))));
        stage.require(() -> received.distinct.get() >= sent.count / 2, received.distinct::get, "half of the messages");
        first.consumer.shutdown();
        int duplicatesBefore = received.duplicates.get();
        Map<Integer, Long> committed = committedOffsets(stage);
        Reader second = new Reader(stage, received);
        Senders.finish(threads);
        stage.await(received::complete, received.distinct::get);
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        stage.outcome.outOfOrder += received.outOfSequence();
        int wrongStarts = 0;
        for (Map.Entry<Integer, Long> start : second.firstOffsets.entrySet()) {
            wrongStarts += start.getValue().equals(committed.get(start.getKey())) ? 0 : 1;
        }
        long total = committed.values().stream().mapToLong(Long::longValue).sum();
        stage.outcome.detail("committed_at_stop", total);
        stage.outcome.detail("redelivered_after_restart", received.duplicates.get() - duplicatesBefore);
        // The end of pops is committed with a flush, which an idle broker makes every ten seconds.
        stage.outcome.check(total > 0 || stage.options.isPopping(), "the stopped consumer's progress is known to the broker");
        // Messages that the first consumer has popped and not acked come back when their time is over.
        stage.outcome.check(wrongStarts == 0 || stage.options.isPopping(),
            "every queue is resumed at its committed offset: " + committed + " but " + second.firstOffsets);
    }

    /** Queries as a consumer of the group does, while no consumer is online. */
    private static Map<Integer, Long> committedOffsets(Stage stage) throws Exception {
        DefaultLitePullConsumer consumer = stage.liteConsumer(stage.group);
        consumer.setAutoCommit(false);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(stage.topic);
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            consumer.pause(List.of(queue));
        }
        Map<Integer, Long> committed = new TreeMap<>();
        for (MessageQueue queue : queues) {
            Long offset = consumer.committed(queue);
            committed.put(queue.getQueueId(), offset == null ? -1L : Math.max(offset, 0));
        }
        consumer.shutdown();
        return committed;
    }

    /** A second consumer joins, the first one leaves; queues move, and no message falls between the two. */
    static void rebalance(Stage stage) throws Exception {
        int queues = stage.options.queues();
        Sent sent = new Sent(stage.options.count(), 1);
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, queues);
        Received received = new Received(sent, content);
        Reader first = new Reader(stage, received);
        AtomicInteger allowed = new AtomicInteger(sent.count / 3);
        List<Thread> threads = Senders.startEach(sent, number -> {
            stage.require(() -> number < allowed.get(), received.distinct::get, "permission to continue sending");
            sent.acknowledge(number, producer.send(content.make(number)));
        });
        if (stage.options.isPopping()) {
            shareByPop(stage, first, received, allowed, threads, sent);
            return;
        }
        stage.require(() -> first.queues() == queues, first::queues, "the only consumer holding every queue");

        long joining = System.nanoTime();
        Reader second = new Reader(stage, received);
        stage.require(() -> first.queues() == queues / 2 && second.queues() == queues - queues / 2,
            () -> first.queues() * 100L + second.queues(), "an even split");
        long joinedMillis = (System.nanoTime() - joining) / 1_000_000;
        allowed.set(sent.count - sent.count / 3);
        stage.require(() -> second.count.get() > 0 && received.distinct.get() >= sent.count / 2,
            received.distinct::get, "progress of both");

        long leaving = System.nanoTime();
        first.consumer.shutdown();
        allowed.set(sent.count);
        stage.require(() -> second.queues() == queues, second::queues, "the remaining consumer holding every queue");
        long leftMillis = (System.nanoTime() - leaving) / 1_000_000;
        Senders.finish(threads);
        stage.await(received::complete, received.distinct::get);

        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        stage.outcome.outOfOrder += received.outOfSequence();
        stage.outcome.detail("joined_ms", joinedMillis);
        stage.outcome.detail("left_ms", leftMillis);
        stage.outcome.detail("first_consumed", first.count.get());
        stage.outcome.detail("second_consumed", second.count.get());
        stage.outcome.check(first.count.get() > 0 && second.count.get() > 0, "both consumers take part");
        stage.outcome.check(Math.max(joinedMillis, leftMillis) < REBALANCE_MILLIS_MAX,
            "consumers are notified of a change of members");
    }

    /** In pop mode both consumers read all queues: the second takes part at once, and the rest when the first leaves. */
    private static void shareByPop(Stage stage, Reader first, Received received, AtomicInteger allowed,
        List<Thread> threads, Sent sent) throws Exception {
        stage.require(() -> first.count.get() > 0, first.count::get, "messages of the only consumer");
        Reader second = new Reader(stage, received);
        allowed.set(sent.count - sent.count / 3);
        stage.require(() -> second.count.get() > 0 && received.distinct.get() >= sent.count / 2,
            received.distinct::get, "progress of both");
        first.consumer.shutdown();
        allowed.set(sent.count);
        Senders.finish(threads);
        stage.await(received::complete, received.distinct::get);
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        stage.outcome.detail("first_consumed", first.count.get());
        stage.outcome.detail("second_consumed", second.count.get());
        stage.outcome.check(received.holes() == 0, "no queue has a hole");
    }

    /** One push consumer and what it alone has seen. */
    private static final class Reader {
        final DefaultMQPushConsumer consumer;
        final AtomicInteger count = new AtomicInteger();
        final Map<Integer, Long> firstOffsets = new ConcurrentHashMap<>();

        Reader(Stage stage, Received received) throws Exception {
            consumer = stage.pushConsumer(stage.group);
            consumer.subscribe(stage.topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    firstOffsets.merge(message.getQueueId(), message.getQueueOffset(), Math::min);
                    received.takeAt(message);
                }
                count.addAndGet(messages.size());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        int queues() {
            List<MessageQueue> held = new ArrayList<>(consumer.getDefaultMQPushConsumerImpl()
                .getRebalanceImpl().getProcessQueueTable().keySet());
            held.removeIf(queue -> queue.getTopic().startsWith("%RETRY%"));
            return Collections.unmodifiableList(held).size();
        }
    }
}
