package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import java.util.BitSet;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Reads a topic from its first message with an ordinary push consumer, and prints what it got as one line of JSON.
 *
 * <p>Each body begins with the number of its message, in as many digits. The arguments are name server, topic, group, the
 * number of messages, and the seconds after which it gives up without a new message.
 */
public final class FromFirst {
    private static final int DIGITS = 16;
    private static final long POLL_MILLIS = 50;

    private final BitSet numbers = new BitSet();
    private long duplicates;
    private long unreadable;
    private long firstNanos;
    private long lastNanos;

    private FromFirst() {
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[3]);
        long patienceNanos = Long.parseLong(arguments[4]) * 1_000_000_000L;
        FromFirst reader = new FromFirst();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(reader::take);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        reader.await(count, System.nanoTime(), patienceNanos);
        System.out.println(Json.line(reader.report(count)));
        System.out.flush();
        consumer.shutdown();
        System.exit(0);
    }

    private synchronized void take(MessageExt message) {
        lastNanos = System.nanoTime();
        if (firstNanos == 0) {
            firstNanos = lastNanos;
        }
        try {
            int number = Integer.parseInt(new String(message.getBody(), 0, DIGITS, StandardCharsets.US_ASCII));
            if (numbers.get(number)) {
                duplicates++;
            }
            numbers.set(number);
        } catch (RuntimeException broken) {
            unreadable++;
        }
    }

    private void await(int count, long startNanos, long patienceNanos) throws InterruptedException {
        while (true) {
            synchronized (this) {
                long quietNanos = System.nanoTime() - Math.max(lastNanos, startNanos);
                if (numbers.cardinality() >= count || quietNanos > patienceNanos) {
                    return;
                }
            }
            Thread.sleep(POLL_MILLIS);
        }
    }

    private synchronized Map<String, Object> report(int count) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("distinct", numbers.cardinality());
        line.put("missing", count - numbers.get(0, count).cardinality());
        line.put("duplicates", duplicates);
        line.put("unreadable", unreadable);
        line.put("seconds", (lastNanos - firstNanos) / 1e9);
        return line;
    }
}
