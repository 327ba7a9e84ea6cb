package gantry.interop.sdk;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.function.Function;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Counts what arrived of one flow, and what was wrong with it. */
final class Tally {
    final String runId = UUID.randomUUID().toString();
    private final Set<String> wanted = new HashSet<>();
    private final Map<String, Integer> copies = new HashMap<>();
    private final List<String> wrong = new ArrayList<>();
    private Function<MessageView, String> check = view -> null;
    private int arrived;
    private boolean isOpen = true;

    /** Set what returns a further fault of a message of this flow, or null. */
    void setCheck(Function<MessageView, String> check) {
        this.check = check;
    }

    synchronized Message want(Message message) {
        wanted.add(message.getProperties().get("sha"));
        return message;
    }

    /** End the adding of wanted messages: from now on the tally can be complete. */
    synchronized void close() {
        isOpen = false;
    }

    synchronized void complain(String fault) {
        wrong.add(fault);
    }

    /** Return whether a message is of this flow; an altered one is noted. */
    boolean isOwn(MessageView view) {
        if (!runId.equals(view.getProperties().get("run"))) {
            return false;
        }
        if (!digest(bytes(view.getBody())).equals(view.getProperties().get("sha"))) {
            complain("the body of " + view.getMessageId() + " changed");
        }
        return true;
    }

    void add(MessageView view) {
        if (!isOwn(view)) {
            return;
        }
        String fault = check.apply(view);
        if (fault != null) {
            complain(fault);
        }
        count(view.getProperties().get("sha"));
    }

    private synchronized void count(String key) {
        if (copies.merge(key, 1, Integer::sum) == 1 && wanted.contains(key)) {
            arrived++;
        }
    }

    synchronized boolean isComplete() {
        return !isOpen && arrived == wanted.size();
    }

    /** Print the verdict: every wanted message arrived, no other one, and nothing was wrong. */
    synchronized boolean judge(String flow, String note, boolean isPerformed) {
        boolean isExact = arrived == wanted.size() && copies.size() == wanted.size();
        boolean isOk = isPerformed && isExact && wrong.isEmpty();
        String faults = wrong.isEmpty() ? "" : "; " + wrong.size() + " wrong, the first: " + wrong.get(0);
        System.out.printf(
            "{\"flow\": \"%s\", \"ok\": %s, \"expected\": %d, \"received\": %d, \"copies\": %d, \"note\": \"%s\"}%n",
            flow, isOk, wanted.size(), copies.size(), copies.values().stream().mapToInt(Integer::intValue).sum(),
            (note + faults).replaceAll("[\"\\\\\n]", "'"));
        System.out.flush();
        return isOk;
    }

    static String digest(byte[] body) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte one : MessageDigest.getInstance("SHA-256").digest(body)) {
                text.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
            }
            return text.toString();
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] data = new byte[buffer.remaining()];
        buffer.duplicate().get(data);
        return data;
    }
}
