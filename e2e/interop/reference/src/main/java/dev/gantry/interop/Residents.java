package dev.gantry.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.header.UpdateConsumerOffsetRequestHeader;

/**
 * The resident clients of a peer that administrators inspect: a producer and a consumer that stay, a group that has
 * left a backlog, messages with keys, tags and traces.
 *
 * <p>Each line of the input is one JSON object, {@code {"peer": "apache", "name_server": "...", "broker_name": "...",
 * "broker": "..."}}, perhaps with {@code access_key} and {@code secret_key}; it is answered by one line of facts: ids
 * and names that the commands will print. The topics must exist. The resident clients run until the input ends.
 */
public final class Residents {
    private static final int ORDERS = 12;
    private static final int BACKLOG_TAKEN = 10;
    private static final int BACKLOG_LEFT = 6;
    private static final String[] TAGS = {"red", "green", "blue"};
    private static final long SECONDS_MAX = 120;
    private static final long POLL_MS = 20;
    private static final int TIMEOUT_MS = 60_000;
    private static final String TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC";

    private final String peer;
    private final String nameServer;
    private final String brokerName;
    private final String broker;
    private final RPCHook hook;
    private final Map<String, Object> facts = new LinkedHashMap<>();

    private Residents(JSONObject asked) {
        peer = asked.getString("peer");
        nameServer = asked.getString("name_server");
        brokerName = asked.getString("broker_name");
        broker = asked.getString("broker");
        String accessKey = asked.getString("access_key");
        hook = accessKey == null ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, asked.getString("secret_key")));
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                answers.println(Json.line(new Residents(JSON.parseObject(line)).start()));
            } catch (Exception failure) {
                failure.printStackTrace();
                System.exit(1);
            }
        }
        System.exit(0);
    }

    private Map<String, Object> start() throws Exception {
        CountDownLatch watched = new CountDownLatch(ORDERS);
        DefaultMQPushConsumer watchers = consumer("watchers", "orders", "red || green || blue", watched, false);
        DefaultMQProducer makers = producer("makers", false);
        makers.start();
        orders(makers);
        watchers.start();
        await(watched, "the orders");
        CountDownLatch read = new CountDownLatch(BACKLOG_TAKEN);
        DefaultMQPushConsumer readers = consumer("readers", "backlog", "*", read, false);
        backlog(makers, 0, BACKLOG_TAKEN);
        readers.start();
        await(read, "the backlog's beginning");
        awaitOffsets(readers, "backlog", 2, BACKLOG_TAKEN / 2);
        readers.shutdown();
        backlog(makers, BACKLOG_TAKEN, BACKLOG_TAKEN + BACKLOG_LEFT);
        traced();
        awaitOffsets(watchers, "orders", 4, ORDERS / 4);
        watchers.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        for (String group : List.of("watchers", "readers", "tracers")) {
            commitRetryOffset(watchers, group);
        }
        facts.put("watcher", watchers.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        facts.put("maker", makers.getDefaultMQProducerImpl().getMqClientFactory().getClientId());
        return facts;
    }

    /**
     * Commits offset 0 of the group's retry topic. The consumer itself does so only after an empty pull, which takes
     * some time.
     */
    private void commitRetryOffset(DefaultMQPushConsumer consumer, String group) throws Exception {
        UpdateConsumerOffsetRequestHeader header = new UpdateConsumerOffsetRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(MixAll.getRetryTopic(group));
        header.setQueueId(0);
        header.setCommitOffset(0L);
        header.setBrokerName(brokerName);
        consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getMQClientAPIImpl()
            .updateConsumerOffset(broker, header, TimeUnit.SECONDS.toMillis(SECONDS_MAX));
    }

    private void orders(DefaultMQProducer makers) throws Exception {
        List<String> unique = new ArrayList<>();
        List<String> places = new ArrayList<>();
        for (int number = 0; number < ORDERS; number++) {
            byte[] body = ("order number " + number).getBytes(StandardCharsets.UTF_8);
            Message message = new Message("orders", TAGS[number % TAGS.length], "order-" + number + " shared", body);
            message.putUserProperty("colour", TAGS[number % TAGS.length]);
            SendResult sent = makers.send(message, new MessageQueue("orders", brokerName, number % 4));
            unique.add(sent.getMsgId());
            places.add(sent.getOffsetMsgId());
        }
        facts.put("orders_unique", unique);
        facts.put("orders_places", places);
    }

    private void backlog(DefaultMQProducer makers, int from, int end) throws Exception {
        for (int number = from; number < end; number++) {
            byte[] body = ("backlog number " + number).getBytes(StandardCharsets.UTF_8);
            makers.send(new Message("backlog", "grey", "backlog-" + number, body),
                new MessageQueue("backlog", brokerName, number % 2));
        }
    }

    /** A message whose sending and consuming are traced. */
    private void traced() throws Exception {
        CountDownLatch seen = new CountDownLatch(1);
        DefaultMQProducer tracing = producer("tracing", true);
        DefaultMQPushConsumer tracers = consumer("tracers", "traced", "*", seen, true);
        tracing.start();
        tracers.start();
        byte[] body = "of interest".getBytes(StandardCharsets.UTF_8);
        SendResult sent = tracing.send(new Message("traced", "violet", "traced-0", body),
            new MessageQueue("traced", brokerName, 0));
        await(seen, "the traced message");
        awaitOffsets(tracers, "traced", 1, 1);
        tracing.shutdown();
        tracers.shutdown();
        facts.put("traced_unique", List.of(sent.getMsgId()));
        facts.put("traced_places", List.of(sent.getOffsetMsgId()));
    }

    private DefaultMQProducer producer(String group, boolean isTraced) {
        DefaultMQProducer producer = new DefaultMQProducer(group, hook, isTraced, isTraced ? TRACE_TOPIC : null);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(peer + "-" + group);
        producer.setClientIP("127.0.0.1");
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        return producer;
    }

    private DefaultMQPushConsumer consumer(String group, String topic, String tags, CountDownLatch seen, boolean isTraced)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely(),
            isTraced, isTraced ? TRACE_TOPIC : null);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(peer + "-" + group);
        consumer.setClientIP("127.0.0.1");
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, tags);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    /** A message is consumed when its listener has returned, which is a moment later. */
    private void awaitOffsets(DefaultMQPushConsumer consumer, String topic, int queues, long offset) throws Exception {
        OffsetStore store = consumer.getDefaultMQPushConsumerImpl().getOffsetStore();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
        for (int queue = 0; queue < queues; queue++) {
            MessageQueue place = new MessageQueue(topic, brokerName, queue);
            while (store.readOffset(place, ReadOffsetType.READ_FROM_MEMORY) != offset) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(place + " is not consumed up to " + offset + " at " + peer);
                }
                Thread.sleep(POLL_MS);
            }
        }
    }

    private void await(CountDownLatch latch, String what) throws InterruptedException {
        if (!latch.await(SECONDS_MAX, TimeUnit.SECONDS)) {
            throw new IllegalStateException(what + " did not come at " + peer + ": " + latch.getCount() + " are missing");
        }
    }
}
