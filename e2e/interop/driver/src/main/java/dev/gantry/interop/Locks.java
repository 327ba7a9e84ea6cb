package dev.gantry.interop;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Ordered consumption by several processes, some of which are killed, as are brokers. One process sends, one thread for
 * each queue; the others consume in order. Each writes a history of its own, and nothing is checked here.
 *
 * <pre>
 * ok NUMBER QUEUE OFFSET                  the broker answered 0
 * taken NUMBER QUEUE OFFSET BEGAN ENDED   the listener processed it from BEGAN to ENDED
 * sent 0                                  all senders have ended
 * </pre>
 */
final class Locks {
    private static final int SEND_PAUSE_MILLIS = 10;
    private static final int CONSUME_MILLIS = 2;

    private Locks() {
    }

    private static History history(Stage stage, String name) throws Exception {
        String file = name + "-" + ProcessHandle.current().pid() + ".txt";
        return new History(Path.of(stage.options.directory()).resolve(file));
    }

    static void send(Stage stage) throws Exception {
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(stage.topic);
        try (History history = history(stage, "sent");
            Commands commands = new Commands(Path.of(stage.options.directory()))) {
            List<Thread> threads = new ArrayList<>();
            for (MessageQueue queue : queues) {
                Thread thread = new Thread(() -> sendToQueue(stage, producer, queue, queues.size(), history, commands));
                thread.start();
                threads.add(thread);
            }
            Senders.finish(threads);
            history.write("sent", 0);
            commands.awaitEnd();
        }
    }

    /** Each queue has its own increasing numbers; the number of a failed send is not used again. */
    private static void sendToQueue(
        Stage stage, DefaultMQProducer producer, MessageQueue queue, int step, History history, Commands commands) {
        Content content = stage.content();
        for (int number = queue.getQueueId(); commands.maySend(); number += step) {
            try {
                SendResult result = producer.send(content.make(number), queue);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    history.write("ok", number, queue.getQueueId(), result.getQueueOffset());
                }
            } catch (Exception refused) {
                Commands.sleep(SEND_PAUSE_MILLIS * 5);
            }
            Commands.sleep(SEND_PAUSE_MILLIS);
        }
    }

    static void consume(Stage stage) throws Exception {
        Content content = stage.content();
        try (History history = history(stage, "taken");
            Commands commands = new Commands(Path.of(stage.options.directory()))) {
            DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
            consumer.setPollNameServerInterval(stage.options.pollMillis());
            consumer.setConsumeMessageBatchMaxSize(1);
            consumer.subscribe(stage.topic, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    long began = History.now();
                    sleep();
                    history.write("taken", content.verify(message, Integer.MAX_VALUE), message.getQueueId(),
                        message.getQueueOffset(), began, History.now());
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
            commands.awaitEnd();
        }
    }

    /** A client that is shut down interrupts its listeners; they still own the messages that they process. */
    private static void sleep() {
        try {
            TimeUnit.MILLISECONDS.sleep(CONSUME_MILLIS);
        } catch (InterruptedException ending) {
            Thread.currentThread().interrupt();
        }
    }
}
