/* The CRC-32 of zlib by tables, eight bytes at a time ("slicing by 8"). */

#ifndef GANTRY_CRC32_H
#define GANTRY_CRC32_H

#include <stddef.h>
#include <stdint.h>

static uint32_t gantry_crc_table[8][256];

/* Compute the tables. Called once, when the module is imported. */
static void gantry_crc32_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1)));
        gantry_crc_table[0][byte] = value;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int row = 1; row < 8; row++) {
            uint32_t before = gantry_crc_table[row - 1][byte];
            gantry_crc_table[row][byte] = (before >> 8) ^ gantry_crc_table[0][before & 0xFF];
        }
}

/* Return the CRC-32 of [data, data + size), continued from `value`. Bytes are read one by one, so that neither their
 * alignment nor the byte order of the processor matters; the compiler joins the reads where the processor allows it. */
static uint32_t gantry_crc32(uint32_t value, const unsigned char *data, size_t size) {
    uint32_t state = ~value;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = state ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        state = gantry_crc_table[7][low & 0xFF] ^ gantry_crc_table[6][(low >> 8) & 0xFF] ^
                gantry_crc_table[5][(low >> 16) & 0xFF] ^ gantry_crc_table[4][low >> 24] ^
                gantry_crc_table[3][data[4]] ^ gantry_crc_table[2][data[5]] ^
                gantry_crc_table[1][data[6]] ^ gantry_crc_table[0][data[7]];
    }
    while (size--)
        state = (state >> 8) ^ gantry_crc_table[0][(state ^ *data++) & 0xFF];
    return ~state;
}

#endif
