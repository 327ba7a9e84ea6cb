# One send: its queue, its record, its signature and its reply.

cdef enum:
    SEAL_BYTES = 20
    PREPARED = 0x4
    ROLLED_BACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    CLEARED_FLAGS = 0xFC     # as in `gantry_wire.message`
    REPLY = 1                # flags of a request
    ONE_WAY = 2
    PROPERTIES_MAX = 32747   # longer properties have no room for a seal
    NUMBERS_BYTES = 64       # the numbers in a reply, and the head of its frame
    MADE_ID_BYTES = 128      # a unique id that the broker makes, as a pair

cdef class QueueSlot:
    """A queue of a topic, with the template of the reply to a send into it."""

    cdef readonly object queue
    cdef readonly bytes reply_template
    cdef list segments           # the reply before, between and after its four values
    cdef Text texts[5]           # the same
    cdef Py_ssize_t reply_bytes  # of all segments
    cdef uint32_t key_seed
    cdef uint64_t batch_number   # the batch in which it has a cursor
    cdef Py_ssize_t cursor

    def __init__(self, queue, bytes reply_template):
        """``reply_template`` is filled by (physical offset, queue offset, unique id, opaque)."""
        cdef int number
        cdef bytes segment, rest = reply_template
        self.queue, self.reply_template, self.segments = queue, reply_template, []
        for mark in (b"%016X", b"%d", b"%b", b"%d"):
            segment, _, rest = rest.partition(mark)
            self.segments.append(segment)
        self.segments.append(rest)
        for number in range(5):
            segment = self.segments[number]
            if b"%" in segment:
                raise ValueError("a reply template has four values")
            self.texts[number] = text_of(segment)
            self.reply_bytes += len(segment)
        self.key_seed = queue.key_seed


cdef struct Send:
    PyObject* slot               # a QueueSlot; NULL for a send with a draft
    PyObject* draft              # from the Python path; NULL otherwise
    PyObject* template           # of the reply to a draft's send
    Text body
    Text properties              # as stored, without seal
    Text unique                  # as in the reply
    Text keys                    # the value of KEYS
    Text host
    Py_ssize_t seal_bytes, cursor
    bint is_one_way, is_waiting
    uint32_t flag, reconsumed, sys_flag, size
    int64_t opaque, born_ms, prepared, tags_code, delay_ms, physical, queue_offset


cdef inline Text text_of(bytes data):
    cdef Text text
    text.start, text.size = <Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
    return text

cdef inline bytes bytes_of(Text text):
    return PyBytes_FromStringAndSize(<char*>text.start, text.size)


cdef bytes signed_content(Header* header, Text body):
    """Return what a sender has signed: the values in the order of their names, and the body."""
    cdef int* order = SHORT_ORDER if header.is_short else LONG_ORDER
    cdef int number, count = LETTERS if header.is_short else LETTERS - 1
    cdef Py_ssize_t size = header.access_key.size + header.token.size + body.size
    cdef bytes content
    cdef uint8_t* at
    for number in range(count):
        size += header.values[order[number]].size
    content = PyBytes_FromStringAndSize(NULL, size)
    at = put_bytes(<uint8_t*>PyBytes_AS_STRING(content), header.access_key.start, header.access_key.size)
    at = put_bytes(at, header.token.start, header.token.size)
    for number in range(count):
        at = put_bytes(at, header.values[order[number]].start, header.values[order[number]].size)
    put_bytes(at, body.start, body.size)
    return content


cdef void put_record(uint8_t* at, Send* send, Cursor* cursor, int64_t now_ms, Text store_host) noexcept nogil:
    """Write the record of a send: see ``gantry_wire.message`` for its layout."""
    cdef uint8_t* start = at
    cdef Py_ssize_t properties_bytes = send.properties.size + send.seal_bytes
    at = put32(put32(at, send.size), cursor.magic)
    at = put32(at, gantry_crc32(0, send.body.start, send.body.size) & INT32_MAX)
    at = put32(put32(at, cursor.queue_id), send.flag)
    at = put64(put64(at, send.queue_offset), send.physical)
    at = put64(put32(at, send.sys_flag), send.born_ms)
    at = put_bytes(at, send.host.start, send.host.size)
    at = put_bytes(put64(at, now_ms), store_host.start, store_host.size)
    at = put64(put32(at, send.reconsumed), send.prepared)
    at = put_bytes(put32(at, <uint32_t>send.body.size), send.body.start, send.body.size)
    at = put_bytes(at, cursor.topic, cursor.topic_size)
    at[0], at[1] = (properties_bytes >> 8) & 0xFF, properties_bytes & 0xFF
    at = put_bytes(at + 2, send.properties.start, send.properties.size)
    if send.seal_bytes:
        put_seal(at, gantry_crc32(0, start, at - start))

cdef int add_sum(Cursor* cursor, int64_t queue_offset, Bytes record, Py_ssize_t size) except -1:
    """Continue the chain of sums of a queue (see ``store.queue_sums``) by one record."""
    cdef array values = <array>cursor.values
    cdef Py_ssize_t count = len(values)
    if cursor.sums_start + count != queue_offset + 1 or count >= cursor.sums_limit:
        sums = <object>cursor.sums
        sums.prepare_next(queue_offset)
        cursor.sums_start, cursor.sums_limit = sums.start, sums.limit
        count = len(values)
    if count < cursor.sums_limit:
        resize_smart(values, count + 1)
        values.data.as_uints[count] = gantry_crc32(values.data.as_uints[count - 1], record, size)
    return 0

cdef uint8_t* put_reply(uint8_t* at, Send* send, Text* texts) noexcept nogil:
    """Write the header of the reply to a send, from the segments of its template."""
    cdef int shift, digit
    at = put_bytes(at, texts[0].start, texts[0].size)
    for shift in range(60, -4, -4):
        digit = (send.physical >> shift) & 0xF
        at[0] = c'0' + digit if digit < 10 else c'A' - 10 + digit
        at += 1
    at = put_decimal(put_bytes(at, texts[1].start, texts[1].size), send.queue_offset)
    at = put_bytes(at, texts[2].start, texts[2].size)
    at = put_bytes(at, send.unique.start, send.unique.size)
    at = put_decimal(put_bytes(at, texts[3].start, texts[3].size), send.opaque)
    return put_bytes(at, texts[4].start, texts[4].size)
