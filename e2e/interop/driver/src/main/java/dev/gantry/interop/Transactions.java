package dev.gantry.interop;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactions that end in every possible way, by the number of their message: at once, at the first check, at
 * the second check, or after the local part has failed. Committed messages must be delivered once, the others never.
 */
final class Transactions {
    private static final long SETTLE_MILLIS = 3_000;

    private Transactions() {
    }

    /** How the transaction of a message ends. */
    private enum End {
        COMMIT(true, 0), ROLL_BACK(false, 0), COMMIT_AT_CHECK(true, 1), ROLL_BACK_AT_CHECK(false, 1),
        COMMIT_AT_SECOND_CHECK(true, 2), COMMIT_AFTER_A_FAILURE(true, 1);

        final boolean isDelivered;
        /** The number of checks that the broker must make. */
        final int checks;

        End(boolean isDelivered, int checks) {
            this.isDelivered = isDelivered;
            this.checks = checks;
        }

        static End of(int number) {
            return values()[number % values().length];
        }

        LocalTransactionState state() {
            return isDelivered ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }
    }

    /** Sends every message as a transaction. */
    static void play(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.retryCount(), stage.options.threads());
        Content content = stage.content();
        Received received = new Received(sent, content);
        stage.createTopic(stage.producer(), stage.options.queues());
        Stored stored = new Stored();
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> stored.at(received.take(message), message));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        Listener listener = new Listener(content, sent.count);
        TransactionMQProducer producer = stage.transactional(listener);
        Senders.finish(Senders.startEach(sent, number -> {
            Message message = content.make(number);
            TransactionSendResult result = producer.sendMessageInTransaction(message, number);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                sent.fail("send status " + result.getSendStatus());
            } else {
                sent.handOver(number);
            }
        }));
        stage.await(() -> received.missing(number -> End.of(number).isDelivered) == 0 && listener.isDone(sent),
            () -> received.distinct.get() + listener.checks.get());
        TimeUnit.MILLISECONDS.sleep(SETTLE_MILLIS);

        int missing = received.missing(number -> End.of(number).isDelivered);
        int unwanted = received.count(number -> !End.of(number).isDelivered);
        stage.outcome.add(sent);
        stage.outcome.add(received, missing);
        stage.outcome.detail("questions", listener.checks.get());
        stage.outcome.check(unwanted == 0, "a message that is rolled back is never delivered (" + unwanted + " were)");
        stage.outcome.check(stored.twice.get() == 0,
            "a committed message is stored once (" + stored.twice.get() + " were not)");
        stage.outcome.check(listener.isDone(sent), "the broker checks every open transaction");
        stage.outcome.check(listener.wrong.get() == 0, "the broker's check has the message that was sent");
    }

    /** The queues and offsets at which messages were received. */
    private static final class Stored {
        final AtomicInteger twice = new AtomicInteger();
        private final ConcurrentMap<Integer, String> places = new ConcurrentHashMap<>();

        void at(int number, MessageExt message) {
            String place = message.getQueueId() + "@" + message.getQueueOffset();
            String before = number < 0 ? null : places.putIfAbsent(number, place);
            if (before != null && !before.equals(place)) {
                twice.incrementAndGet();
            }
        }
    }

    /** The local part, and the answers to the broker's checks. */
    private static final class Listener implements TransactionListener {
        final AtomicInteger checks = new AtomicInteger();
        final AtomicInteger wrong = new AtomicInteger();
        private final Content content;
        private final AtomicIntegerArray checksOf;

        Listener(Content content, int count) {
            this.content = content;
            this.checksOf = new AtomicIntegerArray(count);
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object number) {
            End end = End.of((Integer) number);
            if (end == End.COMMIT_AFTER_A_FAILURE) {
                throw new IllegalStateException("the local part fails at an unknown point");
            }
            return end.checks == 0 ? end.state() : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            checks.incrementAndGet();
            int number = content.verify(message, checksOf.length());
            if (number < 0) {
                wrong.incrementAndGet();
                return LocalTransactionState.UNKNOW;
            }
            End end = End.of(number);
            return checksOf.incrementAndGet(number) >= end.checks ? end.state() : LocalTransactionState.UNKNOW;
        }

        boolean isDone(Sent sent) {
            for (int number = 0; number < checksOf.length(); number++) {
                if (sent.accepted(number) && checksOf.get(number) < End.of(number).checks) {
                    return false;
                }
            }
            return true;
        }
    }
}
