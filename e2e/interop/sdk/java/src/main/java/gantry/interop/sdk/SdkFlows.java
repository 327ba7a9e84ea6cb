package gantry.interop.sdk;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.RecallReceipt;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Drives a gRPC proxy with RocketMQ's Java SDK, and judges what arrives. Arguments: endpoints, the suffix of topics and
 * groups, the number of messages, the flows. {@code -Dsdk.accessKey} and {@code -Dsdk.secretKey} sign the calls,
 * {@code -Dsdk.tls=true} uses TLS. One JSON line per flow; the exit code is 0 if each of them is ok.
 */
public final class SdkFlows {
    private static final Duration INVISIBLE = Duration.ofSeconds(15);
    private static final long PATIENCE_MS = Long.getLong("sdk.patienceMs", 90_000);

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final ClientConfiguration configuration;
    private final String suffix;
    private final int count;
    private String run = "";

    private SdkFlows(String endpoints, String suffix, int count) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(endpoints)
            .enableSsl(Boolean.getBoolean("sdk.tls"))
            .setRequestTimeout(Duration.ofSeconds(10));  // the first call of a virtual machine on a busy machine is slow
        if (System.getProperty("sdk.accessKey") != null) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(
                System.getProperty("sdk.accessKey"), System.getProperty("sdk.secretKey")));
        }
        this.configuration = builder.build();
        this.suffix = suffix;
        this.count = count;
    }

    public static void main(String[] arguments) throws Exception {
        SdkFlows flows = new SdkFlows(arguments[0], arguments[1], Integer.parseInt(arguments[2]));
        boolean isOk = true;
        for (int index = 3; index < arguments.length; index++) {
            flows.run = UUID.randomUUID().toString();
            isOk &= flows.runFlow(arguments[index]);
        }
        System.exit(isOk ? 0 : 1);
    }

    private boolean runFlow(String flow) {
        try {
            switch (flow) {
                case "normal": return simple(flow, "normal", FilterExpression.SUB_ALL, false);
                case "tag": return simple(flow, "normal", new FilterExpression("red", FilterExpressionType.TAG), true);
                case "sql": return simple(flow, "normal",
                    new FilterExpression("price > 5", FilterExpressionType.SQL92), true);
                case "push": return push();
                case "fifo": return fifo();
                case "delay": return delay();
                case "recall": return recall();
                case "transaction": return transaction();
                case "dead-letters": return deadLetters();
                default: throw new IllegalArgumentException("unknown flow " + flow);
            }
        } catch (Throwable error) {
            return verdict(flow, Set.of("?"), List.of(), error.toString(), false);
        }
    }

    // ------- messages

    private String topic(String kind) {
        return "sdk-" + kind + suffix;
    }

    private String group(String flow) {
        return "sdk-" + flow + suffix;
    }

    private Producer producer(String kind) throws Exception {
        return provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic(kind)).build();
    }

    private MessageBuilder message(String kind) {
        byte[] body = (kind + " " + UUID.randomUUID()).repeat(8).getBytes(StandardCharsets.UTF_8);
        return provider.newMessageBuilder().setTopic(topic(kind)).setBody(body)
            .addProperty("sha", digest(body)).addProperty("run", run);
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] data = new byte[buffer.remaining()];
        buffer.duplicate().get(data);
        return data;
    }

    private static String digest(byte[] body) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte one : MessageDigest.getInstance("SHA-256").digest(body)) {
                text.append(String.format("%02x", one));
            }
            return text.toString();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private boolean isOwn(MessageView view) {
        if (!run.equals(view.getProperties().get("run"))) {
            return false;
        }
        if (!digest(bytes(view.getBody())).equals(view.getProperties().get("sha"))) {
            throw new IllegalStateException("the body of " + view.getMessageId() + " changed");
        }
        return true;
    }

    private static boolean verdict(String flow, Set<String> sent, List<String> received, String note, boolean isOk) {
        boolean ok = isOk && sent.equals(new HashSet<>(received));
        System.out.printf("{\"flow\": \"%s\", \"ok\": %s, \"sent\": %d, \"received\": %d, \"copies\": %d, \"note\": \"%s\"}%n",
            flow, ok, sent.size(), new HashSet<>(received).size(), received.size(), note.replace('"', '\''));
        System.out.flush();
        return ok;
    }

    // ------- consumers

    private SimpleConsumer consumer(String kind, String flow, FilterExpression filter) throws Exception {
        SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group(flow)).setAwaitDuration(Duration.ofSeconds(6))
            .setSubscriptionExpressions(Collections.singletonMap(topic(kind), filter)).build();
        for (MessageView view : consumer.receive(32, INVISIBLE)) {
            consumer.ack(view);
        }
        return consumer;
    }

    private List<String> receiveAll(SimpleConsumer consumer, Set<String> wanted, long patienceMs) throws Exception {
        List<String> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + patienceMs;
        while (!found.containsAll(wanted) && System.currentTimeMillis() < deadline) {
            for (MessageView view : consumer.receive(32, INVISIBLE)) {
                if (isOwn(view)) {
                    found.add(view.getProperties().get("sha"));
                }
                consumer.ack(view);
            }
        }
        return found;
    }

    private boolean simple(String flow, String kind, FilterExpression filter, boolean isFiltered) throws Exception {
        try (SimpleConsumer consumer = consumer(kind, flow, filter); Producer producer = producer(kind)) {
            Set<String> wanted = new HashSet<>();
            for (int index = 0; index < count; index++) {
                String tag = index % 3 == 0 ? "red" : "blue";
                Message message = message(kind).setTag(tag).setKeys("key-" + index)
                    .addProperty("price", String.valueOf(index % 10)).build();
                producer.send(message);
                if (!isFiltered || (flow.equals("tag") ? tag.equals("red") : index % 10 > 5)) {
                    wanted.add(message.getProperties().get("sha"));
                }
            }
            List<String> found = receiveAll(consumer, wanted, PATIENCE_MS);
            if (isFiltered) {
                found.addAll(receiveAll(consumer, Set.of("none"), 6_000));
            }
            return verdict(flow, wanted, found, "", true);
        }
    }

    private boolean push() throws Exception {
        List<String> received = Collections.synchronizedList(new ArrayList<>());
        Set<String> failed = ConcurrentHashMap.newKeySet();
        try (PushConsumer consumer = provider.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(group("push"))
                .setSubscriptionExpressions(Collections.singletonMap(topic("normal"), FilterExpression.SUB_ALL))
                .setMessageListener(view -> {
                    if (!isOwn(view)) {
                        return ConsumeResult.SUCCESS;
                    }
                    String key = view.getProperties().get("sha");
                    if (key.charAt(0) < '3' && failed.add(key)) {
                        return ConsumeResult.FAILURE;
                    }
                    received.add(key);
                    return ConsumeResult.SUCCESS;
                }).build();
            Producer producer = producer("normal")) {
            Thread.sleep(3_000);
            Set<String> sent = new HashSet<>();
            for (int index = 0; index < count; index++) {
                Message message = message("normal").setTag("push").build();
                producer.send(message);
                sent.add(message.getProperties().get("sha"));
            }
            waitFor(received, sent);
            return verdict("push", sent, received, failed.size() + " failed once", true);
        }
    }

    private boolean fifo() throws Exception {
        List<String> received = Collections.synchronizedList(new ArrayList<>());
        Map<String, List<Integer>> order = new ConcurrentHashMap<>();
        try (PushConsumer consumer = provider.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(group("fifo"))
                .setSubscriptionExpressions(Collections.singletonMap(topic("fifo"), FilterExpression.SUB_ALL))
                .setMessageListener(view -> {
                    if (isOwn(view)) {
                        order.computeIfAbsent(view.getMessageGroup().orElse(""),
                            key -> Collections.synchronizedList(new ArrayList<>()))
                            .add(Integer.valueOf(view.getProperties().get("number")));
                        received.add(view.getProperties().get("sha"));
                    }
                    return ConsumeResult.SUCCESS;
                }).build();
            Producer producer = producer("fifo")) {
            Thread.sleep(3_000);
            Set<String> sent = new HashSet<>();
            for (int index = 0; index < count; index++) {
                Message message = message("fifo").setMessageGroup("group-" + index % 4)
                    .addProperty("number", String.valueOf(index)).build();
                producer.send(message);
                sent.add(message.getProperties().get("sha"));
            }
            waitFor(received, sent);
            boolean isOrdered = true;
            for (List<Integer> numbers : order.values()) {
                List<Integer> sorted = new ArrayList<>(numbers);
                Collections.sort(sorted);
                isOrdered &= sorted.equals(numbers);
            }
            return verdict("fifo", sent, received, isOrdered ? "in order" : "not in order " + order, isOrdered);
        }
    }

    private boolean delay() throws Exception {
        try (SimpleConsumer consumer = consumer("delay", "delay", FilterExpression.SUB_ALL);
             Producer producer = producer("delay")) {
            Map<String, Long> due = new HashMap<>();
            for (int index = 0; index < count; index++) {
                long at = System.currentTimeMillis() + 3_000 + index % 3 * 1_000;
                Message message = message("delay").setDeliveryTimestamp(at).build();
                producer.send(message);
                due.put(message.getProperties().get("sha"), at);
            }
            AtomicInteger early = new AtomicInteger();
            List<String> found = new ArrayList<>();
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (!found.containsAll(due.keySet()) && System.currentTimeMillis() < deadline) {
                for (MessageView view : consumer.receive(32, INVISIBLE)) {
                    if (isOwn(view)) {
                        String key = view.getProperties().get("sha");
                        early.addAndGet(System.currentTimeMillis() < due.get(key) ? 1 : 0);
                        found.add(key);
                    }
                    consumer.ack(view);
                }
            }
            return verdict("delay", due.keySet(), found, early + " early", early.get() == 0);
        }
    }

    private boolean recall() throws Exception {
        try (SimpleConsumer consumer = consumer("delay", "recall", FilterExpression.SUB_ALL);
             Producer producer = producer("delay")) {
            Set<String> kept = new HashSet<>();
            int recalled = 0;
            for (int index = 0; index < count; index++) {
                Message message = message("delay").setDeliveryTimestamp(System.currentTimeMillis() + 8_000).build();
                SendReceipt receipt = producer.send(message);
                if (index % 2 == 1) {
                    RecallReceipt recall = producer.recallMessage(topic("delay"), receipt.getRecallHandle());
                    recalled += recall == null ? 0 : 1;
                } else {
                    kept.add(message.getProperties().get("sha"));
                }
            }
            List<String> found = receiveAll(consumer, kept, PATIENCE_MS);
            found.addAll(receiveAll(consumer, Set.of("none"), 8_000));
            return verdict("recall", kept, found, recalled + " recalled", true);
        }
    }

    private boolean transaction() throws Exception {
        AtomicInteger checks = new AtomicInteger();
        TransactionChecker checker = view -> {
            checks.incrementAndGet();
            return Integer.parseInt(view.getProperties().get("number")) % 2 == 0
                ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        };
        try (SimpleConsumer consumer = consumer("transaction", "transaction", FilterExpression.SUB_ALL);
             Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration)
                 .setTopics(topic("transaction")).setTransactionChecker(checker).build()) {
            Set<String> committed = new HashSet<>();
            for (int index = 0; index < count; index++) {
                Message message = message("transaction").addProperty("number", String.valueOf(index)).build();
                Transaction transaction = producer.beginTransaction();
                producer.send(message, transaction);
                if (index % 2 == 0) {
                    committed.add(message.getProperties().get("sha"));
                }
                if (index % 4 == 0) {
                    transaction.commit();
                } else if (index % 4 == 1) {
                    transaction.rollback();
                }
            }
            List<String> found = receiveAll(consumer, committed, 2 * PATIENCE_MS);
            return verdict("transaction", committed, found, checks + " checks", checks.get() > 0);
        }
    }

    /** A message that always fails is delivered as often as its group allows, and then found in the dead letters. */
    private boolean deadLetters() throws Exception {
        AtomicInteger attempts = new AtomicInteger();
        String dead = "%DLQ%" + group("dead-letters");
        try (PushConsumer consumer = provider.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(group("dead-letters"))
                .setSubscriptionExpressions(Collections.singletonMap(topic("fifo"), FilterExpression.SUB_ALL))
                .setMessageListener(view -> {
                    if (!isOwn(view)) {
                        return ConsumeResult.SUCCESS;
                    }
                    attempts.incrementAndGet();
                    return ConsumeResult.FAILURE;
                }).build();
            Producer producer = producer("fifo")) {
            Thread.sleep(3_000);
            Message message = message("fifo").setMessageGroup("dead").build();
            producer.send(message);
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (attempts.get() < 3 && System.currentTimeMillis() < deadline) {
                Thread.sleep(100);
            }
            Thread.sleep(3_000);
            System.err.println("dead letters are in " + dead);
            return verdict("dead-letters", Set.of("3"), List.of(String.valueOf(attempts.get())), "attempts", true);
        }
    }

    private static void waitFor(List<String> received, Set<String> wanted) throws InterruptedException {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!received.containsAll(wanted) && System.currentTimeMillis() < deadline) {
            Thread.sleep(100);
        }
    }
}
