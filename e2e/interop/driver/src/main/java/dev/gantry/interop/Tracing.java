package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Message traces: clients with traces on write what they send and consume into the trace topic, and a query by a
 * message's id finds its history there, as {@code mqadmin queryMsgTraceById} does.
 */
final class Tracing {
    private static final String TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC";
    private static final int FOUND_MAX = 64;
    private static final Set<TraceType> WANTED = EnumSet.of(TraceType.Pub, TraceType.SubBefore, TraceType.SubAfter);

    private Tracing() {
    }

    static void trace(Stage stage) throws Exception {
        Sent sent = new Sent(Math.min(stage.options.retryCount(), 200), stage.options.threads());
        Content content = stage.content();
        Received received = new Received(sent, content);
        Map<Integer, String> ids = new ConcurrentHashMap<>();
        DefaultMQProducer producer = stage.tracedProducer();
        stage.createTopic(producer, stage.options.queues());
        DefaultMQPushConsumer consumer = stage.tracedConsumer(stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(received::takeAt);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Senders.finish(Senders.startEach(sent, number -> {
            SendResult result = producer.send(content.make(number));
            ids.put(number, result.getMsgId());
            sent.acknowledge(number, result);
        }));
        stage.await(() -> received.distinct.get() == sent.count, received.distinct::get);

        Map<String, Set<TraceType>> seen = new ConcurrentHashMap<>();
        ids.values().forEach(id -> seen.put(id, EnumSet.noneOf(TraceType.class)));
        stage.await(() -> findTraces(producer, seen), () -> seen.values().stream().mapToLong(Set::size).sum());

        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        long whole = seen.values().stream().filter(types -> types.containsAll(WANTED)).count();
        stage.outcome.detail("traced", whole);
        stage.outcome.check(whole == sent.count,
            "every message is traced from its send to its consumption (" + whole + " of " + sent.count + " are)");
    }

    /** Queries the traces of every message whose traces are not complete yet; returns whether all are complete now. */
    private static boolean findTraces(DefaultMQProducer producer, Map<String, Set<TraceType>> seen) {
        for (Map.Entry<String, Set<TraceType>> one : seen.entrySet()) {
            if (!one.getValue().containsAll(WANTED)) {
                findTraces(producer, one.getKey(), one.getValue());
            }
        }
        return seen.values().stream().allMatch(types -> types.containsAll(WANTED));
    }

    private static void findTraces(DefaultMQProducer producer, String id, Set<TraceType> types) {
        try {
            long now = System.currentTimeMillis();
            long begin = now - 3_600_000L;
            long end = now + 3_600_000L;
            for (MessageExt trace : producer.queryMessage(TRACE_TOPIC, id, FOUND_MAX, begin, end).getMessageList()) {
                String text = new String(trace.getBody(), StandardCharsets.UTF_8);
                for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(text)) {
                    if (context.getTraceBeans().stream().anyMatch(bean -> id.equals(bean.getMsgId()))) {
                        types.add(context.getTraceType());
                    }
                }
            }
        } catch (MQClientException notYet) {
            return; // no trace is stored yet: clients write their traces every few seconds
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
