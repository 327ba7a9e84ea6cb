package dev.gantry.interop;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Filters in SQL92 over properties, by the client's own methods: one consumer is a push consumer, one pulls, and each
 * gets exactly what its filter takes. Some messages lack a property, some have a text where the filter wants a number.
 */
final class Filtering {
    private static final String PUSHED = "price BETWEEN 3 AND 6 AND region = 'eu' AND TAGS <> 'old'";
    /** A message whose price is no number cannot be evaluated, unless the left side decides. */
    private static final String PULLED = "region IS NULL OR price > 8";
    private static final List<String> WRONG = List.of("price >", "price > 'x'", "price BETWEEN 6 AND 3", "region IN (1)");
    private static final int SUBSCRIPTION_PARSE_FAILED = 23;
    private static final long POLL_MILLIS = 200;

    private Filtering() {
    }

    private static String price(int number) {
        int kind = number % 12;
        return kind == 11 ? null : kind == 10 ? "cheap" : String.valueOf(kind);
    }

    private static String region(int number) {
        return new String[] {"eu", "us", null}[number % 3];
    }

    private static String tag(int number) {
        return number % 5 == 0 ? "old" : "new";
    }

    private static boolean isPushed(int number) {
        int kind = number % 12;
        return kind >= 3 && kind <= 6 && "eu".equals(region(number)) && tag(number).equals("new");
    }

    private static boolean isPulled(int number) {
        return region(number) == null || "9".equals(price(number));
    }

    private static Message make(Content content, int number) {
        Message message = content.make(number);
        if (price(number) != null) {
            message.putUserProperty("price", price(number));
        }
        if (region(number) != null) {
            message.putUserProperty("region", region(number));
        }
        return message;
    }

    static void sql(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.count(), stage.options.threads());
        Content content = stage.content(stage.options.bodyBytes(), false, Filtering::tag);
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        Received pushed = new Received(sent, content);
        Received pulled = new Received(sent, content);
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.subscribe(stage.topic, MessageSelector.bySql(PUSHED));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(pushed::takeAt);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultLitePullConsumer puller = stage.liteConsumer("pull_" + stage.group);
        puller.subscribe(stage.topic, MessageSelector.bySql(PULLED));
        puller.start();
        refusals(stage);
        List<Thread> threads = Senders.startEach(sent,
            number -> sent.acknowledge(number, producer.send(make(content, number))));
        stage.await(() -> {
            for (MessageExt message : puller.poll(POLL_MILLIS)) {
                pulled.takeAt(message);
            }
            return sent.over() && pushed.missing(Filtering::isPushed) + pulled.missing(Filtering::isPulled) == 0;
        }, () -> pushed.distinct.get() + pulled.distinct.get() + sent.acknowledged.get());
        Senders.finish(threads);
        stage.outcome.add(sent);
        stage.outcome.add(pushed, pushed.missing(Filtering::isPushed));
        stage.outcome.add(pulled, pulled.missing(Filtering::isPulled));
        int unwanted = pushed.count(number -> !isPushed(number)) + pulled.count(number -> !isPulled(number));
        int misplaced = pushed.misplaced() + pulled.misplaced();
        stage.outcome.check(unwanted == 0, "no message is delivered that a filter excludes (" + unwanted + ")");
        stage.outcome.check(misplaced == 0, "messages are at the place of the broker's answer (" + misplaced + " are not)");
        stage.outcome.outOfOrder += pushed.outOfSequence() + pulled.outOfSequence();
    }

    /** A wrong filter is refused at the subscription, so that no consumer waits for messages in vain. */
    private static void refusals(Stage stage) throws Exception {
        for (String wrong : WRONG) {
            DefaultMQPushConsumer consumer = stage.pushConsumer("wrong_" + WRONG.indexOf(wrong) + "_" + stage.group);
            consumer.setAwaitTerminationMillisWhenShutdown(0);
            consumer.subscribe(stage.topic, MessageSelector.bySql(wrong));
            consumer.registerMessageListener(
                (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
            String refusalText = "started";
            int code = 0;
            try {
                consumer.start();
            } catch (MQClientException refused) {
                code = refused.getResponseCode();
                refusalText = String.valueOf(refused.getErrorMessage());
            }
            stage.outcome.detail("refusal of " + wrong, code + " " + refusalText);
            stage.outcome.check(code == SUBSCRIPTION_PARSE_FAILED, wrong + " is refused with 23 (" + code + " " + refusalText + ")");
        }
    }
}
