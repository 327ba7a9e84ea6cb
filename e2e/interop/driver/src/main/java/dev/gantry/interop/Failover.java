package dev.gantry.interop;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One producer and one consumer that survive all faults of the brokers, and record what they saw.
 *
 * <p>They are like those of an application: only necessary settings are changed, and no client is ever restarted. Every
 * attempt to send, in which the client may retry, carries a number that no other attempt has, so that a message that
 * vanished cannot come back under the same number. A sender whose attempt failed waits for a moment and sends the next
 * number. Nothing but bodies is checked here: the program that kills the brokers reads the history.
 */
final class Failover {
    private static final int FAILURE_PAUSE_MILLIS = 50;
    private static final int TOPIC_ATTEMPTS_MAX = 10;
    private static final int NUMBERS_MAX = Integer.MAX_VALUE;

    private final Stage stage;
    private final Content content;
    private final History history;
    private final Commands commands;
    private final AtomicInteger next = new AtomicInteger();
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicInteger received = new AtomicInteger();
    private final AtomicInteger altered = new AtomicInteger();
    private final MessageKinds kinds;

    private Failover(Stage stage, History history, Commands commands) {
        this.stage = stage;
        this.content = stage.content();
        this.kinds = stage.options.isMixed() ? new MessageKinds(content) : null;
        this.history = history;
        this.commands = commands;
    }

    static void play(Stage stage) throws Exception {
        Path directory = Path.of(stage.options.directory());
        try (History history = new History(directory.resolve("history.txt"));
            Commands commands = new Commands(directory)) {
            new Failover(stage, history, commands).run();
        }
    }

    private void run() throws Exception {
        DefaultMQProducer producer = producer();
        createTopic(producer);
        DefaultMQPushConsumer consumer = consumer();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < stage.options.threads(); number++) {
            Thread thread = new Thread(() -> send(producer), "sender-" + number);
            thread.start();
            threads.add(thread);
        }
        Senders.finish(threads);
        history.write("sent", next.get());
        commands.awaitEnd();
        consumer.shutdown();
        producer.shutdown();
        stage.outcome.sent = acknowledged.get();
        stage.outcome.received = received.get();
        stage.outcome.altered = altered.get();
        stage.outcome.detail("attempts", next.get());
    }

    /** Retried if the machine is too busy for the client's timeout; the load has not started yet. */
    private void createTopic(DefaultMQProducer producer) throws MQClientException {
        for (int attempt = 1;; attempt++) {
            try {
                stage.createTopic(producer, stage.options.queues());
                return;
            } catch (MQClientException busy) {
                if (attempt == TOPIC_ATTEMPTS_MAX) {
                    throw busy;
                }
                Commands.sleep(1_000);
            }
        }
    }

    private DefaultMQProducer producer() throws MQClientException {
        String group = "producers_of_" + stage.group;
        DefaultMQProducer producer = kinds == null ? new DefaultMQProducer(group) : kinds.producer(group);
        producer.setNamesrvAddr(stage.options.nameServer());
        producer.setInstanceName("producer-" + stage.options.run());
        if (stage.options.pollMillis() > 0) {
            producer.setPollNameServerInterval(stage.options.pollMillis());
        }
        producer.start();
        return producer;
    }

    private DefaultMQPushConsumer consumer() throws MQClientException {
        DefaultMQPushConsumer consumer = stage.options.isPopping()
            ? new PoppingConsumer(stage, stage.group)
            : new DefaultMQPushConsumer(stage.group);
        consumer.setNamesrvAddr(stage.options.nameServer());
        consumer.setInstanceName("consumer-" + stage.options.run());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (stage.options.pollMillis() > 0) {
            consumer.setPollNameServerInterval(stage.options.pollMillis());
        }
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean isTaken = true;
            for (MessageExt message : messages) {
                isTaken &= take(message);
            }
            return isTaken ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        return consumer;
    }

    /** Returns false if the message is to be redelivered. */
    private boolean take(MessageExt message) {
        int number = content.verify(message, NUMBERS_MAX);
        if (number < 0) {
            altered.incrementAndGet();
        }
        if (number >= 0 && kinds != null && kinds.fails(number)) {
            history.write("failed", number, History.now());
            return false;
        }
        received.incrementAndGet();
        if (stage.options.isPopping() && message.getReconsumeTimes() > 0) {
            history.write("again", number, History.now());
            return true;
        }
        history.write("seen", number, message.getQueueId(), message.getQueueOffset(), History.now());
        return true;
    }

    private void send(DefaultMQProducer producer) {
        while (commands.maySend()) {
            int number = next.getAndIncrement();
            long began = History.now();
            String failure;
            try {
                SendResult result = kinds == null
                    ? producer.send(content.make(number))
                    : kinds.send((TransactionMQProducer) producer, number);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    acknowledged.incrementAndGet();
                    history.write(kinds == null ? "ok" : MessageKinds.word(number), number,
                        result.getMessageQueue().getQueueId(), result.getQueueOffset(), began, History.now());
                    continue;
                }
                failure = result.getSendStatus().toString();
            } catch (Exception refused) {
                failure = refused.getClass().getSimpleName();
            }
            history.write(kinds != null && MessageKinds.isRolledBack(number) ? "rolled_back_unknown" : "unknown", number,
                failure, began, History.now());
            Commands.sleep(FAILURE_PAUSE_MILLIS);
        }
    }
}
