package dev.gantry.interop;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A priority topic: messages of all priorities are sent, and then consumed by pop. Each must be in the queue of its
 * priority, and those of the highest priority must come first.
 */
final class Priorities {
    private static final String PRIORITY = "_SYS_MSG_PRIORITY_";
    private static final int QUEUES = 8;
    /** The share of the first messages that must have the highest priority: several pops are under way at once. */
    private static final double FIRST_SHARE = 0.9;

    private Priorities() {
    }

    static void play(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        DefaultMQAdminExt admin = stage.sharedAdmin();
        TopicConfig config = new TopicConfig(stage.topic, QUEUES, QUEUES, 6);
        Dialect.readByPriority(config);
        admin.createAndUpdateTopicConfig(Stage.brokerOf(admin), config);
        stage.require(() -> !queuesOf(producer, stage.topic).isEmpty(), () -> 0, "the route of the topic");
        Senders.finish(Senders.startEach(sent, number -> {
            Message message = content.make(number);
            MessageAccessor.putProperty(message, PRIORITY, Integer.toString(number % QUEUES));
            sent.acknowledge(number, producer.send(message));
        }));
        Received received = new Received(sent, content);
        AtomicIntegerArray order = new AtomicIntegerArray(sent.count);
        AtomicInteger next = new AtomicInteger();
        AtomicInteger misplaced = new AtomicInteger();
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                int number = received.takeAt(message);
                int place = next.getAndIncrement();
                if (number >= 0 && place < sent.count) {
                    order.set(place, number % QUEUES);
                }
                misplaced.addAndGet(number < 0 || message.getReconsumeTimes() > 0
                    || message.getQueueId() == number % QUEUES ? 0 : 1);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        stage.await(received::complete, received.distinct::get);
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        int highest = 0;
        int share = sent.count / QUEUES;
        for (int place = 0; place < share; place++) {
            highest += order.get(place) == QUEUES - 1 ? 1 : 0;
        }
        stage.outcome.detail("highest_first", highest + "/" + share);
        stage.outcome.check(misplaced.get() == 0, "a message is in the queue of its priority (" + misplaced + " are not)");
        stage.outcome.check(highest >= share * FIRST_SHARE || !stage.options.isPopping(),
            "the highest priority comes first (" + highest + " of the first " + share + ")");
    }

    private static List<?> queuesOf(DefaultMQProducer producer, String topic) {
        try {
            return producer.fetchPublishMessageQueues(topic);
        } catch (Exception unknown) {
            return List.of();
        }
    }
}
