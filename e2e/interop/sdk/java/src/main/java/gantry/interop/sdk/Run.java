package gantry.interop.sdk;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.Consumer;
import java.util.function.Function;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;

/** One flow: its names, and the helpers that send and receive. */
final class Run {
    static final Duration AWAIT = Duration.ofSeconds(6);
    static final Duration RECALLABLE = Duration.ofSeconds(12);
    static final Duration INVISIBLE = Duration.ofSeconds(60);
    static final int BATCH = 32;
    static final int SENDERS = 16;
    private static final int RECEIVERS = 4;
    private static final Duration PATIENCE = Duration.ofSeconds(90);
    /** The number of messages a second that a run may at least expect of a busy machine. */
    private static final int SLOWEST = 40;
    /** The time in which a push consumer begins to receive: a new group starts at the end of a queue. */
    private static final Duration JOINING = Duration.ofSeconds(4);

    final String flow;
    final int count;
    final Tally found = new Tally();
    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final ClientConfiguration configuration;
    private final String suffix;

    Run(String endpoints, String suffix, String flow, int count) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(endpoints)
            .enableSsl(Boolean.getBoolean("sdk.tls"))
            .setRequestTimeout(Duration.ofSeconds(10));  // the first call of a virtual machine on a busy machine is slow
        if (System.getProperty("sdk.accessKey") != null) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(
                System.getProperty("sdk.accessKey"), System.getProperty("sdk.secretKey")));
        }
        this.configuration = builder.build();
        this.suffix = suffix;
        this.flow = flow;
        this.count = count;
    }

    Duration patience() {
        return PATIENCE.plusSeconds(count / SLOWEST);
    }

    String topic(String kind) {
        return "sdk-" + kind + suffix;
    }

    private String group() {
        return "sdk-" + flow + suffix;
    }

    Producer producer(String kind, TransactionChecker checker) throws Exception {
        var builder = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic(kind));
        return (checker == null ? builder : builder.setTransactionChecker(checker)).build();
    }

    /** Start a simple consumer, and receive once: a group is known to a queue from its first receive on. */
    SimpleConsumer consumer(String kind, FilterExpression filter) throws Exception {
        SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group()).setAwaitDuration(AWAIT)
            .setSubscriptionExpressions(Collections.singletonMap(topic(kind), filter)).build();
        receiveAndAck(consumer, view -> { });
        return consumer;
    }

    /** Start a push consumer whose handler gets the messages of this flow; others are acknowledged. */
    PushConsumer pushConsumer(String kind, String tag, Function<MessageView, ConsumeResult> handler) throws Exception {
        FilterExpression filter = new FilterExpression(tag, FilterExpressionType.TAG);
        PushConsumer consumer = provider.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group())
            .setSubscriptionExpressions(Collections.singletonMap(topic(kind), filter))
            .setMessageListener(view -> found.isOwn(view) ? handler.apply(view) : ConsumeResult.SUCCESS).build();
        Thread.sleep(JOINING.toMillis());
        return consumer;
    }

    /** Return the builder of a message whose properties contain the digest of its body and the id of this flow. */
    MessageBuilder message(String kind, int index) {
        String text = flow + " " + index + " " + UUID.randomUUID() + " ";
        byte[] body = text.repeat(1 + index % 16).getBytes(StandardCharsets.UTF_8);
        return provider.newMessageBuilder().setTopic(topic(kind)).setBody(body).addProperty("sha", Tally.digest(body))
            .addProperty("run", found.runId).addProperty("number", String.valueOf(index));
    }

    /** Sends the message with a number. */
    interface Sender {
        void send(int index) throws Exception;
    }

    /** Call the sender for each number below the count. Numbers of one lane are sent in order, one after the other. */
    void sendAll(int lanes, Sender sender) throws Exception {
        inParallel(lanes, lane -> {
            for (int index = lane; index < count; index += lanes) {
                sender.send(index);
            }
        });
        found.close();
    }

    /** Receive and acknowledge until every wanted message has arrived, or the time is over. */
    void receiveAll(SimpleConsumer consumer, Duration patience) throws Exception {
        long deadline = System.nanoTime() + patience.toNanos();
        inParallel(RECEIVERS, receiver -> {
            while (!found.isComplete() && System.nanoTime() < deadline) {
                receiveAndAck(consumer, found::add);
            }
        });
    }

    /** Receive for some time after the last wanted message, so that an unwanted one is noticed. */
    void receiveMore(SimpleConsumer consumer, Duration longer) throws Exception {
        long deadline = System.nanoTime() + longer.toNanos();
        while (System.nanoTime() < deadline) {
            receiveAndAck(consumer, found::add);
        }
    }

    /** Wait until a push consumer has received every wanted message, or the time is over. */
    void waitForAll() throws InterruptedException {
        long deadline = System.nanoTime() + patience().toNanos();
        while (!found.isComplete() && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
    }

    private static void receiveAndAck(SimpleConsumer consumer, Consumer<MessageView> handler) throws Exception {
        for (MessageView view : consumer.receive(BATCH, INVISIBLE)) {
            handler.accept(view);
            consumer.ack(view);
        }
    }

    private static void inParallel(int threads, Sender task) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Callable<Void>> tasks = new ArrayList<>();
            for (int number = 0; number < threads; number++) {
                int own = number;
                tasks.add(() -> {
                    task.send(own);
                    return null;
                });
            }
            for (Future<Void> one : pool.invokeAll(tasks)) {
                one.get();
            }
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception ? (Exception) error.getCause() : error;
        } finally {
            pool.shutdown();
        }
    }
}
