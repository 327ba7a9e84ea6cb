# Texts and numbers: parsing, hashing and writing of bytes. Nothing here touches a Python object.

cdef struct Text:
    Bytes start
    Py_ssize_t size

cdef enum:
    PLAIN = 0
    OTHER = 1         # a quote, a backslash or a control character
    WIDE = 2          # a byte of a character outside of ASCII

cdef uint8_t KINDS[256]
cdef int _byte
for _byte in range(256):
    KINDS[_byte] = WIDE if _byte >= 0x80 else OTHER if _byte < 0x20 or _byte == 0x22 or _byte == 0x5C else PLAIN

cdef inline bint is_name(Bytes start, Py_ssize_t size, const char* name, Py_ssize_t name_size) noexcept nogil:
    return size == name_size and memcmp(start, name, name_size) == 0

cdef inline bint is_same(Text text, Text other) noexcept nogil:
    return is_name(text.start, text.size, <const char*>other.start, other.size)

cdef inline bint fits_int32(int64_t value) noexcept nogil:
    return INT32_MIN <= value <= INT32_MAX

cdef inline Bytes skip_plain(Bytes at, Bytes end) noexcept nogil:
    """Return the quote that ends a string of printable ASCII without escapes; NULL for any other string."""
    while at < end and KINDS[at[0]] == PLAIN:
        at += 1
    return at if at < end and at[0] == c'"' else NULL

cdef Bytes parse_digits(Bytes at, Bytes end, int64_t* value) noexcept nogil:
    """Parse a decimal number of at most 18 digits in its usual form; return its end, or NULL."""
    cdef bint is_negative = at < end and at[0] == c'-'
    cdef Bytes first = at + is_negative
    cdef int64_t result = 0
    at = first
    while at < end and c'0' <= at[0] <= c'9':
        if at - first == 18:
            return NULL
        result = result * 10 + (at[0] - c'0')
        at += 1
    if at == first or (first[0] == c'0' and (at - first > 1 or is_negative)):
        return NULL
    value[0] = -result if is_negative else result
    return at

cdef bint is_utf8(Bytes at, Py_ssize_t size) noexcept nogil:
    """Whether the bytes are UTF-8 as Python decodes it: shortest forms, no surrogates."""
    cdef Bytes end = at + size
    cdef uint32_t first, second
    cdef int more
    while at < end:
        first = at[0]
        at += 1
        if first < 0x80:
            continue
        more = 1 if 0xC2 <= first <= 0xDF else 2 if 0xE0 <= first <= 0xEF else 3 if 0xF0 <= first <= 0xF4 else 0
        if more == 0 or end - at < more:
            return False
        second = at[0]
        if (
            (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F)
            or (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F)
        ):
            return False
        while more:
            if at[0] & 0xC0 != 0x80:
                return False
            at += 1
            more -= 1
    return True

cdef uint32_t java_hash(uint32_t value, Bytes at, Py_ssize_t size) noexcept nogil:
    """Continue Java's hash of a text, ``31 * hash + unit`` for each UTF-16 unit, over valid UTF-8."""
    cdef Bytes end = at + size
    cdef uint32_t character
    while at < end:
        character = at[0]
        if character < 0x80:
            value = value * 31 + character
            at += 1
        elif character < 0xE0:
            value = value * 31 + (((character & 0x1F) << 6) | (at[1] & 0x3F))
            at += 2
        elif character < 0xF0:
            value = value * 31 + (((character & 0x0F) << 12) | ((at[1] & 0x3F) << 6) | (at[2] & 0x3F))
            at += 3
        else:
            character = ((character & 0x07) << 18) | ((at[1] & 0x3F) << 12) | ((at[2] & 0x3F) << 6) | (at[3] & 0x3F)
            character -= 0x10000
            value = (value * 31 + (0xD800 | (character >> 10))) * 31 + (0xDC00 | (character & 0x3FF))
            at += 4
    return value

cdef inline uint32_t read32(Bytes at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]

cdef inline uint64_t read64(Bytes at) noexcept nogil:
    return (<uint64_t>read32(at) << 32) | read32(at + 4)

cdef inline uint8_t* put32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = value >> 24, (value >> 16) & 0xFF, (value >> 8) & 0xFF, value & 0xFF
    return at + 4

cdef inline uint8_t* put64(uint8_t* at, uint64_t value) noexcept nogil:
    return put32(put32(at, <uint32_t>(value >> 32)), <uint32_t>value)

cdef inline uint8_t* put_bytes(uint8_t* at, const void* data, Py_ssize_t size) noexcept nogil:
    if size:
        memcpy(at, data, size)
    return at + size

cdef uint8_t* put_decimal(uint8_t* at, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        at = put_bytes(at, b"-", 1)
        rest = 0 - rest
    while True:
        digits[count] = c'0' + rest % 10
        rest //= 10
        count += 1
        if rest == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at

cdef uint8_t* put_seal(uint8_t* at, uint32_t crc) noexcept nogil:
    """Write the seal of a record with this checksum (see ``gantry_wire.seal``)."""
    cdef int digit
    crc &= INT32_MAX
    at = put_bytes(at, b"__CRC32#\x01", 9)
    for digit in range(10):
        at[0] = c'0' + crc % 10
        crc //= 10
        at += 1
    return put_bytes(at, b"\x02", 1)


# -- properties --------------------------------------------------------------------------------------------------------

cdef enum:
    PAIRS_MAX = 32

cdef struct Properties:
    Text unique             # the value of UNIQ_KEY; its start is NULL without one
    Text keys               # of KEYS
    Text tags               # of TAGS
    bint is_waiting         # not WAIT=false
    bint is_special         # has a pair that only the Python path handles

cdef bint parse_properties(Bytes text, Py_ssize_t size, Properties* found) noexcept nogil:
    """Parse ``name 0x01 value 0x02`` repeated. False unless each pair has one 0x01, and each name occurs once."""
    cdef Text names[PAIRS_MAX]
    cdef Text name, value
    cdef Bytes stop
    cdef Py_ssize_t position = 0, pair_end, number
    cdef int pairs = 0
    memset(found, 0, sizeof(Properties))
    found.is_waiting = True
    while position < size:
        stop = <Bytes>memchr(text + position, 2, size - position)
        pair_end = size if stop == NULL else stop - text
        stop = <Bytes>memchr(text + position, 1, pair_end - position)
        if stop == NULL or pairs == PAIRS_MAX:
            return False
        name.start, name.size = text + position, stop - text - position
        value.start, value.size = stop + 1, pair_end - (stop + 1 - text)
        if memchr(value.start, 1, value.size) != NULL:
            return False
        for number in range(pairs):
            if is_same(names[number], name):
                return False
        names[pairs] = name
        pairs += 1
        if name.size == 4:
            if memcmp(name.start, b"TAGS", 4) == 0:
                found.tags = value
            elif memcmp(name.start, b"KEYS", 4) == 0:
                found.keys = value
            elif memcmp(name.start, b"WAIT", 4) == 0 and value.size == 5:
                found.is_waiting = not (
                    value.start[0] | 0x20 == c'f' and value.start[1] | 0x20 == c'a' and value.start[2] | 0x20 == c'l'
                    and value.start[3] | 0x20 == c's' and value.start[4] | 0x20 == c'e'
                )
        elif is_name(name.start, name.size, b"UNIQ_KEY", 8):
            found.unique = value
        elif (
            name.size == 0 or is_name(name.start, name.size, b"DELAY", 5) or is_name(name.start, name.size, b"CLUSTER", 7)
            or is_name(name.start, name.size, b"POP_CK", 6) or is_name(name.start, name.size, b"__CRC32#", 8)
            or is_name(name.start, name.size, b"TRACE_ON", 8) or is_name(name.start, name.size, b"MSG_REGION", 10)
            or is_name(name.start, name.size, b"_SYS_MSG_PRIORITY_", 18)
            or is_name(name.start, name.size, b"TRANSACTION_CHECK_TIMES", 23)
            or name.size > 7 and (memcmp(name.start, b"TRAN_", 5) == 0 or memcmp(name.start, b"TIMER_", 6) == 0
            or memcmp(name.start, b"INNER_", 6) == 0 or memcmp(name.start, b"GANTRY_", 7) == 0)
        ):
            found.is_special = True
        position = pair_end + 1
    return True

cdef bint has_name(Text text, Text mark) noexcept nogil:
    """Whether properties have a pair that begins with ``mark``, a name with its 0x01."""
    cdef Bytes at = text.start
    cdef Bytes end = at + text.size
    while end - at >= mark.size:
        if memcmp(at, mark.start, mark.size) == 0:
            return True
        at = <Bytes>memchr(at, 2, end - at)
        if at == NULL:
            return False
        at += 1
    return False
