/* Big-endian numbers and texts: reading them, and writing them one after another. Every put_ function returns the place
 * behind the bytes that it wrote. */

#ifndef APPEND_SERVER_BYTES_H
#define APPEND_SERVER_BYTES_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const uint8_t *start;
    size_t bytes;
} Slice;

static uint16_t read_16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static uint32_t read_32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return be32toh(value);
}

static uint8_t *put_16(uint8_t *at, size_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
    return at + 2;
}

static uint8_t *put_32(uint8_t *at, uint32_t value) {
    value = htobe32(value);
    memcpy(at, &value, 4);
    return at + 4;
}

static uint8_t *put_64(uint8_t *at, uint64_t value) {
    value = htobe64(value);
    memcpy(at, &value, 8);
    return at + 8;
}

static uint8_t *put(uint8_t *at, const void *source, size_t bytes) {
    memcpy(at, source, bytes);
    return at + bytes;
}

#define PUT_TEXT(at, text) put(at, text, sizeof(text) - 1)

static uint8_t *put_decimal(uint8_t *at, int64_t value) {
    uint8_t digits[20];
    size_t count = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0)
        *at++ = '-';
    do
        digits[count++] = (uint8_t)('0' + rest % 10);
    while ((rest /= 10) > 0);
    while (count > 0)
        *at++ = digits[--count];
    return at;
}

static uint8_t *put_hex(uint8_t *at, uint64_t value) {
    for (int shift = 60; shift >= 0; shift -= 4)
        *at++ = (uint8_t)"0123456789ABCDEF"[value >> shift & 15];
    return at;
}

#endif
