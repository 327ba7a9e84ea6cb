package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.NotificationRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Sends the requests of pop consumption that a push consumer does not send: those of RocketMQ's proxy. */
final class PopTour {
    private static final String BROKER_NAME = "broker-a";
    private static final int MESSAGES = 3;
    private static final long TIMEOUT_MILLIS = 10_000;

    private final DefaultMQAdminExt admin;
    private final String nameServer;
    private final String broker;
    private final String topic;
    private final String group;

    PopTour(DefaultMQAdminExt admin, String nameServer, String broker, String topic, String group) {
        this.admin = admin;
        this.nameServer = nameServer;
        this.broker = broker;
        this.topic = topic;
        this.group = group;
    }

    void play() throws Exception {
        MQClientAPIImpl client = admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
        send();
        RemotingCommand asked = RemotingCommand.createRequestCommand(RequestCode.NOTIFICATION, notification());
        client.getRemotingClient().invokeSync(broker, asked, TIMEOUT_MILLIS);
        List<MessageExt> popped = pop(client).getMsgFoundList();
        change(client, popped.get(0));
        Acked acked = new Acked();
        List<String> receipts = popped.subList(1, MESSAGES).stream().map(PopTour::receipt).toList();
        client.batchAckMessageAsync(broker, TIMEOUT_MILLIS, acked, topic, group, receipts);
        acked.await();
    }

    private void send() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("pop_tour_producers");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("pop-tour-producer");
        producer.setClientIP("127.0.0.1");
        producer.start();
        for (int number = 0; number < MESSAGES; number++) {
            byte[] body = ("popped " + number).getBytes(StandardCharsets.UTF_8);
            producer.send(new Message(topic, body), new MessageQueue(topic, BROKER_NAME, 0));
        }
        producer.shutdown();
    }

    private NotificationRequestHeader notification() {
        NotificationRequestHeader header = new NotificationRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(0);
        header.setPollTime(TIMEOUT_MILLIS / 2);
        header.setBornTime(System.currentTimeMillis());
        header.setOrder(false);
        return header;
    }

    private PopResult pop(MQClientAPIImpl client) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(0);
        header.setMaxMsgNums(MESSAGES);
        header.setInvisibleTime(60_000);
        header.setPollTime(TIMEOUT_MILLIS / 2);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(ConsumeInitMode.MIN);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(false);
        header.setAttemptId("first-attempt");
        CompletableFuture<PopResult> found = new CompletableFuture<>();
        client.popMessageAsync(BROKER_NAME, broker, header, 2 * TIMEOUT_MILLIS, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                found.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                found.completeExceptionally(failure);
            }
        });
        return found.get(2 * TIMEOUT_MILLIS, TimeUnit.MILLISECONDS);
    }

    private void change(MQClientAPIImpl client, MessageExt message) throws Exception {
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(message.getQueueId());
        header.setOffset(message.getQueueOffset());
        header.setExtraInfo(receipt(message));
        header.setInvisibleTime(30_000L);
        Acked changed = new Acked();
        client.changeInvisibleTimeAsync(BROKER_NAME, broker, header, TIMEOUT_MILLIS, changed);
        changed.await();
    }

    private static String receipt(MessageExt message) {
        return message.getProperty(MessageConst.PROPERTY_POP_CK);
    }

    private static final class Acked implements AckCallback {
        private final CompletableFuture<AckResult> done = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult result) {
            done.complete(result);
        }

        @Override
        public void onException(Throwable failure) {
            done.completeExceptionally(failure);
        }

        void await() throws Exception {
            done.get(TIMEOUT_MILLIS, TimeUnit.MILLISECONDS);
        }
    }
}
