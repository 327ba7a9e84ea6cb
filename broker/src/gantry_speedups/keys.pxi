# The keys of messages, and their entries in the key index.

cdef enum:
    ENTRY_BYTES = 20
    INDEX_HEADER_BYTES = 40
    UNIT_BYTES = 20         # of a queue
    AHEAD = 8               # slots are fetched into the processor's cache this many keys before they are needed

cdef struct Key:
    uint32_t hash
    int64_t physical        # of its record; until a send is packed, the number of the send
    int64_t timestamp_ms


cdef class Keys:
    """Hashes of keys with the offsets and store times of their messages, in the order of the log."""

    cdef Key* items
    cdef Py_ssize_t count, capacity

    def __dealloc__(self):
        PyMem_Free(self.items)

    def __len__(self):
        return self.count

    def __repr__(self):
        return f"<Keys count={self.count}>"

    cdef int add(self, uint32_t seed, Text key, int64_t physical, int64_t timestamp_ms) except -1:
        """Add ``key``, which is valid UTF-8; ``seed`` is the hash of ``topic#``."""
        cdef uint32_t value = java_hash(seed, key.start, key.size)
        if self.count == self.capacity:
            self.items = <Key*>grown(self.items, &self.capacity, sizeof(Key))
        if value > <uint32_t>INT32_MAX:     # Java's abs, and 0 where that stays negative
            value = (0 - value) & INT32_MAX
        self.items[self.count] = Key(value, physical, timestamp_ms)
        self.count += 1
        return 0

    cdef int add_all(self, uint32_t seed, Text keys, int64_t physical, int64_t timestamp_ms) except -1:
        """Add the keys in a text that separates them by spaces."""
        cdef Py_ssize_t position = 0, stop
        for stop in range(keys.size + 1):
            if stop == keys.size or keys.start[stop] == c' ':
                if stop > position:
                    self.add(seed, Text(keys.start + position, stop - position), physical, timestamp_ms)
                position = stop + 1
        return 0

    def drop_first(self, Py_ssize_t count):
        """Remove the first ``count`` keys, or all of them if there are fewer."""
        cdef Py_ssize_t dropped = min(max(count, 0), self.count)
        self.count -= dropped
        if self.count:
            memmove(self.items, self.items + dropped, self.count * sizeof(Key))

    def place(self, Py_ssize_t index):
        """Return where the message of a key begins, and its store time."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.items[index].physical, self.items[index].timestamp_ms

    def put(
        self, view, uint32_t slots, Py_ssize_t first, int64_t number, int64_t numbers_end, Py_ssize_t position,
        int64_t begin_ms,
    ):
        """Write entries into an index file for the keys from ``first`` on, as many as fit before ``numbers_end``.

        Return how many there are, and how many slots were empty.
        """
        cdef Py_buffer buffer
        cdef uint8_t* start
        cdef uint8_t* slot
        cdef uint8_t* entry
        cdef Key* key
        cdef Py_ssize_t index, last = min(self.count, first + numbers_end - number)
        cdef int64_t previous, seconds, used = 0
        PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE)
        try:
            if (
                not 0 <= first <= last or position < 0 or position + (last - first) * ENTRY_BYTES > buffer.len
                or slots == 0 or INDEX_HEADER_BYTES + <Py_ssize_t>slots * 4 > buffer.len
            ):
                raise IndexError("entries outside of the index file")
            start = <uint8_t*>buffer.buf
            entry = start + position
            for index in range(first, last):
                if index + AHEAD < last:
                    gantry_prefetch(start + INDEX_HEADER_BYTES + <Py_ssize_t>(self.items[index + AHEAD].hash % slots) * 4)
                key = &self.items[index]
                slot = start + INDEX_HEADER_BYTES + <Py_ssize_t>(key.hash % slots) * 4
                previous = <int32_t>read32(slot)
                if not 0 < previous < number:
                    previous = 0
                    used += 1
                seconds = min(max((key.timestamp_ms - begin_ms) // 1000, 0), <int64_t>INT32_MAX)
                entry = put32(put64(put32(entry, key.hash), key.physical), <uint32_t>seconds)
                entry = put32(entry, <uint32_t>previous)
                put32(slot, <uint32_t>number)
                number += 1
        finally:
            PyBuffer_Release(&buffer)
        return last - first, used


cdef void* grown(void* items, Py_ssize_t* capacity, Py_ssize_t item_bytes) except NULL:
    """Return a larger array with the same items, and set its capacity."""
    cdef Py_ssize_t more = capacity[0] * 2 or 64
    cdef void* moved = PyMem_Realloc(items, more * item_bytes)
    if moved == NULL:
        raise MemoryError
    capacity[0] = more
    return moved


# -- queues ------------------------------------------------------------------------------------------------------------

cdef struct Cursor:
    PyObject* queue
    PyObject* sums
    PyObject* values         # an array: the chain of sums
    Py_buffer place          # the queue's map, which stays mapped as long as the cursor exists
    bint has_place
    uint8_t* view
    Bytes topic
    Py_ssize_t position, limit, topic_size, overhead
    int64_t before, end, sums_start, sums_limit, record_bytes
    uint32_t magic, queue_id, key_seed


cdef class Cursors:
    """Where the next units of queues go. The queues themselves are changed by ``finish``, or stay as they were.

    With ``is_held`` the next unit is that of the first message that is not readable, and ``finish`` makes units readable.
    """

    cdef Cursor* items
    cdef Py_ssize_t count, capacity
    cdef bint is_held
    cdef dict by_queue

    def __cinit__(self, bint is_held=False):
        self.by_queue, self.is_held = {}, is_held

    def __dealloc__(self):
        cdef Py_ssize_t index
        for index in range(self.count):
            release_place(&self.items[index])
        PyMem_Free(self.items)

    cdef Py_ssize_t find(self, queue) except -1:
        """Return the number of the cursor of ``queue``, which is created if there is none."""
        cdef Cursor* cursor
        cdef bytes topic
        known = self.by_queue.get(queue)
        if known is not None:
            return known
        if self.count == self.capacity:
            self.items = <Cursor*>grown(self.items, &self.capacity, sizeof(Cursor))
        cursor = &self.items[self.count]
        topic, sums = queue.topic_field, queue.sums
        cursor.queue, cursor.sums, cursor.values = <PyObject*>queue, <PyObject*>sums, <PyObject*>sums.values
        cursor.topic, cursor.topic_size = <Bytes>PyBytes_AS_STRING(topic), len(topic)
        cursor.overhead, cursor.key_seed = queue.record_overhead, queue.key_seed
        cursor.magic, cursor.queue_id = <uint32_t>(<int64_t>queue.magic), queue.queue_id
        cursor.before = cursor.end = queue.readable_end if self.is_held else queue.end
        cursor.record_bytes, cursor.has_place = 0, False
        cursor.sums_start, cursor.sums_limit = sums.start, sums.limit
        load_place(cursor)
        self.by_queue[queue] = self.count
        self.count += 1
        return self.count - 1

    cdef int put_unit(self, Cursor* cursor, int64_t physical, uint32_t size, int64_t tags_code) except -1:
        """Write the next unit. Raises ``StoreFull``."""
        if cursor.position == cursor.limit:
            (<object>cursor.queue).extend(cursor.end)
            load_place(cursor)
            if cursor.position == cursor.limit:
                raise AssertionError("a queue has no room although it was extended")
        put64(put32(put64(cursor.view + cursor.position, physical), size), tags_code)
        cursor.position += UNIT_BYTES
        return 0

    cdef int finish(self, bint is_written) except -1:
        """Move the ends of the queues, and with ``is_written`` their places for units."""
        cdef Py_ssize_t index
        for index in range(self.count):
            if self.items[index].end != self.items[index].before:
                queue = <object>self.items[index].queue
                if self.is_held:
                    queue.readable_end = self.items[index].end
                    queue.end = max(queue.end, queue.readable_end)
                else:
                    queue.end = self.items[index].end
                if is_written:
                    queue.position = self.items[index].position
        return 0

    cdef int undo(self) except -1:
        """Remove the units that were written."""
        cdef Py_ssize_t index
        for index in range(self.count):
            if self.items[index].end != self.items[index].before:
                queue = <object>self.items[index].queue
                queue.end = self.items[index].end
                queue.rewind(self.items[index].before)
        return 0

    cdef dict touched(self):
        """Return the queues that have become longer, with their previous ends."""
        cdef Py_ssize_t index
        cdef dict queues = {}
        for index in range(self.count):
            if self.items[index].end != self.items[index].before:
                queues[<object>self.items[index].queue] = self.items[index].before
        return queues


def release_units(units, int64_t confirmed):
    """Write the leading units of the deque ``units`` whose records end at or before ``confirmed``, and remove them.

    A unit is (queue, queue offset, physical offset, size, tags code). Return the queues that have got units, each with
    the queue offset of its first, and the error that stopped it (``StoreFull``), or None.
    """
    cdef Cursors cursors = Cursors(True)
    cdef Cursor* cursor
    cdef dict touched = {}
    cdef int64_t offset, physical, tags_code
    cdef uint32_t size
    error = None
    try:
        while units:
            queue, offset, physical, size, tags_code = units[0]
            if physical + size > confirmed:
                break
            cursor = &cursors.items[cursors.find(queue)]
            if cursor.end == offset:
                cursors.put_unit(cursor, physical, size, tags_code)
                cursor.end += 1
            else:
                cursors.finish(True)
                cursors = Cursors(True)
                queue.put(offset, physical, size, tags_code)
            units.popleft()
            touched.setdefault(queue, offset)
    except Exception as caught:
        error = caught
    cursors.finish(True)
    return touched, error


cdef int load_place(Cursor* cursor) except -1:
    """Read where the next unit of the queue goes."""
    queue = <object>cursor.queue
    view = queue.view
    release_place(cursor)
    cursor.position, cursor.limit = queue.position, queue.limit
    PyObject_GetBuffer(view, &cursor.place, PyBUF_WRITABLE)
    cursor.has_place, cursor.view = True, <uint8_t*>cursor.place.buf
    if not 0 <= cursor.position <= cursor.limit <= cursor.place.len or (cursor.limit - cursor.position) % UNIT_BYTES:
        release_place(cursor)
        raise AssertionError("a queue's place for units is outside of its file")
    return 0


cdef void release_place(Cursor* cursor) noexcept:
    """Let the queue's map be unmapped when its file is closed."""
    if cursor.has_place:
        cursor.has_place = False
        PyBuffer_Release(&cursor.place)
