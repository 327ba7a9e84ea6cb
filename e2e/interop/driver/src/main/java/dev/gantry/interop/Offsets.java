package dev.gantry.interop;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Administration of a consuming group: the status of its consumers is read, and one of them gets one message
 * directly; its offsets are reset to a time, cloned to another group, and reset again when no consumer is online.
 */
final class Offsets {
    private static final long BETWEEN_MILLIS = 2_000;
    private static final int RESET_TIMEOUTS = 3;
    private static final int MESSAGES_MAX = 2_000;

    private final Stage stage;
    private final int each;
    private final Content content;
    private final DefaultMQProducer producer;
    private final DefaultMQAdminExt admin;
    private SendResult last;

    private Offsets(Stage stage) throws Exception {
        this.stage = stage;
        this.each = Math.min(stage.options.retryCount(), MESSAGES_MAX);
        this.content = stage.content();
        this.producer = stage.producer();
        this.admin = stage.admin();
    }

    static void play(Stage stage) throws Exception {
        new Offsets(stage).run();
    }

    private void run() throws Exception {
        stage.createTopic(producer, stage.options.queues());
        Seen seen = new Seen();
        List<DefaultMQPushConsumer> members = List.of(member(stage.group, seen), member(stage.group, seen));
        send(0, each);
        Thread.sleep(BETWEEN_MILLIS);
        long moment = System.currentTimeMillis();
        Thread.sleep(BETWEEN_MILLIS);
        send(each, 2 * each);
        check(stage.within(() -> seen.count(0, 2 * each, 1) == 2 * each), "everything is consumed");
        checkMembers(members, seen);
        Map<Integer, Integer> before = Map.copyOf(seen.times);  // some arrived twice when the second consumer joined
        Map<MessageQueue, Long> resetOffsets = admin.resetOffsetByTimestamp(stage.topic, stage.group, moment, true);
        check(resetOffsets.size() == stage.options.queues(), "the answer names every queue (" + resetOffsets.size() + ")");
        // A 4.9 client waits ten seconds before it leaves a queue that was moved, and up to twenty until it takes it
        // anew.
        boolean isAgain = stage.within(() -> seen.more(each, 2 * each, before) == each, RESET_TIMEOUTS);
        check(isAgain, "messages after the time of the reset are redelivered ("
            + seen.more(each, 2 * each, before) + " of " + each + " were)");
        int older = seen.more(0, each, before);
        check(older == 0, "older messages are not redelivered (" + older + " were)");
        cloned();
        resetWithoutMembers(members);
        stage.outcome.sent = 3 * each;
        stage.outcome.received = seen.count(0, 3 * each, 1);
        stage.outcome.altered = seen.altered.get();
        check(seen.unknown() == 0, "nothing is delivered that was not sent");
    }

    /** Reads the consumers' status and queues, and has one of them consume one message directly. */
    private void checkMembers(List<DefaultMQPushConsumer> members, Seen seen) throws Exception {
        Set<String> queues = ConcurrentHashMap.newKeySet();
        String clientId = null;
        for (DefaultMQPushConsumer member : members) {
            clientId = member.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
            var running = admin.getConsumerRunningInfo(stage.group, clientId, true);
            running.getMqTable().keySet().stream().filter(queue -> queue.getTopic().equals(stage.topic))
                .forEach(queue -> queues.add(queue.getQueueId() + ""));
            boolean isThere = running.getJstack() != null && running.getSubscriptionSet().stream()
                .anyMatch(subscription -> subscription.getTopic().equals(stage.topic));
            check(isThere, "a member reports its state and the stacks of its threads");
        }
        check(queues.size() == stage.options.queues(), "members have every queue between them " + queues);
        int number = 2 * each - 1;
        int before = seen.times.getOrDefault(number, 0);
        var direct = admin.consumeMessageDirectly(stage.group, clientId, stage.topic, last.getOffsetMsgId());
        check("CR_SUCCESS".equals(String.valueOf(direct.getConsumeResult())),
            "a message is consumed directly (" + direct.getConsumeResult() + " " + direct.getRemark() + ")");
        check(stage.within(() -> seen.times.getOrDefault(number, 0) == before + 1), "the message is delivered to the member again");
        seen.times.put(number, before);
        Map<String, Map<MessageQueue, Long>> status = admin.getConsumeStatus(stage.topic, stage.group, "");
        long known = status.values().stream().mapToLong(Map::size).sum();
        check(status.size() == members.size() && known >= stage.options.queues(),
            "members report their offsets (" + status.size() + " members, " + known + " queues)");
        check(!admin.queryConsumeTimeSpan(stage.topic, stage.group).isEmpty(), "the time span of a group's consumption is known");
        check(stage.within(() -> lagOf(stage.group) == 0), "nothing is left to consume (" + lagOf(stage.group) + ")");
    }

    /** A group with another group's offsets gets only later messages. */
    private void cloned() throws Exception {
        check(stage.within(() -> lagOf(stage.group) == 0), "the group has caught up (" + lagOf(stage.group) + ")");
        String clone = "clone_" + stage.group;
        admin.cloneGroupOffset(stage.group, clone, stage.topic, false);
        Seen seen = new Seen();
        member(clone, seen);
        send(2 * each, 3 * each);
        check(stage.within(() -> seen.count(2 * each, 3 * each, 1) == each), "a cloned group gets new messages ("
            + seen.count(2 * each, 3 * each, 1) + " of " + each + ")");
        int old = seen.count(0, 2 * each, 1);
        check(old == 0, "a cloned group gets nothing that its source had consumed (" + old + ")");
    }

    /** A reset while the group has no online consumers: the next consumer begins at the new offsets. */
    private void resetWithoutMembers(List<DefaultMQPushConsumer> members) throws Exception {
        members.forEach(DefaultMQPushConsumer::shutdown);
        check(stage.within(() -> !isConnected(stage.group)), "the members leave");
        admin.resetOffsetNew(stage.group, stage.topic, 0);
        Seen seen = new Seen();
        member(stage.group, seen);
        check(stage.within(() -> seen.count(0, 3 * each, 1) == 3 * each), "a group that was set back to the beginning "
            + "while it had no members begins there (" + seen.count(0, 3 * each, 1) + " of " + 3 * each + ")");
    }

    private DefaultMQPushConsumer member(String group, Seen seen) throws Exception {
        DefaultMQPushConsumer consumer = stage.pushConsumer(group);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(seen::take);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private void send(int first, int end) throws Exception {
        for (int number = first; number < end; number++) {
            last = producer.send(content.make(number));
        }
    }

    private long lagOf(String group) {
        try {
            return admin.examineConsumeStats(group, stage.topic).computeTotalDiff();
        } catch (Exception notYet) {
            return -1;
        }
    }

    private boolean isConnected(String group) {
        try {
            return !admin.examineConsumerConnectionInfo(group).getConnectionSet().isEmpty();
        } catch (Exception ignored) {
            return false;
        }
    }

    private void check(boolean holds, String text) {
        stage.outcome.check(holds, text);
    }

    /** The number of deliveries of each message. */
    private final class Seen {
        final Map<Integer, Integer> times = new ConcurrentHashMap<>();
        final AtomicInteger altered = new AtomicInteger();

        void take(MessageExt message) {
            int number = content.verify(message, 3 * each);
            altered.addAndGet(number < 0 ? 1 : 0);
            times.merge(number, 1, Integer::sum);
        }

        int count(int first, int end, int least) {
            int found = 0;
            for (int number = first; number < end; number++) {
                found += times.getOrDefault(number, 0) >= least ? 1 : 0;
            }
            return found;
        }

        int more(int first, int end, Map<Integer, Integer> before) {
            int found = 0;
            for (int number = first; number < end; number++) {
                found += times.getOrDefault(number, 0) > before.getOrDefault(number, 0) ? 1 : 0;
            }
            return found;
        }

        long unknown() {
            return times.keySet().stream().filter(number -> number < 0).count();
        }
    }
}
