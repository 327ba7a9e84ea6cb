package dev.gantry.interop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The result of one scenario: numbers, and the text of every check that failed. */
final class Outcome {
    private final Map<String, Object> details = new LinkedHashMap<>();
    private final List<String> broken = new ArrayList<>();
    int sent;
    int failed;
    int received;
    int lost;
    int altered;
    int outOfOrder;
    int duplicates;

    void detail(String name, Object value) {
        details.put(name, value);
    }

    /** Checks a condition; its text, a sentence that must be true, is reported if it does not hold. */
    void check(boolean holds, String text) {
        if (!holds) {
            broken.add(text);
        }
    }

    void add(Received reader, int missing) {
        received += reader.distinct.get();
        lost += missing;
        altered += reader.altered.get();
        duplicates += reader.duplicates.get();
        outOfOrder += reader.disordered.get();
        if (reader.firstFault.get() != null) {
            details.put("first_fault", reader.firstFault.get());
        }
    }

    void add(Sent sends) {
        sent += sends.acknowledged.get();
        failed += sends.failed.get();
        if (sends.firstFailure.get() != null) {
            details.put("first_send_failure", sends.firstFailure.get());
        }
    }

    Map<String, Object> close(String scenario, double seconds) {
        check(failed == 0, "no send fails");
        check(lost == 0, "nothing is lost");
        check(altered == 0, "nothing is altered");
        check(outOfOrder == 0, "nothing is out of order within a queue");
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", scenario);
        line.put("client", Stage.CLIENT_VERSION);
        line.put("kept", broken.isEmpty());
        line.put("sent", sent);
        line.put("failed", failed);
        line.put("received", received);
        line.put("lost", lost);
        line.put("altered", altered);
        line.put("out_of_order", outOfOrder);
        line.put("duplicates", duplicates);
        line.put("seconds", Math.round(seconds * 1000) / 1000.0);
        line.put("broken", broken);
        line.put("details", details);
        return line;
    }
}
