package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Makes the admin client, the one behind mqadmin, send every common request once, and one consumer receive its
 * messages in the "pop" way that only 5.x clients support. The recorder keeps the frames.
 *
 * <p>A step may be refused: the refusal is a frame as well. What is refused is printed.
 */
public final class AdminTour {
    private final String nameServer;
    private final String broker;
    private final String cluster;
    private final String topic;
    private final String group;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
    private final List<String> refusals = new ArrayList<>();

    private AdminTour(String nameServer, String broker, String cluster, String run) {
        this.nameServer = nameServer;
        this.broker = broker;
        this.cluster = cluster;
        this.topic = "admin_tour_" + run;
        this.group = "admin_tour_group_" + run;
    }

    /** Arguments: name server address, broker address, cluster name, a suffix that makes the names of this run new. */
    public static void main(String[] arguments) {
        try {
            play(arguments);
        } catch (Exception failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void play(String[] arguments) throws Exception {
        AdminTour tour = new AdminTour(arguments[0], arguments[1], arguments[2], arguments[3]);
        tour.admin.setNamesrvAddr(tour.nameServer);
        tour.admin.setInstanceName("admin-tour");
        tour.admin.setClientIP("127.0.0.1");
        tour.admin.start();
        tour.topicsAndGroups();
        tour.nameServer();
        tour.withClients();
        tour.brokerState();
        tour.pop();
        tour.removals();
        tour.admin.shutdown();
        tour.refusals.forEach(refusal -> System.out.println("refused: " + refusal));
    }

    private interface Step {
        void take() throws Exception;
    }

    private void step(String name, Step step) {
        try {
            step.take();
        } catch (Exception refused) {
            refusals.add(name + ": " + refused);
        }
    }

    private void topicsAndGroups() {
        TopicConfig config = new TopicConfig(topic, 2, 2, 6);
        SubscriptionGroupConfig groupConfig = new SubscriptionGroupConfig();
        groupConfig.setGroupName(group);
        step("create topic", () -> admin.createAndUpdateTopicConfig(broker, config));
        step("create topics", () -> admin.createAndUpdateTopicConfigList(broker, List.of(config)));
        step("topic config", () -> admin.examineTopicConfig(broker, topic));
        step("all topic configs", () -> admin.getAllTopicConfig(broker, 10_000));
        step("create group", () -> admin.createAndUpdateSubscriptionGroupConfig(broker, groupConfig));
        step("create groups", () -> admin.createAndUpdateSubscriptionGroupConfigList(broker, List.of(groupConfig)));
        step("group config", () -> admin.examineSubscriptionGroupConfig(broker, group));
        step("all groups", () -> admin.getAllSubscriptionGroup(broker, 10_000));
    }

    private void nameServer() {
        step("cluster", admin::examineBrokerClusterInfo);
        step("topics", admin::fetchAllTopicList);
        step("system topics of the name server", () -> admin.getDefaultMQAdminExtImpl().getMqClientInstance()
            .getMQClientAPIImpl().getSystemTopicList(10_000));
        step("topics of a cluster", () -> admin.fetchTopicsByCLuster(cluster));
        step("route", () -> admin.examineTopicRouteInfo(topic));
        step("no route", () -> admin.examineTopicRouteInfo("topic_nobody_made"));
        step("put key", () -> admin.createAndUpdateKvConfig("SPACE", "key", "value"));
        step("get key", () -> admin.getKVConfig("SPACE", "key"));
        step("all keys", () -> admin.getKVListByNamespace("SPACE"));
        step("delete key", () -> admin.deleteKvConfig("SPACE", "key"));
        step("deleted key", () -> admin.getKVConfig("SPACE", "key"));
        step("wipe write", () -> admin.wipeWritePermOfBroker(nameServer, "broker-a"));
        step("add write", () -> admin.addWritePermOfBroker(nameServer, "broker-a"));
        step("name server config", () -> admin.getNameServerConfig(List.of(nameServer)));
    }

    private DefaultMQPushConsumer consumer(String group, CountDownLatch seen) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group);
        consumer.setClientIP("127.0.0.1");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private void withClients() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("admin_tour_producers");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("admin-tour-producer");
        producer.setClientIP("127.0.0.1");
        producer.start();
        SendResult result = producer.send(new Message(topic, "red", "key-1", "of interest".getBytes(StandardCharsets.UTF_8)));
        CountDownLatch seen = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(group, seen);
        consumer.start();
        if (!seen.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the consumer got nothing");
        }
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        step("consumer connections", () -> admin.examineConsumerConnectionInfo(group));
        step("producer connections", () -> admin.examineProducerConnectionInfo("admin_tour_producers", topic));
        step("no consumer", () -> admin.examineConsumerConnectionInfo("group_nobody_made"));
        step("topic stats", () -> admin.examineTopicStats(topic));
        step("consume stats", () -> admin.examineConsumeStats(group, topic));
        step("who consumes", () -> admin.queryTopicConsumeByWho(topic));
        step("what is consumed", () -> admin.queryTopicsByConsumer(group));
        step("subscription", () -> admin.querySubscription(group, topic));
        step("time span", () -> admin.queryConsumeTimeSpan(topic, group));
        step("running consumer", () -> admin.getConsumerRunningInfo(group, client, false));
        step("consume directly", () -> admin.consumeMessageDirectly(group, client, topic, result.getMsgId()));
        step("consumer status", () -> admin.getConsumeStatus(topic, group, ""));
        step("view message", () -> admin.viewMessage(topic, result.getOffsetMsgId()));
        step("query by key", () -> admin.queryMessage(topic, "key-1", 32, 0, System.currentTimeMillis() + 60_000));
        consumer.shutdown();
        step("reset offset", () -> admin.resetOffsetByTimestamp(topic, group, 0, true));
        step("clone offset", () -> admin.cloneGroupOffset(group, group + "_clone", topic, true));
        producer.shutdown();
    }

    private void brokerState() {
        Properties change = new Properties();
        change.setProperty("fileReservedTime", "48");
        step("runtime", () -> admin.fetchBrokerRuntimeStats(broker));
        step("broker config", () -> admin.getBrokerConfig(broker));
        step("change broker config", () -> admin.updateBrokerConfig(broker, change));
        step("system topics", () -> admin.getUserTopicConfig(broker, false, 10_000));
        step("replication", () -> admin.getBrokerHAStatus(broker));
        step("consume queue", () -> admin.queryConsumeQueue(broker, topic, 0, 0, 8, group));
        step("broker stats", () -> admin.viewBrokerStatsData(broker, "TOPIC_PUT_NUMS", topic));
        step("clean queues", () -> admin.cleanExpiredConsumerQueueByAddr(broker));
    }

    private void pop() throws Exception {
        String popGroup = group + "_pop";
        step("pop mode",
            () -> admin.setMessageRequestMode(broker, topic, popGroup, MessageRequestMode.POP, 0, 5_000));
        CountDownLatch seen = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(popGroup, seen);
        consumer.setClientRebalance(false);
        consumer.start();
        if (!seen.await(60, TimeUnit.SECONDS)) {
            refusals.add("pop: the consumer got nothing");
        }
        consumer.shutdown();
        step("requests of pop consumption", () -> new PopTour(admin, nameServer, broker, topic, popGroup).play());
    }

    private void removals() {
        step("delete group", () -> admin.deleteSubscriptionGroup(broker, group, true));
        step("delete topic", () -> admin.deleteTopicInBroker(Set.of(broker), topic));
        step("delete route", () -> admin.deleteTopicInNameServer(Set.of(nameServer), topic));
    }
}
