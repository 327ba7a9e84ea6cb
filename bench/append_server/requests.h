/* The header of a send: only the fields that a record and a reply need. Lengths are checked, values are not. */

#ifndef APPEND_SERVER_REQUESTS_H
#define APPEND_SERVER_REQUESTS_H

#include <stdbool.h>

#include "bytes.h"

#define FLAG_ONEWAY 2

typedef struct {
    int64_t code, opaque, flag;
    int64_t queue_id, sys_flag, message_flag, born_ms, reconsume_times;
    Slice topic, properties;
    bool is_json; /* whether the properties have JSON's escapes */
} Request;

static bool is(Slice text, const char *name) {
    return text.bytes == strlen(name) && memcmp(text.start, name, text.bytes) == 0;
}

static int64_t number(Slice text) {
    const uint8_t *at = text.start, *end = at + text.bytes;
    bool is_negative = at < end && *at == '-';
    int64_t value = 0;
    for (at += is_negative; at < end && *at >= '0' && *at <= '9' && value < INT64_MAX / 10 - 9; at++)
        value = value * 10 + (*at - '0');
    return is_negative ? -value : value;
}

static void set_field(Request *request, Slice name, Slice value) {
    uint8_t letter = name.bytes == 1 ? name.start[0] : 0;
    if (letter == 'b' || is(name, "topic"))
        request->topic = value;
    else if (letter == 'e' || is(name, "queueId"))
        request->queue_id = number(value);
    else if (letter == 'f' || is(name, "sysFlag"))
        request->sys_flag = number(value);
    else if (letter == 'g' || is(name, "bornTimestamp"))
        request->born_ms = number(value);
    else if (letter == 'h' || is(name, "flag"))
        request->message_flag = number(value);
    else if (letter == 'i' || is(name, "properties"))
        request->properties = value;
    else if (letter == 'j' || is(name, "reconsumeTimes"))
        request->reconsume_times = number(value);
}

/* Return the text up to the closing quote, with its escapes, and set `*at` behind the quote; `*at` is behind the
 * opening one. NULL if there is no closing quote. */
static Slice take_string(const uint8_t **at, const uint8_t *end) {
    const uint8_t *start = *at, *quote = start;
    while ((quote = memchr(quote, '"', (size_t)(end - quote))) != NULL) {
        const uint8_t *escapes = quote;
        while (escapes > start && escapes[-1] == '\\')
            escapes--;
        *at = ++quote;
        if ((quote - 1 - escapes) % 2 == 0)
            return (Slice){start, (size_t)(quote - 1 - start)};
    }
    return (Slice){NULL, 0};
}

static bool parse_json(const uint8_t *at, const uint8_t *end, Request *request) {
    int depth = 0;
    request->is_json = true;
    while (at < end) {
        uint8_t letter = *at++;
        if (letter == '{' || letter == '}') {
            depth += letter == '{' ? 1 : -1;
            continue;
        }
        if (letter != '"')
            continue; /* a comma, or a space */
        Slice name = take_string(&at, end), value;
        while (at < end && (*at == ':' || *at == ' '))
            at++;
        if (name.start == NULL || at == end)
            return false;
        if (*at == '{')
            continue;
        if (*at == '"') {
            at++;
            value = take_string(&at, end);
            if (value.start == NULL)
                return false;
        } else {
            value.start = at;
            while (at < end && *at != ',' && *at != '}')
                at++;
            value.bytes = (size_t)(at - value.start);
        }
        if (depth == 2)
            set_field(request, name, value);
        else if (is(name, "code"))
            request->code = number(value);
        else if (is(name, "opaque"))
            request->opaque = number(value);
        else if (is(name, "flag"))
            request->flag = number(value);
    }
    return depth == 0;
}

/* The fixed fields are: code 2, language 1, version 2, opaque 4, flag 4, length of the remark 4. */
static bool parse_binary(const uint8_t *at, const uint8_t *end, Request *request) {
    if (end - at < 21)
        return false;
    request->code = read_16(at);
    request->opaque = (int32_t)read_32(at + 5);
    request->flag = (int32_t)read_32(at + 9);
    uint32_t remark = read_32(at + 13);
    at += 17;
    if (remark > (size_t)(end - at) || (size_t)(end - at) - remark < 4)
        return false;
    at += remark + 4;
    while (end - at >= 2) {
        Slice name = {at + 2, read_16(at)}, value;
        at += 2;
        if (name.bytes > (size_t)(end - at) || (size_t)(end - at) - name.bytes < 4)
            return false;
        at += name.bytes;
        value.start = at + 4;
        value.bytes = read_32(at);
        at += 4;
        if (value.bytes > (size_t)(end - at))
            return false;
        at += value.bytes;
        set_field(request, name, value);
    }
    return at == end;
}

/* Return the unique id in the properties of a request; empty if there is none. */
static Slice unique_id(const Request *request) {
    const char *mark = request->is_json ? "UNIQ_KEY\\u0001" : "UNIQ_KEY\x01";
    size_t mark_bytes = strlen(mark);
    Slice text = request->properties;
    const uint8_t *end = text.start + text.bytes;
    const uint8_t *found = text.bytes == 0 ? NULL : memmem(text.start, text.bytes, mark, mark_bytes);
    if (found == NULL)
        return (Slice){(const uint8_t *)"", 0};
    found += mark_bytes;
    const uint8_t *stop = memchr(found, request->is_json ? '\\' : 2, (size_t)(end - found));
    return (Slice){found, (size_t)((stop == NULL ? end : stop) - found)};
}

#endif
