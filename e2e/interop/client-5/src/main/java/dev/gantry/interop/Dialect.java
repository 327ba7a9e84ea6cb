package dev.gantry.interop;

import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.RPCHook;

/** The few places where the 5.3.3 client wants to be spoken to differently. */
final class Dialect {
    static final String VERSION = "5.3.3";

    private Dialect() {
    }

    static RPCHook hook(String accessKey, String secretKey) {
        return new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws MQClientException {
        producer.createTopic("TBW102", topic, queues, Map.of());
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }
}
