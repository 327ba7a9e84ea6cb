package dev.gantry.interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Two push consumers of a group that an administrator has switched to pop mode, and that let the broker assign their
 * queues. Some messages fail once, and come back when their invisible time is over. A client of version 4 cannot pop,
 * and pulls instead.
 */
final class Popping {
    private static final int CONSUMERS = 2;
    /** One message of so many fails at its first delivery. */
    private static final int FAILING = 97;
    private static final int FAILING_MAX = 50;

    private Popping() {
    }

    static void play(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        DefaultMQAdminExt admin = stage.sharedAdmin();
        String broker = Stage.brokerOf(admin);
        Dialect.createGroup(admin, broker, stage.group);
        boolean isPopping = Dialect.setPopMode(admin, broker, stage.topic, stage.group);
        Received received = new Received(sent, content);
        Map<Integer, Integer> failed = new ConcurrentHashMap<>();
        AtomicInteger again = new AtomicInteger();
        AtomicInteger[] shares = {new AtomicInteger(), new AtomicInteger()};
        for (int number = 0; number < CONSUMERS; number++) {
            AtomicInteger share = shares[number];
            DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
            consumer.setConsumeMessageBatchMaxSize(1);
            if (isPopping) {
                Dialect.consumeByPop(consumer);
            }
            consumer.subscribe(stage.topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                share.incrementAndGet();
                return consume(messages.get(0), received, failed, again)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            consumer.start();
        }
        Senders.finish(Senders.startEach(sent,
            number -> sent.acknowledge(number, producer.send(content.make(number)))));
        stage.await(() -> received.distinct.get() >= sent.count && again.get() >= failed.size(),
            () -> received.distinct.get() + again.get());
        Outcome outcome = stage.outcome;
        outcome.add(sent);
        outcome.add(received, received.missing(number -> true));
        outcome.detail("popping", isPopping);
        outcome.detail("failed_once", failed.size());
        outcome.detail("shares", shares[0].get() + "/" + shares[1].get());
        outcome.check(again.get() >= failed.size(), "every message that failed is delivered again");
        outcome.check(shares[0].get() > 0 && shares[1].get() > 0, "both consumers get messages");
        outcome.check(received.duplicates.get() <= again.get(), "a message that was consumed is not delivered again ("
            + received.duplicates.get() + " repeated, " + again.get() + " failed)");
    }

    /**
     * Two members of a group pop, and two pull, in the same topic at once. No message may be lost; both kinds read the
     * queues, so that some messages are consumed twice.
     */
    static void besidePull(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received received = new Received(sent, content);
        Map<Integer, Integer> failed = new ConcurrentHashMap<>();
        AtomicInteger again = new AtomicInteger();
        AtomicInteger[] shares = {new AtomicInteger(), new AtomicInteger()};
        for (int number = 0; number < 2 * CONSUMERS; number++) {
            boolean isPopping = number < CONSUMERS;
            DefaultMQPushConsumer consumer = isPopping
                ? stage.prepared(new PoppingConsumer(stage, stage.group))
                : stage.prepared(new DefaultMQPushConsumer(stage.group, stage.hook(), new AllocateMessageQueueAveragely()));
            consumer.setConsumeMessageBatchMaxSize(1);
            consumer.subscribe(stage.topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                shares[isPopping ? 0 : 1].incrementAndGet();
                return consume(messages.get(0), received, failed, again)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            consumer.start();
        }
        Senders.finish(Senders.startEach(sent,
            number -> sent.acknowledge(number, producer.send(content.make(number)))));
        stage.await(() -> received.distinct.get() >= sent.count && again.get() >= failed.size(),
            () -> received.distinct.get() + again.get());
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        stage.outcome.detail("failed_once", failed.size());
        stage.outcome.detail("popped", shares[0].get());
        stage.outcome.detail("pulled", shares[1].get());
        stage.outcome.check(again.get() >= failed.size(), "every message that failed is delivered again");
        stage.outcome.check(shares[0].get() > 0 && shares[1].get() > 0, "members of both kinds get messages");
    }

    private static boolean consume(MessageExt message, Received received, Map<Integer, Integer> failed,
        AtomicInteger again) {
        int number = received.take(message);
        if (number < 0) {
            return true;
        }
        if (number % FAILING == 0 && failed.size() < FAILING_MAX && failed.putIfAbsent(number, 1) == null) {
            return false;
        }
        if (failed.containsKey(number)) {
            again.incrementAndGet();
        }
        return true;
    }
}
