package dev.gantry.interop;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestResponseFuture;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The few differences in the interface of 5.x clients. */
final class Dialect {
    /** Whether a waiting request waits for its answer; clients with this method stop waiting when the request is sent. */
    static final boolean WAITS_FOR_ANSWERS = Arrays.stream(RequestResponseFuture.class.getMethods())
        .noneMatch(method -> method.getName().equals("acquireCountDownLatch"));
    /** Requests that clients from 5.0 on use in place of older ones: the pulls of lite pull consumers. */
    static final List<Integer> NEW_CODES = List.of(361);
    static final String REFUSED = "refused:";

    /** A request to a broker, and its answer. */
    @FunctionalInterface
    interface BrokerRequest {
        String answer() throws Exception;
    }

    private static final int RETRIES_DEFAULT = 16;

    private Dialect() {
    }

    static RPCHook hook(String accessKey, String secretKey) {
        return new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }

    /** Sets a namespace in fields of every request; returns whether the client supports it. */
    static boolean setNamespaceV2(ClientConfig client, String namespace) {
        client.setNamespaceV2(namespace);
        return true;
    }

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws MQClientException {
        producer.createTopic("TBW102", topic, queues, Map.of());
    }

    /** Creates a topic as an administrator at one broker. */
    static void createTopic(DefaultMQAdminExt admin, String broker, String topic, int queues) throws Exception {
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues, 6));
    }

    static void createGroup(DefaultMQAdminExt admin, String broker, String group) throws Exception {
        createGroup(admin, broker, group, RETRIES_DEFAULT);
    }

    static void createGroup(DefaultMQAdminExt admin, String broker, String group, int retriesMax) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        config.setRetryMaxTimes(retriesMax);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
    }

    /** A topic has a message type; an unknown type is refused, and the topic stays unchanged. */
    static void messageTypes(Stage stage, DefaultMQAdminExt admin, String broker, TopicConfig config) throws Exception {
        config.setAttributes(Map.of("+message.type", "FIFO"));
        admin.createAndUpdateTopicConfig(broker, config);
        stage.outcome.check("FIFO".equals(messageType(admin, broker, config)), "a topic shows the type of its messages");
        config.setAttributes(Map.of("+message.type", "NONSENSE"));
        boolean isRefused = false;
        try {
            admin.createAndUpdateTopicConfig(broker, config);
        } catch (MQClientException | MQBrokerException refused) {
            isRefused = true;
        }
        stage.outcome.check(isRefused, "an unknown message type is refused");
        stage.outcome.check("FIFO".equals(messageType(admin, broker, config)), "a refused message type changes nothing");
        config.setAttributes(Map.of("-message.type", ""));
        admin.createAndUpdateTopicConfig(broker, config);
        stage.outcome.check(messageType(admin, broker, config) == null, "the message type can be removed");
    }

    private static String messageType(DefaultMQAdminExt admin, String broker, TopicConfig config) throws Exception {
        return admin.examineTopicConfig(broker, config.getTopicName()).getAttributes().get("message.type");
    }

    /** Asks for batch consume queues in a topic that does not exist yet. */
    static void useBatchQueues(TopicConfig config) {
        config.setAttributes(Map.of("+queue.type", "BatchCQ"));
    }

    /** Lets pops read a topic that does not exist yet by priority; clients of version 4 know no attributes. */
    static void readByPriority(TopicConfig config) {
        config.setAttributes(Map.of("+message.type", "PRIORITY"));
    }

    static String queueType(DefaultMQAdminExt admin, String broker, String topic) throws Exception {
        return admin.examineTopicConfig(broker, topic).getAttributes().get("queue.type");
    }

    /** Lets a producer collect single messages into batches by itself. */
    static void collectBatches(DefaultMQProducer producer) {
        producer.setAutoBatch(true);
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    /** A raw request, for codes that this client has no method for. */
    static String invoke(DefaultMQProducer producer, MessageQueue queue, int code, Map<String, String> fields)
        throws Exception {
        MQClientInstance inside = producer.getDefaultMQProducerImpl().getMqClientFactory();
        RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        request.setExtFields(new HashMap<>(fields));
        return Refusals.words(inside.getMQClientAPIImpl().getRemotingClient()
            .invokeSync(inside.findBrokerAddressInPublish(queue.getBrokerName()), request, 3_000));
    }

    /** Recalls a timer, and returns whether this client can. */
    static boolean recall(DefaultMQProducer producer, String topic, SendResult result) throws Exception {
        producer.recallMessage(topic, result.getRecallHandle());
        return true;
    }

    /** Switches a group to pop mode in a topic; whether this client can consume so. */
    static boolean setPopMode(DefaultMQAdminExt admin, String broker, String topic, String group) throws Exception {
        admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.POP, 0, 5_000);
        return true;
    }

    /** Lets a consumer get its queues, and their mode, from the broker. */
    static void consumeByPop(DefaultMQPushConsumer consumer) {
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(10_000);
    }
}
