package dev.gantry.interop;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A topic's settings that an administrator changes while one producer sends and one consumer reads: more queues, fewer
 * queues, read only, write only, ordered, and the type of its messages. All acknowledged messages are consumed in the
 * end.
 */
final class Settings {
    private static final int FEW = 2;
    private static final int SOME = 4;
    private static final int MANY = 8;
    private static final int READ = 4;
    private static final int WRITE = 2;
    private static final int BOTH = READ | WRITE;
    private static final int PAUSE_MILLIS = 5;
    private static final int RECENT = 60;
    private static final int POLL_MILLIS = 1_000;
    private static final int REFUSED_IN_A_ROW = 3;
    private static final int NUMBERS_MAX = 1_000_000;

    private final Stage stage;
    private final Content content;
    private final DefaultMQAdminExt admin;
    private final String broker;
    private final Set<Integer> acknowledged = ConcurrentHashMap.newKeySet();
    private final Map<Integer, Integer> consumed = new ConcurrentHashMap<>();
    private final Set<Integer> consumedQueues = ConcurrentHashMap.newKeySet();
    private final AtomicInteger altered = new AtomicInteger();
    private final AtomicInteger next = new AtomicInteger();
    private final AtomicInteger refusedInARow = new AtomicInteger();
    private final Deque<Integer> recent = new ArrayDeque<>();
    private volatile boolean isOver;

    private Settings(Stage stage) throws Exception {
        this.stage = stage;
        this.content = stage.content();
        this.admin = stage.admin();
        this.broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().getBrokerAddrs()
            .get(0L);
    }

    static void play(Stage stage) throws Exception {
        new Settings(stage).run();
    }

    private void run() throws Exception {
        change(SOME, SOME, BOTH);
        consume();
        DefaultMQProducer producer = stage.unstarted();
        producer.setPollNameServerInterval(POLL_MILLIS);
        producer.setRetryTimesWhenSendFailed(0);
        stage.started(producer);
        Thread sender = new Thread(() -> send(producer), "sender");
        sender.start();
        try {
            check(until(() -> queuesUsed().containsAll(List.of(0, 1, 2, 3))), "all queues of a topic are used");
            moreAndFewer();
            permissions();
            orderAndType();
        } finally {
            isOver = true;
            sender.join();
        }
        check(until(this::isAllConsumed), "every acknowledged message is consumed in the end");
        stage.outcome.sent = acknowledged.size();
        stage.outcome.received = (int) acknowledged.stream().filter(consumed::containsKey).count();
        stage.outcome.lost = stage.outcome.sent - stage.outcome.received;
        stage.outcome.altered = altered.get();
        stage.outcome.duplicates = consumed.values().stream().mapToInt(times -> times - 1).sum();
    }

    private void moreAndFewer() throws Exception {
        change(MANY, MANY, BOTH);
        check(until(() -> queuesUsed().contains(MANY - 1)), "a producer finds the added queues");
        check(until(() -> consumedQueues.contains(MANY - 1)), "a consumer finds the added queues");
        change(MANY, FEW, BOTH);
        check(until(() -> queuesUsed().stream().allMatch(queue -> queue < FEW)),
            "a producer stops sending to queues that are not writable anymore " + queuesUsed());
        check(until(this::isNearlyConsumed), "the messages of queues that are only read are consumed");
        change(FEW, FEW, BOTH);
        TopicConfig shown = shown();
        check(shown.getReadQueueNums() == FEW && shown.getWriteQueueNums() == FEW, "the topic shows its queues " + shown);
    }

    private void permissions() throws Exception {
        change(FEW, FEW, READ);
        check(until(() -> refusedInARow.get() >= REFUSED_IN_A_ROW), "no producer sends to a topic that is only read");
        check(until(this::isAllConsumed), "a topic that is only read is consumed to its end");
        int first = next.get();
        change(FEW, FEW, WRITE);
        check(until(() -> acknowledged.stream().filter(number -> number > first).count() > RECENT),
            "a topic that is only written accepts messages");
        long seen = consumed.keySet().stream().filter(number -> number > first).count();
        check(seen == 0, "a topic that is only written delivers nothing (" + seen + ")");
        change(FEW, FEW, BOTH);
        check(until(this::isNearlyConsumed), "messages of a topic are consumed once it can be read again");
    }

    private void orderAndType() throws Exception {
        TopicConfig config = config(SOME, SOME, BOTH);
        config.setOrder(true);
        admin.createAndUpdateTopicConfig(broker, config);
        check(shown().isOrder(), "the topic shows that it is ordered");
        admin.createOrUpdateOrderConf(stage.topic, "broker-a:" + SOME, false);
        String written = admin.getKVConfig("ORDER_TOPIC_CONFIG", stage.topic);
        check(("broker-a:" + SOME).equals(written), "the name server stores the order configuration, not " + written);
        Dialect.messageTypes(stage, admin, broker, config(SOME, SOME, BOTH));
        check(until(() -> queuesUsed().contains(SOME - 1)), "messages are still sent after all changes");
    }

    private TopicConfig config(int read, int write, int permission) {
        return new TopicConfig(stage.topic, read, write, permission);
    }

    private void change(int read, int write, int permission) throws Exception {
        admin.createAndUpdateTopicConfig(broker, config(read, write, permission));
        synchronized (recent) {
            recent.clear();
        }
    }

    private TopicConfig shown() throws Exception {
        return admin.getAllTopicConfig(broker, 10_000).getTopicConfigTable().get(stage.topic);
    }

    private void send(DefaultMQProducer producer) {
        while (!isOver) {
            int number = next.getAndIncrement();
            try {
                SendResult result = producer.send(content.make(number));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    acknowledged.add(number);
                    refusedInARow.set(0);
                    use(result.getMessageQueue().getQueueId());
                }
                Thread.sleep(PAUSE_MILLIS);
            } catch (InterruptedException stopped) {
                return;
            } catch (Exception refused) {
                refusedInARow.incrementAndGet();
            }
        }
    }

    private void consume() throws Exception {
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                int number = content.verify(message, NUMBERS_MAX);
                altered.addAndGet(number < 0 ? 1 : 0);
                consumed.merge(number, 1, Integer::sum);
                consumedQueues.add(message.getQueueId());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private void use(int queue) {
        synchronized (recent) {
            recent.addLast(queue);
            while (recent.size() > RECENT) {
                recent.removeFirst();
            }
        }
    }

    /** Judges by the last sends since the last change, once there are enough of them. */
    private Set<Integer> queuesUsed() {
        synchronized (recent) {
            return recent.size() < RECENT ? Set.of(-1, MANY) : Set.copyOf(recent);
        }
    }

    private boolean isAllConsumed() {
        return consumed.keySet().containsAll(acknowledged);
    }

    /** Whether all acknowledged messages but a few have been consumed, since the producer continues to send. */
    private boolean isNearlyConsumed() {
        return acknowledged.stream().filter(number -> !consumed.containsKey(number)).count() < RECENT;
    }

    private boolean until(java.util.function.BooleanSupplier condition) throws InterruptedException {
        return stage.within(condition);
    }

    private void check(boolean holds, String text) {
        stage.outcome.check(holds, text);
    }
}
