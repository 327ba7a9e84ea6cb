package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Makes a client send every kind of request once, with small contents; the recorder between it and the broker keeps the
 * frames. Nothing is checked here, but a step that does not complete fails the tour, so that a recording is complete.
 */
public final class Tour {
    private static final long STEP_SECONDS_MAX = 60;

    private final Stage stage;
    private final DefaultMQProducer producer;

    private Tour(Stage stage) throws MQClientException {
        this.stage = stage;
        this.producer = stage.producer();
    }

    /** Arguments: a driver's, where the scenario is "all", or "send" for the sends alone. */
    public static void main(String[] arguments) {
        try {
            play(Options.parse(arguments));
        } catch (Exception failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void play(Options options) throws Exception {
        boolean all = options.scenarios().contains("all");
        try (Stage stage = new Stage(options, "tour")) {
            Tour tour = new Tour(stage);
            tour.sends();
            if (all) {
                tour.transactions();
                tour.offsetsAndQueries();
                tour.pulls();
                tour.push();
                tour.orderly();
                tour.litePull();
                tour.filterCheck();
                tour.requestAndReply();
            }
        }
    }

    private Message message(String tag, String key, String body) {
        Message message = new Message(stage.topic, tag, key, body.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("colour", "gr\u00fcn");
        return message;
    }

    private void sends() throws Exception {
        stage.createTopic(producer, 2);
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(stage.topic);
        producer.send(message("red", "key-1 key-2", "a message sent and waited for"), queues.get(0));
        producer.send(new Message(stage.topic, "no tag, no key".getBytes(StandardCharsets.UTF_8)), queues.get(0));
        producer.sendOneway(message("green", "key-3", "a message sent without waiting"), queues.get(0));
        CountDownLatch answered = new CountDownLatch(1);
        producer.send(message("blue", "key-4", "a message answered later"), queues.get(1), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                answered.countDown();
            }

            @Override
            public void onException(Throwable failure) {
                failure.printStackTrace();
            }
        });
        step(answered, "the answer to an asynchronous send");
        Message delayed = message("red", "key-delayed", "a message for later");
        delayed.setDelayTimeLevel(1);
        producer.send(delayed);
        producer.send(message("red", "key-large", "harbour crane gantry rail ".repeat(200)));
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            batch.add(message("red", "key-batch-" + number, "message " + number + " of a batch"));
        }
        producer.send(batch);
        try {
            producer.send(new Message("SCHEDULE_TOPIC_XXXX", "to a forbidden topic".getBytes(StandardCharsets.UTF_8)));
        } catch (Exception refused) {
            System.out.println("refused as expected: " + refused.getMessage());
        }
    }

    /** One transaction is committed, one rolled back, one left open until the broker checks it. */
    private void transactions() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        TransactionMQProducer transactional = new TransactionMQProducer("transactions_of_" + stage.group);
        transactional.setNamesrvAddr(stage.options.nameServer());
        transactional.setInstanceName("transactions-" + stage.options.run());
        transactional.setClientIP("127.0.0.1");
        transactional.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.countDown();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transactional.start();
        for (LocalTransactionState state : LocalTransactionState.values()) {
            transactional.sendMessageInTransaction(message("red", "key-" + state, "in a transaction: " + state), state);
        }
        step(asked, "the broker's check of an open transaction");
        Thread.sleep(200);
        transactional.shutdown();
    }

    private void offsetsAndQueries() throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer("asker_" + stage.group);
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(stage.topic)) {
            consumer.maxOffset(queue);
            consumer.minOffset(queue);
            consumer.searchOffset(queue, System.currentTimeMillis());
            consumer.earliestMsgStoreTime(queue);
            consumer.fetchConsumeOffset(queue, true);
            stage.require(() -> commits(consumer, queue), () -> 0, "the broker's knowledge of the group");
            consumer.fetchConsumeOffset(queue, true);
        }
        SendResult result = producer.send(message("red", "key-view", "a message to look at"));
        stage.require(() -> finds("key-view"), () -> 0, "the message in the index");
        producer.viewMessage(stage.topic, result.getOffsetMsgId());
        producer.viewMessage(stage.topic, result.getMsgId());
        finds("unused-key");
        consumer.shutdown();
    }

    /** Refused until the group's first heartbeat. */
    private static boolean commits(DefaultMQPullConsumer consumer, MessageQueue queue) {
        try {
            consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, 1, false);
            return true;
        } catch (MQBrokerException unknownGroup) {
            return false;
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    private boolean finds(String key) {
        try {
            return !producer.queryMessage(stage.topic, key, 10, 0, System.currentTimeMillis() + 60_000)
                .getMessageList().isEmpty();
        } catch (MQClientException nothing) {
            return false;
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    /** Every answer a pull can get: found, none new, none that matches, offset too large. */
    private void pulls() throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer("puller_" + stage.group);
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(stage.topic)) {
            if (queue.getQueueId() != 0) {
                continue;
            }
            long end = consumer.maxOffset(queue);
            consumer.pull(queue, "*", 0, 32);
            consumer.pull(queue, "red || blue", 0, 32);
            consumer.pull(queue, "*", end, 32);
            consumer.pull(queue, "unused-tag", 0, 32);
            consumer.pull(queue, "*", end + 1000, 32);
        }
        consumer.shutdown();
    }

    /** Two consumers, so that one is notified of the other; a first delivery that fails, so that it is sent back. */
    private void push() throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch retried = new CountDownLatch(1);
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (int index = 0; index < 2; index++) {
            DefaultMQPushConsumer consumer = stage.pushConsumer("push_" + stage.group);
            consumer.subscribe(stage.topic, "red || green");
            consumer.setMaxReconsumeTimes(3);
            consumer.setConsumeMessageBatchMaxSize(1);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                MessageExt message = messages.get(0);
                seen.add(message.getMsgId());
                if (message.getReconsumeTimes() > 0) {
                    retried.countDown();
                }
                return message.getReconsumeTimes() == 0 && "key-view".equals(message.getKeys())
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            members.add(consumer);
        }
        stage.require(() -> seen.size() >= 5, seen::size, "messages for the push consumers");
        producer.send(message("red", "key-live", "a message that wakes a waiting pull"));
        step(retried, "the redelivery of a failed message");
        Thread.sleep(1_500);
        members.forEach(DefaultMQPushConsumer::shutdown);
    }

    private void orderly() throws Exception {
        AtomicInteger seen = new AtomicInteger();
        DefaultMQPushConsumer consumer = stage.pushConsumer("orderly_" + stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            seen.addAndGet(messages.size());
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        stage.require(() -> seen.get() >= 6, seen::get, "messages for the orderly consumer");
        consumer.shutdown();
    }

    private void litePull() throws Exception {
        DefaultLitePullConsumer consumer = stage.liteConsumer("lite_" + stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.start();
        AtomicInteger seen = new AtomicInteger();
        stage.require(() -> seen.addAndGet(consumer.poll(200).size()) >= 6, seen::get, "messages to be polled");
        consumer.commitSync();
        consumer.shutdown();
    }

    /** Has the broker check an SQL filter; without enablePropertyFilter it refuses every one. */
    private void filterCheck() throws Exception {
        DefaultMQPushConsumer consumer = stage.pushConsumer("sql_" + stage.group);
        consumer.subscribe(stage.topic, MessageSelector.bySql("colour = 'green'"));
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            consumer.start();
        } catch (MQClientException refused) {
            System.out.println("refused as expected: " + refused.getErrorMessage());
        }
        consumer.shutdown();
    }

    /** Ends when the answer is sent: both client versions call such a callback as soon as the request is stored. */
    private void requestAndReply() throws Exception {
        String topic = stage.topic + "_questions";
        Dialect.createTopic(producer, topic, 1);
        CountDownLatch answered = new CountDownLatch(1);
        DefaultMQPushConsumer answerer = stage.pushConsumer("answerer_" + stage.group);
        answerer.subscribe(topic, "*");
        answerer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt question : messages) {
                    byte[] body = "an answer".getBytes(StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(question, body));
                    answered.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            } catch (Exception failure) {
                failure.printStackTrace();
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        });
        answerer.start();
        producer.request(new Message(topic, "a question".getBytes(StandardCharsets.UTF_8)), new RequestCallback() {
            @Override
            public void onSuccess(Message answer) {
                System.out.println("the question is stored");
            }

            @Override
            public void onException(Throwable failure) {
                failure.printStackTrace();
            }
        }, TimeUnit.SECONDS.toMillis(STEP_SECONDS_MAX));
        step(answered, "the answer to a question");
        answerer.shutdown();
    }

    private DefaultMQPullConsumer pullConsumer(String group) throws MQClientException {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(stage.options.nameServer());
        consumer.setInstanceName(group);
        consumer.setClientIP("127.0.0.1");
        consumer.setRegisterTopics(Set.of(stage.topic));
        consumer.start();
        return consumer;
    }

    private static void step(CountDownLatch latch, String what) throws InterruptedException {
        if (!latch.await(STEP_SECONDS_MAX, TimeUnit.SECONDS)) {
            throw new IllegalStateException(what + " did not come");
        }
    }
}
