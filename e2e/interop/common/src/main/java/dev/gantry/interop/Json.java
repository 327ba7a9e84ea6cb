package dev.gantry.interop;

import java.util.Map;

/**
 * Writes maps, lists, numbers, booleans and texts as one line of JSON.
 *
 * <p>The two client versions bring different JSON libraries; a result line is no reason to depend on either.
 */
final class Json {
    private Json() {
    }

    static String line(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value);
        return out.toString();
    }

    private static void write(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map<?, ?> map) {
            char separator = '{';
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                out.append(separator);
                text(out, String.valueOf(entry.getKey()));
                out.append(':');
                write(out, entry.getValue());
                separator = ',';
            }
            out.append(separator == '{' ? "{}" : "}");
        } else if (value instanceof Iterable<?> items) {
            char separator = '[';
            for (Object item : items) {
                out.append(separator);
                write(out, item);
                separator = ',';
            }
            out.append(separator == '[' ? "[]" : "]");
        } else {
            text(out, value.toString());
        }
    }

    private static void text(StringBuilder out, String value) {
        out.append('"');
        for (int index = 0; index < value.length(); index++) {
            char character = value.charAt(index);
            if (character == '"' || character == '\\') {
                out.append('\\').append(character);
            } else if (character < 0x20 || character > 0x7e) {
                out.append(String.format("\\u%04x", (int) character));
            } else {
                out.append(character);
            }
        }
        out.append('"');
    }
}
