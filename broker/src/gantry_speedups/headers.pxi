# The header of a send: JSON and binary, codes 310 and 10. False or NULL means: not in the usual form.

cdef struct Header:
    Text properties         # as in the header, with its escapes
    Text values[14]         # by letter; the properties without their escapes
    Text access_key
    Text signature
    Text token
    bint has_others         # fields with other names, or twice
    bint is_short           # code 310
    bint is_escaped
    bint is_wide            # has bytes outside of ASCII
    int64_t opaque
    int64_t flags           # of the request: reply, one-way
    int64_t numbers[14]     # by letter
    uint32_t seen           # a bit for each letter, and three more

cdef enum:
    LETTERS = 14
    B_TOPIC = 1
    E_QUEUE = 4
    F_SYS_FLAG = 5
    G_BORN = 6
    H_FLAG = 7
    I_PROPERTIES = 8
    J_RECONSUMED = 9
    M_BATCH = 12
    UNKNOWN_NAME = -1
    REQUIRED = 0x500FF       # a to h, the opaque and the fields
    SEEN_OPAQUE = 1 << 16
    SEEN_FLAGS = 1 << 17
    SEEN_FIELDS = 1 << 18
    TEXTS = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 13)
    BOOLEANS = (1 << 10) | (1 << 12)
    HEADER_BYTES_MAX = 6144  # as PLAIN_HEADER_BYTES_MAX in `gantry_broker.server.send.headers`

# The names of code 10, which code 310 writes as letters from a to m; n, the broker's name, is in code 310 only.
cdef const char** LONG_NAMES = [
    b"producerGroup", b"topic", b"defaultTopic", b"defaultTopicQueueNums", b"queueId", b"sysFlag", b"bornTimestamp",
    b"flag", b"properties", b"reconsumeTimes", b"unitMode", b"maxReconsumeTimes", b"batch",
]
cdef int* LONG_NAME_SIZES = [13, 5, 12, 21, 7, 7, 13, 4, 10, 14, 8, 17, 5]

# What follows a backslash in JSON, apart from u, and the characters that it stands for.
cdef const char* ESCAPES = b'"\\/bfnrt'
cdef const char* ESCAPED = b'"\\/\b\f\n\r\t'

# The order of the names in signed content.
cdef int* SHORT_ORDER = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
cdef int* LONG_ORDER = [12, 6, 2, 3, 7, 11, 0, 8, 4, 9, 5, 1, 10]

cdef int letter_of(Bytes name, Py_ssize_t size, bint is_short) noexcept nogil:
    """Return the number of a field, or UNKNOWN_NAME."""
    cdef int letter
    if is_short:
        return name[0] - c'a' if size == 1 and c'a' <= name[0] <= c'n' else UNKNOWN_NAME
    for letter in range(LETTERS - 1):
        if is_name(name, size, LONG_NAMES[letter], LONG_NAME_SIZES[letter]):
            return letter
    return UNKNOWN_NAME

cdef bint take_value(Header* header, int letter, Bytes start, Py_ssize_t size) noexcept nogil:
    """Take the text of a number, a boolean, or a text of printable ASCII."""
    cdef uint32_t bit = <uint32_t>1 << letter
    cdef int64_t value = 0
    if header.seen & bit:
        return False
    header.seen |= bit
    header.values[letter].start, header.values[letter].size = start, size
    if bit & TEXTS:
        return True
    if bit & BOOLEANS:
        return is_name(start, size, b"false", 5) or (letter != M_BATCH and is_name(start, size, b"true", 4))
    if parse_digits(start, start + size, &value) != start + size or not (letter == G_BORN or fits_int32(value)):
        return False
    header.numbers[letter] = value
    return True

cdef void take_other(Header* header, Bytes name, Py_ssize_t name_size, Bytes start, Py_ssize_t size) noexcept nogil:
    """Take a field with another name: those of a signature."""
    cdef Text* text = NULL
    if is_name(name, name_size, b"AccessKey", 9):
        text = &header.access_key
    elif is_name(name, name_size, b"Signature", 9):
        text = &header.signature
    elif is_name(name, name_size, b"SecurityToken", 13):
        text = &header.token
    if text == NULL or text.start != NULL:
        header.has_others = True
    else:
        text.start, text.size = start, size

cdef Bytes skip_value(Bytes at, Bytes end) noexcept nogil:
    """Return the end of a JSON value that does not count: a plain string, a number or a literal."""
    cdef int64_t ignored = 0
    if at >= end:
        return NULL
    if at[0] == c'"':
        at = skip_plain(at + 1, end)
        return NULL if at == NULL else at + 1
    if end - at >= 4 and (memcmp(at, b"true", 4) == 0 or memcmp(at, b"null", 4) == 0):
        return at + 4
    if end - at >= 5 and memcmp(at, b"false", 5) == 0:
        return at + 5
    return parse_digits(at, end, &ignored)

cdef Bytes take_json_number(Bytes at, Bytes end, Header* header, uint32_t bit, int64_t* value) noexcept nogil:
    """Take a number of 32 bits, in quotes or not; return its end."""
    cdef bint is_quoted = at < end and at[0] == c'"'
    if header.seen & bit:
        return NULL
    header.seen |= bit
    at = parse_digits(at + is_quoted, end, value)
    if at == NULL or not fits_int32(value[0]) or (is_quoted and (at >= end or at[0] != c'"')):
        return NULL
    return at + is_quoted

cdef Bytes take_json_properties(Bytes at, Bytes end, Header* header) noexcept nogil:
    """Take the text of the properties, which begins with its quote, and note what is in it; return its end."""
    cdef Bytes start = at + 1
    if at >= end or at[0] != c'"' or header.seen & (1 << I_PROPERTIES):
        return NULL
    header.seen |= 1 << I_PROPERTIES
    at = start
    while at < end and at[0] != c'"':
        if at[0] == c'\\':
            header.is_escaped = True
            at += 1
        elif at[0] < 0x20:
            return NULL
        elif at[0] >= 0x80:
            header.is_wide = True
        at += 1
    if at >= end:
        return NULL
    header.properties.start, header.properties.size = start, at - start
    return at + 1

cdef Bytes take_json(Bytes at, Bytes end, Header* header, bint is_inner) noexcept nogil:
    """Take the pairs of a JSON object from the first name on; return its end. The inner one is ``extFields``."""
    cdef Bytes name, start, stop
    cdef int letter
    while True:
        if at >= end or at[0] != c'"':
            return NULL
        name = at + 1
        stop = skip_plain(name, end)
        if stop == NULL or end - stop < 3 or stop[1] != c':':
            return NULL
        start = at = stop + 2
        letter = letter_of(name, stop - name, header.is_short) if is_inner else UNKNOWN_NAME
        if letter == I_PROPERTIES:
            at = take_json_properties(at, end, header)
        elif letter != UNKNOWN_NAME:
            at = skip_value(at, end)
            if at == NULL:
                return NULL
            if start[0] == c'"':
                if not take_value(header, letter, start + 1, at - start - 2):
                    return NULL
            elif (<uint32_t>1 << letter) & TEXTS or not take_value(header, letter, start, at - start):
                return NULL
        elif is_inner:
            at = skip_value(at, end)
            if at != NULL and start[0] == c'"':
                take_other(header, name, stop - name, start + 1, at - start - 2)
            else:
                header.has_others = True
        elif is_name(name, stop - name, b"extFields", 9):
            if header.seen & SEEN_FIELDS or at[0] != c'{':
                return NULL
            header.seen |= SEEN_FIELDS
            at = take_json(at + 1, end, header, True)
        elif is_name(name, stop - name, b"opaque", 6):
            at = take_json_number(at, end, header, SEEN_OPAQUE, &header.opaque)
        elif is_name(name, stop - name, b"flag", 4):
            at = take_json_number(at, end, header, SEEN_FLAGS, &header.flags)
        else:
            at = skip_value(at, end)
        if at == NULL or at >= end:
            return NULL
        if at[0] == c'}':
            return at + 1
        if at[0] != c',':
            return NULL
        at += 1

cdef bint take_binary(Bytes at, Bytes end, Header* header) noexcept nogil:
    """Take a binary header, which begins with its code."""
    cdef Bytes name, value
    cdef Py_ssize_t name_size, position
    cdef uint32_t size
    cdef int letter
    cdef bint is_wide
    if end - at < 21:
        return False
    header.is_short = at[0] == 1 and at[1] == 54        # code 310; else it must be 10
    if not header.is_short and (at[0] != 0 or at[1] != 10):
        return False
    header.opaque, header.flags = <int32_t>read32(at + 5), <int32_t>read32(at + 9)
    if read32(at + 13) != 0 or read32(at + 17) != <uint32_t>(end - at - 21):     # a remark, or bytes after the map
        return False
    at += 21
    while at < end:
        name_size = (<Py_ssize_t>at[0] << 8) | (at[1] if end - at > 1 else 0)
        if name_size > end - at - 6:
            return False
        name = at + 2
        size = read32(name + name_size)
        value = name + name_size + 4
        if size > <uint32_t>(end - value):
            return False
        at = value + size
        for position in range(name_size):
            if KINDS[name[position]] == WIDE:
                return False
        is_wide = False
        for position in range(size):
            if KINDS[value[position]] == WIDE:
                is_wide = True
                break
        letter = letter_of(name, name_size, header.is_short)
        if letter == I_PROPERTIES:
            if header.seen & (1 << I_PROPERTIES):
                return False
            header.seen |= 1 << I_PROPERTIES
            header.properties.start, header.properties.size, header.is_wide = value, size, is_wide
        elif is_wide:
            return False
        elif letter == UNKNOWN_NAME:
            take_other(header, name, name_size, value, size)
        elif size == 0 or not take_value(header, letter, value, size):
            return False
    header.seen |= SEEN_OPAQUE | SEEN_FIELDS
    return True

cdef Py_ssize_t unescape(Bytes at, Py_ssize_t size, uint8_t* target) noexcept nogil:
    """Write a JSON string without its escapes; return its size, or -1 for an escape of a character outside of ASCII."""
    cdef Bytes end = at + size
    cdef uint8_t* first = target
    cdef const char* escape
    cdef int value, digit, count
    while at < end:
        if at[0] != c'\\':
            target[0] = at[0]
            target += 1
            at += 1
            continue
        if end - at < 2:
            return -1
        value = at[1]
        if value == c'u':
            if end - at < 6:
                return -1
            value = 0
            for count in range(2, 6):
                digit = at[count]
                if c'0' <= digit <= c'9':
                    digit -= c'0'
                elif c'a' <= (digit | 0x20) <= c'f':
                    digit = (digit | 0x20) - c'a' + 10
                else:
                    return -1
                value = value * 16 + digit
            if value >= 0x80:
                return -1
            at += 6
        else:
            escape = <const char*>memchr(ESCAPES, value, 8)
            if escape == NULL:
                return -1
            value = ESCAPED[escape - ESCAPES]
            at += 2
        target[0] = value
        target += 1
    return target - first
