package dev.gantry.interop;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;

/**
 * The broker's answer for every message: its place, or that the send failed.
 *
 * <p>Messages carry the numbers from 0 to count - 1. A stream is one producer thread; its numbers are contiguous and
 * are sent in that order, so "in order" later means: inside one queue the numbers of one stream only grow.
 */
final class Sent {
    final int count;
    final int streams;
    final AtomicInteger acknowledged = new AtomicInteger();
    final AtomicInteger failed = new AtomicInteger();
    final AtomicReference<String> firstFailure = new AtomicReference<>();
    private final AtomicIntegerArray accepted;
    private final int[] queue;
    private final long[] offset;

    Sent(int count, int streams) {
        this.count = count;
        this.streams = streams;
        this.accepted = new AtomicIntegerArray(count);
        this.queue = new int[count];
        this.offset = new long[count];
        Arrays.fill(offset, -1);
    }

    int firstOf(int stream) {
        return (int) ((long) count * stream / streams);
    }

    int streamOf(int number) {
        int stream = (int) ((long) number * streams / count);
        while (stream + 1 < streams && firstOf(stream + 1) <= number) {
            stream++;
        }
        return stream;
    }

    void acknowledge(int number, SendResult result) {
        acknowledge(number, result, 0);
    }

    /** A batch is answered once, with the place of its first message; the others follow it. */
    void acknowledge(int number, SendResult result, int placeInBatch) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            fail("send status " + result.getSendStatus());
            return;
        }
        queue[number] = result.getMessageQueue().getQueueId();
        offset[number] = result.getQueueOffset() + placeInBatch;
        accepted.set(number, 1);
        acknowledged.incrementAndGet();
    }

    /** Counts a message without an offset: a one-way send has no answer, other answers' offsets are not compared. */
    void handOver(int number) {
        accepted.set(number, 1);
        acknowledged.incrementAndGet();
    }

    void fail(Object reason) {
        failed.incrementAndGet();
        firstFailure.compareAndSet(null, String.valueOf(reason));
    }

    /** Whether the message must be received: a failed send guarantees nothing. */
    boolean accepted(int number) {
        return accepted.get(number) == 1;
    }

    /** Whether every message was either accepted or refused. */
    boolean over() {
        return acknowledged.get() + failed.get() >= count;
    }

    boolean answered(int number) {
        return offset[number] >= 0;
    }

    int queueOf(int number) {
        return queue[number];
    }

    long offsetOf(int number) {
        return offset[number];
    }
}
