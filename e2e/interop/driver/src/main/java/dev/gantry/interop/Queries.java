package dev.gantry.interop;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Every way in which a client queries one message: by key, by its unique id, by its offset id, and by
 * time. A second topic has messages with the same keys; none of them may be in an answer.
 */
final class Queries {
    private static final int MESSAGES_MAX = 500;
    private static final int FOUND_MAX = 32;
    private static final long PAUSE_MILLIS = 3;
    private static final long HOUR_MILLIS = 3_600_000L;
    /** RocketMQ's index has times in whole seconds. */
    private static final long CLEARLY_MILLIS = 5_000;

    private final Stage stage;
    private final Content content;
    private final Sent sent;
    private final DefaultMQProducer producer;
    private final Map<Integer, SendResult> results = new ConcurrentHashMap<>();
    private final Map<Integer, MessageExt> found = new ConcurrentHashMap<>();
    private final AtomicInteger ofOtherTopics = new AtomicInteger();

    private Queries(Stage stage) throws MQClientException {
        this.stage = stage;
        content = stage.content();
        sent = new Sent(Math.min(stage.options.retryCount(), MESSAGES_MAX), stage.options.threads());
        producer = stage.producer();
    }

    static void play(Stage stage) throws Exception {
        new Queries(stage).run();
    }

    private void run() throws Exception {
        String decoy = stage.topic + "_decoy";
        stage.createTopic(producer, stage.options.queues());
        Dialect.createTopic(producer, decoy, stage.options.queues());
        Senders.finish(Senders.startEach(sent, number -> {
            SendResult result = producer.send(content.make(number));
            sent.acknowledge(number, result);
            results.put(number, result);
            producer.send(new Message(decoy, "plain", "key-" + number, new byte[] {1}));
            Thread.sleep(PAUSE_MILLIS);
        }));
        stage.outcome.add(sent);
        stage.await(() -> byKey(sent.count - 1) == 1, () -> 0);
        int wrongKeys = count(number -> byKey(number) == 1);
        int wrongUnique = count(number -> isMeant(number, producer.viewMessage(stage.topic, results.get(number).getMsgId())));
        int wrongPlace = count(number -> isMeant(number, viewed(number)));
        int wrongTimes = count(number -> isOutsideOfOtherTimes(number));
        stage.outcome.received = found.size();
        stage.outcome.check(wrongKeys == 0, "each is found by its key, and no other one (" + wrongKeys + " are not)");
        stage.outcome.check(wrongUnique == 0, "each is found by its unique id (" + wrongUnique + " are not)");
        stage.outcome.check(wrongPlace == 0, "each is found by the id of its place (" + wrongPlace + " are not)");
        stage.outcome.check(wrongTimes == 0, "none is found by its key at another time (" + wrongTimes + " are)");
        stage.outcome.check(ofOtherTopics.get() == 0, "nothing of another topic is found (" + ofOtherTopics + " were)");
        int wrongOffsets = searchedByTime();
        stage.outcome.check(wrongOffsets == 0, "a queue is searched by time (" + wrongOffsets + " answers are wrong)");
        stage.outcome.check(isUnknown("key-" + sent.count), "a key that was not sent finds nothing");
        stage.outcome.check(findsNothingAtAWrongPlace(), "an id of no message finds nothing");
    }

    /** A query for one message. */
    @FunctionalInterface
    private interface Question {
        boolean holds(int number) throws Exception;
    }

    private int count(Question question) throws InterruptedException {
        int wrong = 0;
        for (int number = 0; number < sent.count; number++) {
            try {
                wrong += question.holds(number) ? 0 : 1;
            } catch (InterruptedException stopped) {
                throw stopped;
            } catch (Exception failure) {
                wrong++;
                stage.outcome.detail("first_query_failure", String.valueOf(failure));
            }
        }
        return wrong;
    }

    /** The number of messages that the broker finds for this key; -1 if one of them is wrong. */
    private int byKey(int number) {
        List<MessageExt> messages = ask("key-" + number, 0, System.currentTimeMillis() + HOUR_MILLIS);
        return messages.stream().allMatch(message -> isMeant(number, message)) ? messages.size() : -1;
    }

    private List<MessageExt> ask(String key, long begin, long end) {
        try {
            return producer.queryMessage(stage.topic, key, FOUND_MAX, begin, end).getMessageList();
        } catch (MQClientException nothing) {
            return List.of();
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    private MessageExt viewed(int number) throws Exception {
        MessageExt message = producer.viewMessage(stage.topic, results.get(number).getOffsetMsgId());
        found.put(number, message);
        return message;
    }

    private boolean isMeant(int number, MessageExt message) {
        if (message != null && !message.getTopic().equals(stage.topic)) {
            ofOtherTopics.incrementAndGet();
        }
        SendResult result = results.get(number);
        return message != null && content.verify(message, sent.count) == number
            && message.getQueueId() == result.getMessageQueue().getQueueId()
            && message.getQueueOffset() == result.getQueueOffset();
    }

    private boolean isOutsideOfOtherTimes(int number) {
        long stored = found.get(number).getStoreTimestamp();
        return ask("key-" + number, 0, stored - CLEARLY_MILLIS).isEmpty()
            && ask("key-" + number, stored + CLEARLY_MILLIS, stored + HOUR_MILLIS).isEmpty();
    }

    /**
     * Searches by the time of every message, and by the moment before and after it, for the first offset of its queue
     * that is not older; returns the number of wrong answers.
     */
    private int searchedByTime() throws MQClientException {
        Map<MessageQueue, TreeMap<Long, Long>> times = new ConcurrentHashMap<>();
        found.forEach((number, message) -> times
            .computeIfAbsent(results.get(number).getMessageQueue(), queue -> new TreeMap<>())
            .put(message.getQueueOffset(), message.getStoreTimestamp()));
        int wrong = 0;
        for (Map.Entry<MessageQueue, TreeMap<Long, Long>> queue : times.entrySet()) {
            wrong += producer.maxOffset(queue.getKey()) == queue.getValue().size() ? 0 : 1;
            wrong += producer.minOffset(queue.getKey()) == 0 ? 0 : 1;
            long first = queue.getValue().firstEntry().getValue();
            wrong += producer.earliestMsgStoreTime(queue.getKey()) == first ? 0 : 1;
            for (long stored : queue.getValue().values()) {
                for (long time : Arrays.asList(stored - 1, stored, stored + 1)) {
                    wrong += producer.searchOffset(queue.getKey(), time) == firstSince(queue.getValue(), time) ? 0 : 1;
                }
            }
        }
        return wrong;
    }

    private static long firstSince(TreeMap<Long, Long> stored, long time) {
        return stored.entrySet().stream().filter(one -> one.getValue() >= time).mapToLong(Map.Entry::getKey).min()
            .orElse(stored.lastKey() + 1);
    }

    private boolean isUnknown(String key) {
        return ask(key, 0, System.currentTimeMillis() + HOUR_MILLIS).isEmpty();
    }

    /** Whether an id that leads into the middle of a record finds nothing. */
    private boolean findsNothingAtAWrongPlace() throws Exception {
        String id = results.get(0).getOffsetMsgId();
        long offset = Long.parseUnsignedLong(id.substring(id.length() - 16), 16) + 7;
        try {
            producer.viewMessage(stage.topic, id.substring(0, id.length() - 16) + String.format("%016X", offset));
            return false;
        } catch (Exception refused) {
            return true;
        }
    }
}
