package dev.gantry.interop;

import java.net.Inet6Address;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;

/**
 * A name server and a broker that have only an IPv6 address. Every record, and every copy that the broker
 * makes of one, holds two hosts of 20 bytes; ids have 56 digits and lead to the message.
 */
final class Ipv6 {
    private static final int ID_DIGITS = 56;
    private static final int SPECIALS = 20;
    private static final int DELAYED = 3;
    private static final int FAILING = 4;
    private static final int HALF = 5;
    private static final int ASKED_MAX = 100;
    private static final int BOTH = MessageSysFlag.BORNHOST_V6_FLAG | MessageSysFlag.STOREHOSTADDRESS_V6_FLAG;

    private final Stage stage;
    private final Sent sent;
    private final Content content;
    private final Received received;
    private final Map<Integer, SendResult> results = new ConcurrentHashMap<>();
    private final AtomicIntegerArray attempts;
    private final AtomicInteger wrongHosts = new AtomicInteger();
    private final AtomicInteger wrongIds = new AtomicInteger();

    private Ipv6(Stage stage) {
        this.stage = stage;
        this.sent = new Sent(stage.options.count(), stage.options.threads());
        this.content = stage.content();
        this.received = new Received(sent, content);
        this.attempts = new AtomicIntegerArray(sent.count);
    }

    static void play(Stage stage) throws Exception {
        new Ipv6(stage).run();
    }

    private void run() throws Exception {
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        TransactionMQProducer halves = stage.transactional(new CommittingListener());
        String broker = stage.admin().examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next()
            .getBrokerAddrs().get(0L);
        stage.outcome.detail("broker", broker);
        stage.outcome.check(broker.contains("::1"), "the route leads to an IPv6 address (" + broker + ")");
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> consume(messages));
        consumer.start();
        List<Thread> threads = Senders.startEach(sent, number -> {
            Message message = content.make(number);
            int special = number % SPECIALS;
            if (special == DELAYED) {  // newer clients refuse a transaction with any level, also with 0
                message.setDelayTimeLevel(1);
            }
            SendResult result = special == HALF ? halves.sendMessageInTransaction(message, number) : producer.send(message);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                sent.fail("send status " + result.getSendStatus());
                return;
            }
            sent.handOver(number);
            if (special != HALF) {  // the client keeps no such id of a half message
                checkId(result.getOffsetMsgId());
            }
            if (special != DELAYED && special != HALF && results.size() < ASKED_MAX) {
                results.put(number, result);
            }
        });
        stage.await(() -> received.complete() && pending() == 0, () -> received.distinct.get() + received.duplicates.get());
        Senders.finish(threads);
        stage.outcome.add(sent);
        stage.outcome.add(received, received.missing(number -> true));
        stage.outcome.check(wrongHosts.get() == 0, "both hosts of a record are IPv6 (" + wrongHosts + " are not)");
        stage.outcome.check(wrongIds.get() == 0, "ids name the broker's IPv6 address (" + wrongIds + " do not)");
        stage.outcome.check(pending() == 0, "a message that failed once is redelivered (" + pending() + " were not)");
        int wrong = countWrongQueries(producer);
        stage.outcome.check(wrong == 0, "each is found by its ids and its key (" + wrong + " are not)");
    }

    private ConsumeConcurrentlyStatus consume(List<MessageExt> messages) {
        MessageExt message = messages.get(0);
        int number = received.take(message);
        if (number < 0) {
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
        boolean isRight = isLoopbackIpv6(message.getBornHost()) && isLoopbackIpv6(message.getStoreHost())
            && (message.getSysFlag() & BOTH) == BOTH;
        wrongHosts.addAndGet(isRight ? 0 : 1);
        if (number % SPECIALS == FAILING && attempts.getAndIncrement(number) == 0) {
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private static boolean isLoopbackIpv6(SocketAddress host) {
        InetSocketAddress address = (InetSocketAddress) host;
        return address.getAddress() instanceof Inet6Address && address.getAddress().isLoopbackAddress();
    }

    private void checkId(String id) throws Exception {
        boolean isRight = id.length() == ID_DIGITS && isLoopbackIpv6(MessageDecoder.decodeMessageId(id).getAddress());
        wrongIds.addAndGet(isRight ? 0 : 1);
    }

    private int pending() {
        int pending = 0;
        for (int number = 0; number < sent.count; number++) {
            pending += number % SPECIALS == FAILING && sent.accepted(number) && attempts.get(number) < 2 ? 1 : 0;
        }
        return pending;
    }

    private int countWrongQueries(DefaultMQProducer producer) {
        int wrong = 0;
        for (Map.Entry<Integer, SendResult> one : results.entrySet()) {
            int number = one.getKey();
            try {
                wrong += isMeant(producer.viewMessage(stage.topic, one.getValue().getOffsetMsgId()), number) ? 0 : 1;
                wrong += isMeant(producer.viewMessage(stage.topic, one.getValue().getMsgId()), number) ? 0 : 1;
                List<MessageExt> found = producer.queryMessage(stage.topic, "key-" + number, 32, 0, Long.MAX_VALUE)
                    .getMessageList();
                wrong += found.size() == 1 && isMeant(found.get(0), number) ? 0 : 1;
            } catch (Exception failure) {
                wrong++;
                stage.outcome.detail("first_query_failure", String.valueOf(failure));
            }
        }
        return wrong;
    }

    private boolean isMeant(MessageExt message, int number) {
        return message != null && content.verify(message, sent.count) == number
            && isLoopbackIpv6(message.getStoreHost());
    }
}
