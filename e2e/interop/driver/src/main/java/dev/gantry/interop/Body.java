package dev.gantry.interop;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.SplittableRandom;

/**
 * A message body that its receiver can check.
 *
 * <pre>
 * run 8 | number 4 | content length 4 | content | SHA-256 of everything before it 32
 * </pre>
 *
 * The hash finds an altered body. The content is drawn from (run, number), so that a valid body which is
 * in the place of another message is found as well. Runs differ by scenario and seed: a message of another topic that
 * is delivered here is not mistaken for one of this run.
 */
final class Body {
    private static final int HEAD_BYTES = 16;
    private static final int HASH_BYTES = 32;
    private static final byte[] WORDS = "north east south west harbour crane gantry rail ".getBytes();

    private final long run;
    private final int contentBytes;
    private final boolean compressible;
    private final ThreadLocal<MessageDigest> digest = ThreadLocal.withInitial(Body::sha256);

    Body(long run, int contentBytes, boolean compressible) {
        this.run = run;
        this.contentBytes = contentBytes;
        this.compressible = compressible;
    }

    byte[] make(int number) {
        ByteBuffer buffer = ByteBuffer.allocate(HEAD_BYTES + contentBytes + HASH_BYTES);
        buffer.putLong(run).putInt(number).putInt(contentBytes);
        fill(buffer.array(), number);
        MessageDigest hash = digest.get();
        hash.update(buffer.array(), 0, HEAD_BYTES + contentBytes);
        buffer.position(HEAD_BYTES + contentBytes);
        buffer.put(hash.digest());
        return buffer.array();
    }

    /** The number of the message, or -1 if these bytes are not one of these bodies. */
    int verify(byte[] body, int count) {
        if (body == null || body.length != HEAD_BYTES + contentBytes + HASH_BYTES) {
            return -1;
        }
        MessageDigest hash = digest.get();
        hash.update(body, 0, HEAD_BYTES + contentBytes);
        if (!Arrays.equals(hash.digest(), Arrays.copyOfRange(body, HEAD_BYTES + contentBytes, body.length))) {
            return -1;
        }
        ByteBuffer buffer = ByteBuffer.wrap(body);
        if (buffer.getLong() != run) {
            return -1;
        }
        int number = buffer.getInt();
        if (number < 0 || number >= count || buffer.getInt() != contentBytes) {
            return -1;
        }
        return Arrays.equals(body, make(number)) ? number : -1;
    }

    private void fill(byte[] array, int number) {
        SplittableRandom random = new SplittableRandom(run * 31 + number);
        int end = HEAD_BYTES + contentBytes;
        if (!compressible) {
            for (int at = HEAD_BYTES; at < end; at++) {
                array[at] = (byte) random.nextInt();
            }
            return;
        }
        int at = HEAD_BYTES;
        while (at < end) {
            int start = random.nextInt(WORDS.length / 2);
            int length = Math.min(end - at, 16 + random.nextInt(WORDS.length / 2 - 16));
            System.arraycopy(WORDS, start, array, at, length);
            at += length;
        }
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException absent) {
            throw new IllegalStateException(absent);
        }
    }
}
