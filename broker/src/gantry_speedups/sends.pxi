# Sends: from the bytes of a read to records, and to replies.

cdef enum:
    CHUNK_BYTES = 65536
    ENTRY_BYTES_MIN = 22     # a message of a batch: see ``gantry_wire.batch``

cdef uint64_t _batches = 0


cdef class SendBatch:
    """The sends of one turn of the event loop, in their order."""

    cdef Send* sends
    cdef Py_ssize_t count, capacity
    cdef readonly Keys keys
    cdef Cursors cursors
    cdef list owners, chunks
    cdef uint8_t* free_start
    cdef uint8_t* free_end
    cdef uint64_t number
    cdef object draft_type, sealable, placed
    cdef bint is_packed
    cdef readonly bint has_impatient   # whether a sender does not wait until its message is durable

    def __cinit__(self, draft_type, sealable):
        """``sealable`` returns properties as they must be before a seal, and the size of that."""
        global _batches
        _batches += 1
        self.number = _batches
        self.owners, self.chunks, self.keys, self.cursors = [], [], Keys(), Cursors()
        self.draft_type, self.sealable = draft_type, sealable

    def __dealloc__(self):
        PyMem_Free(self.sends)

    def __len__(self):
        return self.count

    def __repr__(self):
        return f"<SendBatch sends={self.count} keys={len(self.keys)}>"

    cdef Send* new_send(self) except NULL:
        """Return the place of the next send; it counts when it is complete."""
        if self.count == self.capacity:
            self.sends = <Send*>grown(self.sends, &self.capacity, sizeof(Send))
        memset(&self.sends[self.count], 0, sizeof(Send))
        return &self.sends[self.count]

    cdef uint8_t* reserve(self, Py_ssize_t size) except NULL:
        """Return ``free_start``, from which on ``size`` bytes are free."""
        cdef bytes chunk
        if self.free_end - self.free_start < size:
            chunk = PyBytes_FromStringAndSize(NULL, max(size, CHUNK_BYTES))
            self.chunks.append(chunk)
            self.free_start = <uint8_t*>PyBytes_AS_STRING(chunk)
            self.free_end = self.free_start + PyBytes_GET_SIZE(chunk)
        return self.free_start

    # -- sends from the bytes of a read --------------------------------------------------------------------------------

    def take(
        self, bytes data, Py_ssize_t position, bytes host, uint32_t host_flag, routes, uint32_t frame_max,
        Py_ssize_t body_max, permit,
    ):
        """Take the plain sends at the start of ``data[position:]``; return the position of the first other frame.

        ``frame_max`` limits the length in a frame's head, ``body_max`` a body. ``routes`` has the routes by topic, the
        properties that are added, and makes slots and unique ids. With ``permit`` it takes only sends that are signed
        and permitted: that is called with access key and topic, and returns what signs contents, or None.
        """
        cdef Bytes start = <Bytes>PyBytes_AS_STRING(data)
        cdef Bytes at = start + position
        cdef Bytes end = start + PyBytes_GET_SIZE(data)
        cdef Bytes header_start, header_end
        cdef Py_ssize_t total, header_size
        cdef uint32_t kind
        cdef Header header
        cdef dict by_topic = routes.by_topic
        cdef list slots = None
        cdef bytes added = routes.broker_tail
        cdef Text topic, access_key, body, tail = text_of(added)
        cdef QueueSlot slot
        sign, topic, access_key = None, Text(NULL, 0), Text(NULL, 0)
        if not 0 <= position <= end - start:
            raise IndexError(position)
        self.owners += (data, host)
        while end - at >= 8:
            total, kind, header_size = read32(at), at[4], read32(at + 4) & 0xFFFFFF
            if total > frame_max or header_size + 4 > total or header_size > HEADER_BYTES_MAX or total > end - at - 4:
                break
            header_start, header_end = at + 8, at + 8 + header_size
            body.start, body.size = header_end, at + 4 + total - header_end
            memset(&header, 0, sizeof(Header))
            if kind == 1:
                if not take_binary(header_start, header_end, &header):
                    break
            else:
                header.is_short = header_size > 12 and memcmp(header_start, b'{"code":310,', 12) == 0
                if (
                    kind != 0 or header_size <= 11
                    or not (header.is_short or memcmp(header_start, b'{"code":10,', 11) == 0)
                    or take_json(header_start + 11 + header.is_short, header_end, &header, False) != header_end
                ):
                    break
            if (
                header.seen & REQUIRED != REQUIRED or header.flags & REPLY or header.numbers[J_RECONSUMED] != 0
                or not 0 < body.size <= body_max
                or (permit is not None and (header.has_others or header.signature.start == NULL))
            ):
                break
            if slots is None or not is_same(header.values[B_TOPIC], topic):
                topic, sign = header.values[B_TOPIC], None
                name = (<const char*>topic.start)[:topic.size].decode()
                route = by_topic.get(name)
                if route is None:
                    break
                slots = route.slots
            if permit is not None and (sign is None or not is_same(header.access_key, access_key)):
                sign, access_key = permit(bytes_of(header.access_key).decode(), name), header.access_key
                if sign is None:
                    break
            if not 0 <= header.numbers[E_QUEUE] < len(slots):
                break
            item = slots[header.numbers[E_QUEUE]]
            if item is None:
                item = routes.create_slot(route, header.numbers[E_QUEUE])
            slot = <QueueSlot?>item
            if not self.take_send(&header, slot, body, host, host_flag, tail, routes, sign):
                break
            at = body.start + body.size
        return at - start

    cdef bint take_send(
        self, Header* header, QueueSlot slot, Text body, bytes host, uint32_t host_flag, Text tail, routes, sign
    ) except -1:
        """Add one send with a header in the usual form. False if only the Python path can handle its properties."""
        cdef Send* send = self.new_send()
        cdef Py_ssize_t number, size = header.properties.size
        cdef uint8_t* text = self.reserve(size + tail.size + MADE_ID_BYTES)
        cdef uint8_t* stop
        cdef Properties found
        cdef bytes made
        if header.is_escaped:
            size = unescape(header.properties.start, size, text)
        else:
            put_bytes(text, header.properties.start, size)
        if size < 0 or (header.is_wide and not is_utf8(text, size)) or not parse_properties(text, size, &found):
            return False
        if found.is_special or (found.unique.start != NULL and found.unique.size == 0):
            return False
        for number in range(found.unique.size):
            if KINDS[found.unique.start[number]] != PLAIN or found.unique.start[number] == 0x7F:
                return False
        header.values[I_PROPERTIES].start, header.values[I_PROPERTIES].size = text, size
        if sign is not None and not compare_digest(sign(signed_content(header, body)), bytes_of(header.signature)):
            return False
        stop = text + size
        if size and text[size - 1] != 2:
            stop = put_bytes(stop, b"\x02", 1)
        if found.unique.start == NULL:
            made = routes.next_unique_id().encode()
            if len(made) > MADE_ID_BYTES - 16:
                raise AssertionError("a unique id that is too long")
            stop = put_bytes(stop, b"UNIQ_KEY\x01", 9)
            found.unique.start, found.unique.size = stop, len(made)
            stop = put_bytes(stop, PyBytes_AS_STRING(made), len(made))
            stop = put_bytes(stop, b"\x02", 1)
        stop = put_bytes(stop, tail.start, tail.size)
        if stop - text > PROPERTIES_MAX:
            return False
        self.keys.add(slot.key_seed, found.unique, self.count, 0)
        self.keys.add_all(slot.key_seed, found.keys, self.count, 0)
        if slot.batch_number != self.number:
            self.owners.append(slot)
            slot.batch_number, slot.cursor = self.number, -1
        send.slot, send.body = <PyObject*>slot, body
        send.properties.start, send.properties.size = text, stop - text
        send.seal_bytes = SEAL_BYTES
        send.unique, send.keys, send.host = found.unique, found.keys, text_of(host)
        send.is_one_way, send.is_waiting = header.flags & ONE_WAY != 0, found.is_waiting
        send.flag = <uint32_t>header.numbers[H_FLAG]
        send.sys_flag = (<uint32_t>header.numbers[F_SYS_FLAG] & ~<uint32_t>CLEARED_FLAGS) | host_flag
        send.opaque, send.born_ms = header.opaque, header.numbers[G_BORN]
        send.tags_code = <int32_t>java_hash(0, found.tags.start, found.tags.size)
        self.has_impatient |= not send.is_waiting
        self.free_start = stop
        self.count += 1
        return True

    def take_entries(
        self, bytes data, send, QueueSlot slot not None, bytes host, uint32_t host_flag, list marks, routes,
        Py_ssize_t count_max,
    ):
        """Take the messages of ``data``, the body of a batch. False if only the slow path can handle one of them."""
        cdef Bytes at = <Bytes>PyBytes_AS_STRING(data)
        cdef Bytes end = at + PyBytes_GET_SIZE(data)
        cdef Bytes stop
        cdef Header header
        cdef bytes mark, added = routes.broker_tail
        cdef Text body
        cdef int64_t total
        memset(&header, 0, sizeof(Header))
        header.is_wide, header.flags = True, ONE_WAY        # the messages have one answer together
        header.numbers[F_SYS_FLAG], header.numbers[G_BORN] = send.sys_flag, send.born_timestamp
        self.owners += (data, host, added)
        while at < end:
            if self.count >= count_max or end - at < ENTRY_BYTES_MIN:
                return False
            total, body.start, body.size = <int32_t>read32(at), at + 20, <int32_t>read32(at + 16)
            if not ENTRY_BYTES_MIN <= total <= end - at or not 0 < body.size <= total - ENTRY_BYTES_MIN:
                return False
            stop = body.start + body.size
            header.properties.start, header.properties.size = stop + 2, at + total - stop - 2
            if ((<Py_ssize_t>stop[0] << 8) | stop[1]) != header.properties.size or header.properties.size > PROPERTIES_MAX:
                return False
            for mark in marks:
                if not has_name(header.properties, text_of(mark)):
                    return False
            header.numbers[H_FLAG] = <int32_t>read32(at + 12)
            if not self.take_send(&header, slot, body, host, host_flag, text_of(added), routes, None):
                return False
            at += total
        return self.count > 0

    # -- sends from the Python path ------------------------------------------------------------------------------------

    def add(self, draft, answer, bint is_waiting=True):
        """Add a draft, with (template of the reply, empty for a one-way send; unique id; opaque)."""
        cdef Send* send = self.new_send()
        cdef bytes body, properties, host, template, unique, encoded
        template, unique, opaque = answer
        queue, given, properties, sys_flag, flag, born_ms, host, reconsumed, prepared, tags_code, delay_ms, keys = draft
        body = given if isinstance(given, bytes) else bytes(given)
        properties, seal_bytes = self.sealable(properties)
        self.owners += (draft, body, properties, template, unique)
        send.draft, send.template = <PyObject*>draft, <PyObject*>template
        send.body, send.properties, send.seal_bytes = text_of(body), text_of(properties), seal_bytes
        send.unique, send.host = text_of(unique), text_of(host)
        send.is_one_way, send.is_waiting = not template, is_waiting
        send.flag, send.reconsumed = <uint32_t>(<int64_t>flag), <uint32_t>(<int64_t>reconsumed)
        send.sys_flag = <uint32_t>(<int64_t>sys_flag)
        send.opaque, send.born_ms, send.prepared = opaque, born_ms, prepared
        send.tags_code, send.delay_ms = tags_code, delay_ms
        for key in keys if send.sys_flag & ROLLED_BACK != ROLLED_BACK else ():
            encoded = key.encode("utf-8", "surrogatepass")
            self.keys.add(queue.key_seed, text_of(encoded), self.count, 0)
        self.has_impatient |= not is_waiting
        self.count += 1

    # -- records and queue units ---------------------------------------------------------------------------------------

    def pack(self, int64_t base, Py_ssize_t start, Py_ssize_t file_end, bytes store_host, int64_t now_ms, list held):
        """Return the records for position ``start`` of the file that begins at offset ``base``, and write their units.

        With ``held`` the units are appended to it instead. None if the records do not fit before ``file_end``: then
        nothing has changed. The queues are moved to their new ends; after an error they are where they were.
        """
        global _batches
        cdef Py_ssize_t index, total = 0
        cdef Send* send
        cdef QueueSlot slot
        cdef Cursor* cursor
        cdef Text host = text_of(store_host)
        cdef bytes data
        cdef uint8_t* at
        cdef int64_t physical = base + start, tags_code
        if self.is_packed:
            raise AssertionError("a batch is packed once")
        _batches += 1
        self.number = _batches  # slots that have a cursor of an earlier attempt look for a new one
        self.cursors = Cursors()
        for index in range(self.count):
            send = &self.sends[index]
            if send.slot != NULL:
                slot = <QueueSlot>send.slot
                if slot.batch_number != self.number:
                    slot.batch_number, slot.cursor = self.number, self.cursors.find(slot.queue)
                send.cursor = slot.cursor
            else:
                send.cursor = self.cursors.find((<object>send.draft)[0])
            if bool(send.sys_flag & BORN_HOST_V6) != (send.host.size == 20):
                raise AssertionError("a draft's sys_flag and born_host disagree")
            send.size = <uint32_t>(
                self.cursors.items[send.cursor].overhead + send.body.size + send.properties.size + send.seal_bytes
                + send.host.size + host.size - 16
            )
            total += send.size
            if start + total > file_end:
                return None
        data = PyBytes_FromStringAndSize(NULL, total)
        at = <uint8_t*>PyBytes_AS_STRING(data)
        try:
            for index in range(self.count):
                send = &self.sends[index]
                cursor = &self.cursors.items[send.cursor]
                send.physical, send.queue_offset = physical, 0 if send.sys_flag & PREPARED else cursor.end
                if host.size == 20:
                    send.sys_flag |= STORE_HOST_V6
                put_record(at, send, cursor, now_ms, host)
                if not send.sys_flag & PREPARED:
                    tags_code = now_ms + send.delay_ms if send.delay_ms > 0 else send.tags_code
                    if held is None:
                        self.cursors.put_unit(cursor, physical, send.size, tags_code)
                    else:
                        held.append((<object>cursor.queue, cursor.end, physical, send.size, tags_code))
                    cursor.end += 1
                    cursor.record_bytes += send.size
                    add_sum(cursor, send.queue_offset, at, send.size)
                at += send.size
                physical += send.size
        except BaseException:
            self.cursors.undo()
            raise
        self.is_packed = True
        self.cursors.finish(held is None)
        for index in range(self.keys.count):
            self.keys.items[index].physical = self.sends[self.keys.items[index].physical].physical
            self.keys.items[index].timestamp_ms = now_ms
        return data

    def touched(self):
        """Return the queues that have become longer, with their previous ends."""
        return self.cursors.touched()

    def tally(self):
        """Count the messages and bytes of the batch in the tallies of their topics."""
        cdef Py_ssize_t index
        cdef Cursor* cursor
        for index in range(self.cursors.count):
            cursor = &self.cursors.items[index]
            if cursor.end != cursor.before:
                tally = (<object>cursor.queue).tally
                tally.count += cursor.end - cursor.before
                tally.size += cursor.record_bytes

    def offsets(self):
        """Return where each record begins in the log, and the queue offset of each message, after ``pack``."""
        cdef Py_ssize_t index
        cdef array physical = array("q"), queue = array("q")
        resize_smart(physical, self.count)
        resize_smart(queue, self.count)
        for index in range(self.count):
            physical.data.as_longlongs[index] = self.sends[index].physical
            queue.data.as_longlongs[index] = self.sends[index].queue_offset
        self.placed = physical
        return physical, queue

    def set_offsets(self, physical_offsets, queue_offsets):
        """Take the offsets that the append has returned; the replies contain them."""
        cdef Py_ssize_t index
        if physical_offsets is self.placed:
            return
        for index in range(self.count):
            self.sends[index].physical = physical_offsets[index]
            self.sends[index].queue_offset = queue_offsets[index]

    # -- replies -------------------------------------------------------------------------------------------------------

    def encode_answers(self, list runs, bint with_waiting, bint with_impatient):
        """Return for each run, whose second item is its end, the replies to the two kinds of senders, and their number."""
        cdef Py_ssize_t first = 0, end
        cdef list encoded = []
        for run in runs:
            end = run[1]
            if not first <= end <= self.count:
                raise IndexError(end)
            encoded.append(self.encode_run(first, end, with_waiting, with_impatient))
            first = end
        return encoded

    cdef tuple encode_run(self, Py_ssize_t first, Py_ssize_t end, bint with_waiting, bint with_impatient):
        """Return the replies to the sends ``[first, end)``, as frames, and their number."""
        cdef Py_ssize_t index, size = 0, count = 0
        cdef Send* send
        cdef uint8_t *start, *at, *head
        cdef bytes reply
        cdef list made = []
        for index in range(first, end):
            send = &self.sends[index]
            if send.is_one_way or not (with_waiting if send.is_waiting else with_impatient):
                continue
            if send.slot != NULL:
                size += (<QueueSlot>send.slot).reply_bytes + send.unique.size + NUMBERS_BYTES
            else:
                reply = <bytes>send.template % (
                    send.physical, send.queue_offset, bytes_of(send.unique), send.opaque
                )
                made.append(reply)
                size += len(reply) + 8
        start = at = self.reserve(size + 1)
        made.reverse()
        for index in range(first, end):
            send = &self.sends[index]
            if send.is_one_way or not (with_waiting if send.is_waiting else with_impatient):
                continue
            count += 1
            head = at
            at += 8
            if send.slot != NULL:
                at = put_reply(at, send, (<QueueSlot>send.slot).texts)
            else:
                reply = made.pop()
                at = put_bytes(at, PyBytes_AS_STRING(reply), len(reply))
            put32(put32(head, <uint32_t>(at - head - 4)), <uint32_t>(at - head - 8))
        return PyBytes_FromStringAndSize(<char*>start, at - start), count

    # -- the Python path -----------------------------------------------------------------------------------------------

    @property
    def drafts(self):
        """The batch itself, for the store."""
        return self

    @property
    def impatient(self):
        """The indexes of sends whose senders do not wait until their messages are durable."""
        cdef Py_ssize_t index
        return {index for index in range(self.count) if not self.sends[index].is_waiting}

    @property
    def answers(self):
        """(template of the reply, empty for a one-way send; unique id; opaque) of each send."""
        cdef Py_ssize_t index
        cdef Send* send
        answers = []
        for index in range(self.count):
            send = &self.sends[index]
            template = (<QueueSlot>send.slot).reply_template if send.slot != NULL else <object>send.template
            answers.append((b"" if send.is_one_way else template, bytes_of(send.unique), send.opaque))
        return answers

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
            keys = [key for key in bytes_of(send.keys).decode().split(" ") if key]
            drafts.append(self.draft_type(
                (<QueueSlot>send.slot).queue, bytes_of(send.body), bytes_of(send.properties), <int32_t>send.sys_flag,
                <int32_t>send.flag, send.born_ms, bytes_of(send.host), 0, 0, send.tags_code, 0,
                (bytes_of(send.unique).decode(), *keys),
            ))
        return drafts
