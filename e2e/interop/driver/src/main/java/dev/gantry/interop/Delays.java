package dev.gantry.interop;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Delayed messages and failed deliveries, while brokers are killed: a producer and a consumer that are never restarted.
 * A delivery fails until the failure count that the broker reports has reached the one that the number prescribes.
 * Nothing is checked here.
 *
 * <pre>
 * ok NUMBER LEVEL BEGAN ENDED               the broker answered 0; level 0 is no delay
 * unknown NUMBER WHY                        any other end of an attempt
 * seen NUMBER TIMES RETRY AT OFFSET TAKEN   delivered after so many failures; whether by way of the retry topic, and taken
 * sent COUNT                                all senders have ended
 * </pre>
 */
final class Delays {
    private static final int LEVELS = 5;
    private static final int PAUSE_MILLIS = 20;
    private static final int RECONSUME_TIMES_MAX = 16;

    private final Stage stage;
    private final Content content;
    private final History history;
    private final Commands commands;
    private final AtomicInteger next = new AtomicInteger();
    private final AtomicInteger acknowledged = new AtomicInteger();

    private Delays(Stage stage, History history, Commands commands) {
        this.stage = stage;
        this.content = stage.content();
        this.history = history;
        this.commands = commands;
    }

    /** Every other message is delayed, by every level in turn. */
    static int levelOf(int number) {
        return number % 2 == 0 ? 0 : 1 + number / 2 % LEVELS;
    }

    /** Three messages of seven fail, once to three times. */
    static int failuresOf(int number) {
        return Math.max(0, number % 7 - 3);
    }

    static void play(Stage stage) throws Exception {
        Path directory = Path.of(stage.options.directory());
        try (History history = new History(directory.resolve("history.txt"));
            Commands commands = new Commands(directory)) {
            new Delays(stage, history, commands).run();
        }
    }

    private void run() throws Exception {
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.setPollNameServerInterval(stage.options.pollMillis());
        consumer.setMaxReconsumeTimes(RECONSUME_TIMES_MAX);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            take(messages.get(0)) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        consumer.start();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < stage.options.threads(); number++) {
            Thread thread = new Thread(() -> send(producer), "sender-" + number);
            thread.start();
            threads.add(thread);
        }
        Senders.finish(threads);
        history.write("sent", next.get());
        commands.awaitEnd();
        stage.outcome.sent = acknowledged.get();
    }

    private void send(DefaultMQProducer producer) {
        while (commands.maySend()) {
            int number = next.getAndIncrement();
            Message message = content.make(number);
            message.setDelayTimeLevel(levelOf(number));
            long began = History.now();
            try {
                SendResult result = producer.send(message);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    acknowledged.incrementAndGet();
                    history.write("ok", number, levelOf(number), began, History.now());
                } else {
                    history.write("unknown", number, result.getSendStatus());
                }
            } catch (Exception refused) {
                history.write("unknown", number, refused.getClass().getSimpleName());
            }
            Commands.sleep(PAUSE_MILLIS);
        }
    }

    private boolean take(MessageExt message) {
        int number = content.verify(message, Integer.MAX_VALUE);
        boolean isTaken = number < 0 || message.getReconsumeTimes() >= failuresOf(number);
        boolean isRetry = stage.options.isPopping()
            ? message.getReconsumeTimes() > 0
            : message.getProperty("RETRY_TOPIC") != null;
        history.write("seen", number, message.getReconsumeTimes(), isRetry ? 1 : 0, History.now(), message.getCommitLogOffset(),
            isTaken ? 1 : 0);
        return isTaken;
    }
}
