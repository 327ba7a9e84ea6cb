package dev.gantry.interop;

import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Unsupported features of this broker: lite topics. Such a request is refused at once with a message, and nothing of it
 * is stored.
 */
final class Refusals {
    private static final long AT_ONCE_MILLIS = 5_000;
    private static final List<Integer> LITE = List.of(200070, 200071, 200072);

    private Refusals() {
    }

    static void play(Stage stage) throws Exception {
        DefaultMQProducer producer = stage.producer();
        stage.createTopic(producer, stage.options.queues());
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(stage.topic);
        producer.send(new Message(stage.topic, new byte[] {1}));
        for (int code : LITE) {
            Map<String, String> fields = Map.of("topic", stage.topic, "consumerGroup", stage.group);
            refused(stage, "request " + code, () -> Dialect.invoke(producer, queues.get(0), code, fields));
        }
        long stored = 0;
        for (MessageQueue queue : queues) {
            stored += producer.maxOffset(queue);
        }
        stage.outcome.check(stored == 1, "nothing that is refused is stored (" + (stored - 1) + " messages are)");
        producer.send(new Message(stage.topic, new byte[] {1}));
    }

    private static void refused(Stage stage, String what, Dialect.BrokerRequest request) {
        long start = System.nanoTime();
        String refusalText;
        boolean isRefused;
        try {
            refusalText = request.answer();
            isRefused = refusalText.startsWith(Dialect.REFUSED);
        } catch (Exception refusal) {
            refusalText = String.valueOf(refusal.getMessage());
            isRefused = !refusalText.contains("imeout");
        }
        long millis = (System.nanoTime() - start) / 1_000_000;
        stage.outcome.detail(what, refusalText.lines().findFirst().orElse(""));
        stage.outcome.check(isRefused, what + " is refused (" + refusalText + ")");
        stage.outcome.check(refusalText.contains("this broker"), what + " is refused with a helpful message (" + refusalText + ")");
        stage.outcome.check(millis < AT_ONCE_MILLIS, what + " is refused at once (after " + millis + " ms)");
    }

    /** The answer of a broker as text, which begins with {@link Dialect#REFUSED} unless its code is 0. */
    static String words(RemotingCommand answer) {
        return (answer.getCode() == 0 ? "done" : Dialect.REFUSED) + " CODE: " + answer.getCode() + " " + answer.getRemark();
    }
}
