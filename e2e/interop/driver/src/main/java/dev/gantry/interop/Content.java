package dev.gantry.interop;

import java.util.function.IntFunction;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Makes message number N of a scenario and recognises it again: body, key, tag, flag and a user property. */
final class Content {
    private static final String PROPERTY = "interop-number";

    private final String topic;
    private final Body body;
    private final IntFunction<String> tagOf;

    Content(String topic, Body body, IntFunction<String> tagOf) {
        this.topic = topic;
        this.body = body;
        this.tagOf = tagOf;
    }

    Message make(int number) {
        Message message = new Message(topic, tagOf.apply(number), "key-" + number, body.make(number));
        message.setFlag(number);
        message.putUserProperty(PROPERTY, "n\u00b0 " + number);
        return message;
    }

    String tagOf(int number) {
        return tagOf.apply(number);
    }

    /** The number of this message, or -1 if any part of it differs from what was sent. */
    int verify(MessageExt message, int count) {
        int number = body.verify(message.getBody(), count);
        boolean whole = number >= 0
            && ("key-" + number).equals(message.getKeys())
            && tagOf.apply(number).equals(message.getTags() == null ? "" : message.getTags())
            && message.getFlag() == number
            && ("n\u00b0 " + number).equals(message.getUserProperty(PROPERTY));
        return whole ? number : -1;
    }
}
