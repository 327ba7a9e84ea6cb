/* The CRC-32 of zlib, by the processor's own instructions where it has them, else by tables, eight bytes at a time.
 * 64-bit ARM has an instruction for it; x86-64 has carry-less multiplication:
 *
 * A CRC is the remainder of a division of polynomials. 64 bytes are kept as four 128-bit remainders; a step multiplies
 * each by x^512 modulo the polynomial and adds the next 64 bytes. At the end the four are folded into one, that one into
 * 64 bits, and those are reduced to 32 by Barrett's method. The constants are those powers of x, with reflected bits, as
 * Intel's paper "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" derives them.
 *
 * Processors that multiply four such pairs at once keep 256 bytes as sixteen remainders, and multiply by x^2048.
 */

#ifndef GANTRY_CRC32_H
#define GANTRY_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Fetch what is about to be written into the processor's cache. */
static inline void gantry_prefetch(const void *address) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(address, 1);
#else
    (void)address;
#endif
}

static uint32_t gantry_crc_table[8][256];

/* `state` is the complement of a CRC, as in all functions below. */
static uint32_t gantry_crc32_by_table(uint32_t state, const uint8_t *data, size_t size) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (size >= 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= state;
        state = gantry_crc_table[7][low & 0xFF] ^ gantry_crc_table[6][(low >> 8) & 0xFF] ^
                gantry_crc_table[5][(low >> 16) & 0xFF] ^ gantry_crc_table[4][low >> 24] ^
                gantry_crc_table[3][high & 0xFF] ^ gantry_crc_table[2][(high >> 8) & 0xFF] ^
                gantry_crc_table[1][(high >> 16) & 0xFF] ^ gantry_crc_table[0][high >> 24];
        data += 8;
        size -= 8;
    }
#endif
    while (size--)
        state = (state >> 8) ^ gantry_crc_table[0][(state ^ *data++) & 0xFF];
    return state;
}

/* -- x86-64 ------------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define GANTRY_HAS_CLMUL 1
#include <immintrin.h>

__attribute__((target("pclmul,sse4.1")))
static inline __m128i gantry_crc32_fold(__m128i remainder, __m128i power, __m128i next) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(remainder, power, 0x00),
                                       _mm_clmulepi64_si128(remainder, power, 0x11)), next);
}

/* Reduce 64 bytes as four remainders, and `size` more bytes, less than 64, to a state. */
__attribute__((target("pclmul,sse4.1")))
static inline uint32_t gantry_crc32_reduce(__m128i a, __m128i b, __m128i c, __m128i d, const __m128i *block,
                                           size_t size) {
    const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_setr_epi32(-1, 0, -1, 0);
    a = gantry_crc32_fold(a, by_128, b);
    a = gantry_crc32_fold(a, by_128, c);
    a = gantry_crc32_fold(a, by_128, d);
    for (; size >= 16; block++, size -= 16)
        a = gantry_crc32_fold(a, by_128, _mm_loadu_si128(block));
    /* 128 bits -> 96 -> 64. */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_words), by_64, 0x00));
    /* Barrett: the quotient by the first constant, its product with the polynomial, and the difference. */
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
    __m128i product = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_words), barrett, 0x00);
    uint32_t state = (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, product), 1);
    return gantry_crc32_by_table(state, (const uint8_t *)block, size);
}

__attribute__((target("pclmul,sse4.1")))
static uint32_t gantry_crc32_by_clmul(uint32_t state, const uint8_t *data, size_t size) {
    if (size < 64)
        return gantry_crc32_by_table(state, data, size);
    const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i *block = (const __m128i *)data;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(block), _mm_cvtsi32_si128((int)state));
    __m128i b = _mm_loadu_si128(block + 1), c = _mm_loadu_si128(block + 2), d = _mm_loadu_si128(block + 3);
    for (block += 4, size -= 64; size >= 64; block += 4, size -= 64) {
        a = gantry_crc32_fold(a, by_512, _mm_loadu_si128(block));
        b = gantry_crc32_fold(b, by_512, _mm_loadu_si128(block + 1));
        c = gantry_crc32_fold(c, by_512, _mm_loadu_si128(block + 2));
        d = gantry_crc32_fold(d, by_512, _mm_loadu_si128(block + 3));
    }
    return gantry_crc32_reduce(a, b, c, d, block, size);
}

#if defined(__clang__) ? __clang_major__ >= 8 : __GNUC__ >= 9
#define GANTRY_HAS_WIDE_CLMUL 1

__attribute__((target("avx512f,vpclmulqdq")))
static inline __m512i gantry_crc32_fold_wide(__m512i remainders, __m512i power, __m512i next) {
    return _mm512_xor_si512(_mm512_xor_si512(_mm512_clmulepi64_epi128(remainders, power, 0x00),
                                             _mm512_clmulepi64_epi128(remainders, power, 0x11)), next);
}

__attribute__((target("pclmul,sse4.1,avx512f,vpclmulqdq")))
static uint32_t gantry_crc32_by_wide_clmul(uint32_t state, const uint8_t *data, size_t size) {
    if (size < 256)
        return gantry_crc32_by_clmul(state, data, size);
    const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01322d1430, 0x011542778a));
    const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01c6e41596, 0x0154442bd4));
    const __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state));
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(data), first), b = _mm512_loadu_si512(data + 64);
    __m512i c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
    for (data += 256, size -= 256; size >= 256; data += 256, size -= 256) {
        a = gantry_crc32_fold_wide(a, by_2048, _mm512_loadu_si512(data));
        b = gantry_crc32_fold_wide(b, by_2048, _mm512_loadu_si512(data + 64));
        c = gantry_crc32_fold_wide(c, by_2048, _mm512_loadu_si512(data + 128));
        d = gantry_crc32_fold_wide(d, by_2048, _mm512_loadu_si512(data + 192));
    }
    a = gantry_crc32_fold_wide(gantry_crc32_fold_wide(gantry_crc32_fold_wide(a, by_512, b), by_512, c), by_512, d);
    for (; size >= 64; data += 64, size -= 64)
        a = gantry_crc32_fold_wide(a, by_512, _mm512_loadu_si512(data));
    return gantry_crc32_reduce(_mm512_extracti32x4_epi32(a, 0), _mm512_extracti32x4_epi32(a, 1),
                               _mm512_extracti32x4_epi32(a, 2), _mm512_extracti32x4_epi32(a, 3),
                               (const __m128i *)data, size);
}
#endif

/* -- 64-bit ARM ---------------------------------------------------------------------------------------------------- */

#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define GANTRY_HAS_CRC 1
#include <arm_acle.h>
#include <sys/auxv.h>

__attribute__((target("+crc")))
static uint32_t gantry_crc32_by_instruction(uint32_t state, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        state = __crc32d(state, word);
    }
    while (size--)
        state = __crc32b(state, *data++);
    return state;
}
#endif

/* -- the choice ---------------------------------------------------------------------------------------------------- */

static uint32_t (*gantry_crc32_fastest)(uint32_t, const uint8_t *, size_t) = gantry_crc32_by_table;

/* Compute the tables, and find the fastest function for this processor. Called once, when the module is imported. */
static void gantry_crc32_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int row = 0; row < 8; row++) {
            for (int bit = 0; bit < 8; bit++)
                value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1)));
            gantry_crc_table[row][byte] = value;
        }
    }
#ifdef GANTRY_HAS_CLMUL
    __builtin_cpu_init();
    if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        gantry_crc32_fastest = gantry_crc32_by_clmul;
#ifdef GANTRY_HAS_WIDE_CLMUL
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
            gantry_crc32_fastest = gantry_crc32_by_wide_clmul;
#endif
    }
#elif defined(GANTRY_HAS_CRC)
    if (getauxval(AT_HWCAP) & (1 << 7)) /* HWCAP_CRC32 */
        gantry_crc32_fastest = gantry_crc32_by_instruction;
#endif
}

/* Return the CRC-32 of `data`, continued from `value`, like zlib's crc32. */
static uint32_t gantry_crc32(uint32_t value, const uint8_t *data, size_t size) {
    return ~gantry_crc32_fastest(~value, data, size);
}

#endif
