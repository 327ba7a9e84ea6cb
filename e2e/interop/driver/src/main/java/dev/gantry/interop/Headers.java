package dev.gantry.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Fields that requests of 5.x programs may carry, and an unknown one, on every request of every kind of
 * client: sends of all sorts, pulls, offsets, locks, retries, transactions, queries, and an administrator's requests.
 * All messages are delivered, and none of the requests is refused.
 */
final class Headers {
    private static final Map<String, String> FIELDS = Map.of("ns", "tenant", "nsd", "true", "bname", "broker-a", "oway",
        "false", "lo", "false", "aFieldOfTomorrow", "x");
    private static final int MESSAGES = 60;
    private static final int KINDS = 3;
    private static final long POLL_MILLIS = 200;
    private static final int GET_CONSUMER_LIST = 38;
    private static final int GET_ROUTE = 105;
    /** SYSTEM_ERROR, SYSTEM_BUSY, REQUEST_CODE_NOT_SUPPORTED, MESSAGE_ILLEGAL, NO_PERMISSION, INVALID_PARAMETER. */
    private static final Set<Integer> REFUSALS = Set.of(1, 2, 3, 13, 16, 29);
    private static final Integer SEND_BACK = 36;
    /** In pop mode: pops, acks, and changes of the invisible time, in place of messages that are sent back. */
    private static final List<Integer> POPPING = List.of(400, 200050, 200051, 200053);
    /** The request codes that must occur, or the scenario has too little coverage. */
    private static final List<Integer> ASKED = List.of(11, 12, 14, 15, 17, 28, 29, 30, 31, 33, 34, 36, 37, 38, 41, 105, 106,
        200, 202, 203, 206, 208, 310, 320);

    private final Stage stage;
    private final Watcher watcher = new Watcher();
    private final Set<String> read = ConcurrentHashMap.newKeySet();
    private final Set<String> pulled = ConcurrentHashMap.newKeySet();
    private final Set<String> ordered = ConcurrentHashMap.newKeySet();
    private final AtomicInteger again = new AtomicInteger();

    private Headers(Stage stage) {
        this.stage = stage;
        stage.watch(watcher);
    }

    static void play(Stage stage) throws Exception {
        Headers headers = new Headers(stage);
        try {
            headers.run();
        } finally {
            headers.judge();
        }
    }

    private void run() throws Exception {
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, 2);
        consumers();
        SendResult last = send(producer);
        DefaultMQAdminExt admin = stage.admin();
        stage.await(() -> read.size() >= MESSAGES && ordered.size() >= MESSAGES && pulledAll() && again.get() >= 1,
            () -> read.size() + ordered.size() + pulled.size() + again.get());
        stage.outcome.sent = MESSAGES;
        stage.outcome.received = read.size();
        stage.outcome.lost = 3 * MESSAGES - read.size() - ordered.size() - pulled.size();
        stage.outcome.check(again.get() >= 1, "a message that failed once is redelivered");
        boolean isFound = producer.queryMessage(stage.topic, "key-0", 32, 0, Long.MAX_VALUE).getMessageList().size() == 1;
        stage.outcome.check(isFound, "a key finds its message");
        MessageExt byId = producer.viewMessage(stage.topic, last.getOffsetMsgId());
        stage.outcome.check(new String(byId.getBody()).startsWith("n"), "an id finds its message");
        adminRequests(producer, admin, last.getMessageQueue());
    }

    private void consumers() throws Exception {
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            read.add(new String(message.getBody()));
            again.addAndGet(message.getReconsumeTimes() > 0 ? 1 : 0);
            boolean isToFail = "key-0".equals(message.getKeys()) && message.getReconsumeTimes() == 0;
            return isToFail ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQPushConsumer orderly = stage.pushConsumer("ordered_" + stage.group);
        orderly.subscribe(stage.topic, "*");
        orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(message -> ordered.add(new String(message.getBody())));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        orderly.start();
        puller = stage.liteConsumer("pull_" + stage.group);
        puller.subscribe(stage.topic, "*");
        puller.start();
    }

    private DefaultLitePullConsumer puller;

    private boolean pulledAll() {
        puller.poll(POLL_MILLIS).forEach(message -> pulled.add(new String(message.getBody())));
        return pulled.size() >= MESSAGES;
    }

    /** Sends a third singly, a third in one batch, a third as halves of transactions. */
    private SendResult send(DefaultMQProducer producer) throws Exception {
        TransactionMQProducer transactional = stage.transactional(new CommittingListener());
        List<Message> batch = new ArrayList<>();
        SendResult last = null;
        for (int number = 0; number < MESSAGES; number++) {
            Message message = new Message(stage.topic, "t", "key-" + number, ("n" + number).getBytes());
            if (number % KINDS == 0) {
                last = producer.send(message);
            } else if (number % KINDS == 1) {
                batch.add(message);
            } else {
                transactional.sendMessageInTransaction(message, number);
            }
        }
        producer.send(batch);
        return last;
    }

    /** The requests of administrators and tools. */
    private void adminRequests(DefaultMQProducer producer, DefaultMQAdminExt admin, MessageQueue queue)
        throws Exception {
        String broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().get(queue.getBrokerName()).getBrokerAddrs()
            .get(0L);
        producer.maxOffset(queue);
        producer.minOffset(queue);
        producer.searchOffset(queue, System.currentTimeMillis());
        admin.fetchAllTopicList();
        admin.examineTopicStats(stage.topic);
        admin.examineConsumeStats(stage.group);
        admin.examineConsumerConnectionInfo(stage.group);
        admin.fetchBrokerRuntimeStats(broker);
        Dialect.createGroup(admin, broker, "made_" + stage.group);
        Dialect.createTopic(admin, broker, stage.topic + "_made", 4);
        admin.examineTopicRouteInfo(stage.topic);
    }

    private void judge() throws InterruptedException {
        Map<Integer, Set<Integer>> answers = watcher.answers;
        Set<Integer> missing = new ConcurrentSkipListSet<>(ASKED);
        missing.addAll(Dialect.NEW_CODES);
        if (stage.options.isPopping()) {
            missing.addAll(POPPING);
            missing.remove(SEND_BACK);
        }
        stage.within(() -> watcher.asked.containsAll(missing));  // offsets are reported once a second
        missing.removeAll(watcher.asked);
        Map<Integer, Set<Integer>> refused = new TreeMap<>();
        // A client that asks for consumers of a new group, or for the route of a topic before it exists, gets code 1.
        answers.forEach((code, answerCodes) -> answerCodes.stream().filter(REFUSALS::contains)
            .filter(one -> !(code == GET_CONSUMER_LIST && one == 1 || code == GET_ROUTE && one == 1))
            .forEach(one -> refused.computeIfAbsent(code, any -> new ConcurrentSkipListSet<>()).add(one)));
        stage.outcome.detail("codes_asked", watcher.asked.size());
        stage.outcome.check(missing.isEmpty(), "every kind of request has been asked with the fields, but not " + missing);
        stage.outcome.check(refused.isEmpty(), "no request is refused for its fields (code: answers " + refused + ")");
    }

    /** Adds the fields to requests, and records the answers. */
    private static final class Watcher implements RPCHook {
        final Set<Integer> asked = new ConcurrentSkipListSet<>();
        final Map<Integer, Set<Integer>> answers = new ConcurrentHashMap<>();

        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
            asked.add(request.getCode());
            FIELDS.forEach((name, value) -> {
                if (request.getExtFields() == null || !request.getExtFields().containsKey(name)) {
                    request.addExtField(name, value);
                }
            });
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            if (response != null) {
                answers.computeIfAbsent(request.getCode(), code -> new ConcurrentSkipListSet<>()).add(response.getCode());
            }
        }
    }
}
