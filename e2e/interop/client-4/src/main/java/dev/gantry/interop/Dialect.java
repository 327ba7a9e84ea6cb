package dev.gantry.interop;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The few differences in the interface of the 4.9 client. */
final class Dialect {
    /** Whether a waiting request waits for its answer; some 5.x clients stop waiting when the request is sent. */
    static final boolean WAITS_FOR_ANSWERS = true;
    /** Requests that clients from 5.0 on use in place of older ones. */
    static final List<Integer> NEW_CODES = List.of();
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

    /** This client does not support namespaces in request fields. */
    static boolean setNamespaceV2(ClientConfig client, String namespace) {
        return false;
    }

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws MQClientException {
        producer.createTopic("TBW102", topic, queues);
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

    /** This client does not support message types. */
    static void messageTypes(Stage stage, DefaultMQAdminExt admin, String broker, TopicConfig config) {
    }

    /** This client does not support attributes of topics. */
    static void useBatchQueues(TopicConfig config) {
    }

    /** Clients of version 4 do not support attributes of topics. */
    static void readByPriority(TopicConfig config) {
    }

    static String queueType(DefaultMQAdminExt admin, String broker, String topic) {
        return "";
    }

    /** The producer of this client does not collect messages. */
    static void collectBatches(DefaultMQProducer producer) {
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
    static boolean recall(DefaultMQProducer producer, String topic, SendResult result) {
        return false;
    }

    /** This client has no pop mode. */
    static boolean setPopMode(DefaultMQAdminExt admin, String broker, String topic, String group) {
        return false;
    }

    static void consumeByPop(DefaultMQPushConsumer consumer) {
        throw new UnsupportedOperationException("a client of version 4 cannot pop");
    }
}
