package dev.gantry.interop;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/**
 * What clients saw, line by line, readable while it grows; times are microseconds of the wall clock.
 *
 * <pre>
 * ok NUMBER QUEUE OFFSET BEGAN ANSWERED      the broker answered 0
 * pledged NUMBER QUEUE OFFSET BEGAN ANSWERED the same, and it will stand elsewhere: it is delayed, or in a transaction
 * forgotten NUMBER QUEUE OFFSET BEGAN ANSWERED the same, and its transaction is rolled back: nobody may get it
 * unwanted NUMBER WHY BEGAN ENDED            anything else for such a one
 * failed NUMBER TIME                         the listener refused its first delivery
 * unknown NUMBER WHY BEGAN ENDED             anything else: the message is there or not
 * seen NUMBER QUEUE OFFSET TIME              delivered to the listener; -1 is no message that was sent
 * sent ATTEMPTS                              no sender sends any more
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

    /** One line, whole, at once. */
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
