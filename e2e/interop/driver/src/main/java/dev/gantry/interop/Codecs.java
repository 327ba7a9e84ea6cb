package dev.gantry.interop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Bodies compressed with each codec of the clients, in one topic. Some are delayed, some fail once, some are
 * halves of transactions: every copy that the broker makes must keep the codec in its flags. Each is read by a
 * pushed and a pulling consumer; some are queried by id. Java and the command gantry read each other's messages.
 */
final class Codecs {
    private static final List<String> CODECS = List.of("ZLIB", "LZ4", "ZSTD");
    private static final int[] KINDS = {0x300, 0x100, 0x200};
    private static final int KIND_MASK = 0x700;
    private static final int BODY_BYTES = 5_000;
    private static final int MESSAGES_MAX = 20_000;
    private static final int SPECIALS = 10;
    private static final int DELAYED = 3;
    private static final int FAILING = 4;
    private static final int HALF = 5;
    private static final int ASKED_MAX = 60;
    private static final long POLL_MILLIS = 200;
    private static final long COMMAND_SECONDS_MAX = 120;

    private final Stage stage;
    private final Sent sent;
    private final Content content;
    private final Map<Integer, SendResult> results = new ConcurrentHashMap<>();
    private final AtomicInteger mislabelled = new AtomicInteger();
    private final AtomicInteger uncompressed = new AtomicInteger();
    private final AtomicIntegerArray failures;

    private Codecs(Stage stage) {
        this.stage = stage;
        this.sent = new Sent(Math.min(stage.options.count(), MESSAGES_MAX), stage.options.threads());
        this.content = stage.content(BODY_BYTES, true, number -> CODECS.get(codecOf(number)));
        this.failures = new AtomicIntegerArray(sent.count);
    }

    static void play(Stage stage) throws Exception {
        new Codecs(stage).run();
    }

    private static int codecOf(int number) {
        return number % CODECS.size();
    }

    private static int specialOf(int number) {
        return number / CODECS.size() % (SPECIALS * CODECS.size());
    }

    private void run() throws Exception {
        List<DefaultMQProducer> producers = new ArrayList<>();
        List<TransactionMQProducer> halves = new ArrayList<>();
        for (String codec : CODECS) {
            producers.add(stage.compressing(codec));
            halves.add(compressingHalves(codec));
        }
        stage.createTopic(producers.get(0), stage.options.queues());
        Received pushed = new Received(sent, content);
        Received pulled = new Received(sent, content);
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> consume(messages, pushed));
        consumer.start();
        DefaultLitePullConsumer puller = stage.liteConsumer("pull_" + stage.group);
        puller.subscribe(stage.topic, String.join(" || ", CODECS));
        puller.start();
        List<Thread> threads = Senders.startEach(sent, number -> {
            Message message = content.make(number);
            if (specialOf(number) == HALF) {
                recordSend(number, halves.get(codecOf(number)).sendMessageInTransaction(message, number));
                return;
            }
            message.setDelayTimeLevel(specialOf(number) == DELAYED ? 1 : 0);
            SendResult result = producers.get(codecOf(number)).send(message);
            recordSend(number, result);
            if (specialOf(number) != DELAYED && results.size() < ASKED_MAX) {
                results.put(number, result);
            }
        });
        stage.await(() -> {
            for (MessageExt message : puller.poll(POLL_MILLIS)) {
                checkRecord(message, pulled.take(message));
            }
            return pushed.complete() && pulled.complete() && pending() == 0;
        }, () -> pushed.distinct.get() + pushed.duplicates.get() + pulled.distinct.get() + sent.acknowledged.get());
        Senders.finish(threads);
        stage.outcome.add(sent);
        stage.outcome.add(pushed, pushed.missing(number -> true));
        stage.outcome.add(pulled, pulled.missing(number -> true));
        stage.outcome.check(mislabelled.get() == 0,
            "the flags of a message name its codec (" + mislabelled.get() + " do not)");
        stage.outcome.check(uncompressed.get() == 0,
            "every record is stored compressed (" + uncompressed.get() + " are not)");
        stage.outcome.check(pending() == 0,
            "a message that failed once is redelivered, with the same codec (" + pending() + " were not)");
        int wrong = countWrongQueries(producers.get(0));
        stage.outcome.check(wrong == 0, "each is found by its ids, and can be read (" + wrong + " cannot)");
        if (!stage.options.gantry().isEmpty()) {
            exchangeWithCommand(producers);
        }
    }

    private void recordSend(int number, SendResult result) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            sent.handOver(number);
        } else {
            sent.fail("send status " + result.getSendStatus());
        }
    }

    private TransactionMQProducer compressingHalves(String codec) throws Exception {
        return stage.compressing(codec, () -> stage.transactional(new CommittingListener()));
    }

    private ConsumeConcurrentlyStatus consume(List<MessageExt> messages, Received received) {
        MessageExt message = messages.get(0);
        int number = received.take(message);
        checkRecord(message, number);
        if (number >= 0 && specialOf(number) == FAILING && failures.getAndIncrement(number) == 0) {
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private void checkRecord(MessageExt message, int number) {
        if (number < 0) {
            return;
        }
        mislabelled.addAndGet((message.getSysFlag() & KIND_MASK) == KINDS[codecOf(number)] ? 0 : 1);
        uncompressed.addAndGet(message.getStoreSize() < BODY_BYTES ? 0 : 1);
    }

    /** The number of failed messages that are not redelivered yet. */
    private int pending() {
        int pending = 0;
        for (int number = 0; number < sent.count; number++) {
            pending += specialOf(number) == FAILING && sent.accepted(number) && failures.get(number) < 2 ? 1 : 0;
        }
        return pending;
    }

    private int countWrongQueries(DefaultMQProducer producer) {
        int wrong = 0;
        for (Map.Entry<Integer, SendResult> one : results.entrySet()) {
            for (String id : Set.of(one.getValue().getMsgId(), one.getValue().getOffsetMsgId())) {
                try {
                    MessageExt found = producer.viewMessage(stage.topic, id);
                    wrong += found != null && content.verify(found, sent.count) == one.getKey() ? 0 : 1;
                } catch (Exception failure) {
                    wrong++;
                    stage.outcome.detail("first_query_failure", String.valueOf(failure));
                }
            }
        }
        return wrong;
    }

    /** `gantry consume` prints messages that Java compressed, and Java reads those of `gantry produce`. */
    private void exchangeWithCommand(List<DefaultMQProducer> producers) throws Exception {
        String theirs = stage.topic + "_for_cli";
        String ours = stage.topic + "_from_cli";
        stage.createTopic(producers.get(0), theirs, 1);
        stage.createTopic(producers.get(0), ours, 1);
        List<String> texts = new ArrayList<>();
        Set<String> read = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = stage.pushConsumer("cli_" + stage.group);
        consumer.subscribe(ours, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> read.add((message.getSysFlag() & KIND_MASK) + new String(message.getBody())));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int codec = 0; codec < CODECS.size(); codec++) {
            String text = (CODECS.get(codec) + " from java, ").repeat(400);
            texts.add(text);
            producers.get(codec).send(new Message(theirs, text.getBytes()));
            gantry("produce", ours, text, "--compress", CODECS.get(codec).toLowerCase());
        }
        String printed = gantry("consume", theirs);
        stage.outcome.check(texts.stream().allMatch(text -> printed.contains(text.strip())),
            "the command gantry prints what Java compressed");
        stage.await(() -> read.size() == CODECS.size(), read::size);
        boolean isRead = true;
        for (int codec = 0; codec < CODECS.size(); codec++) {
            isRead &= read.contains(KINDS[codec] + texts.get(codec));
        }
        stage.outcome.check(isRead, "Java reads what the command gantry compressed");
    }

    private String gantry(String command, String... words) throws IOException, InterruptedException, TimeoutException {
        List<String> line = new ArrayList<>(List.of(stage.options.gantry().split(" ")));
        line.addAll(List.of(command, "-n", stage.options.nameServer()));
        line.addAll(List.of(words));
        Process process = new ProcessBuilder(line).redirectErrorStream(true).start();
        String commandOutput = new String(process.getInputStream().readAllBytes());
        if (!process.waitFor(COMMAND_SECONDS_MAX, TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new TimeoutException("gantry " + command + " does not end");
        }
        stage.outcome.check(process.exitValue() == 0, "gantry " + command + " works (" + commandOutput + ")");
        return commandOutput;
    }
}
