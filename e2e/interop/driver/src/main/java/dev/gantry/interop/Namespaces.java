package dev.gantry.interop;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Several namespaces, most with the same names in them: no namespace, two of the old kind (every name is written
 * `namespace%name`), and, with 5.x clients, one of the new kind (fields on every request). Topic and groups have
 * the same names in all of them but the new one; each gets its own messages, its retries, its dead letters and its
 * answers, and listeners never see the prefix.
 */
final class Namespaces {
    private static final List<String> OLD = List.of("", "MQ_INST_one", "MQ_INST_two");
    private static final int RECONSUME_TIMES_MAX = 1;
    private static final int QUERIES = 20;
    private static final long POLL_MILLIS = 200;

    private Namespaces() {
    }

    static void play(Stage stage) throws Exception {
        List<NamespaceClients> namespaces = new ArrayList<>();
        for (String namespace : OLD) {
            namespaces.add(new NamespaceClients(stage, namespace));
        }
        for (NamespaceClients clients : namespaces) {
            clients.begin();
        }
        for (NamespaceClients clients : namespaces) {
            clients.send();
        }
        stage.await(() -> {
            namespaces.forEach(NamespaceClients::poll);
            return namespaces.stream().allMatch(NamespaceClients::isDone);
        }, () -> namespaces.stream().mapToLong(NamespaceClients::progress).sum());
        for (NamespaceClients clients : namespaces) {
            clients.judge();
        }
        DefaultMQAdminExt admin = stage.admin();
        Set<String> topics = admin.fetchAllTopicList().getTopicList();
        for (NamespaceClients clients : namespaces) {
            clients.checkListed(admin, topics);
        }
        newKind(stage);
    }

    /** Fields on every request, from clients that know them; the broker accepts them and uses the names. */
    private static void newKind(Stage stage) throws Exception {
        String topic = stage.topic + "_fields";
        DefaultMQProducer producer = stage.unstarted();
        if (!Dialect.setNamespaceV2(producer, "tenant")) {
            return;
        }
        stage.started(producer);
        stage.createTopic(stage.producer(), topic, 2);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger again = new AtomicInteger();
        DefaultMQPushConsumer consumer = stage.pushConsumer("fields_" + stage.group);
        Dialect.setNamespaceV2(consumer, "tenant");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                seen.add(message.getTopic() + "/" + new String(message.getBody()));
                if (message.getReconsumeTimes() == 0) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                again.incrementAndGet();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int number = 0; number < QUERIES; number++) {
            producer.send(new Message(topic, "", "key-" + number, ("x" + number).getBytes()));
        }
        stage.await(() -> again.get() >= QUERIES && seen.size() >= QUERIES, () -> again.get() + seen.size());
        boolean isWhole = seen.size() == QUERIES && seen.stream().allMatch(one -> one.startsWith(topic + "/x"));
        stage.outcome.check(isWhole && again.get() >= QUERIES,
            "with the fields of namespaces every message is delivered, and is redelivered after a failure ("
                + seen.size() + ", " + again.get() + " of " + QUERIES + ")");
        int found = producer.queryMessage(topic, "key-3", 32, 0, Long.MAX_VALUE).getMessageList().size();
        stage.outcome.check(found == 1, "with the fields of namespaces a key finds its message (" + found + ")");
    }

    /** The clients of one namespace. */
    private static final class NamespaceClients {
        private final Stage stage;
        private final String namespace;
        private final Sent sent;
        private final Content content;
        private final Received pushed;
        private final Received pulled;
        private final Received ordered;
        private final Set<String> committed = ConcurrentHashMap.newKeySet();
        private final AtomicInteger wrongTopics = new AtomicInteger();
        private final AtomicInteger retried = new AtomicInteger();
        private final AtomicIntegerArray attempts;
        private final DefaultMQProducer producer;
        private DefaultLitePullConsumer puller;
        private SendResult first;

        NamespaceClients(Stage stage, String namespace) throws MQClientException {
            this.stage = stage;
            this.namespace = namespace;
            this.sent = new Sent(stage.options.retryCount(), stage.options.threads());
            this.content = stage.content("in " + namespace);
            this.pushed = new Received(sent, content);
            this.pulled = new Received(sent, content);
            this.ordered = new Received(sent, content);
            this.attempts = new AtomicIntegerArray(sent.count);
            this.producer = stage.producerIn(namespace);
        }

        private String written(String name) {
            return namespace.isEmpty() ? name : namespace + "%" + name;
        }

        void begin() throws Exception {
            stage.createTopic(producer, stage.topic, stage.options.queues());
            stage.createTopic(producer, stage.topic + "_halves", 2);
            DefaultMQPushConsumer consumer = pushConsumer(stage.group, stage.topic);
            consumer.setMaxReconsumeTimes(RECONSUME_TIMES_MAX);
            consumer.setConsumeMessageBatchMaxSize(1);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> consume(messages.get(0)));
            consumer.start();
            DefaultMQPushConsumer orderly = pushConsumer("ordered_" + stage.group, stage.topic);
            orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> take(ordered, message, stage.topic));
                return ConsumeOrderlyStatus.SUCCESS;
            });
            orderly.start();
            DefaultMQPushConsumer ender = pushConsumer("halves_" + stage.group, stage.topic + "_halves");
            ender.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> committed.add(message.getTopic() + new String(message.getBody())));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            ender.start();
            puller = stage.liteConsumer("pull_" + stage.group);
            in(puller);
            puller.subscribe(stage.topic, "*");
            puller.start();
        }

        private DefaultMQPushConsumer pushConsumer(String group, String topic) throws MQClientException {
            DefaultMQPushConsumer consumer = stage.pushConsumer(group);
            if (!namespace.isEmpty()) {
                consumer.setNamespace(namespace);
            }
            consumer.subscribe(topic, "*");
            return consumer;
        }

        private void in(DefaultLitePullConsumer consumer) {
            if (!namespace.isEmpty()) {
                consumer.setNamespace(namespace);
            }
        }

        private int take(Received received, MessageExt message, String topic) {
            wrongTopics.addAndGet(topic.equals(message.getTopic()) ? 0 : 1);
            return received.take(message);
        }

        /** Fails the first message always, and every seventh once. */
        private ConsumeConcurrentlyStatus consume(MessageExt message) {
            int number = take(pushed, message, stage.topic);
            if (number < 0) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            boolean isFirst = attempts.getAndIncrement(number) == 0;
            if (number == 0 || number % 7 == 0 && isFirst) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            retried.addAndGet(isFirst ? 0 : 1);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        void send() throws Exception {
            Senders.finish(Senders.startEach(sent, number -> {
                SendResult result = producer.send(content.make(number));
                sent.acknowledge(number, result);
                if (number == 0) {
                    first = result;
                }
            }));
            TransactionMQProducer transactional = stage.transactionalIn(namespace, new CommitsHalfAtCheck());
            for (int number = 0; number < QUERIES; number++) {
                Message message = new Message(stage.topic + "_halves", (namespace + number).getBytes());
                transactional.sendMessageInTransaction(message, number);
            }
        }

        /** Takes the messages that have arrived. Waits for more unless all have arrived. */
        void poll() {
            List<MessageExt> some;
            do {
                some = puller.poll(pulled.complete() ? 1 : POLL_MILLIS);
                some.forEach(message -> take(pulled, message, stage.topic));
            } while (!some.isEmpty());
        }

        boolean isDone() {
            return pushed.complete() && pulled.complete() && ordered.complete() && committed.size() >= QUERIES
                && retried.get() >= (sent.count - 1) / 7 && attempts.get(0) > RECONSUME_TIMES_MAX;
        }

        long progress() {
            return pushed.distinct.get() + pulled.distinct.get() + ordered.distinct.get() + committed.size()
                + retried.get();
        }

        void judge() throws Exception {
            stage.outcome.add(sent);
            for (Received received : List.of(pushed, pulled, ordered)) {
                stage.outcome.add(received, received.missing(number -> true));
            }
            String where = namespace.isEmpty() ? "without a namespace" : "in " + namespace;
            stage.outcome.check(wrongTopics.get() == 0,
                where + " listeners get topic names without the prefix (" + wrongTopics + ")");
            stage.outcome.check(retried.get() >= (sent.count - 1) / 7,
                where + " a message that failed once is redelivered (" + retried + " of " + (sent.count - 1) / 7 + ")");
            Set<String> halves = new HashSet<>();
            for (int number = 0; number < QUERIES; number++) {
                halves.add(stage.topic + "_halves" + namespace + number);
            }
            stage.outcome.check(committed.equals(halves),
                where + " transactions are committed, also at a check (" + committed.size() + ")");
            int wrong = 0;
            for (int number = 1; number < Math.min(QUERIES, sent.count); number++) {
                QueryResult found = producer.queryMessage(stage.topic, "key-" + number, 32, 0, Long.MAX_VALUE);
                boolean isAlone = found.getMessageList().size() == 1
                    && content.verify(found.getMessageList().get(0), sent.count) == number;
                wrong += isAlone ? 0 : 1;
            }
            stage.outcome.check(wrong == 0,
                where + " a key finds its message, and no other one (" + wrong + " do not)");
            MessageExt byId = producer.viewMessage(stage.topic, first.getOffsetMsgId());
            stage.outcome.check(content.verify(byId, sent.count) == 0, where + " an id finds its message");
        }

        /** Checks that the servers list topics with the prefix of the namespace, and the one dead letter. */
        void checkListed(DefaultMQAdminExt admin, Set<String> topics) throws Exception {
            String dead = "%DLQ%" + written(stage.group);
            for (String topic : List.of(written(stage.topic), "%RETRY%" + written(stage.group), dead)) {
                stage.outcome.check(topics.contains(topic), topic + " is listed");
            }
            String broker = first.getMessageQueue().getBrokerName();
            long letters = topics.contains(dead) ? admin.maxOffset(new MessageQueue(dead, broker, 0)) : 0;
            stage.outcome.check(letters == 1, "one dead letter is in " + dead + " (" + letters + ")");
        }
    }

    /** Commits half of the transactions at once, the others at a check, for which the broker must find the sender. */
    private static final class CommitsHalfAtCheck implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object number) {
            return (Integer) number % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
