package dev.gantry.interop;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Runs scenarios against the brokers of a name server and prints one line of JSON for each.
 *
 * <p>Several scenarios share one virtual machine, because on a small machine starting it costs more than a scenario.
 * A scenario that throws has failed; the ones after it are still run. The exit code is 0 only if every check holds.
 */
public final class Driver {
    private static final Map<String, Scenario> SCENARIOS = new LinkedHashMap<>();

    static {
        SCENARIOS.put("sync", Sending::sync);
        SCENARIOS.put("async", Sending::async);
        SCENARIOS.put("oneway", Sending::oneway);
        SCENARIOS.put("batch", Sending::batch);
        SCENARIOS.put("batchqueues", BatchQueues::play);
        SCENARIOS.put("compressed", Sending::compressed);
        SCENARIOS.put("threads64", Sending::threads64);
        SCENARIOS.put("tags", Reading::tags);
        SCENARIOS.put("sql", Filtering::sql);
        SCENARIOS.put("ordered", Reading::ordered);
        SCENARIOS.put("broadcast", Reading::broadcast);
        SCENARIOS.put("litepull", Reading::litePull);
        SCENARIOS.put("restart", ConsumerChanges::restart);
        SCENARIOS.put("rebalance", ConsumerChanges::rebalance);
        SCENARIOS.put("retry", Retrying::retry);
        SCENARIOS.put("dlq", Retrying::deadLetters);
        SCENARIOS.put("pop", Popping::play);
        SCENARIOS.put("popandpull", Popping::besidePull);
        SCENARIOS.put("transactions", Transactions::play);
        SCENARIOS.put("request", RequestReply::request);
        SCENARIOS.put("trace", Tracing::trace);
        SCENARIOS.put("queries", Queries::play);
        SCENARIOS.put("refusals", Refusals::play);
        SCENARIOS.put("priorities", Priorities::play);
        SCENARIOS.put("timers", Timers::play);
        SCENARIOS.put("retrylimits", RetryLimits::play);
        SCENARIOS.put("codecs", Codecs::play);
        SCENARIOS.put("namespaces", Namespaces::play);
        SCENARIOS.put("headers", Headers::play);
        SCENARIOS.put("settings", Settings::play);
        SCENARIOS.put("offsets", Offsets::play);
        SCENARIOS.put("ipv6", Ipv6::play);
        SCENARIOS.put("failover", Failover::play);
        SCENARIOS.put("change", LiveConfig::change);
        SCENARIOS.put("changed", LiveConfig::changed);
        SCENARIOS.put("delays", Delays::play);
        SCENARIOS.put("locks-sender", Locks::send);
        SCENARIOS.put("locks-consumer", Locks::consume);
        SCENARIOS.put("acl", Access::denials);
        SCENARIOS.put("strict", Access::strict);
    }

    private Driver() {
    }

    public static void main(String[] arguments) {
        Options options = Options.parse(arguments);
        boolean kept = true;
        for (String name : options.scenarios()) {
            if (!SCENARIOS.containsKey(name)) {
                System.err.println("no scenario " + name + "; there are " + SCENARIOS.keySet());
                System.exit(2);
            }
        }
        for (String name : options.scenarios()) {
            // The verdict is printed before the clients close: a client of version 5 needs up to 5 s for that, and its
            // actions then are not checked.
            try (Stage stage = new Stage(options, name.split("-")[0])) {
                Map<String, Object> line = play(stage, name);
                System.out.println(Json.line(line));
                System.out.flush();
                kept &= Boolean.TRUE.equals(line.get("kept"));
            }
        }
        System.exit(kept ? 0 : 1);
    }

    private static Map<String, Object> play(Stage stage, String name) {
        long start = System.nanoTime();
        try {
            SCENARIOS.get(name).play(stage);
        } catch (Exception failure) {
            failure.printStackTrace();
            stage.outcome.check(false, "the scenario ended early: " + failure);
        }
        return stage.outcome.close(name, (System.nanoTime() - start) / 1e9);
    }
}
