# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, nonecheck=False
"""The compiled hot path: sends from the bytes of a connection into records, queue units and index entries, and replies.

It accepts only what it is sure about. A frame, a batch or a value that is not usual is left to the Python path, which
decides about it; what both accept, both store and answer byte for byte the same. The functions hold the GIL, each for
one pass over bytes that have arrived.

    bytes of a read --- SendBatch.take ---> sends of this turn      (the rest: SendBatch.add, from the Python path)
    sends ------------- SendBatch.pack ---> records, queue units    at the end of the turn
          ------------- put_keys ---------> index entries           when they are visible
          ------------- encode_answers ---> replies

Memory: a batch keeps the objects whose bytes it points to (`_owners`), and text that it has built (`_chunks`), until
`release_bytes`. Sizes of every text are checked before it is read or written.
"""

from cpython.array cimport array, resize_smart
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "Python.h":
    int PyObject_GetBuffer(object, Py_buffer*, int) except -1
    void PyBuffer_Release(Py_buffer*)
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1
    int PyBUF_SIMPLE
    int PyBUF_WRITABLE

cdef extern from "crc32.h":
    void gantry_crc32_prepare() nogil
    uint32_t gantry_crc32(uint32_t value, const uint8_t* data, size_t size) nogil

gantry_crc32_prepare()

ctypedef const uint8_t* Bytes


def crc32(data, uint32_t value=0):
    """Return the CRC-32 of ``data``, continued from ``value``, like zlib's ``crc32``."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return gantry_crc32(value, <Bytes>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


# -- texts and numbers -------------------------------------------------------------------------------------------------

cdef struct Text:
    Bytes start
    Py_ssize_t size

cdef enum:
    PLAIN = 0
    QUOTE = 1
    BACKSLASH = 2
    CONTROL = 3
    WIDE = 4          # a byte of a character outside of ASCII

cdef uint8_t KINDS[256]
cdef int _byte
for _byte in range(256):
    KINDS[_byte] = (
        WIDE if _byte >= 0x80 else CONTROL if _byte < 0x20 else QUOTE if _byte == 0x22
        else BACKSLASH if _byte == 0x5C else PLAIN
    )

cdef inline bint is_name(Bytes start, Py_ssize_t size, const char* name, Py_ssize_t name_size) noexcept nogil:
    return size == name_size and memcmp(start, name, name_size) == 0

cdef inline Bytes skip_plain(Bytes at, Bytes end) noexcept nogil:
    """Return the quote that ends a string of printable ASCII without escapes; NULL for any other string."""
    while at < end and KINDS[at[0]] == PLAIN:
        at += 1
    return at if at < end and at[0] == c'"' else NULL

cdef Bytes parse_digits(Bytes at, Bytes end, int64_t* value) noexcept nogil:
    """Parse a decimal number of at most 18 digits in its usual form; return its end, or NULL."""
    cdef bint is_negative = False
    cdef Bytes first
    cdef int64_t result = 0
    if at < end and at[0] == c'-':
        is_negative = True
        at += 1
    first = at
    while at < end and c'0' <= at[0] <= c'9':
        if at - first == 18:
            return NULL
        result = result * 10 + (at[0] - c'0')
        at += 1
    if at == first or (first[0] == c'0' and (at - first > 1 or is_negative)):
        return NULL
    value[0] = -result if is_negative else result
    return at

cdef inline bint fits_int32(int64_t value) noexcept nogil:
    return INT32_MIN <= value <= INT32_MAX

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
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
        elif 0xF0 <= first <= 0xF4:
            more = 3
        else:
            return False
        if end - at < more:
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
            character = (
                ((character & 0x07) << 18) | ((at[1] & 0x3F) << 12) | ((at[2] & 0x3F) << 6) | (at[3] & 0x3F)
            ) - 0x10000
            value = (value * 31 + (0xD800 | (character >> 10))) * 31 + (0xDC00 | (character & 0x3FF))
            at += 4
    return value

cdef inline uint32_t key_hash(uint32_t value) noexcept nogil:
    """Java's ``abs``, with 0 where that stays negative."""
    if value > <uint32_t>INT32_MAX:
        value = 0 - value
        if value > <uint32_t>INT32_MAX:
            value = 0
    return value

cdef inline uint8_t* put32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = value >> 24, (value >> 16) & 0xFF, (value >> 8) & 0xFF, value & 0xFF
    return at + 4

cdef inline uint8_t* put64(uint8_t* at, uint64_t value) noexcept nogil:
    return put32(put32(at, <uint32_t>(value >> 32)), <uint32_t>value)

cdef inline uint8_t* put_bytes(uint8_t* at, const void* data, Py_ssize_t size) noexcept nogil:
    memcpy(at, data, size)
    return at + size

cdef uint8_t* put_decimal(uint8_t* at, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        at[0] = c'-'
        at += 1
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

cdef inline uint32_t read32(Bytes at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


# -- the header of a send ----------------------------------------------------------------------------------------------

cdef struct Header:
    Text topic
    Text properties         # as in the header, with its escapes
    bint is_escaped
    bint is_wide            # has bytes outside of ASCII
    int64_t opaque
    int64_t flags           # of the request: reply, one-way
    int64_t numbers[14]     # by letter, see below
    uint32_t seen           # a bit for each letter, and two more

# The letters of code 310 and the long names of code 10:
#   a producerGroup  b topic  c defaultTopic  d defaultTopicQueueNums  e queueId  f sysFlag  g bornTimestamp  h flag
#   i properties  j reconsumeTimes  k unitMode  l maxReconsumeTimes  m batch  n (the broker's name, only in code 310)
cdef enum:
    B_TOPIC = 1
    E_QUEUE = 4
    F_SYS_FLAG = 5
    G_BORN = 6
    H_FLAG = 7
    I_PROPERTIES = 8
    J_RECONSUMED = 9
    M_BATCH = 12
    UNKNOWN_NAME = -1
    REQUIRED = 0xFF          # a to h
    SEEN_OPAQUE = 1 << 16
    SEEN_FLAGS = 1 << 17
    SEEN_FIELDS = 1 << 18
    HEADER_BYTES_MAX = 6144  # as PLAIN_HEADER_BYTES_MAX in `send_path`
    TEXTS = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 13)
    BOOLEANS = (1 << 10) | (1 << 12)

cdef int letter_of(Bytes name, Py_ssize_t size, bint is_short) noexcept nogil:
    """Return the number of a field, or UNKNOWN_NAME."""
    if is_short:
        return name[0] - c'a' if size == 1 and c'a' <= name[0] <= c'n' else UNKNOWN_NAME
    if size == 13:
        if memcmp(name, b"bornTimestamp", 13) == 0:
            return 6
        return 0 if memcmp(name, b"producerGroup", 13) == 0 else UNKNOWN_NAME
    if size == 5:
        return 1 if memcmp(name, b"topic", 5) == 0 else 12 if memcmp(name, b"batch", 5) == 0 else UNKNOWN_NAME
    if size == 12:
        return 2 if memcmp(name, b"defaultTopic", 12) == 0 else UNKNOWN_NAME
    if size == 21:
        return 3 if memcmp(name, b"defaultTopicQueueNums", 21) == 0 else UNKNOWN_NAME
    if size == 7:
        return 4 if memcmp(name, b"queueId", 7) == 0 else 5 if memcmp(name, b"sysFlag", 7) == 0 else UNKNOWN_NAME
    if size == 4:
        return 7 if memcmp(name, b"flag", 4) == 0 else UNKNOWN_NAME
    if size == 10:
        return 8 if memcmp(name, b"properties", 10) == 0 else UNKNOWN_NAME
    if size == 14:
        return 9 if memcmp(name, b"reconsumeTimes", 14) == 0 else UNKNOWN_NAME
    if size == 8:
        return 10 if memcmp(name, b"unitMode", 8) == 0 else UNKNOWN_NAME
    if size == 17:
        return 11 if memcmp(name, b"maxReconsumeTimes", 17) == 0 else UNKNOWN_NAME
    return UNKNOWN_NAME

cdef bint take_value(Header* header, int letter, Bytes start, Py_ssize_t size) noexcept nogil:
    """Take the text of a number, a boolean, or a text of printable ASCII. False if it is not in the usual form."""
    cdef uint32_t bit = <uint32_t>1 << letter
    cdef int64_t value = 0
    if header.seen & bit:
        return False
    header.seen |= bit
    if bit & TEXTS:
        if letter == B_TOPIC:
            header.topic.start, header.topic.size = start, size
        return True
    if bit & BOOLEANS:
        if is_name(start, size, b"false", 5):
            return True
        return letter != M_BATCH and is_name(start, size, b"true", 4)
    if parse_digits(start, start + size, &value) != start + size or not (letter == G_BORN or fits_int32(value)):
        return False
    header.numbers[letter] = value
    return True

cdef Bytes skip_value(Bytes at, Bytes end) noexcept nogil:
    """Return the end of a JSON value that does not count: a plain string, a number or a literal. NULL for another."""
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

cdef Bytes take_json_number(Bytes at, Bytes end, int64_t* value) noexcept nogil:
    """Take a number of 32 bits, in quotes or not; return its end, or NULL."""
    cdef bint is_quoted = at < end and at[0] == c'"'
    at = parse_digits(at + is_quoted, end, value)
    if at == NULL or not fits_int32(value[0]):
        return NULL
    if is_quoted:
        if at >= end or at[0] != c'"':
            return NULL
        at += 1
    return at

cdef Bytes take_json_fields(Bytes at, Bytes end, Header* header, bint is_short) noexcept nogil:
    """Take the object ``extFields``; return its end, or NULL."""
    cdef Bytes start, stop
    cdef int letter
    if at >= end or at[0] != c'{':
        return NULL
    at += 1
    while True:
        if at >= end or at[0] != c'"':
            return NULL
        start = at + 1
        stop = skip_plain(start, end)
        if stop == NULL or end - stop < 3 or stop[1] != c':':
            return NULL
        letter = letter_of(start, stop - start, is_short)
        at = stop + 2
        if letter == UNKNOWN_NAME:
            at = skip_value(at, end)
            if at == NULL:
                return NULL
        elif letter == I_PROPERTIES:
            if at[0] != c'"' or header.seen & (1 << I_PROPERTIES):
                return NULL
            header.seen |= 1 << I_PROPERTIES
            at += 1
            start = at
            while at < end:
                if KINDS[at[0]] == PLAIN:
                    at += 1
                elif at[0] == c'"':
                    break
                elif at[0] == c'\\':
                    header.is_escaped = True
                    at += 2
                elif at[0] >= 0x80:
                    header.is_wide = True
                    at += 1
                else:
                    return NULL
            if at >= end:
                return NULL
            header.properties.start, header.properties.size = start, at - start
            at += 1
        elif at[0] == c'"':
            start = at + 1
            at = skip_plain(start, end)
            if at == NULL or not take_value(header, letter, start, at - start):
                return NULL
            at += 1
        else:
            if (<uint32_t>1 << letter) & TEXTS:
                return NULL
            start = at
            at = skip_value(at, end)
            if at == NULL or not take_value(header, letter, start, at - start):
                return NULL
        if at >= end:
            return NULL
        if at[0] == c'}':
            return at + 1
        if at[0] != c',':
            return NULL
        at += 1

cdef bint take_json(Bytes at, Bytes end, Header* header, bint is_short) noexcept nogil:
    """Take a JSON header, from the field after its code. False if it is not in the usual form."""
    cdef Bytes start, stop
    while True:
        if at >= end or at[0] != c'"':
            return False
        start = at + 1
        stop = skip_plain(start, end)
        if stop == NULL or end - stop < 3 or stop[1] != c':':
            return False
        at = stop + 2
        if is_name(start, stop - start, b"extFields", 9):
            if header.seen & SEEN_FIELDS:
                return False
            header.seen |= SEEN_FIELDS
            at = take_json_fields(at, end, header, is_short)
        elif is_name(start, stop - start, b"opaque", 6):
            if header.seen & SEEN_OPAQUE:
                return False
            header.seen |= SEEN_OPAQUE
            at = take_json_number(at, end, &header.opaque)
        elif is_name(start, stop - start, b"flag", 4):
            if header.seen & SEEN_FLAGS:
                return False
            header.seen |= SEEN_FLAGS
            at = take_json_number(at, end, &header.flags)
        else:
            at = skip_value(at, end)
        if at == NULL or at >= end:
            return False
        if at[0] == c'}':
            return at + 1 == end
        if at[0] != c',':
            return False
        at += 1

cdef bint take_binary(Bytes at, Bytes end, Header* header) noexcept nogil:
    """Take a binary header, which begins with its code. False if it is not in the usual form."""
    cdef bint is_short
    cdef uint32_t size
    cdef Bytes name, value
    cdef Py_ssize_t name_size, position
    cdef int letter
    if end - at < 21:
        return False
    if at[0] == 1 and at[1] == 54:        # 310
        is_short = True
    elif at[0] == 0 and at[1] == 10:
        is_short = False
    else:
        return False
    header.opaque = <int32_t>read32(at + 5)
    header.flags = <int32_t>read32(at + 9)
    if read32(at + 13) != 0:              # a remark
        return False
    if read32(at + 17) != <uint32_t>(end - at - 21):
        return False
    at += 21
    while at < end:
        if end - at < 6:
            return False
        name_size = (<Py_ssize_t>at[0] << 8) | at[1]
        if name_size > end - at - 6:
            return False
        name = at + 2
        size = read32(name + name_size)
        value = name + name_size + 4
        if size > <uint32_t>(end - value):
            return False
        at = value + size
        for position in range(name_size):
            if KINDS[name[position]] != PLAIN:
                return False
        letter = letter_of(name, name_size, is_short)
        if letter == I_PROPERTIES:
            if header.seen & (1 << I_PROPERTIES):
                return False
            header.seen |= 1 << I_PROPERTIES
            header.properties.start, header.properties.size = value, size
            for position in range(size):
                if value[position] >= 0x80:
                    header.is_wide = True
                    break
            continue
        for position in range(size):
            if KINDS[value[position]] == WIDE:
                return False
        if letter == UNKNOWN_NAME:
            continue
        if size == 0 or not take_value(header, letter, value, size):
            return False
    header.seen |= SEEN_OPAQUE | SEEN_FIELDS
    return True

cdef Py_ssize_t unescape(Bytes at, Py_ssize_t size, uint8_t* target) noexcept nogil:
    """Write a JSON string without its escapes; return its size, or -1 for an escape of a character outside of ASCII."""
    cdef Bytes end = at + size
    cdef uint8_t* first = target
    cdef uint32_t value
    cdef int digit, count
    while at < end:
        if at[0] != c'\\':
            target[0] = at[0]
            target += 1
            at += 1
            continue
        if end - at < 2:
            return -1
        if at[1] == c'u':
            if end - at < 6:
                return -1
            value = 0
            for count in range(2, 6):
                digit = at[count]
                if c'0' <= digit <= c'9':
                    digit -= c'0'
                elif c'a' <= digit <= c'f':
                    digit -= c'a' - 10
                elif c'A' <= digit <= c'F':
                    digit -= c'A' - 10
                else:
                    return -1
                value = value * 16 + digit
            if value >= 0x80:
                return -1
            target[0] = value
            at += 6
        else:
            digit = at[1]
            if digit == c'"' or digit == c'\\' or digit == c'/':
                target[0] = digit
            elif digit == c'n':
                target[0] = 10
            elif digit == c't':
                target[0] = 9
            elif digit == c'r':
                target[0] = 13
            elif digit == c'b':
                target[0] = 8
            elif digit == c'f':
                target[0] = 12
            else:
                return -1
            at += 2
        target += 1
    return target - first


# -- queues and sends --------------------------------------------------------------------------------------------------

cdef enum:
    CHUNK_BYTES = 65536
    PAIRS_MAX = 32
    UNIT_BYTES = 20
    SEAL_BYTES = 20
    PREPARED = 0x4
    ROLLED_BACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    CLEARED_FLAGS = 0x3C     # a producer cannot set these on a plain message: transaction, kinds of hosts
    REPLY = 1                # flags of a request
    ONE_WAY = 2
    PROPERTIES_MAX = 32747   # longer properties have no room for a seal
    INDEX_HEADER_BYTES = 40
    REPLY_NUMBERS_BYTES = 64 # three numbers in a reply, and the head of its frame


cdef class QueueSlot:
    """A queue of a topic, with the template of the reply to a send into it, and what a record of it needs."""

    cdef readonly object queue
    cdef readonly bytes reply_template
    cdef bytes topic_field
    cdef list segments           # the reply before, between and after its four values
    cdef Bytes segment_starts[5]
    cdef Py_ssize_t segment_sizes[5]
    cdef Py_ssize_t reply_bytes  # of all segments
    cdef uint32_t magic, queue_id, key_seed
    cdef Py_ssize_t overhead
    # Where the present batch has its cursor of this queue.
    cdef uint64_t batch_number
    cdef int cursor

    def __init__(self, queue, bytes reply_template):
        """``reply_template`` is filled by (physical offset, queue offset, unique id, opaque)."""
        cdef int number
        cdef bytes segment
        self.queue = queue
        self.reply_template = reply_template
        rest = reply_template
        self.segments = []
        for mark in (b"%016X", b"%d", b"%b", b"%d"):
            segment, _, rest = rest.partition(mark)
            self.segments.append(segment)
        self.segments.append(rest)
        self.reply_bytes = 0
        for number in range(5):
            segment = self.segments[number]
            if b"%" in segment:
                raise ValueError("a reply template has four values")
            self.segment_starts[number] = <Bytes>PyBytes_AS_STRING(segment)
            self.segment_sizes[number] = len(segment)
            self.reply_bytes += len(segment)
        self.topic_field = queue.topic_field
        self.magic = <uint32_t>(<int64_t>queue.magic)
        self.queue_id = queue.queue_id
        self.key_seed = queue.key_seed
        self.overhead = queue.record_overhead
        self.batch_number = 0


cdef struct Send:
    PyObject* slot               # a QueueSlot; NULL for a send with a draft
    PyObject* draft              # from the Python path; NULL otherwise
    PyObject* template           # of the reply to a draft's send; NULL for a one-way send
    Bytes body
    Bytes properties             # as stored, without seal
    Bytes unique                 # as in the reply
    Bytes keys                   # the text of KEYS
    Bytes host
    uint32_t body_size, properties_size, unique_size, keys_size
    uint8_t host_size, seal_size
    bint is_one_way, is_waiting
    int32_t flag, reconsumed
    uint32_t sys_flag
    int64_t opaque, born_ms, prepared, tags_code, delay_ms
    int cursor
    uint32_t size                # of its record
    int64_t physical, queue_offset

cdef struct Key:
    uint32_t hash
    int send                     # its index
    int64_t physical             # of its record, once it is packed

cdef struct Cursor:
    PyObject* queue
    PyObject* values             # an array: the chain of sums
    PyObject* sums
    uint8_t* view
    Bytes topic
    Py_ssize_t position, limit, topic_size, overhead
    int64_t before, end, sums_start, sums_limit
    int64_t count, record_bytes
    uint32_t magic, queue_id

cdef uint64_t _batches = 0


cdef class SendBatch:
    """The sends of one turn of the event loop, in their order. A sequence of drafts for the Python path."""

    cdef Send* sends
    cdef Key* keys
    cdef Py_ssize_t count, capacity
    cdef readonly Py_ssize_t key_count
    cdef Py_ssize_t key_capacity
    cdef list owners, chunks
    cdef Cursor* cursors
    cdef int cursor_count, cursor_capacity
    cdef dict cursor_of          # by queue
    cdef uint8_t* free_start
    cdef uint8_t* free_end
    cdef uint64_t number
    cdef object draft_type, sealable
    cdef readonly bint has_impatient   # whether a sender does not wait until its message is durable

    def __cinit__(self, draft_type, sealable):
        """``sealable`` returns properties as they must be before a seal, and the size of that."""
        global _batches
        _batches += 1
        self.number = _batches
        self.owners, self.chunks, self.cursor_of = [], [], {}
        self.draft_type, self.sealable = draft_type, sealable

    def __dealloc__(self):
        PyMem_Free(self.sends)
        PyMem_Free(self.keys)
        PyMem_Free(self.cursors)

    def __len__(self):
        return self.count

    @property
    def answers(self):
        """(template of the reply, empty for a one-way send; unique id; opaque) of each send."""
        cdef Py_ssize_t index
        cdef Send* send
        answers = []
        for index in range(self.count):
            send = &self.sends[index]
            template = b""
            if not send.is_one_way:
                template = (<QueueSlot>send.slot).reply_template if send.slot != NULL else <object>send.template
            answers.append((template, PyBytes_FromStringAndSize(<char*>send.unique, send.unique_size), send.opaque))
        return answers

    @property
    def impatient(self):
        """The indexes of the sends whose senders do not wait until their messages are durable."""
        cdef Py_ssize_t index
        return {index for index in range(self.count) if not self.sends[index].is_waiting}

    @property
    def drafts(self):
        """The batch itself, which the store appends as a sequence of drafts."""
        return self

    def __repr__(self):
        return f"<SendBatch sends={self.count} keys={self.key_count}>"

    # -- memory --------------------------------------------------------------------------------------------------------

    cdef Send* new_send(self) except NULL:
        """Return the place of the next send; the caller counts it when it is complete."""
        cdef Py_ssize_t capacity
        cdef Send* moved
        if self.count == self.capacity:
            capacity = self.capacity * 2 or 64
            moved = <Send*>PyMem_Realloc(self.sends, capacity * sizeof(Send))
            if moved == NULL:
                raise MemoryError
            self.sends, self.capacity = moved, capacity
        return &self.sends[self.count]

    cdef int add_key(self, uint32_t hash_value) except -1:
        cdef Py_ssize_t capacity
        cdef Key* moved
        if self.key_count == self.key_capacity:
            capacity = self.key_capacity * 2 or 128
            moved = <Key*>PyMem_Realloc(self.keys, capacity * sizeof(Key))
            if moved == NULL:
                raise MemoryError
            self.keys, self.key_capacity = moved, capacity
        self.keys[self.key_count].hash = hash_value
        self.keys[self.key_count].send = self.count
        self.key_count += 1
        return 0

    cdef int reserve(self, Py_ssize_t size) except -1:
        """Make room for ``size`` bytes at `free_start`."""
        cdef bytes chunk
        if self.free_end - self.free_start < size:
            chunk = PyBytes_FromStringAndSize(NULL, max(size, CHUNK_BYTES))
            self.chunks.append(chunk)
            self.free_start = <uint8_t*>PyBytes_AS_STRING(chunk)
            self.free_end = self.free_start + PyBytes_GET_SIZE(chunk)
        return 0

    # -- sends from the bytes of a read --------------------------------------------------------------------------------

    def take(
        self, bytes data, Py_ssize_t position, bytes host, uint32_t host_flag, routes,
        Py_ssize_t frame_max, Py_ssize_t body_max,
    ):
        """Take the plain sends at the start of ``data[position:]``; return the position of the first other frame.

        ``frame_max`` limits the length in a frame's head, ``body_max`` a body. ``routes`` has the routes by topic, the
        properties that are added, and creates slots and unique ids.
        """
        cdef Bytes start = <Bytes>PyBytes_AS_STRING(data)
        cdef Bytes at = start + position
        cdef Bytes end = start + PyBytes_GET_SIZE(data)
        cdef Bytes header_start, header_end, frame_end
        cdef uint32_t total, kind_and_size, header_size
        cdef Header header
        cdef dict by_topic = routes.by_topic
        cdef bytes tail = routes.broker_tail
        cdef bint is_kept = False
        cdef Text known_topic
        cdef PyObject* found
        cdef list slots = None
        cdef QueueSlot slot
        cdef object item, route = None
        known_topic.start, known_topic.size = NULL, 0
        while end - at >= 8:
            total = read32(at)
            kind_and_size = read32(at + 4)
            header_size = kind_and_size & 0xFFFFFF
            if total > <uint32_t>frame_max or total < 4 or header_size > total - 4 or header_size > HEADER_BYTES_MAX:
                break
            if <Py_ssize_t>total > end - at - 4:
                break
            header_start = at + 8
            header_end = header_start + header_size
            frame_end = at + 4 + total
            header.seen = 0
            header.is_escaped = header.is_wide = False
            header.properties.start, header.properties.size = header_end, 0
            header.flags = 0
            if kind_and_size >> 24 == 0:
                if header_size < 12:
                    break
                if memcmp(header_start, b'{"code":310,', 12) == 0:
                    if not take_json(header_start + 12, header_end, &header, True):
                        break
                elif memcmp(header_start, b'{"code":10,', 11) == 0:
                    if not take_json(header_start + 11, header_end, &header, False):
                        break
                else:
                    break
            elif kind_and_size >> 24 == 1:
                if not take_binary(header_start, header_end, &header):
                    break
            else:
                break
            if (
                header.seen & REQUIRED != REQUIRED or not header.seen & SEEN_OPAQUE or not header.seen & SEEN_FIELDS
                or header.flags & REPLY or not fits_int32(header.flags)
                or (header.seen & (1 << J_RECONSUMED) and header.numbers[J_RECONSUMED] != 0)
                or not 0 < frame_end - header_end <= body_max
            ):
                break
            if header.topic.size != known_topic.size or memcmp(header.topic.start, known_topic.start, known_topic.size):
                item = PyUnicode_DecodeUTF8(<const char*>header.topic.start, header.topic.size, NULL)
                found = PyDict_GetItem(by_topic, item)
                if found == NULL:
                    break
                route = <object>found
                slots = route.slots
                known_topic = header.topic
            if not 0 <= header.numbers[E_QUEUE] < len(slots):
                break
            item = slots[header.numbers[E_QUEUE]]
            if item is None:
                item = routes.create_slot(route, header.numbers[E_QUEUE])
            slot = <QueueSlot?>item
            if not is_kept:
                self.owners.append(data)
                self.owners.append(host)
                is_kept = True
            if not self.take_send(&header, slot, header_end, frame_end, host, host_flag, tail, routes):
                break
            at = frame_end
        return at - start

    cdef bint take_send(
        self, Header* header, QueueSlot slot, Bytes body, Bytes body_end, bytes host, uint32_t host_flag, bytes tail,
        routes,
    ) except -1:
        """Add one send whose header is in the usual form. False if its properties are not."""
        cdef Send* send = self.new_send()
        cdef Py_ssize_t tail_size = PyBytes_GET_SIZE(tail)
        cdef Py_ssize_t size = header.properties.size
        cdef Py_ssize_t key_count = self.key_count
        cdef uint8_t* text
        cdef uint8_t* stop
        cdef Text names[PAIRS_MAX]
        cdef Text name, value, unique, tags, keys
        cdef Py_ssize_t position, pair_end, name_end, number
        cdef int pairs = 0
        cdef bytes made
        if size > PROPERTIES_MAX:
            return False
        self.reserve(size + tail_size + 64)
        text = self.free_start
        if header.is_escaped:
            size = unescape(header.properties.start, size, text)
            if size < 0:
                return False
        else:
            memcpy(text, header.properties.start, size)
        if header.is_wide and not is_utf8(text, size):
            return False
        unique.start = tags.start = keys.start = NULL
        unique.size = tags.size = keys.size = 0
        send.is_waiting = True
        position = 0
        while position < size:
            stop = <uint8_t*>memchr(text + position, 2, size - position)
            pair_end = size if stop == NULL else stop - text
            stop = <uint8_t*>memchr(text + position, 1, pair_end - position)
            if stop == NULL or pairs == PAIRS_MAX:
                return False
            name_end = stop - text
            if memchr(text + name_end + 1, 1, pair_end - name_end - 1) != NULL:
                return False
            name.start, name.size = text + position, name_end - position
            value.start, value.size = text + name_end + 1, pair_end - name_end - 1
            for number in range(pairs):
                if names[number].size == name.size and memcmp(names[number].start, name.start, name.size) == 0:
                    return False
            names[pairs] = name
            pairs += 1
            if name.size == 4:
                if memcmp(name.start, b"TAGS", 4) == 0:
                    tags = value
                elif memcmp(name.start, b"KEYS", 4) == 0:
                    keys = value
                elif memcmp(name.start, b"WAIT", 4) == 0 and value.size == 5:
                    send.is_waiting = not (
                        value.start[0] | 0x20 == c'f' and value.start[1] | 0x20 == c'a'
                        and value.start[2] | 0x20 == c'l' and value.start[3] | 0x20 == c's'
                        and value.start[4] | 0x20 == c'e'
                    )
            elif name.size == 8:
                if memcmp(name.start, b"UNIQ_KEY", 8) == 0:
                    if value.size == 0:
                        return False
                    for number in range(value.size):
                        if KINDS[value.start[number]] != PLAIN or value.start[number] == 0x7F:
                            return False
                    unique = value
                elif (
                    memcmp(name.start, b"TRAN_MSG", 8) == 0 or memcmp(name.start, b"TRACE_ON", 8) == 0
                    or memcmp(name.start, b"__CRC32#", 8) == 0
                ):
                    return False
            elif (
                name.size == 0 or is_name(name.start, name.size, b"DELAY", 5)
                or is_name(name.start, name.size, b"POP_CK", 6) or is_name(name.start, name.size, b"CLUSTER", 7)
                or is_name(name.start, name.size, b"MSG_REGION", 10)
                or is_name(name.start, name.size, b"TIMER_DELAY_MS", 14)
                or is_name(name.start, name.size, b"TIMER_DELAY_SEC", 15)
                or is_name(name.start, name.size, b"TIMER_DELIVER_MS", 16)
            ):
                return False
            position = pair_end + 1
        stop = text + size
        if size and text[size - 1] != 2:
            stop[0] = 2
            stop += 1
        if unique.start == NULL:
            made = routes.next_unique_id().encode()
            stop = put_bytes(stop, b"UNIQ_KEY\x01", 9)
            unique.start, unique.size = stop, min(PyBytes_GET_SIZE(made), 48)
            stop = put_bytes(stop, PyBytes_AS_STRING(made), unique.size)
            stop[0] = 2
            stop += 1
        stop = put_bytes(stop, PyBytes_AS_STRING(tail), tail_size)
        if stop - text > PROPERTIES_MAX:
            return False
        self.add_key(key_hash(java_hash(slot.key_seed, unique.start, unique.size)))
        position = 0
        while position < keys.size:
            pair_end = position
            while pair_end < keys.size and keys.start[pair_end] != c' ':
                pair_end += 1
            if pair_end > position:
                self.add_key(key_hash(java_hash(slot.key_seed, keys.start + position, pair_end - position)))
            position = pair_end + 1
        self.free_start = stop
        if slot.batch_number != self.number:
            self.owners.append(slot)
            slot.batch_number, slot.cursor = self.number, -1
        send.slot, send.draft, send.template = <PyObject*>slot, NULL, NULL
        send.body, send.body_size = body, <uint32_t>(body_end - body)
        send.properties, send.properties_size = text, <uint32_t>(stop - text)
        send.seal_size = SEAL_BYTES
        send.unique, send.unique_size = unique.start, <uint32_t>unique.size
        send.keys, send.keys_size = keys.start, <uint32_t>keys.size
        send.host, send.host_size = <Bytes>PyBytes_AS_STRING(host), <uint8_t>PyBytes_GET_SIZE(host)
        send.is_one_way = header.flags & ONE_WAY != 0
        send.flag, send.reconsumed = <int32_t>header.numbers[H_FLAG], 0
        send.sys_flag = (<uint32_t>header.numbers[F_SYS_FLAG] & ~<uint32_t>CLEARED_FLAGS) | host_flag
        send.opaque, send.born_ms = header.opaque, header.numbers[G_BORN]
        send.prepared = send.delay_ms = 0
        send.tags_code = <int32_t>java_hash(0, tags.start, tags.size) if tags.size else 0
        if not send.is_waiting:
            self.has_impatient = True
        self.count += 1
        return True

    # -- sends from the Python path ------------------------------------------------------------------------------------

    def add(self, draft, answer, bint is_waiting=True):
        """Add a draft, with (template of the reply, empty for a one-way send; unique id; opaque)."""
        cdef Send* send = self.new_send()
        cdef bytes body, properties, host, encoded, template, unique
        cdef int64_t opaque
        template, unique, opaque = answer
        queue, given, properties, sys_flag, flag, born_ms, host, reconsumed, prepared, tags_code, delay_ms, keys = draft
        body = given if isinstance(given, bytes) else bytes(given)
        properties, seal_size = self.sealable(properties)
        self.owners += (draft, body, properties, template, unique)
        send.slot, send.draft = NULL, <PyObject*>draft
        send.template = <PyObject*>template
        send.body, send.body_size = <Bytes>PyBytes_AS_STRING(body), <uint32_t>len(body)
        send.properties, send.properties_size = <Bytes>PyBytes_AS_STRING(properties), <uint32_t>len(properties)
        send.seal_size = seal_size
        send.unique, send.unique_size = <Bytes>PyBytes_AS_STRING(unique), <uint32_t>len(unique)
        send.keys, send.keys_size = NULL, 0
        send.host, send.host_size = <Bytes>PyBytes_AS_STRING(host), <uint8_t>len(host)
        send.is_one_way, send.is_waiting = not template, is_waiting
        send.flag, send.reconsumed = flag, reconsumed
        send.sys_flag = <uint32_t>(<int64_t>sys_flag)
        send.opaque, send.born_ms, send.prepared = opaque, born_ms, prepared
        send.tags_code, send.delay_ms = tags_code, delay_ms
        if send.sys_flag & ROLLED_BACK != ROLLED_BACK:
            for key in keys:
                encoded = key.encode("utf-8", "surrogatepass")
                self.add_key(key_hash(java_hash(queue.key_seed, <Bytes>PyBytes_AS_STRING(encoded), len(encoded))))
        if not is_waiting:
            self.has_impatient = True
        self.count += 1

    # -- records and queue units ---------------------------------------------------------------------------------------

    cdef int cursor_for(self, queue) except -1:
        """Return the number of the cursor of ``queue``, which is created if there is none."""
        cdef Py_ssize_t capacity
        cdef Cursor* moved
        cdef Cursor* cursor
        cdef bytes topic
        known = self.cursor_of.get(queue)
        if known is not None:
            return known
        if self.cursor_count == self.cursor_capacity:
            capacity = self.cursor_capacity * 2 or 16
            moved = <Cursor*>PyMem_Realloc(self.cursors, capacity * sizeof(Cursor))
            if moved == NULL:
                raise MemoryError
            self.cursors, self.cursor_capacity = moved, capacity
        cursor = &self.cursors[self.cursor_count]
        topic = queue.topic_field
        cursor.queue = <PyObject*>queue
        cursor.topic, cursor.topic_size = <Bytes>PyBytes_AS_STRING(topic), len(topic)
        cursor.overhead = queue.record_overhead
        cursor.magic, cursor.queue_id = <uint32_t>(<int64_t>queue.magic), queue.queue_id
        cursor.before = cursor.end = queue.end
        cursor.count = cursor.record_bytes = 0
        sums = queue.sums
        cursor.sums = <PyObject*>sums
        cursor.values = <PyObject*>sums.values
        cursor.sums_start, cursor.sums_limit = sums.start, sums.limit
        load_place(cursor, queue)
        self.cursor_of[queue] = self.cursor_count
        self.cursor_count += 1
        return self.cursor_count - 1

    def pack(self, int64_t base, Py_ssize_t start, Py_ssize_t file_end, bytes store_host, int64_t now_ms, list held):
        """Return the records for position ``start`` of the file that begins at offset ``base``, and write their units.

        With ``held`` the units are appended to it instead. None if the records do not fit before ``file_end``: then
        nothing has changed. The queues' cursors are moved; after an error they are where they were.
        """
        cdef Py_ssize_t index, size, total = 0
        cdef Send* send
        cdef QueueSlot slot
        cdef Cursor* cursor
        cdef bytes data
        cdef uint8_t* at
        cdef uint8_t* record
        cdef Bytes store_host_start = <Bytes>PyBytes_AS_STRING(store_host)
        cdef Py_ssize_t store_host_size = PyBytes_GET_SIZE(store_host)
        cdef uint32_t crc
        cdef int64_t physical = base + start
        cdef int64_t tags_code
        cdef array values
        global _batches
        _batches += 1
        self.number = _batches  # slots that have a cursor of an earlier attempt look for a new one
        self.cursor_count = 0
        self.cursor_of.clear()
        for index in range(self.count):
            send = &self.sends[index]
            if send.slot != NULL:
                slot = <QueueSlot>send.slot
                if slot.batch_number != self.number or slot.cursor < 0:
                    slot.batch_number, slot.cursor = self.number, self.cursor_for(slot.queue)
                send.cursor = slot.cursor
            else:
                send.cursor = self.cursor_for((<object>send.draft)[0])
            size = (
                self.cursors[send.cursor].overhead + send.body_size + send.properties_size + send.seal_size
                + send.host_size - 8 + store_host_size - 8
            )
            if bool(send.sys_flag & BORN_HOST_V6) != (send.host_size == 20):
                raise AssertionError("a draft's sys_flag and born_host disagree")
            send.size = <uint32_t>size
            total += size
            if start + total > file_end:
                return None
        data = PyBytes_FromStringAndSize(NULL, total)
        at = <uint8_t*>PyBytes_AS_STRING(data)
        try:
            for index in range(self.count):
                send = &self.sends[index]
                cursor = &self.cursors[send.cursor]
                if store_host_size == 20:
                    send.sys_flag |= STORE_HOST_V6
                send.physical = physical
                if send.sys_flag & PREPARED:
                    send.queue_offset = 0
                else:
                    send.queue_offset = cursor.end
                    tags_code = now_ms + send.delay_ms if send.delay_ms > 0 else send.tags_code
                    if held is None:
                        if cursor.position == cursor.limit:
                            (<object>cursor.queue).extend(cursor.end)
                            load_place(cursor, <object>cursor.queue)
                        record = cursor.view + cursor.position
                        put64(put32(put64(record, physical), send.size), tags_code)
                        cursor.position += UNIT_BYTES
                    else:
                        held.append((<object>cursor.queue, cursor.end, physical, send.size, tags_code))
                    cursor.end += 1
                    cursor.count += 1
                    cursor.record_bytes += send.size
                record = at
                at = put32(at, send.size)
                at = put32(at, cursor.magic)
                at = put32(at, gantry_crc32(0, send.body, send.body_size) & 0x7FFFFFFF)
                at = put32(at, cursor.queue_id)
                at = put32(at, <uint32_t>send.flag)
                at = put64(at, send.queue_offset)
                at = put64(at, physical)
                at = put32(at, send.sys_flag)
                at = put64(at, send.born_ms)
                at = put_bytes(at, send.host, send.host_size)
                at = put64(at, now_ms)
                at = put_bytes(at, store_host_start, store_host_size)
                at = put32(at, <uint32_t>send.reconsumed)
                at = put64(at, send.prepared)
                at = put32(at, send.body_size)
                at = put_bytes(at, send.body, send.body_size)
                at = put_bytes(at, cursor.topic, cursor.topic_size)
                size = send.properties_size + send.seal_size
                at[0], at[1] = (size >> 8) & 0xFF, size & 0xFF
                at = put_bytes(at + 2, send.properties, send.properties_size)
                if send.seal_size:
                    crc = gantry_crc32(0, record, at - record) & 0x7FFFFFFF
                    at = put_bytes(at, b"__CRC32#\x01", 9)
                    for size in range(10):
                        at[0] = c'0' + crc % 10
                        crc //= 10
                        at += 1
                    at[0] = 2
                    at += 1
                if not send.sys_flag & PREPARED:
                    values = <array>cursor.values
                    if cursor.sums_start + len(values) != send.queue_offset + 1 or len(values) >= cursor.sums_limit:
                        sums = <object>cursor.sums
                        sums.prepare_next(send.queue_offset)
                        cursor.sums_start, cursor.sums_limit = sums.start, sums.limit
                    size = len(values)
                    if size < cursor.sums_limit:
                        crc = gantry_crc32(values.data.as_uints[size - 1], record, at - record)
                        resize_smart(values, size + 1)
                        values.data.as_uints[size] = crc
                physical += send.size
            if at - <uint8_t*>PyBytes_AS_STRING(data) != total:
                raise AssertionError("a record has another size than computed")
        except BaseException:
            for index in range(self.cursor_count):
                cursor = &self.cursors[index]
                if cursor.count:
                    queue = <object>cursor.queue
                    queue.end = cursor.end
                    queue.rewind(cursor.before)
            raise
        for index in range(self.cursor_count):
            cursor = &self.cursors[index]
            if cursor.count:
                queue = <object>cursor.queue
                queue.end = cursor.end
                if held is None:
                    queue.position = cursor.position
        for index in range(self.key_count):
            self.keys[index].physical = self.sends[self.keys[index].send].physical
        return data

    def touched(self):
        """Return the queues that have become longer, with their previous ends."""
        cdef int index
        return {
            <object>self.cursors[index].queue: self.cursors[index].before
            for index in range(self.cursor_count) if self.cursors[index].count
        }

    def tally(self):
        """Count the messages and bytes of the batch in the tallies of their topics."""
        cdef int index
        for index in range(self.cursor_count):
            if self.cursors[index].count:
                tally = (<object>self.cursors[index].queue).tally
                tally.count += self.cursors[index].count
                tally.size += self.cursors[index].record_bytes

    def set_offsets(self, physical_offsets, queue_offsets):
        """Take the offsets of a batch that the Python path has appended."""
        cdef Py_ssize_t index
        for index in range(self.count):
            self.sends[index].physical = physical_offsets[index]
            self.sends[index].queue_offset = queue_offsets[index]
        for index in range(self.key_count):
            self.keys[index].physical = self.sends[self.keys[index].send].physical

    def physical_offsets(self):
        """Return where each record begins in the log."""
        cdef Py_ssize_t index
        cdef array offsets = array("q")
        resize_smart(offsets, self.count)
        for index in range(self.count):
            offsets.data.as_longlongs[index] = self.sends[index].physical
        return offsets

    def queue_offsets(self):
        """Return the queue offset of each message."""
        cdef Py_ssize_t index
        cdef array offsets = array("q")
        resize_smart(offsets, self.count)
        for index in range(self.count):
            offsets.data.as_longlongs[index] = self.sends[index].queue_offset
        return offsets

    # -- the key index -------------------------------------------------------------------------------------------------

    def put_keys(
        self, view, uint32_t slots, Py_ssize_t first, int64_t number, int64_t numbers_end, Py_ssize_t position,
        int64_t seconds,
    ):
        """Write index entries for the keys from ``first`` on, as many as fit before ``numbers_end``.

        Return how many, and how many slots were empty.
        """
        cdef Py_buffer buffer
        cdef uint8_t* start
        cdef uint8_t* slot
        cdef uint8_t* entry
        cdef Key* key
        cdef Py_ssize_t index = first, last = min(self.key_count, first + numbers_end - number)
        cdef int64_t previous
        cdef int64_t used = 0
        PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE)
        try:
            start = <uint8_t*>buffer.buf
            if position + (last - first) * UNIT_BYTES > buffer.len or INDEX_HEADER_BYTES + slots * 4 > buffer.len:
                raise IndexError("entries beyond the end of the index file")
            entry = start + position
            while index < last:
                key = &self.keys[index]
                slot = start + INDEX_HEADER_BYTES + <Py_ssize_t>(key.hash % slots) * 4
                previous = <int32_t>read32(slot)
                if not 0 < previous < number:
                    previous = 0
                    used += 1
                put32(put32(put64(put32(entry, key.hash), key.physical), <uint32_t>seconds), <uint32_t>previous)
                put32(slot, <uint32_t>number)
                entry += UNIT_BYTES
                number += 1
                index += 1
        finally:
            PyBuffer_Release(&buffer)
        return index - first, used

    def key_physical(self, Py_ssize_t index):
        """Return where the record begins that has the key of this index."""
        if not 0 <= index < self.key_count:
            raise IndexError(index)
        return self.keys[index].physical

    # -- replies -------------------------------------------------------------------------------------------------------

    def encode_answers(self, Py_ssize_t first, Py_ssize_t end, bint with_waiting, bint with_impatient):
        """Return the replies to the sends ``[first, end)`` of the two kinds, as frames, and their number."""
        cdef Py_ssize_t index, size = 0
        cdef Send* send
        cdef QueueSlot slot
        cdef bytes data
        cdef uint8_t* at
        cdef uint8_t* head
        cdef uint8_t* start
        cdef Py_ssize_t count = 0
        cdef int shift, digit
        cdef list made = None
        cdef bytes reply
        cdef Py_ssize_t next_made = 0
        if not 0 <= first <= end <= self.count:
            raise IndexError(first)
        for index in range(first, end):
            send = &self.sends[index]
            if send.is_one_way or not (with_waiting if send.is_waiting else with_impatient):
                continue
            if send.slot != NULL:
                size += (<QueueSlot>send.slot).reply_bytes + send.unique_size + REPLY_NUMBERS_BYTES
                continue
            reply = <bytes>send.template % (
                send.physical, send.queue_offset, PyBytes_FromStringAndSize(<char*>send.unique, send.unique_size),
                send.opaque,
            )
            if made is None:
                made = []
            made.append(reply)
            size += len(reply) + 8
        data = PyBytes_FromStringAndSize(NULL, size)
        start = at = <uint8_t*>PyBytes_AS_STRING(data)
        for index in range(first, end):
            send = &self.sends[index]
            if send.is_one_way or not (with_waiting if send.is_waiting else with_impatient):
                continue
            count += 1
            head = at
            at += 8
            if send.slot == NULL:
                reply = made[next_made]
                next_made += 1
                at = put_bytes(at, PyBytes_AS_STRING(reply), len(reply))
            else:
                slot = <QueueSlot>send.slot
                at = put_bytes(at, slot.segment_starts[0], slot.segment_sizes[0])
                for shift in range(60, -4, -4):
                    digit = (send.physical >> shift) & 0xF
                    at[0] = c'0' + digit if digit < 10 else c'A' - 10 + digit
                    at += 1
                at = put_bytes(at, slot.segment_starts[1], slot.segment_sizes[1])
                at = put_decimal(at, send.queue_offset)
                at = put_bytes(at, slot.segment_starts[2], slot.segment_sizes[2])
                at = put_bytes(at, send.unique, send.unique_size)
                at = put_bytes(at, slot.segment_starts[3], slot.segment_sizes[3])
                at = put_decimal(at, send.opaque)
                at = put_bytes(at, slot.segment_starts[4], slot.segment_sizes[4])
            size = at - head - 8
            put32(put32(head, 4 + size), size)
        return data[:at - start], count

    # -- the Python path -----------------------------------------------------------------------------------------------

    def to_drafts(self):
        """Return the sends as a list of drafts."""
        cdef Py_ssize_t index
        cdef Send* send
        drafts = []
        for index in range(self.count):
            send = &self.sends[index]
            if send.draft != NULL:
                drafts.append(<object>send.draft)
                continue
            text = PyBytes_FromStringAndSize(<char*>send.unique, send.unique_size).decode()
            keys = (text,)
            if send.keys_size:
                more = PyBytes_FromStringAndSize(<char*>send.keys, send.keys_size).decode()
                keys += tuple([key for key in more.split(" ") if key])
            drafts.append(self.draft_type(
                (<QueueSlot>send.slot).queue,
                PyBytes_FromStringAndSize(<char*>send.body, send.body_size),
                PyBytes_FromStringAndSize(<char*>send.properties, send.properties_size),
                <int32_t>(send.sys_flag & ~<uint32_t>STORE_HOST_V6),
                send.flag, send.born_ms, PyBytes_FromStringAndSize(<char*>send.host, send.host_size),
                0, 0, send.tags_code, 0, keys,
            ))
        return drafts

    def release_bytes(self):
        """Drop everything but the keys and their offsets: what a batch needs that waits until it is visible."""
        self.owners.clear()
        self.chunks.clear()
        self.cursor_of.clear()
        self.free_start = self.free_end = NULL
        self.count = self.cursor_count = 0
        PyMem_Free(self.sends)
        PyMem_Free(self.cursors)
        self.sends, self.cursors = NULL, NULL
        self.capacity = self.cursor_capacity = 0


cdef int load_place(Cursor* cursor, queue) except -1:
    """Read where the next unit of ``queue`` goes."""
    cdef Py_buffer buffer
    view = queue.view
    cursor.position, cursor.limit = queue.position, queue.limit
    PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE)
    cursor.view = <uint8_t*>buffer.buf
    if cursor.limit > buffer.len or cursor.limit - cursor.position < 0 or (cursor.limit - cursor.position) % UNIT_BYTES:
        PyBuffer_Release(&buffer)
        raise AssertionError("a queue's cursor is outside of its file")
    PyBuffer_Release(&buffer)
    return 0
