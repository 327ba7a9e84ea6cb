# Records that are in the log: checked and dispatched in runs, and copied for pulls.

cdef enum:
    MAGIC_V1 = 0xDAA320A7
    RECORD_BYTES_MIN = 91
    BODY_START = 88
    NOT_PLAIN = 0xB4             # a batch in one record, a host of IPv6, or a prepared or rolled back message
    KNOWN_QUEUES = 64            # a power of 2

cdef struct Record:
    uint32_t size, queue_id
    int64_t queue_offset, physical, timestamp_ms
    Text topic, properties

cdef bint read_plain(Bytes at, Bytes end, int64_t physical, bint is_sealed, bint verify_crc, Record* record) noexcept nogil:
    """Read a plain record, with the checks of ``gantry_wire.plain_records``. False for any other."""
    cdef Bytes body_end, stop
    cdef int64_t body_bytes
    cdef uint8_t seal[SEAL_BYTES]
    if end - at < RECORD_BYTES_MIN:
        return False
    record.size = read32(at)
    record.physical = <int64_t>read64(at + 28)
    if (
        read32(at + 4) != <uint32_t>MAGIC_V1 or at[39] & NOT_PLAIN or record.physical != physical
        or record.size < RECORD_BYTES_MIN or <int64_t>record.size > end - at
    ):
        return False
    stop = at + record.size
    body_bytes = <int32_t>read32(at + 84)
    if body_bytes < 0 or body_bytes > stop - at - BODY_START - 3:
        return False
    body_end = at + BODY_START + body_bytes
    record.topic.start, record.topic.size = body_end + 1, body_end[0]
    if record.topic.size > stop - body_end - 3:
        return False
    body_end += 1 + record.topic.size
    record.properties.start, record.properties.size = body_end + 2, stop - body_end - 2
    if record.properties.size > 0x7FFF or ((<Py_ssize_t>body_end[0] << 8) | body_end[1]) != record.properties.size:
        return False
    if verify_crc and is_sealed:
        if not SEAL_BYTES <= record.properties.size <= PROPERTIES_MAX:
            return False
        put_seal(seal, gantry_crc32(0, at, record.size - SEAL_BYTES))
        if memcmp(stop - SEAL_BYTES, seal, SEAL_BYTES) != 0:
            return False
    elif verify_crc and gantry_crc32(0, at + BODY_START, body_bytes) & INT32_MAX != read32(at + 8):
        return False
    record.queue_id, record.queue_offset = read32(at + 12), <int64_t>read64(at + 20)
    record.timestamp_ms = <int64_t>read64(at + 56)
    return True


cdef struct KnownQueue:
    Text topic                   # in bytes that the scan keeps
    uint32_t queue_id
    Py_ssize_t cursor


cdef class LogScan:
    """Dispatches runs of plain records: a unit in the queue of each, and its keys. One object for each run."""

    cdef readonly Keys keys
    cdef Cursors cursors
    cdef KnownQueue known[KNOWN_QUEUES]
    cdef list owners
    cdef object queue_of
    cdef readonly int64_t count, last_physical, newest_ms   # of the records of all runs; -1 without any

    def __cinit__(self, queue_of):
        """``queue_of`` returns the queue of (topic as bytes, queue id), or None if the Python path must dispatch."""
        self.keys, self.cursors, self.owners, self.queue_of = Keys(), Cursors(), [], queue_of
        self.last_physical = self.newest_ms = -1

    def check(self, view, Py_ssize_t position, Py_ssize_t stop, int64_t base, bint is_sealed, bint verify_crc):
        """Check plain records from ``position`` on that begin before ``stop``; return where the run ends."""
        return self.run(view, position, stop, base, is_sealed, verify_crc, False, 0)

    def dispatch(
        self, view, Py_ssize_t position, Py_ssize_t stop, int64_t base, bint is_sealed, bint verify_crc,
        int64_t index_from,
    ):
        """Check and dispatch plain records; return where the run ends. Raises ``StoreFull``: the run is undone.

        Keys are kept of messages from offset ``index_from`` on; a negative one keeps none.
        """
        try:
            position = self.run(view, position, stop, base, is_sealed, verify_crc, True, index_from)
        except BaseException:
            self.cursors.undo()
            raise
        self.cursors.finish(True)
        for queue in self.cursors.touched():
            queue.readable_end = queue.end
        return position

    cdef Py_ssize_t run(
        self, view, Py_ssize_t position, Py_ssize_t stop, int64_t base, bint is_sealed, bint verify_crc,
        bint is_dispatched, int64_t index_from,
    ) except -1:
        cdef Py_buffer buffer
        cdef Bytes start, end
        cdef Record record
        cdef Properties found
        cdef Cursor* cursor
        cdef Py_ssize_t number
        PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
        try:
            start, end = <Bytes>buffer.buf, <Bytes>buffer.buf + buffer.len
            if position < 0:
                raise IndexError(position)
            while position < stop and position < buffer.len:
                if not read_plain(start + position, end, base + position, is_sealed, verify_crc, &record):
                    break
                if is_dispatched:
                    if not parse_properties(record.properties.start, record.properties.size, &found):
                        break
                    if not (is_text(found.tags) and is_text(found.keys) and is_text(found.unique)):
                        break
                    number = self.find(&record)
                    if number < 0:
                        break
                    cursor = &self.cursors.items[number]
                    if record.queue_offset != cursor.end:
                        break
                    self.cursors.put_unit(
                        cursor, record.physical, record.size, <int32_t>java_hash(0, found.tags.start, found.tags.size)
                    )
                    cursor.end += 1
                    if 0 <= index_from <= record.physical:
                        if found.unique.size:
                            self.keys.add(cursor.key_seed, found.unique, record.physical, record.timestamp_ms)
                        self.keys.add_all(cursor.key_seed, found.keys, record.physical, record.timestamp_ms)
                self.count += 1
                self.last_physical = record.physical
                self.newest_ms = max(self.newest_ms, record.timestamp_ms)
                position += record.size
        finally:
            PyBuffer_Release(&buffer)
        return position

    cdef Py_ssize_t find(self, Record* record) except -2:
        """Return the number of the cursor of a record's queue; -1 if the Python path must dispatch the record."""
        cdef uint32_t place = (gantry_crc32(record.queue_id, record.topic.start, record.topic.size)) % KNOWN_QUEUES
        cdef KnownQueue* known = &self.known[place]
        cdef bytes topic
        if known.queue_id != record.queue_id or known.topic.start == NULL or not is_same(known.topic, record.topic):
            topic = bytes_of(record.topic)
            queue = self.queue_of(topic, <int32_t>record.queue_id)
            if queue is None or queue.readable_end != queue.end and queue not in self.cursors.by_queue:
                return -1
            self.owners.append(topic)
            known.cursor = self.cursors.find(queue)
            known.topic, known.queue_id = text_of(topic), record.queue_id
        return known.cursor

    def touched(self):
        """Return the queues that have become longer, with their previous ends."""
        return self.cursors.touched()


cdef inline bint is_text(Text text) noexcept nogil:
    return text.size == 0 or is_utf8(text.start, text.size)


def copy_records(
    bytes units, view, int64_t base, uint32_t queue_id, int64_t offset, Py_ssize_t count_max, Py_ssize_t bytes_max,
):
    """Return the records of the leading ``units``, their number, and the size of the last record.

    The first unit has the queue offset ``offset``, and ``view`` lies at offset ``base`` of the log. It stops before a
    unit that does not point to its record, and at the limits; only the first record may exceed ``bytes_max``.
    """
    cdef Py_buffer buffer
    cdef Bytes start, unit, record
    cdef Bytes first_unit = <Bytes>PyBytes_AS_STRING(units)
    cdef Py_ssize_t limit = min(PyBytes_GET_SIZE(units) // UNIT_BYTES, count_max), index, count = 0, total = 0
    cdef int64_t physical
    cdef Py_ssize_t size = 0
    cdef bytes body
    cdef uint8_t* at
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        start = <Bytes>buffer.buf
        for index in range(limit):
            unit = first_unit + index * UNIT_BYTES
            physical, size = <int64_t>read64(unit), <int32_t>read32(unit + 8)
            if (
                physical < base or size < RECORD_BYTES_MIN or physical - base > buffer.len - size
                or (count and total + size > bytes_max)
            ):
                break
            record = start + (physical - base)
            if (
                <int64_t>read32(record) != size or read32(record + 12) != queue_id
                or <int64_t>read64(record + 20) != offset + index or <int64_t>read64(record + 28) != physical
            ):
                break
            total += size
            count += 1
        body = PyBytes_FromStringAndSize(NULL, total)
        at = <uint8_t*>PyBytes_AS_STRING(body)
        for index in range(count):
            unit = first_unit + index * UNIT_BYTES
            size = <int32_t>read32(unit + 8)
            at = put_bytes(at, start + (<int64_t>read64(unit) - base), size)
        return body, count, size if count else 0
    finally:
        PyBuffer_Release(&buffer)
