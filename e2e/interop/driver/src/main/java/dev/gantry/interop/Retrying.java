package dev.gantry.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Consumers that fail. A failed message comes back through the group's retry topic after a delay that grows with every
 * failure; one that fails too often ends in the dead letter topic, where it can still be read.
 */
final class Retrying {
    private static final int RECONSUME_TIMES_MAX = 3;
    private static final int FAILURES = 2;
    /** The first redelivery waits for this level, each later one for the next. */
    private static final int FIRST_LEVEL = 3;
    private static final long EARLY_MILLIS = 50;

    private Retrying() {
    }

    /** Fails every message twice; the third delivery succeeds. */
    static void retry(Stage stage) throws Exception {
        Attempts attempts = new Attempts(stage, number -> FAILURES);
        attempts.send();
        stage.await(() -> attempts.succeeded.get() >= attempts.sent.count, attempts.deliveries::get);
        int unfinished = attempts.sent.count - attempts.succeeded.get();
        attempts.report(FAILURES);
        stage.outcome.check(unfinished == 0, "every message is consumed in the end (" + unfinished + " were not)");
    }

    /** Fails every message always; each must be tried exactly four times, then be in the dead letter topic. */
    static void deadLetters(Stage stage) throws Exception {
        Attempts attempts = new Attempts(stage, number -> Integer.MAX_VALUE);
        attempts.send();
        int tries = (RECONSUME_TIMES_MAX + 1) * attempts.sent.count;
        stage.await(() -> attempts.deliveries.get() >= tries, attempts.deliveries::get);

        Received dead = new Received(attempts.sent, attempts.content);
        DefaultMQPushConsumer deadLetterConsumer = stage.pushConsumer("undertaker_" + stage.group);
        deadLetterConsumer.subscribe("%DLQ%" + stage.group, "*");
        deadLetterConsumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(dead::takeAt);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        deadLetterConsumer.start();
        stage.await(() -> dead.distinct.get() == attempts.sent.count, dead.distinct::get);
        attempts.report(RECONSUME_TIMES_MAX);
        int missing = dead.missing(number -> true);
        stage.outcome.detail("dead_letters", dead.distinct.get());
        stage.outcome.check(missing == 0, "every message is in the dead letter topic (" + missing + " are not)");
        stage.outcome.check(dead.altered.get() == 0, "a dead letter is the message that was sent");
        stage.outcome.check(dead.duplicates.get() == 0, "a message becomes a dead letter once");
    }

    /** How often a message shall fail. */
    @FunctionalInterface
    private interface Failures {
        int of(int number);
    }

    /** A consumer that fails on purpose, and the times of its deliveries. */
    private static final class Attempts {
        final Stage stage;
        final Sent sent;
        final Content content;
        final Received received;
        final DefaultMQProducer producer;
        final AtomicInteger succeeded = new AtomicInteger();
        final AtomicInteger deliveries = new AtomicInteger();
        private final AtomicInteger tooMany = new AtomicInteger();
        private final AtomicInteger wrongCounts = new AtomicInteger();
        private final AtomicIntegerArray tries;
        private final long[][] times;

        Attempts(Stage stage, Failures failures) throws Exception {
            this.stage = stage;
            sent = new Sent(stage.options.retryCount(), stage.options.threads());
            content = stage.content();
            received = new Received(sent, content);
            tries = new AtomicIntegerArray(sent.count);
            times = new long[sent.count][RECONSUME_TIMES_MAX + 1];
            producer = stage.producer();
            stage.createTopic(producer, stage.options.queues());
            if (stage.options.isPopping()) { // then the broker counts, and gives a message up
                DefaultMQAdminExt admin = stage.sharedAdmin();
                Dialect.createGroup(admin, Stage.brokerOf(admin), stage.group, RECONSUME_TIMES_MAX);
            }
            DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
            consumer.setMaxReconsumeTimes(RECONSUME_TIMES_MAX);
            consumer.setConsumeMessageBatchMaxSize(1);
            consumer.subscribe(stage.topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                MessageExt message = messages.get(0);
                return attempt(message, failures)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            consumer.start();
            String retryTopic = "%RETRY%" + stage.group;
            stage.require(() -> holds(consumer, retryTopic), () -> 0, "the consumer holding its retry queue");
        }

        /**
         * Whether the consumer reads its retry topic yet. The broker creates that topic with the group's first
         * heartbeat. A client that asked for the topic's route a moment earlier asks again only after 20 s, which would
         * distort the measured delays; therefore this method makes the client ask at once.
         */
        private static boolean holds(DefaultMQPushConsumer consumer, String retryTopic) {
            DefaultMQPushConsumerImpl inside = consumer.getDefaultMQPushConsumerImpl();
            if (inside.getRebalanceImpl().getProcessQueueTable().keySet().stream()
                .anyMatch(queue -> queue.getTopic().equals(retryTopic))) {
                return true;
            }
            inside.getmQClientFactory().updateTopicRouteInfoFromNameServer(retryTopic);
            inside.getmQClientFactory().rebalanceImmediately();
            return false;
        }

        private boolean attempt(MessageExt message, Failures failures) {
            long now = System.currentTimeMillis();
            deliveries.incrementAndGet();
            int number = received.take(message);
            if (number < 0) {
                return true;
            }
            int attempt = tries.getAndIncrement(number);
            if (attempt > RECONSUME_TIMES_MAX) {
                tooMany.incrementAndGet();
                return true;
            }
            wrongCounts.addAndGet(message.getReconsumeTimes() == attempt ? 0 : 1);
            times[number][attempt] = now;
            if (attempt < failures.of(number)) {
                return false;
            }
            succeeded.incrementAndGet();
            return true;
        }

        void send() throws InterruptedException {
            Senders.finish(Senders.startEach(sent,
                number -> sent.acknowledge(number, producer.send(content.make(number)))));
        }

        /** Deliveries of one message beyond the first are redeliveries here, not duplicates. */
        void report(int redeliveries) {
            Outcome outcome = stage.outcome;
            outcome.add(sent);
            outcome.add(received, received.missing(number -> true));
            outcome.duplicates = Math.max(0, deliveries.get() - (redeliveries + 1) * sent.count);
            outcome.check(tooMany.get() == 0, "no message is delivered more often than allowed");
            outcome.check(wrongCounts.get() == 0, "the reconsume count is the number of a message's failures");
            List<Object> delays = new ArrayList<>();
            for (int attempt = 1; attempt <= redeliveries; attempt++) {
                delays.add(delay(attempt));
            }
            outcome.detail("redelivery_delays_ms", delays);
        }

        private List<Long> delay(int attempt) {
            long expected = stage.options.delayMillis(FIRST_LEVEL + attempt - 1);
            long[] waits = new long[sent.count];
            int found = 0;
            for (long[] at : times) {
                if (at[attempt] > 0) {
                    waits[found++] = at[attempt] - at[attempt - 1];
                }
            }
            waits = Arrays.copyOf(waits, found);
            Arrays.sort(waits);
            if (found == 0) {
                stage.outcome.check(false, "there is a redelivery number " + attempt);
                return List.of();
            }
            long least = waits[0];
            long most = waits[found - 1];
            stage.outcome.check(least >= expected - EARLY_MILLIS,
                "redelivery " + attempt + " waits " + expected + " ms (one waited " + least + ")");
            stage.outcome.check(most <= expected + stage.options.delaySlackMillis(),
                "redelivery " + attempt + " comes soon after " + expected + " ms (one came after " + most + ")");
            return List.of(expected, least, waits[found / 2], most);
        }
    }
}
