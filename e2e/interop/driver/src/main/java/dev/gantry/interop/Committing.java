package dev.gantry.interop;

import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Commits at once. When it is asked all the same it says nothing new: Apache's broker asks about what it has been told
 * within the last seconds, and would store a second copy, without the message's flag.
 */
final class Committing implements TransactionListener {
    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object number) {
        return LocalTransactionState.COMMIT_MESSAGE;
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        return LocalTransactionState.UNKNOW;
    }
}
