package dev.gantry.interop;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Access control for Java clients: a denied client gets an exception, and nothing is stored. The account of
 * the options may use the stage's topic and group, and nothing else; foreign ones belong to other accounts.
 */
final class Access {
    private static final int NO_PERMISSION = 16;
    /** A name server's denial appears as a missing route to the client. */
    private static final int NO_ROUTE = 10005;
    private static final String FOREIGN_TOPIC = "interop_foreign";
    private static final String FOREIGN_GROUP = "group_foreign";
    private static final String ACCOUNTS = "plain_acl.yml";

    private final Stage stage;
    private final DefaultMQAdminExt admin;
    private final Map<String, String> refusalTexts = new TreeMap<>();
    private final List<String> causes = new ArrayList<>();
    private final String broker;

    private Access(Stage stage) throws Exception {
        this.stage = stage;
        this.admin = admin(stage.adminHook());
        stage.createTopic(null, 1);
        this.broker = admin.examineTopicRouteInfo(stage.topic).getBrokerDatas().get(0).getBrokerAddrs().get(0L);
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(FOREIGN_TOPIC, 1, 1, 6));
    }

    private interface Step {
        void take() throws Exception;
    }

    /** Wrong credentials and missing permissions; then an account that changes while it is used. */
    static void denials(Stage stage) throws Exception {
        Access access = new Access(stage);
        long before = access.end();
        access.wrongCredentials();
        access.missingPermissions();
        stage.outcome.check(access.end() == before, "nothing that is denied is stored");
        stage.outcome.check(access.send(access.producer(stage.hook()), stage.topic), "a permitted client can send");
        stage.outcome.check(access.end() > before, "a permitted message is stored");
        access.reload();
        access.refusalTexts.forEach(stage.outcome::detail);
    }

    /** A server that takes strict signatures only: it refuses every Java client, also with a valid account. */
    static void strict(Stage stage) throws Exception {
        Access access = new Access(stage, null);
        DefaultMQProducer producer = access.producer(stage.hook());
        access.denied("send, signed as v1", NO_PERMISSION, () -> producer.send(access.message(stage.topic)));
        stage.outcome.check(access.causes.toString().contains("STRICT"), "the text says why: " + access.causes);
        access.refusalTexts.forEach(stage.outcome::detail);
    }

    private Access(Stage stage, DefaultMQAdminExt admin) {
        this.stage = stage;
        this.admin = admin;
        this.broker = null;
    }

    private void wrongCredentials() throws Exception {
        Map<String, RPCHook> hooks = new TreeMap<>();
        hooks.put("no account", null);
        hooks.put("wrong secret", Dialect.hook(stage.options.accessKey(), "not-the-secret"));
        hooks.put("unknown account", Dialect.hook("unknown-account", stage.options.secretKey()));
        for (Map.Entry<String, RPCHook> one : hooks.entrySet()) {
            DefaultMQProducer producer = producer(one.getValue());
            denied(one.getKey() + " sends", NO_PERMISSION, () -> producer.send(message(stage.topic)));
            DefaultMQPullConsumer consumer = consumer(stage.group, one.getValue());
            denied(one.getKey() + " pulls", NO_PERMISSION, () -> pull(consumer, stage.topic));
            DefaultMQAdminExt other = admin(one.getValue());
            denied(one.getKey() + " makes a topic", NO_PERMISSION, () -> makeTopic(other));
        }
    }

    private void missingPermissions() throws Exception {
        RPCHook hook = stage.hook();
        DefaultMQProducer producer = producer(hook);
        denied("sends to a foreign topic", NO_PERMISSION, () -> producer.send(message(FOREIGN_TOPIC)));
        denied("sends a batch to a foreign topic", NO_PERMISSION,
            () -> producer.send(new ArrayList<>(List.of(message(FOREIGN_TOPIC)))));
        denied("makes a topic by a send", NO_PERMISSION, () -> producer.send(message("made_by_" + stage.topic)));
        DefaultMQPullConsumer own = consumer(stage.group, hook);
        denied("pulls a foreign topic", NO_PERMISSION, () -> pull(own, FOREIGN_TOPIC));
        DefaultMQPullConsumer foreign = consumer(FOREIGN_GROUP, hook);
        denied("pulls as a foreign group", NO_PERMISSION, () -> pull(foreign, stage.topic));
        DefaultMQAdminExt user = admin(hook);
        denied("makes a topic", NO_PERMISSION, () -> makeTopic(user));
        denied("deletes a topic", NO_PERMISSION, () -> user.deleteTopicInBroker(java.util.Set.of(broker), FOREIGN_TOPIC));
        boolean isMade = admin.getAllTopicConfig(broker, 5_000).getTopicConfigTable().keySet().stream()
            .anyMatch(name -> name.startsWith("made_by_"));
        stage.outcome.check(!isMade, "no topic is made");
    }

    /**
     * The file of accounts is edited: the permission to publish is revoked soon, on the open connection, and then
     * granted again.
     */
    private void reload() throws Exception {
        Path file = Path.of(stage.options.directory(), ACCOUNTS);
        String before = Files.readString(file);
        String now = before.replace(stage.topic + "=PUB|SUB", stage.topic + "=SUB");
        stage.outcome.check(!now.equals(before), "the account has a permission that can be removed");
        DefaultMQProducer producer = producer(stage.hook());
        DefaultMQPullConsumer consumer = consumer(stage.group, stage.hook());
        send(producer, stage.topic);
        Files.writeString(file, now);
        try {
            stage.outcome.check(stage.await(() -> !send(producer, stage.topic), () -> 0),
                "a permission that is removed takes effect");
            denied("sends after a change", NO_PERMISSION, () -> producer.send(message(stage.topic)));
            pull(consumer, stage.topic);
        } finally {
            Files.writeString(file, before);
        }
        stage.outcome.check(stage.await(() -> send(producer, stage.topic), () -> 0), "a permission that is granted again takes effect");
    }

    // ------- attempts

    private void denied(String what, int code, Step step) {
        try {
            step.take();
            stage.outcome.check(false, what + ": denied");
        } catch (Exception refused) {
            int found = codeOf(refused);
            for (Throwable cause = refused; cause != null; cause = cause.getCause()) {
                causes.add(String.valueOf(cause.getMessage()));
            }
            refusalTexts.put(what, refused.getClass().getSimpleName() + " " + found + ": " + brief(refused));
            boolean isExpected = found == code || stage.options.isNameServerGuarded() && found == NO_ROUTE
                || stage.options.isNameServerGuarded() && brief(refused).contains("not exist");
            stage.outcome.check(isExpected, what + ": with code " + code + ", not by " + refused);
        }
    }

    private static int codeOf(Exception refused) {
        for (Throwable cause = refused; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException answered) {
                return answered.getResponseCode();
            }
            if (cause instanceof MQClientException answered && answered.getResponseCode() > 0) {
                return answered.getResponseCode();
            }
        }
        return -1;
    }

    private static String brief(Exception refused) {
        String text = String.valueOf(refused.getMessage()).replace('\n', ' ');
        return text.substring(0, Math.min(200, text.length()));
    }

    private Message message(String topic) {
        return new Message(topic, "of access control".getBytes(StandardCharsets.UTF_8));
    }

    private boolean send(DefaultMQProducer producer, String topic) {
        try {
            SendResult result = producer.send(message(topic));
            return result.getSendStatus() == SendStatus.SEND_OK;
        } catch (Exception refused) {
            return false;
        }
    }

    private static void pull(DefaultMQPullConsumer consumer, String topic) throws Exception {
        consumer.pull(new MessageQueue(topic, "broker-a", 0), "*", 0, 32);
    }

    private void makeTopic(DefaultMQAdminExt by) throws Exception {
        by.createAndUpdateTopicConfig(broker, new TopicConfig("made_by_" + stage.topic, 1, 1, 6));
    }

    /** The end of the broker's log. */
    private long end() throws Exception {
        return Long.parseLong(admin.fetchBrokerRuntimeStats(broker).getTable().get("commitLogMaxOffset"));
    }

    // ------- clients

    private DefaultMQProducer producer(RPCHook hook) throws MQClientException {
        return stage.producer(hook);
    }

    private DefaultMQPullConsumer consumer(String group, RPCHook hook) throws MQClientException {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(stage.options.nameServer());
        consumer.setInstanceName(stage.instance());
        consumer.setClientIP("127.0.0.1");
        consumer.start();
        stage.atEnd(consumer::shutdown);
        return consumer;
    }

    private DefaultMQAdminExt admin(RPCHook hook) throws MQClientException {
        DefaultMQAdminExt one = new DefaultMQAdminExt(hook, 10_000);
        one.setNamesrvAddr(stage.options.nameServer());
        one.setInstanceName(stage.instance());
        one.setClientIP("127.0.0.1");
        one.start();
        stage.atEnd(one::shutdown);
        return one;
    }
}
