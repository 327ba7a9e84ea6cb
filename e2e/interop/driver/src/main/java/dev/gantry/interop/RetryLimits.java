package dev.gantry.interop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Retries and dead letters: the consumers of a group choose the number of retries and the delay, or give up; a message
 * that was given up is in the dead letter topic, is sent again by `gantry group resend`, and is consumed.
 */
final class RetryLimits {
    private static final int MESSAGES_MAX = 300;
    private static final int RECONSUME_TIMES_MAX = 2;
    /** A delay that the consumer chooses, longer than the first retry levels. */
    private static final int CHOSEN_LEVEL = 5;
    private static final long EARLY_MILLIS = 50;
    private static final long COMMAND_SECONDS_MAX = 120;

    private final Stage stage;
    private final Content content;
    private final Sent sent;
    private final Received received;
    private final AtomicIntegerArray tries;
    private final long[] last;
    private final AtomicInteger deliveries = new AtomicInteger();
    private final AtomicInteger wrongCounts = new AtomicInteger();
    private final AtomicInteger early = new AtomicInteger();
    private final AtomicInteger again = new AtomicInteger();
    private volatile boolean isHealed;

    private RetryLimits(Stage stage) {
        this.stage = stage;
        content = stage.content();
        sent = new Sent(Math.min(stage.options.retryCount(), MESSAGES_MAX), stage.options.threads());
        received = new Received(sent, content);
        tries = new AtomicIntegerArray(sent.count);
        last = new long[sent.count];
    }

    /** The way in which a message fails. */
    private enum Kind {
        AFTER_USUAL_DELAYS, AFTER_A_CHOSEN_DELAY, AT_ONCE;

        static Kind of(int number) {
            return values()[number % values().length];
        }

        int tries() {
            return this == AT_ONCE ? 1 : RECONSUME_TIMES_MAX + 1;
        }
    }

    static void play(Stage stage) throws Exception {
        new RetryLimits(stage).run();
    }

    private void run() throws Exception {
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.setMaxReconsumeTimes(RECONSUME_TIMES_MAX);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            consume(messages.get(0), context));
        consumer.start();
        Senders.finish(Senders.startEach(sent,
            number -> sent.acknowledge(number, producer.send(content.make(number)))));
        int wanted = 0;
        for (int number = 0; number < sent.count; number++) {
            wanted += Kind.of(number).tries();
        }
        int tried = wanted;
        stage.await(() -> deliveries.get() >= tried, deliveries::get);
        int dead = deadLetters();
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        stage.outcome.duplicates = Math.max(0, deliveries.get() - tried);
        stage.outcome.check(wrongCounts.get() == 0, "the reconsume count is the number of a message's failures");
        stage.outcome.check(early.get() == 0, "a chosen delay is kept (" + early + " came early)");
        stage.outcome.check(dead == sent.count, "each message is given up once (" + dead + " of " + sent.count + " are)");
        if (!stage.options.gantry().isEmpty()) {
            resent();
        }
    }

    private ConsumeConcurrentlyStatus consume(MessageExt message, ConsumeConcurrentlyContext context) {
        int number = received.take(message);
        if (number < 0) {
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
        if (isHealed) {
            wrongCounts.addAndGet(message.getReconsumeTimes() == 0 ? 0 : 1);
            again.incrementAndGet();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
        long now = System.currentTimeMillis();
        int attempt = tries.getAndIncrement(number);
        wrongCounts.addAndGet(message.getReconsumeTimes() == attempt ? 0 : 1);
        if (Kind.of(number) == Kind.AFTER_A_CHOSEN_DELAY) {
            boolean isEarly = attempt > 0 && now - last[number] < stage.options.delayMillis(CHOSEN_LEVEL) - EARLY_MILLIS;
            early.addAndGet(isEarly ? 1 : 0);
            context.setDelayLevelWhenNextConsume(CHOSEN_LEVEL);
        } else if (Kind.of(number) == Kind.AT_ONCE) {
            context.setDelayLevelWhenNextConsume(-1);
        }
        last[number] = now;
        deliveries.incrementAndGet();
        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
    }

    /** The number of messages that were given up, if each was given up once. */
    private int deadLetters() throws Exception {
        Received dead = new Received(sent, content);
        DefaultMQPushConsumer deadLetterConsumer = stage.pushConsumer("undertaker_" + stage.group);
        deadLetterConsumer.subscribe("%DLQ%" + stage.group, "*");
        deadLetterConsumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(dead::takeAt);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        deadLetterConsumer.start();
        stage.await(() -> dead.distinct.get() == sent.count, dead.distinct::get);
        stage.outcome.check(dead.altered.get() == 0, "a dead letter is the message that was sent");
        return dead.distinct.get() - dead.duplicates.get();
    }

    /** The command sends all dead letters again, and they are consumed; a second call finds none to send. */
    private void resent() throws Exception {
        isHealed = true;
        stage.outcome.detail("resend", resend());
        stage.await(() -> again.get() >= sent.count, again::get);
        stage.outcome.detail("resend_again", resend());
        stage.outcome.check(again.get() == sent.count,
            "each dead letter that is sent again is consumed, once (" + again + " of " + sent.count + " were)");
    }

    private String resend() throws IOException, InterruptedException, TimeoutException {
        List<String> command = new ArrayList<>(List.of(stage.options.gantry().split(" ")));
        command.addAll(List.of("group", "resend", stage.group, "--from-dead-letters", "-n", stage.options.nameServer()));
        Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes());
        if (!process.waitFor(COMMAND_SECONDS_MAX, TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new TimeoutException("gantry group resend does not end");
        }
        stage.outcome.check(process.exitValue() == 0, "gantry group resend works (" + output + ")");
        return output.strip();
    }
}
