package dev.gantry.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The ways to send; all are read by one push consumer that subscribes to everything. */
final class Sending {
    private static final int BATCH_MESSAGES = 32;
    private static final int COMPRESSED_BYTES = 5_000;

    private Sending() {
    }

    /** The topic is not created beforehand: the first message does that. */
    static void sync(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        sent.acknowledge(0, producer.send(content.make(0)));
        Received received = listen(stage, sent, content);
        List<Thread> threads = Senders.startEach(sent, number -> {
            if (number > 0) {
                sent.acknowledge(number, producer.send(content.make(number)));
            }
        });
        finish(stage, sent, received, threads, true);
    }

    /** One shared producer, 64 threads, a queue order that must hold for each of them. */
    static void threads64(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), 64);
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received received = listen(stage, sent, content);
        List<Thread> threads = Senders.startEach(sent,
            number -> sent.acknowledge(number, producer.send(content.make(number))));
        finish(stage, sent, received, threads, true);
    }

    /** At most a window of sends is in flight; the broker chooses their order in a queue. */
    static void async(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), 1);
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received received = listen(stage, sent, content);
        Semaphore window = new Semaphore(stage.options.window());
        List<Thread> threads = Senders.startEach(sent, number -> {
            window.acquire();
            producer.send(content.make(number), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent.acknowledge(number, result);
                    window.release();
                }

                @Override
                public void onException(Throwable failure) {
                    sent.fail(failure);
                    window.release();
                }
            });
        });
        Senders.finish(threads);
        stage.outcome.check(
            window.tryAcquire(stage.options.window(), stage.options.patienceMillis(), TimeUnit.MILLISECONDS),
            "every asynchronous send is answered");
        finish(stage, sent, received, List.of(), false);
    }

    /**
     * A oneway sender is not informed that the broker is behind, and a broker drops requests that waited too long. The
     * senders here keep within a window of what the consumer has received, so that every loss is a fault.
     */
    static void oneway(Stage stage) throws Exception {
        int window = 8 * stage.options.window();
        Sent sent = new Sent(stage.options.count(), 1);
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received received = listen(stage, sent, content);
        List<Thread> threads = Senders.startEach(sent, number -> {
            stage.require(() -> number - received.distinct.get() < window, received.distinct::get,
                "the consumer's progress");
            producer.sendOneway(content.make(number));
            sent.handOver(number);
        });
        finish(stage, sent, received, threads, false);
    }

    /** A batch is one request and is in one queue, its messages one after the other. */
    static void batch(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received received = listen(stage, sent, content);
        AtomicInteger idsWrong = new AtomicInteger();
        List<Thread> threads = Senders.start(sent, (stream, first, end) -> {
            for (int start = first; start < end; start += BATCH_MESSAGES) {
                List<Message> messages = new ArrayList<>();
                for (int number = start; number < Math.min(end, start + BATCH_MESSAGES); number++) {
                    messages.add(content.make(number));
                }
                SendResult result = producer.send(messages);
                idsWrong.addAndGet(result.getOffsetMsgId().split(",").length == messages.size() ? 0 : 1);
                idsWrong.addAndGet(result.getMsgId().split(",").length == messages.size() ? 0 : 1);
                for (int place = 0; place < messages.size(); place++) {
                    sent.acknowledge(start + place, result, place);
                }
            }
        });
        finish(stage, sent, received, threads, true);
        stage.outcome.check(idsWrong.get() == 0, "a batch is answered with one id for each of its messages");
    }

    /** Bodies beyond 4 KiB are compressed by the client, stored as received, and inflated by the reader. */
    static void compressed(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content(COMPRESSED_BYTES, true, number -> "plain");
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        AtomicInteger uncompressed = new AtomicInteger();
        Received received = listen(stage, sent, content, message -> {
            uncompressed.addAndGet(message.getStoreSize() < COMPRESSED_BYTES ? 0 : 1);
        });
        List<Thread> threads = Senders.startEach(sent,
            number -> sent.acknowledge(number, producer.send(content.make(number))));
        finish(stage, sent, received, threads, true);
        stage.outcome.check(uncompressed.get() == 0, "every record is stored compressed");
    }

    private static Received listen(Stage stage, Sent sent, Content content) throws Exception {
        return listen(stage, sent, content, message -> { });
    }

    private static Received listen(Stage stage, Sent sent, Content content,
        java.util.function.Consumer<MessageExt> look) throws Exception {
        Received received = new Received(sent, content);
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                look.accept(message);
                received.takeAt(message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return received;
    }

    private static void finish(Stage stage, Sent sent, Received received, List<Thread> threads, boolean sequence)
        throws InterruptedException {
        Senders.finish(threads);
        stage.await(received::complete, received.distinct::get);
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        int holes = received.holes();
        int misplaced = received.misplaced();
        stage.outcome.detail("queues", received.queues());
        stage.outcome.check(holes == 0, "no queue has a hole (" + holes + ")");
        stage.outcome.check(misplaced == 0, "messages are at the place of the broker's answer (" + misplaced + " are not)");
        if (sequence) {
            stage.outcome.outOfOrder += received.outOfSequence();
        }
    }
}
