package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Timers of any length: each message asks for its delivery by one of the three properties, and clients from 5.3.2 on recall
 * every fourth. A recalled message never arrives; every other arrives once, and is stored in its topic when it is due.
 */
final class Timers {
    private static final int MESSAGES_MAX = 400;
    private static final int DELAY_MILLIS = 4_000;
    private static final int STEPS = 5;
    private static final int STEP_MILLIS = 400;
    private static final int RECALLED_OF = 4;

    private Timers() {
    }

    static void play(Stage stage) throws Exception {
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Map<Integer, Long> arrived = new ConcurrentHashMap<>();
        AtomicInteger repeated = new AtomicInteger();
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                int number = Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8));
                if (arrived.put(number, message.getStoreTimestamp()) != null) {
                    repeated.incrementAndGet();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        int count = Math.min(stage.options.count(), MESSAGES_MAX);
        long[] due = new long[count];
        Set<Integer> recalled = new HashSet<>();
        for (int number = 0; number < count; number++) {
            Message message = new Message(stage.topic, String.valueOf(number).getBytes(StandardCharsets.UTF_8));
            due[number] = schedule(message, number);
            SendResult result = producer.send(message);
            if (number % RECALLED_OF == 0 && Dialect.recall(producer, stage.topic, result)) {
                recalled.add(number);
            }
        }
        int expected = count - recalled.size();
        stage.await(() -> arrived.size() >= expected, arrived::size);
        Thread.sleep(STEP_MILLIS);

        int early = 0;
        for (Map.Entry<Integer, Long> one : arrived.entrySet()) {
            early += one.getValue() < due[one.getKey()] ? 1 : 0;
        }
        recalled.retainAll(arrived.keySet());
        stage.outcome.detail("timers", count);
        stage.outcome.detail("recalled", count - expected);
        stage.outcome.check(arrived.size() == expected, "every timer arrives (" + arrived.size() + " of " + expected + ")");
        stage.outcome.check(recalled.isEmpty(), "no recalled timer arrives (" + recalled.size() + " do)");
        stage.outcome.check(early == 0, "no timer is early (" + early + " are)");
        stage.outcome.check(repeated.get() == 0, "a timer arrives once (" + repeated.get() + " arrive again)");
    }

    /** Sets one of the properties, and returns the earliest time at which the message may be in its topic. */
    private static long schedule(Message message, int number) {
        long delay = DELAY_MILLIS + (long) (number % STEPS) * STEP_MILLIS;
        long now = System.currentTimeMillis();
        switch (number % 3) {
            case 0:
                MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", String.valueOf(now + delay));
                return now + delay;
            case 1:
                MessageAccessor.putProperty(message, "TIMER_DELAY_MS", String.valueOf(delay));
                return now + delay;
            default:
                MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", String.valueOf(delay / 1000));
                return now + delay / 1000 * 1000;
        }
    }
}
