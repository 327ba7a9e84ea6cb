package dev.gantry.interop;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/**
 * The record of what clients saw, line by line, readable while it grows; times are microseconds of the wall clock.
 *
 * <pre>
 * ok NUMBER QUEUE OFFSET BEGAN ANSWERED      the broker answered 0
 * pledged NUMBER QUEUE OFFSET BEGAN ANSWERED the same for a message that is stored elsewhere first: it is delayed, or
 * in a transaction
 * forgotten NUMBER QUEUE OFFSET BEGAN ANSWERED the same, and its transaction is rolled back: it must not be delivered
 * unwanted NUMBER WHY BEGAN ENDED            any other answer for such a message
 * failed NUMBER TIME                         the listener failed its first delivery
 * unknown NUMBER WHY BEGAN ENDED             any other answer: the message may or may not be stored
 * seen NUMBER QUEUE OFFSET TIME              delivered to the listener; -1 is no message that was sent
 * sent ATTEMPTS                              all senders have ended
 * </pre>
 */
final class Ledger implements AutoCloseable {
    private final Writer writer;

    Ledger(Path path) throws IOException {
        writer = Files.newBufferedWriter(path);
    }

    static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    /** Writes one complete line in one call. */
    synchronized void write(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.isEmpty() ? "" : " ").append(word);
        }
        try {
            writer.write(line.append('\n').toString());
            writer.flush();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    @Override
    public synchronized void close() throws IOException {
        writer.close();
    }
}
