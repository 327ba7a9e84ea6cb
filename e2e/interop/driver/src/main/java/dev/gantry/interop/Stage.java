package dev.gantry.interop;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BooleanSupplier;
import java.util.function.IntFunction;
import java.util.function.LongSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The environment of a scenario: a new topic and group, and clients that are shut down at its end.
 *
 * <p>Every client gets its own instance name: clients of one name share a connection and a client id, so that a
 * scenario with two consumers would have only one.
 */
final class Stage implements AutoCloseable {
    /** The version of the client on the class path, such as 5.1.4. */
    static final String CLIENT_VERSION =
        MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION).substring(1).replace('_', '.');
    private static final long POLL_MILLIS = 20;
    /**
     * Apache's broker can mix up the heartbeats of two consumers that arrive together, and then refuses the pulls of
     * the one with the newer subscription until its next heartbeat; the default of 30 s would look like a loss.
     */
    private static final int HEARTBEAT_MILLIS = 3_000;

    final Options options;
    final String topic;
    final String group;
    final Outcome outcome = new Outcome();
    private final String scenario;
    private final Deque<Runnable> closings = new ArrayDeque<>();
    private int instances;
    private RPCHook watcher;
    private DefaultMQAdminExt sharedAdmin;

    Stage(Options options, String scenario) {
        this.options = options;
        this.scenario = scenario;
        String version = CLIENT_VERSION.replace('.', '_');
        this.topic = "interop_" + scenario + "_" + version + "_" + options.run();
        this.group = "group_" + scenario + "_" + version + "_" + options.run();
    }

    Content content(int contentBytes, boolean compressible, IntFunction<String> tagOf) {
        long run = options.seed() * 1_000_003 + scenario.hashCode();
        return new Content(topic, new Body(run, contentBytes, compressible), tagOf);
    }

    Content content() {
        return content(options.bodyBytes(), false, number -> "plain");
    }

    /** Content for one namespace, with bodies of its own, because topics have the same names in all namespaces. */
    Content content(String namespace) {
        long run = options.seed() * 1_000_003 + (scenario + namespace).hashCode();
        return new Content(topic, new Body(run, options.bodyBytes(), false), number -> "plain");
    }

    String instance() {
        return scenario + "-" + options.run() + "-" + ProcessHandle.current().pid() + "-" + instances++;
    }

    /** The watcher, if there is one; otherwise the hook that signs for the account of this run, or null without one. */
    RPCHook hook() {
        if (watcher != null) {
            return watcher;
        }
        return options.accessKey().isEmpty() ? null : Dialect.hook(options.accessKey(), options.secretKey());
    }

    /** The hook that signs for the account that may create topics. */
    RPCHook adminHook() {
        return options.adminKey().isEmpty() ? hook() : Dialect.hook(options.adminKey(), options.adminSecret());
    }

    /** From now on clients have this hook instead of the one that signs for an account. */
    void watch(RPCHook watcher) {
        this.watcher = watcher;
    }

    void atEnd(Runnable closing) {
        closings.push(closing);
    }

    DefaultMQProducer producer() throws MQClientException {
        return producer(hook());
    }

    DefaultMQProducer producer(RPCHook hook) throws MQClientException {
        return started(new DefaultMQProducer("producers_of_" + group, hook));
    }

    /** A producer that traces its sends. */
    DefaultMQProducer tracedProducer() throws MQClientException {
        return started(new DefaultMQProducer("producers_of_" + group, hook(), true, null));
    }

    /** A producer that compresses large bodies with a codec that both clients select by a system property. */
    DefaultMQProducer compressing(String codec) throws Exception {
        return compressing(codec, this::producer);
    }

    <T> T compressing(String codec, Callable<T> making) throws Exception {
        System.setProperty(MixAll.MESSAGE_COMPRESS_TYPE, codec);
        try {
            return making.call();
        } finally {
            System.clearProperty(MixAll.MESSAGE_COMPRESS_TYPE);
        }
    }

    /** A producer in a namespace; without one if it is empty. */
    DefaultMQProducer producerIn(String namespace) throws MQClientException {
        DefaultMQProducer producer = unstarted();
        if (!namespace.isEmpty()) {
            producer.setNamespace(namespace);
        }
        return started(producer);
    }

    DefaultMQProducer unstarted() {
        return new DefaultMQProducer("producers_of_" + group, hook());
    }

    DefaultMQProducer started(DefaultMQProducer producer) throws MQClientException {
        producer.setNamesrvAddr(options.nameServer());
        producer.setInstanceName(instance());
        producer.setClientIP("127.0.0.1");
        producer.setSendMsgTimeout(10_000);
        if (options.pollMillis() > 0) {
            producer.setPollNameServerInterval(options.pollMillis());
        }
        producer.start();
        closings.push(producer::shutdown);
        return producer;
    }

    TransactionMQProducer transactional(TransactionListener listener) throws MQClientException {
        return transactionalIn("", listener);
    }

    /** A transactional producer in a namespace; without one if it is empty. */
    TransactionMQProducer transactionalIn(String namespace, TransactionListener listener) throws MQClientException {
        TransactionMQProducer producer = new TransactionMQProducer("transactions_of_" + group, hook());
        if (!namespace.isEmpty()) {
            producer.setNamespace(namespace);
        }
        producer.setNamesrvAddr(options.nameServer());
        producer.setInstanceName(instance());
        producer.setClientIP("127.0.0.1");
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(listener);
        producer.start();
        closings.push(producer::shutdown);
        return producer;
    }

    /** The admin client of mqadmin. */
    DefaultMQAdminExt admin() throws MQClientException {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(hook(), 10_000);
        admin.setNamesrvAddr(options.nameServer());
        admin.setInstanceName(instance());
        admin.setClientIP("127.0.0.1");
        admin.start();
        closings.push(admin::shutdown);
        return admin;
    }

    /** The address of the first broker that the name server knows. */
    static String brokerOf(DefaultMQAdminExt admin) throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next()
            .getBrokerAddrs().get(0L);
    }

    /** The administrator's client that this scenario shares. */
    DefaultMQAdminExt sharedAdmin() throws MQClientException {
        if (sharedAdmin == null) {
            sharedAdmin = admin();
        }
        return sharedAdmin;
    }

    void createTopic(DefaultMQProducer producer, int queues) throws MQClientException {
        createTopic(producer, topic, queues);
    }

    /** Makes a topic: as the administrator, where there is one. */
    void createTopic(DefaultMQProducer producer, String topic, int queues) throws MQClientException {
        if (!options.topicServer().equals(options.nameServer())) {
            createTopicAtBrokers(topic, queues);
            return;
        }
        Dialect.createTopic(options.adminKey().isEmpty() ? producer : producer(adminHook()), topic, queues);
    }

    /** Makes a topic without the proxy in front of the brokers, which makes none. */
    private void createTopicAtBrokers(String topic, int queues) throws MQClientException {
        DefaultMQProducer direct = new DefaultMQProducer("makers_of_" + group, adminHook());
        direct.setNamesrvAddr(options.topicServer());
        direct.setInstanceName(instance());
        direct.start();
        try {
            Dialect.createTopic(direct, topic, queues);
        } finally {
            direct.shutdown();
        }
    }

    /** A push consumer that reads from the first message on; the caller subscribes, listens and starts it. */
    DefaultMQPushConsumer pushConsumer(String group) {
        return prepared(options.isPopping()
            ? new PoppingConsumer(this, group)
            : new DefaultMQPushConsumer(group, hook(), new AllocateMessageQueueAveragely()));
    }

    /** A push consumer that traces what it consumes. */
    DefaultMQPushConsumer tracedConsumer(String group) {
        return prepared(new DefaultMQPushConsumer(group, hook(), new AllocateMessageQueueAveragely(), true, null));
    }

    DefaultMQPushConsumer prepared(DefaultMQPushConsumer consumer) {
        consumer.setNamesrvAddr(options.nameServer());
        consumer.setInstanceName(instance());
        consumer.setClientIP("127.0.0.1");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(8);
        consumer.setConsumeThreadMax(8);
        consumer.setConsumeMessageBatchMaxSize(16);
        consumer.setPersistConsumerOffsetInterval(1_000);
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.setPollNameServerInterval(2_000);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MILLIS);
        closings.push(consumer::shutdown);
        return consumer;
    }

    DefaultLitePullConsumer liteConsumer(String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, hook());
        consumer.setNamesrvAddr(options.nameServer());
        consumer.setInstanceName(instance());
        consumer.setClientIP("127.0.0.1");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        closings.push(consumer::shutdown);
        return consumer;
    }

    /**
     * Waits until the condition holds; returns false if the progress did not change within the timeout of this run. A
     * slow broker gets the time that it needs, a broker that stopped does not.
     */
    boolean await(BooleanSupplier done, LongSupplier progress) throws InterruptedException {
        long moved = System.nanoTime();
        long last = progress.getAsLong();
        while (!done.getAsBoolean()) {
            long now = progress.getAsLong();
            if (now != last) {
                last = now;
                moved = System.nanoTime();
            } else if (System.nanoTime() - moved > TimeUnit.MILLISECONDS.toNanos(options.patienceMillis())) {
                return false;
            }
            Thread.sleep(POLL_MILLIS);
        }
        return true;
    }

    /** Whether it becomes true within the timeout of this run, even if other counters change. */
    boolean within(BooleanSupplier done) throws InterruptedException {
        return within(done, 1);
    }

    /** The same with a multiple of the timeout, for conditions that take a client several of its intervals. */
    boolean within(BooleanSupplier done, int timeouts) throws InterruptedException {
        for (int waited = 1; waited < timeouts; waited++) {
            if (await(done, () -> 0)) {
                return true;
            }
        }
        return await(done, () -> 0);
    }

    void require(BooleanSupplier done, LongSupplier progress, String what)
        throws InterruptedException, TimeoutException {
        if (!await(done, progress)) {
            throw new TimeoutException(what + " did not happen within " + options.patienceMillis() + " ms");
        }
    }

    @Override
    public void close() {
        while (!closings.isEmpty()) {
            closings.pop().run();
        }
    }
}
