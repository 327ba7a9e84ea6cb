package dev.gantry.interop;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The kind of message that a number stands for: plain messages, transactions that end in several ways, delays, and
 * deliveries that fail the first time. The final place of such a message is not known at its send, so the history
 * records that it must be delivered, or that it must never be delivered.
 */
final class MessageKinds implements TransactionListener {
    private static final int DELAY_LEVEL = 2;
    private static final int FAILS_EVERY = 10;

    private final Content content;
    private final Set<Integer> failed = ConcurrentHashMap.newKeySet();

    MessageKinds(Content content) {
        this.content = content;
    }

    private enum Kind {
        PLAIN, COMMIT, COMMIT_AT_CHECK, ROLL_BACK, ROLL_BACK_AT_CHECK, DELAYED;

        static Kind of(int number) {
            return values()[number % values().length];
        }

        boolean isTransaction() {
            return this != PLAIN && this != DELAYED;
        }

        boolean isDelivered() {
            return this != ROLL_BACK && this != ROLL_BACK_AT_CHECK;
        }

        LocalTransactionState end() {
            return isDelivered() ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }
    }

    /** Creates a producer for all kinds of messages. */
    TransactionMQProducer producer(String group) {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setTransactionListener(this);
        return producer;
    }

    SendResult send(TransactionMQProducer producer, int number) throws Exception {
        Message message = content.make(number);
        if (Kind.of(number) == Kind.DELAYED) {
            message.setDelayTimeLevel(DELAY_LEVEL);
        }
        return Kind.of(number).isTransaction()
            ? producer.sendMessageInTransaction(message, number)
            : producer.send(message);
    }

    /** The first word of the history's line about a send that was answered 0. */
    static String word(int number) {
        Kind kind = Kind.of(number);
        return kind == Kind.PLAIN ? "ok" : kind.isDelivered() ? "deferred" : "rolled_back";
    }

    /** Whether a number must never be delivered, for any answer to its send. */
    static boolean isRolledBack(int number) {
        return !Kind.of(number).isDelivered();
    }

    /** Whether this delivery is to fail: the first one of some messages. */
    boolean fails(int number) {
        return number % FAILS_EVERY == FAILS_EVERY - 1 && failed.add(number);
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object number) {
        Kind kind = Kind.of((Integer) number);
        boolean isChecked = kind == Kind.COMMIT_AT_CHECK || kind == Kind.ROLL_BACK_AT_CHECK;
        return isChecked ? LocalTransactionState.UNKNOW : kind.end();
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        int number = content.verify(message, Integer.MAX_VALUE);
        return number < 0 ? LocalTransactionState.UNKNOW : Kind.of(number).end();
    }
}
