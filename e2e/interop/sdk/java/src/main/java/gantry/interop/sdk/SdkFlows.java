package gantry.interop.sdk;

import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Drives a gRPC proxy with RocketMQ's Java SDK, and judges what arrives. Arguments: endpoints, the suffix of topics and
 * groups, and FLOW:MESSAGES for each flow. {@code -Dsdk.accessKey} and {@code -Dsdk.secretKey} sign the calls,
 * {@code -Dsdk.tls=true} uses TLS. One JSON line per flow; the exit code is 0 if each of them is ok.
 */
public final class SdkFlows {
    private static final Duration CHANGED_INVISIBLE = Duration.ofSeconds(3);
    private static final int MESSAGE_GROUPS = 16;
    /**
     * The time without a delivery after which messages that always fail are given up: longer than a long poll of 20 s,
     * which brokers of RocketMQ 5.3.3 do not end for a failed message. The proxy gives a message up when it receives it
     * again.
     */
    private static final long SETTLED_MS = 30_000;
    /** How often a message is delivered before it goes to the dead letters; the groups allow two retries. */
    private static final int DELIVERIES = 3;
    private static final String[] TAGS = {"red", "green", "blue"};

    private final Run run;
    private final Tally found;

    private SdkFlows(Run run) {
        this.run = run;
        this.found = run.found;
    }

    public static void main(String[] arguments) {
        boolean isOk = arguments.length > 2;
        for (int index = 2; index < arguments.length; index++) {
            String[] parts = arguments[index].split(":");
            Run run = new Run(arguments[0], arguments[1], parts[0], Integer.parseInt(parts[1]));
            try {
                String note = new SdkFlows(run).perform();
                isOk &= run.found.judge(run.flow, note, true);
            } catch (Throwable error) {
                isOk &= run.found.judge(run.flow, error.toString(), false);
            }
        }
        System.exit(isOk ? 0 : 1);
    }

    private String perform() throws Exception {
        switch (run.flow) {
            case "normal": return normal();
            case "tag": return filtered(new FilterExpression("red", FilterExpressionType.TAG));
            case "sql": return filtered(new FilterExpression("price > 5", FilterExpressionType.SQL92));
            case "push": return push();
            case "fifo": return fifo();
            case "delay": return delay();
            case "recall": return recall();
            case "transaction": return transaction();
            case "invisible": return invisible();
            case "dead-letters": return deadLetters("normal");
            case "fifo-dead-letters": return deadLetters("fifo");
            default: throw new IllegalArgumentException("unknown flow " + run.flow);
        }
    }

    // ------- simple consumers

    /** What a flow does with its consumer and its producer; it returns a note. */
    private interface Exchange {
        String perform(SimpleConsumer consumer, Producer producer) throws Exception;
    }

    private String withSimpleConsumer(String kind, FilterExpression filter, TransactionChecker checker,
                                      Exchange exchange) throws Exception {
        try (SimpleConsumer consumer = run.consumer(kind, filter); Producer producer = run.producer(kind, checker)) {
            return exchange.perform(consumer, producer);
        }
    }

    private String normal() throws Exception {
        found.setCheck(view -> view.getKeys().contains("key-" + view.getProperties().get("number"))
            ? null : "the keys of " + view.getMessageId() + " are " + view.getKeys());
        return withSimpleConsumer("normal", FilterExpression.SUB_ALL, null, (consumer, producer) -> {
            run.sendAll(Run.SENDERS, index -> producer.send(found.want(
                run.message("normal", index).setTag("a").setKeys("key-" + index).build())));
            run.receiveAll(consumer, run.patience());
            return "";
        });
    }

    /** Subscribe to a part of the messages, and wait whether others arrive, too. */
    private String filtered(FilterExpression filter) throws Exception {
        return withSimpleConsumer("normal", filter, null, (consumer, producer) -> {
            run.sendAll(Run.SENDERS, index -> {
                Message message = run.message("normal", index).setTag(TAGS[index % 3])
                    .addProperty("price", String.valueOf(index % 10)).build();
                if (run.flow.equals("tag") ? index % 3 == 0 : index % 10 > 5) {
                    found.want(message);
                }
                producer.send(message);
            });
            run.receiveAll(consumer, run.patience());
            run.receiveMore(consumer, Run.AWAIT);
            return "";
        });
    }

    private String delay() throws Exception {
        found.setCheck(view -> {
            long early = Long.parseLong(view.getProperties().get("due")) - System.currentTimeMillis();
            return early > 0 ? "early by " + early + " ms" : null;
        });
        return withSimpleConsumer("delay", FilterExpression.SUB_ALL, null, (consumer, producer) -> {
            run.sendAll(Run.SENDERS, index -> {
                long due = System.currentTimeMillis() + 3_000 + index % 3 * 1_000;
                producer.send(found.want(run.message("delay", index).setDeliveryTimestamp(due)
                    .addProperty("due", String.valueOf(due)).build()));
            });
            run.receiveAll(consumer, run.patience());
            return "none early";
        });
    }

    /** Take every other message back before it is due. */
    private String recall() throws Exception {
        AtomicInteger recalled = new AtomicInteger();
        return withSimpleConsumer("delay", FilterExpression.SUB_ALL, null, (consumer, producer) -> {
            run.sendAll(Run.SENDERS, index -> {
                Message message = run.message("delay", index)
                    .setDeliveryTimestamp(System.currentTimeMillis() + Run.RECALLABLE.toMillis()).build();
                if (index % 2 == 0) {
                    producer.send(found.want(message));
                } else {
                    producer.recallMessage(message.getTopic(), producer.send(message).getRecallHandle());
                    recalled.incrementAndGet();
                }
            });
            run.receiveAll(consumer, run.patience());
            run.receiveMore(consumer, Run.RECALLABLE);
            return recalled + " recalled";
        });
    }

    /** Commit every other message; the outcome of a fifth of them is left to the checker. */
    private String transaction() throws Exception {
        AtomicInteger checks = new AtomicInteger();
        TransactionChecker checker = view -> {
            checks.incrementAndGet();
            return Integer.parseInt(view.getProperties().get("number")) % 2 == 0
                ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        };
        return withSimpleConsumer("transaction", FilterExpression.SUB_ALL, checker, (consumer, producer) -> {
            run.sendAll(Run.SENDERS, index -> {
                Message message = run.message("transaction", index).build();
                if (index % 2 == 0) {
                    found.want(message);
                }
                Transaction transaction = producer.beginTransaction();
                producer.send(message, transaction);
                if (index % 10 >= 8) {
                    return;
                }
                if (index % 2 == 0) {
                    transaction.commit();
                } else {
                    transaction.rollback();
                }
            });
            run.receiveAll(consumer, run.patience().multipliedBy(2));
            if (run.count > 8 && checks.get() == 0) {
                found.complain("no transaction was checked");
            }
            return checks + " checks";
        });
    }

    /** Change the invisible time of every message, which brings it back with one more attempt. */
    private String invisible() throws Exception {
        Map<String, Long> changed = new ConcurrentHashMap<>();
        FilterExpression filter = new FilterExpression("invisible", FilterExpressionType.TAG);
        return withSimpleConsumer("normal", filter, null, (consumer, producer) -> {
            run.sendAll(Run.SENDERS, index -> producer.send(found.want(
                run.message("normal", index).setTag("invisible").build())));
            long deadline = System.nanoTime() + run.patience().toNanos();
            while (!found.isComplete() && System.nanoTime() < deadline) {
                for (MessageView view : consumer.receive(Run.BATCH, Run.INVISIBLE)) {
                    settle(consumer, changed, view);
                }
            }
            return "all came back";
        });
    }

    private void settle(SimpleConsumer consumer, Map<String, Long> changed, MessageView view) throws Exception {
        String key = view.getProperties().get("sha");
        Long before = changed.get(key);
        if (before == null && found.isOwn(view)) {
            changed.put(key, System.nanoTime());
            consumer.changeInvisibleDuration(view, CHANGED_INVISIBLE);
            return;
        }
        if (before != null && view.getDeliveryAttempt() != 2) {
            found.complain("attempt " + view.getDeliveryAttempt() + ", expected 2");
        }
        if (before != null && System.nanoTime() - before < CHANGED_INVISIBLE.toNanos() / 2) {
            found.complain("back too early");
        }
        found.add(view);
        consumer.ack(view);
    }

    // ------- push consumers

    /** Start a push consumer, send all messages, and wait for the wanted ones and until it is done. */
    private void exchange(String kind, String tag, Function<MessageView, ConsumeResult> handler,
                          BooleanSupplier isDone) throws Exception {
        try (PushConsumer consumer = run.pushConsumer(kind, tag, handler); Producer producer = run.producer(kind, null)) {
            run.sendAll(MESSAGE_GROUPS, index -> {
                MessageBuilder builder = run.message(kind, index).setTag(run.flow);
                if (kind.equals("fifo")) {
                    builder.setMessageGroup("group-" + index % MESSAGE_GROUPS);
                }
                producer.send(found.want(builder.build()));
            });
            run.waitForAll();
            while (!isDone.getAsBoolean()) {
                Thread.sleep(1_000);
            }
        }
    }

    /** Fail an eighth of the messages once; those must be delivered again. */
    private String push() throws Exception {
        Set<String> failed = ConcurrentHashMap.newKeySet();
        exchange("normal", "push", view -> {
            String key = view.getProperties().get("sha");
            if (key.charAt(0) < '2' && failed.add(key)) {
                return ConsumeResult.FAILURE;
            }
            found.add(view);
            return ConsumeResult.SUCCESS;
        }, () -> true);
        return failed.size() + " failed once";
    }

    /** Check that the messages of each message group arrive in the order in which they were sent. */
    private String fifo() throws Exception {
        Map<String, Integer> last = new ConcurrentHashMap<>();
        exchange("fifo", "*", view -> {
            int number = Integer.parseInt(view.getProperties().get("number"));
            String group = view.getMessageGroup().orElse("");
            Integer before = last.put(group, number);
            if (before != null && number < before) {
                found.complain(number + " after " + before + " in " + group);
            }
            found.add(view);
            return ConsumeResult.SUCCESS;
        }, () -> true);
        return "in order";
    }

    /** Fail every message until it is given up; the harness reads the dead letters afterwards. */
    private String deadLetters(String kind) throws Exception {
        Map<String, Integer> attempts = new ConcurrentHashMap<>();
        AtomicLong newest = new AtomicLong(System.currentTimeMillis());
        exchange(kind, run.flow, view -> {
            int attempt = attempts.merge(view.getProperties().get("sha"), 1, Integer::sum);
            newest.set(System.currentTimeMillis());
            if (attempt == DELIVERIES) {
                found.add(view);
            } else if (attempt > DELIVERIES) {
                found.complain("delivery " + attempt);
            }
            return ConsumeResult.FAILURE;
        }, () -> System.currentTimeMillis() - newest.get() > SETTLED_MS);
        return DELIVERIES + " deliveries each";
    }
}
