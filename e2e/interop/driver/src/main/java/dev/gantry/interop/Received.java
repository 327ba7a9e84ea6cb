package dev.gantry.interop;

import java.util.Arrays;
import java.util.BitSet;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntPredicate;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The messages that one reader of a topic received, and the faults of the broker that they show.
 *
 * <p>Redelivery is counted but allowed: delivery is at least once. Everything else is a fault: a message that was never
 * received, one that differs from what was sent, two messages at one offset, a hole in a queue, an order inside a queue
 * that is not the order of sending, and a message at another place than the broker's answer.
 */
final class Received {
    private final Sent sent;
    private final Content content;
    private final AtomicIntegerArray times;
    private final Map<Integer, int[]> numberByOffset = new TreeMap<>();
    private final Map<Integer, Long> lastDelivered = new TreeMap<>();
    /** Messages that came as the copy of a retry topic, which has a place of its own. */
    private final BitSet redelivered = new BitSet();
    final AtomicInteger distinct = new AtomicInteger();
    final AtomicInteger duplicates = new AtomicInteger();
    final AtomicInteger altered = new AtomicInteger();
    final AtomicInteger disordered = new AtomicInteger();
    final AtomicReference<String> firstFault = new AtomicReference<>();

    Received(Sent sent, Content content) {
        this.sent = sent;
        this.content = content;
        this.times = new AtomicIntegerArray(sent.count);
    }

    /** Records a message and returns its number, or -1 when it is not one that was sent. */
    int take(MessageExt message) {
        int number = content.verify(message, sent.count);
        if (number < 0) {
            altered.incrementAndGet();
            firstFault.compareAndSet(null, "not what was sent: key " + message.getKeys() + " in queue "
                + message.getQueueId() + " at offset " + message.getQueueOffset());
            return -1;
        }
        if (times.getAndIncrement(number) == 0) {
            distinct.incrementAndGet();
        } else {
            duplicates.incrementAndGet();
        }
        return number;
    }

    /** As {@link #take} (of one topic on one broker), and records the message's queue and offset. */
    int takeAt(MessageExt message) {
        int number = take(message);
        if (number >= 0 && message.getReconsumeTimes() > 0) {
            synchronized (numberByOffset) {
                redelivered.set(number);
            }
        } else if (number >= 0) {
            place(message, number);
        }
        return number;
    }

    /** As {@link #takeAt}, for readers to whom a queue must be delivered strictly in its order, without a hole. */
    int takeInOrder(MessageExt message) {
        int number = takeAt(message);
        synchronized (lastDelivered) {
            int queue = message.getQueueId();
            long last = lastDelivered.getOrDefault(queue, -1L);
            long now = message.getQueueOffset();
            if (now > last + 1) {
                disordered.incrementAndGet();
                firstFault.compareAndSet(null, "queue " + queue + " went from offset " + last + " to " + now);
            }
            lastDelivered.put(queue, Math.max(last, now));
        }
        return number;
    }

    private void place(MessageExt message, int number) {
        int offset = Math.toIntExact(message.getQueueOffset());
        synchronized (numberByOffset) {
            int queue = message.getQueueId();
            int[] numbers = numberByOffset.getOrDefault(queue, new int[1024]);
            if (offset >= numbers.length) {
                numbers = Arrays.copyOf(numbers, Math.max(offset + 1, numbers.length * 2));
            }
            numberByOffset.put(queue, numbers);
            if (numbers[offset] != 0 && numbers[offset] != number + 1) {
                disordered.incrementAndGet();
                firstFault.compareAndSet(null, "two messages in queue " + queue + " offset " + offset);
            }
            numbers[offset] = number + 1;
        }
    }

    /** Whether all sends have ended, and all accepted messages were received. */
    boolean complete() {
        return sent.over() && missing(number -> true) == 0;
    }

    /** Accepted messages among the expected ones that were never received. */
    int missing(IntPredicate expected) {
        int missing = 0;
        for (int number = 0; number < sent.count; number++) {
            if (expected.test(number) && sent.accepted(number) && times.get(number) == 0) {
                missing++;
            }
        }
        return missing;
    }

    int count(IntPredicate which) {
        int found = 0;
        for (int number = 0; number < sent.count; number++) {
            if (which.test(number) && times.get(number) > 0) {
                found++;
            }
        }
        return found;
    }

    int timesOf(int number) {
        return times.get(number);
    }

    /** Messages that were acknowledged with one place and received only from another. */
    int misplaced() {
        int misplaced = 0;
        synchronized (numberByOffset) {
            for (int number = 0; number < sent.count; number++) {
                if (sent.answered(number) && times.get(number) > 0 && !redelivered.get(number)) {
                    int[] numbers = numberByOffset.getOrDefault(sent.queueOf(number), new int[0]);
                    int offset = Math.toIntExact(sent.offsetOf(number));
                    misplaced += offset < numbers.length && numbers[offset] == number + 1 ? 0 : 1;
                }
            }
        }
        return misplaced;
    }

    /** Holes: offsets of a queue, below its last received one, at which nothing was received. */
    int holes() {
        int holes = 0;
        synchronized (numberByOffset) {
            redelivered.stream().filter(sent::answered).forEach(this::fill);
            for (int[] numbers : numberByOffset.values()) {
                int end = numbers.length;
                while (end > 0 && numbers[end - 1] == 0) {
                    end--;
                }
                for (int offset = 0; offset < end; offset++) {
                    holes += numbers[offset] == 0 ? 1 : 0;
                }
            }
        }
        return holes;
    }

    /** Puts a message that came as a copy to the place of the broker's answer. */
    private void fill(int number) {
        int[] numbers = numberByOffset.getOrDefault(sent.queueOf(number), new int[0]);
        int offset = Math.toIntExact(sent.offsetOf(number));
        if (offset < numbers.length && numbers[offset] == 0) {
            numbers[offset] = number + 1;
        }
    }

    /** Messages that are in their queue after a later message of the same stream. */
    int outOfSequence() {
        int wrong = 0;
        synchronized (numberByOffset) {
            BitSet seen = new BitSet(sent.count);
            for (int[] numbers : numberByOffset.values()) {
                int[] last = new int[sent.streams];
                Arrays.fill(last, -1);
                for (int offset = 0; offset < numbers.length; offset++) {
                    int number = numbers[offset] - 1;
                    if (number < 0 || seen.get(number)) {
                        continue;
                    }
                    seen.set(number);
                    int stream = sent.streamOf(number);
                    wrong += number < last[stream] ? 1 : 0;
                    last[stream] = Math.max(last[stream], number);
                }
            }
        }
        return wrong;
    }

    int queues() {
        synchronized (numberByOffset) {
            return numberByOffset.size();
        }
    }
}
