package dev.gantry.interop;

import java.util.Set;
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
 * Push consumers of a group that share a topic, some or all of them in pop mode, while a producer sends to it. Some
 * messages fail once, and come back when their invisible time is over.
 */
final class Popping {
    private static final int CONSUMERS = 2;
    /** One message of so many fails at its first delivery. */
    private static final int FAILING = 97;
    private static final int FAILING_MAX = 50;

    private final Stage stage;
    private final Sent sent;
    private final Content content;
    private final DefaultMQProducer producer;
    private final Received received;
    private final Set<Integer> failed = ConcurrentHashMap.newKeySet();
    /** How many deliveries there were of messages that had failed before. */
    private final AtomicInteger again = new AtomicInteger();
    /** The deliveries to each of two consumers, or to two kinds of them. */
    private final AtomicInteger[] shares = {new AtomicInteger(), new AtomicInteger()};

    private Popping(Stage stage) throws Exception {
        this.stage = stage;
        sent = new Sent(stage.options.count(), stage.options.threads());
        content = stage.content();
        received = new Received(sent, content);
        producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
    }

    /**
     * An administrator switches the group of two consumers to pop mode, and the broker assigns their queues. A client of
     * version 4 cannot pop, and pulls instead.
     */
    static void play(Stage stage) throws Exception {
        Popping run = new Popping(stage);
        DefaultMQAdminExt admin = stage.sharedAdmin();
        String broker = Stage.brokerOf(admin);
        Dialect.createGroup(admin, broker, stage.group);
        boolean isPopping = Dialect.setPopMode(admin, broker, stage.topic, stage.group);
        for (int number = 0; number < CONSUMERS; number++) {
            DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
            if (isPopping) {
                Dialect.consumeByPop(consumer);
            }
            run.start(consumer, run.shares[number]);
        }
        run.sendAll();
        int repeated = run.received.duplicates.get();
        Outcome outcome = stage.outcome;
        outcome.detail("popping", isPopping);
        outcome.detail("shares", run.shares[0].get() + "/" + run.shares[1].get());
        outcome.check(run.haveBothShares(), "both consumers get messages");
        outcome.check(repeated <= run.again.get(), "a message that was consumed is not delivered again ("
            + repeated + " repeated, " + run.again.get() + " failed)");
    }

    /**
     * Two members of a group pop, and two pull, in the same topic at once. No message may be lost; both kinds read the
     * queues, so that some messages are consumed twice.
     */
    static void besidePull(Stage stage) throws Exception {
        Popping run = new Popping(stage);
        for (int number = 0; number < CONSUMERS; number++) {
            run.start(stage.prepared(new PoppingConsumer(stage, stage.group)), run.shares[0]);
            run.start(stage.prepared(new DefaultMQPushConsumer(stage.group, stage.hook(),
                new AllocateMessageQueueAveragely())), run.shares[1]);
        }
        run.sendAll();
        stage.outcome.detail("popped", run.shares[0].get());
        stage.outcome.detail("pulled", run.shares[1].get());
        stage.outcome.check(run.haveBothShares(), "members of both kinds get messages");
    }

    /** Starts a consumer whose deliveries count in the share. */
    private void start(DefaultMQPushConsumer consumer, AtomicInteger share) throws Exception {
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            share.incrementAndGet();
            return consume(messages.get(0))
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
    }

    /** Sends all messages, waits until they are consumed, and adds what every run must keep to the outcome. */
    private void sendAll() throws Exception {
        Senders.finish(Senders.startEach(sent,
            number -> sent.acknowledge(number, producer.send(content.make(number)))));
        stage.await(() -> received.distinct.get() >= sent.count && again.get() >= failed.size(),
            () -> received.distinct.get() + again.get());
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        stage.outcome.detail("failed_once", failed.size());
        stage.outcome.check(again.get() >= failed.size(), "every message that failed is delivered again");
    }

    private boolean haveBothShares() {
        return shares[0].get() > 0 && shares[1].get() > 0;
    }

    /** Returns whether the message is consumed; some fail at their first delivery. */
    private boolean consume(MessageExt message) {
        int number = received.take(message);
        if (number < 0) {
            return true;
        }
        if (number % FAILING == 0 && failed.size() < FAILING_MAX && failed.add(number)) {
            return false;
        }
        if (failed.contains(number)) {
            again.incrementAndGet();
        }
        return true;
    }
}
