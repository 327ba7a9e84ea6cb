package dev.gantry.interop;

import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Settings that the admin client changes while broker and name server run, as {@code mqadmin updateBrokerConfig} and
 * {@code updateNamesrvConfig} do.
 *
 * <p>It has two scenarios, {@code change} and {@code changed}; the caller restarts the servers in between.
 */
final class LiveConfig {
    private static final String SIZE = "maxMessageSize";
    private static final String SIZE_CHANGED = "100000";
    private static final String TOPICS = "enableAllTopicList";
    /** Two settings of a broker that cannot be changed, and an unknown one. */
    private static final List<String> FORBIDDEN = List.of("storePathRootDir", "aclFile", "noSuchSetting");
    private static final String PATH_OF_NAME_SERVER = "kvConfigPath";
    private static final int SMALL_BYTES = 1_000;
    private static final int LARGE_BYTES = 300_000;
    private static final int NO_PERMISSION = 16;
    private static final int MESSAGE_ILLEGAL = 13;

    private final Stage stage;
    private final DefaultMQAdminExt admin;
    private final DefaultMQProducer producer;
    private final List<String> nameServers;
    private final String broker;
    private int sent;

    private LiveConfig(Stage stage) throws Exception {
        this.stage = stage;
        this.admin = stage.admin();
        this.producer = stage.producer();
        this.producer.setRetryTimesWhenSendFailed(0);
        this.nameServers = List.of(stage.options.nameServer());
        this.broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next()
            .getBrokerAddrs().get(0L);
    }

    /** A change is effective at once; a fixed setting is refused by name, and then no other setting changes. */
    static void change(Stage stage) throws Exception {
        LiveConfig config = new LiveConfig(stage);
        config.check(config.refusal(LARGE_BYTES) == 0, "a large message is accepted before the change");
        config.admin.updateBrokerConfig(config.broker, properties(SIZE, SIZE_CHANGED));
        config.theChangeHolds();
        config.forbiddenKeysAreRefused();
        config.admin.updateNameServerConfig(properties(TOPICS, "false"), config.nameServers);
        config.nameServerIsChanged();
        config.nameServerRefuses();
        stage.outcome.sent = config.sent;
    }

    /** After a restart of the servers the change is still effective, and can be reverted. */
    static void changed(Stage stage) throws Exception {
        LiveConfig config = new LiveConfig(stage);
        config.theChangeHolds();
        config.nameServerIsChanged();
        config.admin.updateBrokerConfig(config.broker, properties(SIZE, ""));
        config.check(config.refusal(LARGE_BYTES) == 0, "a large message is accepted after the change was reverted");
        config.admin.updateNameServerConfig(properties(TOPICS, "true"), config.nameServers);
        config.check(!config.admin.fetchAllTopicList().getTopicList().isEmpty(), "topics are listed again");
        stage.outcome.sent = config.sent;
    }

    private void theChangeHolds() throws Exception {
        String shown = admin.getBrokerConfig(broker).getProperty(SIZE);
        check(SIZE_CHANGED.equals(shown), "getBrokerConfig shows the changed value, not " + shown);
        int code = refusal(LARGE_BYTES);
        check(code == MESSAGE_ILLEGAL, "a large message is refused with 13, not " + code);
        check(refusal(SMALL_BYTES) == 0, "a small message is accepted");
    }

    private void forbiddenKeysAreRefused() throws Exception {
        Properties before = admin.getBrokerConfig(broker);
        for (String key : FORBIDDEN) {
            Refusal refusal = refused(() -> {
                admin.updateBrokerConfig(broker, properties(SIZE, "50000", key, "/elsewhere"));
                return null;
            });
            check(refusal.code == NO_PERMISSION && refusal.text.contains(key), key + " is refused: " + refusal);
        }
        Refusal refusal = refused(() -> {
            admin.updateBrokerConfig(broker, properties(SIZE, "lots"));
            return null;
        });
        check(refusal.code != 0 && refusal.text.contains(SIZE), "an invalid value is refused: " + refusal);
        check(before.equals(admin.getBrokerConfig(broker)), "a refused request changes nothing");
    }

    private void nameServerIsChanged() throws Exception {
        String shown = nameServer().getProperty(TOPICS);
        check("false".equals(shown), "getNamesrvConfig shows the changed value, not " + shown);
        check(refused(admin::fetchAllTopicList).code != 0, "the name server lists no topics any more");
    }

    private void nameServerRefuses() throws Exception {
        Properties before = nameServer();
        Refusal refusal = refused(() -> {
            Properties both = properties(TOPICS, "true", PATH_OF_NAME_SERVER, "/elsewhere");
            admin.updateNameServerConfig(both, nameServers);
            return null;
        });
        check(refusal.code == NO_PERMISSION && refusal.text.contains(PATH_OF_NAME_SERVER),
            PATH_OF_NAME_SERVER + " is refused: " + refusal);
        check(before.equals(nameServer()), "a refused request changes nothing at the name server");
    }

    private Properties nameServer() throws Exception {
        Map<String, Properties> all = admin.getNameServerConfig(nameServers);
        return all.values().iterator().next();
    }

    /** Sends so many bytes that cannot be compressed; 0, or the code of the refusal. */
    private int refusal(int bytes) throws Exception {
        byte[] body = new byte[bytes];
        new Random(bytes).nextBytes(body);
        Refusal refusal = refused(() -> {
            SendResult result = producer.send(new Message(stage.topic, body));
            sent++;
            return result;
        });
        return refusal.code;
    }

    private void check(boolean holds, String text) {
        stage.outcome.check(holds, text);
    }

    private static Properties properties(String... pairs) {
        Properties properties = new Properties();
        for (int index = 0; index < pairs.length; index += 2) {
            properties.setProperty(pairs[index], pairs[index + 1]);
        }
        return properties;
    }

    private static Refusal refused(Callable<?> asking) throws Exception {
        try {
            asking.call();
            return new Refusal(0, "");
        } catch (MQBrokerException refused) {
            return new Refusal(refused.getResponseCode(), String.valueOf(refused.getErrorMessage()));
        } catch (MQClientException refused) {
            return new Refusal(refused.getResponseCode(), String.valueOf(refused.getErrorMessage()));
        }
    }

    /** The answer of a server; code 0 means success. */
    private record Refusal(int code, String text) {
    }
}
