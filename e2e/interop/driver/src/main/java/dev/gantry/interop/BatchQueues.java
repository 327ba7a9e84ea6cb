package dev.gantry.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A topic that an administrator creates with batch consume queues, as the OpenMessaging Benchmark does.
 *
 * <p>Three threads send to it: single messages, batches, and messages that the producer collects into batches by
 * itself. RocketMQ stores a batch as one record, and its client takes it apart; Gantry stores the messages. The offsets
 * of answers, of messages and of queues must be the same with both brokers.
 */
final class BatchQueues {
    private static final int BATCH_MESSAGES = 32;
    private static final int SINGLE = 0;
    private static final int BATCH = 1;
    private static final int STREAMS = 3;

    private BatchQueues() {
    }

    static void play(Stage stage) throws Exception {
        DefaultMQAdminExt admin = stage.admin();
        String broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next()
            .getBrokerAddrs().get(0L);
        TopicConfig config = new TopicConfig(stage.topic, stage.options.queues(), stage.options.queues(), 6);
        Dialect.useBatchQueues(config);
        admin.createAndUpdateTopicConfig(broker, config);
        Sent sent = new Sent(stage.options.count(), STREAMS);
        Content content = stage.content();
        Received received = listen(stage, sent, content);
        DefaultMQProducer producer = stage.producer();
        DefaultMQProducer collecting = stage.unstarted();
        Dialect.collectBatches(collecting);
        stage.started(collecting);
        Semaphore window = new Semaphore(stage.options.window());
        List<Thread> threads = Senders.start(sent, (stream, first, end) -> {
            if (stream == SINGLE) {
                for (int number = first; number < end; number++) {
                    sent.acknowledge(number, producer.send(content.make(number)));
                }
            } else if (stream == BATCH) {
                sendBatches(producer, sent, content, first, end);
            } else {
                for (int number = first; number < end; number++) {
                    window.acquire();
                    collecting.send(content.make(number), callback(sent, number, window));
                }
            }
        });
        Senders.finish(threads);
        stage.outcome.check(
            window.tryAcquire(stage.options.window(), stage.options.patienceMillis(), TimeUnit.MILLISECONDS),
            "every asynchronous send is answered");
        stage.await(received::complete, received.distinct::get);
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        int holes = received.holes();
        int misplaced = received.misplaced();
        stage.outcome.detail("queues", received.queues());
        stage.outcome.detail("queue_type", Dialect.queueType(admin, broker, stage.topic));
        stage.outcome.check(holes == 0, "no queue has a hole (" + holes + ")");
        stage.outcome.check(misplaced == 0, "messages are at the place of the broker's answer (" + misplaced + " are not)");
        long stored = stored(admin, stage.topic);
        stage.outcome.check(stored == sent.count, "the ends of the queues count messages (" + stored + ")");
    }

    private static void sendBatches(DefaultMQProducer producer, Sent sent, Content content, int first, int end)
        throws Exception {
        for (int start = first; start < end; start += BATCH_MESSAGES) {
            List<Message> messages = new ArrayList<>();
            for (int number = start; number < Math.min(end, start + BATCH_MESSAGES); number++) {
                messages.add(content.make(number));
            }
            SendResult result = producer.send(messages);
            for (int place = 0; place < messages.size(); place++) {
                sent.acknowledge(start + place, result, place);
            }
        }
    }

    /** The answers of one collected batch have one offset from RocketMQ, so they are not compared. */
    private static SendCallback callback(Sent sent, int number, Semaphore window) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                sent.handOver(number);
                window.release();
            }

            @Override
            public void onException(Throwable failure) {
                sent.fail(failure);
                window.release();
            }
        };
    }

    private static Received listen(Stage stage, Sent sent, Content content) throws Exception {
        Received received = new Received(sent, content);
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                received.takeAt(message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return received;
    }

    /** How many messages the queues have by their ends. RocketMQ's smallest offset of an empty queue is -1. */
    private static long stored(DefaultMQAdminExt admin, String topic) throws Exception {
        return admin.examineTopicStats(topic).getOffsetTable().values().stream()
            .mapToLong(queue -> queue.getMaxOffset() - Math.max(0, queue.getMinOffset())).sum();
    }
}
