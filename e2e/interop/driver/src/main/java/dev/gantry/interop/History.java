package dev.gantry.interop;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/**
 * A history: the record of what clients saw, line by line, readable while it grows; times are microseconds of the wall
 * clock. The lines of the scenario `failover`:
 *
 * <pre>
 * ok NUMBER QUEUE OFFSET BEGAN ANSWERED         the broker answered 0
 * deferred NUMBER QUEUE OFFSET BEGAN ANSWERED   the same for a message that is stored in its topic later, because it is
 *                                               delayed or in a transaction; it must be delivered
 * rolled_back NUMBER QUEUE OFFSET BEGAN ANSWERED
 *                                               the same, but its transaction is rolled back: it must not be delivered
 * rolled_back_unknown NUMBER WHY BEGAN ENDED    any other answer for a message that is to be rolled back
 * failed NUMBER TIME                            the listener failed its first delivery
 * unknown NUMBER WHY BEGAN ENDED                any other answer: the message may or may not be stored
 * seen NUMBER QUEUE OFFSET TIME                 delivered to the listener; the number is -1 if it was not sent
 * sent ATTEMPTS                                 all senders have ended
 * </pre>
 */
final class History implements AutoCloseable {
    private final Writer writer;

    History(Path path) throws IOException {
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
