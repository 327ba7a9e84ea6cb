package dev.gantry.interop;

import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Commits at once. It returns "unknown" to a later check: Apache's broker also checks transactions that have ended
 * within the last seconds, and otherwise would store a second copy, without the message's flag.
 */
final class CommittingListener implements TransactionListener {
    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object number) {
        return LocalTransactionState.COMMIT_MESSAGE;
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        return LocalTransactionState.UNKNOW;
    }
}
