package dev.gantry.interop;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A push consumer that switches its group to pop mode in each of its topics, and then lets the broker assign its queues.
 *
 * <p>Java clients consume in order, or by broadcast, by pulling, also in a group in pop mode. A topic that does not exist
 * yet stays in pull mode.
 */
final class PoppingConsumer extends DefaultMQPushConsumer {
    /** The first retry level of a consumer that pulls: in pop mode the same delays are used. */
    private static final int FIRST_LEVEL = 3;

    private final Stage stage;
    private Exception refusal;

    PoppingConsumer(Stage stage, String group) {
        super(group, stage.hook(), new AllocateMessageQueueAveragely());
        this.stage = stage;
    }

    @Override
    public void start() throws MQClientException {
        try {
            DefaultMQAdminExt admin = stage.sharedAdmin();
            String broker = Stage.brokerOf(admin);
            for (String topic : getDefaultMQPushConsumerImpl().getSubscriptionInner().keySet()) {
                switchToPop(admin, broker, topic);
            }
            Dialect.consumeByPop(this);
            shortenDelays();
        } catch (MQClientException refused) {
            throw refused;
        } catch (Exception failure) {
            throw new MQClientException("the group was not switched to pop mode", failure);
        }
        super.start();
    }

    /** Waits for a topic that another process is about to create; there may never be dead letters. */
    private void switchToPop(DefaultMQAdminExt admin, String broker, String topic) throws Exception {
        if (!isSwitched(admin, broker, topic) && !topic.startsWith("%DLQ%")
            && !stage.within(() -> isSwitched(admin, broker, topic))) {
            throw refusal;
        }
    }

    private boolean isSwitched(DefaultMQAdminExt admin, String broker, String topic) {
        try {
            stage.outcome.detail("popping", Dialect.setPopMode(admin, broker, topic, withNamespace(getConsumerGroup())));
            return true;
        } catch (Exception refused) {
            refusal = refused;
            return false;
        }
    }

    /** A client in pop mode has delays of its own, from 10 s on, and no setting for them. */
    private void shortenDelays() throws ReflectiveOperationException {
        var field = getDefaultMQPushConsumerImpl().getClass().getDeclaredField("popDelayLevel");
        field.setAccessible(true);
        int[] seconds = (int[]) field.get(getDefaultMQPushConsumerImpl());
        for (int level = 0; level < seconds.length; level++) {
            seconds[level] = (int) (stage.options.delayMillis(FIRST_LEVEL + level) / 1_000);
        }
    }
}
