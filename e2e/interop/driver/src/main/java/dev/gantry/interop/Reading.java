package dev.gantry.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntPredicate;
import java.util.function.LongSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** The ways to read: by tag, in order, by broadcast, and by pulling. */
final class Reading {
    /** "AaAa" and "BBBB" have one hash code: the broker, which only compares hashes, cannot tell them apart. */
    private static final String[] TAGS = {"red", "AaAa", "green", "BBBB", ""};
    private static final String WANTED = "red || AaAa";
    private static final int ORDERED_KEYS = 100;
    private static final long POLL_MILLIS = 200;

    private Reading() {
    }

    static void tags(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content(stage.options.bodyBytes(), false, number -> TAGS[number % TAGS.length]);
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received received = new Received(sent, content);
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.subscribe(stage.topic, WANTED);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(received::takeAt);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Senders.finish(sendEach(sent, producer, content));
        IntPredicate wanted = number -> isWanted(content.tagOf(number));
        stage.await(() -> received.missing(wanted) == 0, received.distinct::get);
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(wanted));
        int unwanted = received.count(wanted.negate());
        int misplaced = received.misplaced();
        stage.outcome.check(unwanted == 0, "no message with another tag is delivered (" + unwanted + ")");
        stage.outcome.check(misplaced == 0, "messages are at the place of the broker's answer (" + misplaced + " are not)");
        stage.outcome.outOfOrder += received.outOfSequence();
    }

    private static boolean isWanted(String tag) {
        return tag.equals("red") || tag.equals("AaAa");
    }

    /** A selector pins every key to one queue; the listener sees each queue one message after the other. */
    static void ordered(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received received = new Received(sent, content);
        int[] lastOfKey = new int[sent.streams * ORDERED_KEYS];
        java.util.Arrays.fill(lastOfKey, -1);
        AtomicInteger keysDisordered = new AtomicInteger();
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                int number = received.takeInOrder(message);
                if (number < 0) {
                    continue;
                }
                int key = sent.streamOf(number) * ORDERED_KEYS + number % ORDERED_KEYS;
                synchronized (lastOfKey) {
                    boolean late = number < lastOfKey[key] && received.timesOf(number) == 1;
                    keysDisordered.addAndGet(late ? 1 : 0);
                    lastOfKey[key] = Math.max(lastOfKey[key], number);
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        List<Thread> threads = Senders.startEach(sent, number -> sent.acknowledge(number, producer.send(
            content.make(number),
            (queues, message, key) -> queues.get((Integer) key % queues.size()),
            number % ORDERED_KEYS)));
        Senders.finish(threads);
        stage.await(received::complete, received.distinct::get);
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        stage.outcome.outOfOrder += keysDisordered.get() + received.outOfSequence();
        int misplaced = received.misplaced();
        stage.outcome.check(misplaced == 0, "messages are at the place of the broker's answer (" + misplaced + " are not)");
    }

    /** Two consumers of one broadcast group; each must get everything. */
    static void broadcast(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        List<Received> readers = new ArrayList<>();
        for (int index = 0; index < 2; index++) {
            Received received = new Received(sent, content);
            DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
            Dialect.broadcast(consumer);
            consumer.subscribe(stage.topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(received::takeAt);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            readers.add(received);
        }
        Senders.finish(sendEach(sent, producer, content));
        LongSupplier progress = () -> readers.stream().mapToLong(reader -> reader.distinct.get()).sum();
        stage.await(() -> readers.stream().allMatch(Received::complete), progress);
        stage.outcome.add(sent);
        for (Received reader : readers) {
            stage.outcome.add(reader, reader.missing(number -> true));
            stage.outcome.outOfOrder += reader.outOfSequence();
            stage.outcome.check(reader.holes() == 0, "no queue has a hole");
        }
    }

    /** A lite pull consumer polls; each queue comes strictly in its order, without a hole. */
    static void litePull(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content();
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received received = new Received(sent, content);
        DefaultLitePullConsumer consumer = stage.liteConsumer(stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.setPullBatchSize(32);
        consumer.start();
        List<Thread> threads = sendEach(sent, producer, content);
        stage.await(() -> {
            List<MessageExt> polled = consumer.poll(POLL_MILLIS);
            while (!polled.isEmpty()) {
                polled.forEach(received::takeInOrder);
                polled = consumer.poll(POLL_MILLIS);
            }
            return received.complete();
        }, received.distinct::get);
        Senders.finish(threads);
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        stage.outcome.outOfOrder += received.outOfSequence();
        int misplaced = received.misplaced();
        stage.outcome.check(misplaced == 0, "messages are at the place of the broker's answer (" + misplaced + " are not)");
    }

    private static List<Thread> sendEach(Sent sent, DefaultMQProducer producer, Content content) {
        return Senders.startEach(sent, number -> sent.acknowledge(number, producer.send(content.make(number))));
    }
}
