package dev.gantry.interop;

import java.util.ArrayList;
import java.util.List;

/** One thread per stream; each sends the numbers of its stream in their order. */
final class Senders {
    /** Sends the messages first to end (exclusive) of one stream. */
    @FunctionalInterface
    interface Stream {
        void send(int stream, int first, int end) throws Exception;
    }

    /** Sends one message. */
    @FunctionalInterface
    interface One {
        void send(int number) throws Exception;
    }

    private Senders() {
    }

    static List<Thread> start(Sent sent, Stream body) {
        List<Thread> threads = new ArrayList<>();
        for (int stream = 0; stream < sent.streams; stream++) {
            int mine = stream;
            Thread thread = new Thread(() -> {
                try {
                    body.send(mine, sent.firstOf(mine), sent.firstOf(mine + 1));
                } catch (Exception failure) {
                    sent.fail(failure);
                }
            }, "stream-" + stream);
            thread.start();
            threads.add(thread);
        }
        return threads;
    }

    static void finish(List<Thread> threads) throws InterruptedException {
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** Sends every message by itself; a failed send is counted and the next one is sent. */
    static List<Thread> startEach(Sent sent, One one) {
        return start(sent, (stream, first, end) -> {
            for (int number = first; number < end; number++) {
                try {
                    one.send(number);
                } catch (InterruptedException stopped) {
                    throw stopped;
                } catch (Exception failure) {
                    sent.fail(failure);
                }
            }
        });
    }
}
