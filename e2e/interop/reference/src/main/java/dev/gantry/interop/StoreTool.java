package dev.gantry.interop;

import java.io.File;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store directory with RocketMQ's own store and reports its content, or fills one.
 *
 * <p>Opening is what a starting broker does: it recovers, which may cut the log, and a clean end removes the
 * {@code abort} marker. To keep a directory unchanged, pass a copy.
 */
public final class StoreTool {
    private static final long DISPATCH_SECONDS_MAX = 120;
    private static final int HITS_MAX = 1_024;

    private final Map<String, String> flags = new HashMap<>();
    private final List<String> keys = new ArrayList<>();

    private StoreTool(String[] arguments) {
        for (int index = 1; index + 1 < arguments.length; index += 2) {
            if (arguments[index].equals("--key")) {
                keys.add(arguments[index + 1]);
            } else {
                flags.put(arguments[index], arguments[index + 1]);
            }
        }
    }

    /** Arguments: "read" or "write", then flags; the last line of the output is one JSON object. */
    public static void main(String[] arguments) throws Exception {
        StoreTool tool = new StoreTool(arguments);
        if (arguments[0].equals("read")) {
            tool.read();
        } else if (arguments[0].equals("write")) {
            tool.write();
        } else {
            throw new IllegalArgumentException("read or write, not " + arguments[0]);
        }
        System.exit(0);
    }

    private int number(String flag, int otherwise) {
        return Integer.parseInt(flags.getOrDefault(flag, Integer.toString(otherwise)));
    }

    private DefaultMessageStore open() throws Exception {
        String root = flags.get("--root");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(number("--commit-log-file-bytes", 1 << 30));
        config.setMappedFileSizeConsumeQueue(number("--consume-queue-file-bytes", 6_000_000));
        config.setMaxHashSlotNum(number("--hash-slots", 5_000_000));
        config.setMaxIndexNum(number("--index-entries", 20_000_000));
        config.setMaxMsgsNumBatch(HITS_MAX);
        config.setHaListenPort(0);
        config.setTimerWheelEnable(false);
        boolean isSealed = "true".equals(flags.get("--seals"));
        config.setEnabledAppendPropCRC(isSealed);
        config.setForceVerifyPropCRC(isSealed);
        config.setMessageIndexSafe("true".equals(flags.get("--index-safe")));
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerName("broker-a");
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("interop", false),
            (topic, queueId, offset, tagsCode, time, filterBitMap, properties) -> { }, broker,
            new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store refused to load " + root);
        }
        store.start();
        awaitDispatch(store);
        return store;
    }

    private static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(DISPATCH_SECONDS_MAX);
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("the dispatcher is still " + store.dispatchBehindBytes() + " bytes behind");
            }
            Thread.sleep(10);
        }
    }

    private void read() throws Exception {
        boolean abort = new File(flags.get("--root"), "abort").exists();
        boolean withMessages = "true".equals(flags.get("--messages"));
        DefaultMessageStore store = open();
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("abort_was_present", abort);
        found.put("physical_offset_min", store.getMinPhyOffset());
        found.put("physical_offset_max", store.getMaxPhyOffset());
        Map<String, Object> topics = new TreeMap<>();
        for (Map.Entry<String, ? extends Map<Integer, ConsumeQueueInterface>> topic
            : store.getConsumeQueueTable().entrySet()) {
            Map<Integer, Object> queues = new TreeMap<>();
            for (ConsumeQueueInterface queue : topic.getValue().values()) {
                queues.put(queue.getQueueId(), describe(store, queue, withMessages));
            }
            topics.put(topic.getKey(), queues);
        }
        found.put("topics", topics);
        Map<String, Object> hits = new LinkedHashMap<>();
        for (String key : keys) {
            int hash = key.indexOf('#');
            hits.put(key, hits(store, key.substring(0, hash), key.substring(hash + 1)));
        }
        found.put("keys", hits);
        store.shutdown();
        System.out.println(Json.line(found));
    }

    private static Map<String, Object> describe(DefaultMessageStore store, ConsumeQueueInterface queue,
        boolean withMessages) throws Exception {
        Map<String, Object> described = new LinkedHashMap<>();
        long end = queue.getMaxOffsetInQueue();
        described.put("offset_min", queue.getMinOffsetInQueue());
        described.put("offset_max", end);
        List<Map<String, Object>> messages = messages(store, queue);
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (Map<String, Object> message : messages) {
            digest.update(message.get("body_sha256").toString().getBytes(StandardCharsets.US_ASCII));
        }
        described.put("readable", messages.size());
        described.put("bodies_sha256", HexFormat.of().formatHex(digest.digest()));
        if (withMessages) {
            described.put("messages", messages);
        }
        return described;
    }

    /** Every message of a queue as a consumer would get it, beside the consume queue entry that led to it. */
    private static List<Map<String, Object>> messages(DefaultMessageStore store, ConsumeQueueInterface queue)
        throws Exception {
        Map<Long, CqUnit> units = new HashMap<>();
        ReferredIterator<CqUnit> entries = queue.iterateFrom(queue.getMinOffsetInQueue());
        while (entries != null && entries.hasNext()) {
            CqUnit unit = entries.next();
            units.put(unit.getQueueOffset(), unit);
        }
        if (entries != null) {
            entries.release();
        }
        List<Map<String, Object>> messages = new ArrayList<>();
        long next = queue.getMinOffsetInQueue();
        while (next < queue.getMaxOffsetInQueue()) {
            GetMessageResult result = store.getMessage("tool", queue.getTopic(), queue.getQueueId(), next, 32, null);
            if (result == null || result.getMessageCount() == 0) {
                break;
            }
            for (ByteBuffer record : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(record, true, false);
                CqUnit unit = units.get(message.getQueueOffset());
                messages.add(describe(message, unit));
            }
            next = result.getNextBeginOffset();
            result.release();
        }
        return messages;
    }

    private static Map<String, Object> describe(MessageExt message, CqUnit unit) throws Exception {
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("queue_offset", message.getQueueOffset());
        described.put("physical_offset", message.getCommitLogOffset());
        described.put("record_bytes", message.getStoreSize());
        described.put("store_timestamp", message.getStoreTimestamp());
        described.put("body_sha256", sha256(message.getBody()));
        described.put("tags", message.getTags());
        described.put("keys", message.getKeys());
        if (unit != null) {
            described.put("entry_physical_offset", unit.getPos());
            described.put("entry_record_bytes", unit.getSize());
            described.put("entry_tags_code", unit.getTagsCode());
        }
        return described;
    }

    private static String sha256(byte[] body) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body == null ? new byte[0] : body));
    }

    private static List<Long> hits(DefaultMessageStore store, String topic, String key) {
        List<Long> offsets = new ArrayList<>();
        QueryMessageResult result = store.queryMessage(topic, key, HITS_MAX, 0, Long.MAX_VALUE);
        for (SelectMappedBufferResult mapped : result.getMessageMapedList()) {
            offsets.add(mapped.getStartOffset());
            mapped.release();
        }
        offsets.sort(null);
        return offsets;
    }

    private void write() throws Exception {
        String[] topics = flags.getOrDefault("--topics", "interop").split(",");
        int count = number("--count", 100);
        int queues = number("--queues", 4);
        int bodyBytes = number("--body-bytes", 128);
        SplittableRandom random = new SplittableRandom(number("--seed", 1));
        DefaultMessageStore store = open();
        List<Map<String, Object>> messages = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            byte[] body = new byte[bodyBytes];
            random.nextBytes(body);
            String topic = topics[number % topics.length];
            MessageExtBrokerInner message = message(topic, number / topics.length % queues, number, body);
            if (flags.containsKey("--copied-seal")) {
                MessageAccessor.putProperty(message, MessageConst.PROPERTY_CRC32, flags.get("--copied-seal"));
                message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            }
            PutMessageResult result = store.asyncPutMessage(message).get();
            if (!result.isOk()) {
                throw new IllegalStateException("message " + number + ": " + result);
            }
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("topic", topic);
            line.put("queue", message.getQueueId());
            line.put("queue_offset", result.getAppendMessageResult().getLogicsOffset());
            line.put("physical_offset", result.getAppendMessageResult().getWroteOffset());
            line.put("record_bytes", result.getAppendMessageResult().getWroteBytes());
            line.put("body_sha256", sha256(body));
            line.put("tags", message.getTags());
            line.put("keys", message.getKeys());
            messages.add(line);
        }
        awaitDispatch(store);
        Map<String, Object> done = new LinkedHashMap<>();
        done.put("physical_offset_min", store.getMinPhyOffset());
        done.put("physical_offset_max", store.getMaxPhyOffset());
        done.put("messages", messages);
        boolean clean = !"halt".equals(flags.get("--end"));
        if (clean) {
            store.shutdown();
        }
        System.out.println(Json.line(done));
        System.out.flush();
        if (!clean) {
            Runtime.getRuntime().halt(0);
        }
    }

    private static MessageExtBrokerInner message(String topic, int queue, int number, byte[] body) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queue);
        message.setBody(body);
        message.setFlag(number);
        message.setTags("tag-" + number % 3);
        message.setKeys("key-" + number + " shared-" + number % 10);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
            String.format("%032X", number));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, message.getTags()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 12345));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }
}
