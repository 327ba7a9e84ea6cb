package dev.gantry.interop;

import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Commands to a running scenario, as files that appear in its directory: `pause` stops the senders until the file is
 * removed, `stop` ends them, `end` ends the scenario. Files need no port and can be made by hand.
 */
final class Commands implements AutoCloseable {
    private static final int POLL_MILLIS = 10;

    private final Path directory;
    private final Thread watcher;
    private volatile boolean isPaused;
    private volatile boolean isStopped;
    private volatile boolean isEnded;

    Commands(Path directory) {
        this.directory = directory;
        this.watcher = new Thread(this::watch, "commands");
        watcher.setDaemon(true);
        watcher.start();
    }

    private void watch() {
        while (!isEnded) {
            isPaused = Files.exists(directory.resolve("pause"));
            isStopped |= Files.exists(directory.resolve("stop"));
            isEnded = Files.exists(directory.resolve("end"));
            sleep(POLL_MILLIS);
        }
    }

    /** Waits while the senders are paused; returns false when they are to end. */
    boolean maySend() {
        while (isPaused && !isStopped) {
            sleep(POLL_MILLIS);
        }
        return !isStopped;
    }

    void awaitEnd() {
        while (!isEnded) {
            sleep(POLL_MILLIS);
        }
    }

    static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    @Override
    public void close() {
        isEnded = true;
    }
}
