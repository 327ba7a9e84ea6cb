/* The CRC-32 of zlib: by carry-less multiplication on x86-64, elsewhere by a table of eight rows.
 *
 * zlib's own is several times slower than the one that Gantry uses, so a server that called it would be no lower limit.
 * A CRC is the remainder of a division of polynomials. Four 128-bit remainders are folded over 64 bytes at a time, then
 * into one another, and the rest is reduced by Barrett's method; the constants are powers of x modulo the polynomial,
 * with reflected bits (V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel).
 */

#ifndef APPEND_SERVER_CRC32_H
#define APPEND_SERVER_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc_table[8][256];

/* Fill the table. To be called once, before crc32(). */
static void crc32_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1u)));
        crc_table[0][byte] = value;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++)
            crc_table[row][byte] = (crc_table[row - 1][byte] >> 8) ^ crc_table[0][crc_table[row - 1][byte] & 0xFF];
}

/* The state is the complement of a CRC. */
static uint32_t crc32_by_table(uint32_t state, const uint8_t *data, size_t bytes) {
    while (bytes >= 8) {
        state ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        state = crc_table[7][state & 0xFF] ^ crc_table[6][state >> 8 & 0xFF] ^ crc_table[5][state >> 16 & 0xFF] ^
                crc_table[4][state >> 24] ^ crc_table[3][data[4]] ^ crc_table[2][data[5]] ^ crc_table[1][data[6]] ^
                crc_table[0][data[7]];
        data += 8;
        bytes -= 8;
    }
    while (bytes-- > 0)
        state = (state >> 8) ^ crc_table[0][(state ^ *data++) & 0xFF];
    return state;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define CRC_TARGET __attribute__((target("pclmul,sse4.1")))

CRC_TARGET static __m128i crc_load(const uint8_t *data) {
    return _mm_loadu_si128((const __m128i *)(const void *)data);
}

CRC_TARGET static __m128i crc_fold(__m128i remainder, __m128i powers, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(remainder, powers, 0x00);
    __m128i high = _mm_clmulepi64_si128(remainder, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* At least 64 bytes, and a multiple of 16. */
CRC_TARGET static uint32_t crc32_by_folding(uint32_t state, const uint8_t *data, size_t bytes) {
    const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i r0 = _mm_xor_si128(crc_load(data), _mm_cvtsi32_si128((int)state));
    __m128i r1 = crc_load(data + 16), r2 = crc_load(data + 32), r3 = crc_load(data + 48);
    for (data += 64, bytes -= 64; bytes >= 64; data += 64, bytes -= 64) {
        r0 = crc_fold(r0, by_512, crc_load(data));
        r1 = crc_fold(r1, by_512, crc_load(data + 16));
        r2 = crc_fold(r2, by_512, crc_load(data + 32));
        r3 = crc_fold(r3, by_512, crc_load(data + 48));
    }
    r0 = crc_fold(crc_fold(crc_fold(r0, by_128, r1), by_128, r2), by_128, r3);
    for (; bytes >= 16; data += 16, bytes -= 16)
        r0 = crc_fold(r0, by_128, crc_load(data));
    r0 = _mm_xor_si128(_mm_srli_si128(r0, 8), _mm_clmulepi64_si128(r0, by_128, 0x10));
    r1 = _mm_srli_si128(r0, 4);
    r0 = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(r0, low_words), by_64, 0x00), r1);
    r1 = _mm_clmulepi64_si128(_mm_and_si128(r0, low_words), polynomial, 0x10);
    r1 = _mm_clmulepi64_si128(_mm_and_si128(r1, low_words), polynomial, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(r0, r1), 1);
}
#endif

/* Return the CRC-32 of the data. */
static uint32_t crc32(const uint8_t *data, size_t bytes) {
    uint32_t state = ~0u;
#if defined(__x86_64__)
    if (bytes >= 64 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        size_t folded = bytes & ~(size_t)15;
        state = crc32_by_folding(state, data, folded);
        data += folded;
        bytes -= folded;
    }
#endif
    return ~crc32_by_table(state, data, bytes);
}

#endif
