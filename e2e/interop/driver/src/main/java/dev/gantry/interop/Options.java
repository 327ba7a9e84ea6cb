package dev.gantry.interop;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The options of the command line. An unknown flag is an error: a misspelt one must not silently test less. */
record Options(
    List<String> scenarios,
    String nameServer,
    String topicServer,
    int count,
    int retryCount,
    long seed,
    int threads,
    int queues,
    int window,
    int bodyBytes,
    List<Long> delayLevelsMillis,
    long delaySlackMillis,
    long patienceMillis,
    int pollMillis,
    boolean isMixed,
    boolean isPopping,
    String directory,
    String gantry,
    String accessKey,
    String secretKey,
    String adminKey,
    String adminSecret,
    boolean isNameServerGuarded,
    String run) {

    private static final Set<String> KNOWN = Set.of("namesrv", "topic-namesrv", "count", "retry-count", "seed", "threads", "queues",
        "window", "body-bytes", "levels", "delay-slack-ms", "patience-ms", "poll-ms", "mixed", "pop", "directory", "gantry",
        "access-key", "secret-key", "admin-key", "admin-secret", "guarded-names", "run");

    static final String DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

    static Options parse(String[] arguments) {
        Map<String, String> flags = new HashMap<>();
        List<String> scenarios = new ArrayList<>();
        for (int index = 0; index < arguments.length; index++) {
            String argument = arguments[index];
            if (!argument.startsWith("--")) {
                scenarios.addAll(List.of(argument.split(",")));
                continue;
            }
            String name = argument.substring(2);
            if (!KNOWN.contains(name) || index + 1 == arguments.length) {
                throw new IllegalArgumentException("unknown flag or missing value: " + argument + "; known: " + KNOWN);
            }
            flags.put(name, arguments[++index]);
        }
        if (scenarios.isEmpty() || !flags.containsKey("namesrv")) {
            throw new IllegalArgumentException("usage: Driver <scenario,...> --namesrv host:port [--count N] ...");
        }
        return new Options(
            scenarios,
            flags.get("namesrv"),
            flags.getOrDefault("topic-namesrv", flags.get("namesrv")),
            number(flags, "count", 100_000),
            number(flags, "retry-count", 1_000),
            Long.parseLong(flags.getOrDefault("seed", "1")),
            number(flags, "threads", 4),
            number(flags, "queues", 8),
            number(flags, "window", 256),
            number(flags, "body-bytes", 128),
            levels(flags.getOrDefault("levels", DEFAULT_LEVELS)),
            number(flags, "delay-slack-ms", 6_000),
            number(flags, "patience-ms", 30_000),
            number(flags, "poll-ms", 0),
            number(flags, "mixed", 0) > 0,
            number(flags, "pop", 0) > 0,
            flags.getOrDefault("directory", "."),
            flags.getOrDefault("gantry", ""),
            flags.getOrDefault("access-key", ""),
            flags.getOrDefault("secret-key", ""),
            flags.getOrDefault("admin-key", ""),
            flags.getOrDefault("admin-secret", ""),
            number(flags, "guarded-names", 0) > 0,
            flags.getOrDefault("run", Long.toString(System.currentTimeMillis(), 36)));
    }

    private static int number(Map<String, String> flags, String name, int otherwise) {
        return Integer.parseInt(flags.getOrDefault(name, Integer.toString(otherwise)));
    }

    /** The broker's messageDelayLevel setting, "1s 5s 10s ...", in milliseconds; level 1 is the first. */
    static List<Long> levels(String text) {
        List<Long> levels = new ArrayList<>();
        for (String word : text.trim().split("[ ,]+")) {
            long amount = Long.parseLong(word.substring(0, word.length() - 1));
            long unit = switch (word.charAt(word.length() - 1)) {
                case 's' -> 1_000L;
                case 'm' -> 60_000L;
                case 'h' -> 3_600_000L;
                case 'd' -> 86_400_000L;
                default -> throw new IllegalArgumentException("no such unit of time: " + word);
            };
            levels.add(amount * unit);
        }
        return levels;
    }

    long delayMillis(int level) {
        return delayLevelsMillis.get(Math.min(level, delayLevelsMillis.size()) - 1);
    }
}
