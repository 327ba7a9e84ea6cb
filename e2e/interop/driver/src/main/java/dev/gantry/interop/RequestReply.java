package dev.gantry.interop;

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Request and reply: a consumer answers every message, and the answer reaches the requesting producer through the
 * broker. If the client can wait for an answer, half of the requests wait, and the others get it in a callback; else
 * all get it in a callback. A request with a callback chooses its queue by a selector, because the client's other
 * methods call the callback before there is an answer.
 */
final class RequestReply {
    private static final long REQUEST_MILLIS = 20_000;
    private static final long UNANSWERED_MILLIS = 1_000;
    private static final String ANSWERED = "answered";

    private RequestReply() {
    }

    static void request(Stage stage) throws Exception {
        Sent sent = new Sent(stage.options.retryCount(), stage.options.threads());
        Content content = stage.content();
        Received received = new Received(sent, content);
        DefaultMQProducer asking = stage.producer();
        DefaultMQProducer answering = stage.producer();
        stage.createTopic(asking, stage.options.queues());
        AtomicInteger unanswered = new AtomicInteger();
        DefaultMQPushConsumer consumer = stage.pushConsumer(stage.group);
        consumer.subscribe(stage.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                received.take(message);
                try {
                    answering.send(answer(message));
                } catch (Exception failure) {
                    unanswered.incrementAndGet();
                    failure.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        Answers answers = new Answers(sent);
        Senders.finish(Senders.startEach(sent, number -> {
            Message question = content.make(number);
            if (Dialect.WAITS_FOR_ANSWERS && number % 2 == 0) {
                answers.take(number, question, asking.request(question, REQUEST_MILLIS));
            } else {
                asking.request(question, RequestReply::choose, number, answers.callback(number, question), REQUEST_MILLIS);
            }
        }));
        stage.await(() -> answers.all() == sent.count, answers::all);

        stage.outcome.sent = sent.count;
        stage.outcome.failed = sent.failed.get();
        if (sent.firstFailure.get() != null) {
            stage.outcome.detail("first_failure", sent.firstFailure.get());
        }
        stage.outcome.received = received.distinct.get();
        stage.outcome.altered = received.altered.get();
        stage.outcome.detail("answers", answers.right.get());
        stage.outcome.check(answers.right.get() == sent.count,
            "every request is answered with its own answer (" + answers.right.get() + " of " + sent.count + " are)");
        stage.outcome.check(unanswered.get() == 0, "every answer is accepted (" + unanswered.get() + " were not)");
        stage.outcome.check(timesOut(asking, stage), "a request without an answer ends at its time");
    }

    private static Message answer(MessageExt question) throws Exception {
        Message answer = MessageUtil.createReplyMessage(question, question.getBody());
        answer.putUserProperty(ANSWERED, question.getKeys());
        return answer;
    }

    /** Sends to a topic without a consumer. */
    private static boolean timesOut(DefaultMQProducer asking, Stage stage) throws Exception {
        String silent = stage.topic + "_silent";
        stage.createTopic(asking, silent, 1);
        long start = System.nanoTime();
        CompletableFuture<Throwable> end = new CompletableFuture<>();
        asking.request(new Message(silent, "anybody?".getBytes()), RequestReply::choose, 0, new RequestCallback() {
            @Override
            public void onSuccess(Message answer) {
                end.complete(null);
            }

            @Override
            public void onException(Throwable failure) {
                end.complete(failure);
            }
        }, UNANSWERED_MILLIS);
        boolean isTimeout = end.get(REQUEST_MILLIS, TimeUnit.MILLISECONDS) instanceof RequestTimeoutException;
        return isTimeout && (System.nanoTime() - start) / 1_000_000 >= UNANSWERED_MILLIS - 50;
    }

    private static MessageQueue choose(List<MessageQueue> queues, Message message, Object number) {
        return queues.get((Integer) number % queues.size());
    }

    /** The numbers of right and wrong answers. */
    private static final class Answers {
        final AtomicInteger right = new AtomicInteger();
        private final AtomicInteger wrong = new AtomicInteger();
        private final Sent sent;

        Answers(Sent sent) {
            this.sent = sent;
        }

        int all() {
            return right.get() + wrong.get();
        }

        void take(int number, Message question, Message answer) {
            boolean isRight = answer != null
                && Arrays.equals(answer.getBody(), question.getBody())
                && ("key-" + number).equals(answer.getUserProperty(ANSWERED));
            (isRight ? right : wrong).incrementAndGet();
        }

        RequestCallback callback(int number, Message question) {
            return new RequestCallback() {
                @Override
                public void onSuccess(Message answer) {
                    take(number, question, answer);
                }

                @Override
                public void onException(Throwable failure) {
                    wrong.incrementAndGet();
                    sent.fail(failure);
                }
            };
        }
    }
}
