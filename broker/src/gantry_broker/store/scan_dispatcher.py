"""Dispatch of records that a log scan finds: each gets a unit in its queue, and its keys go into the index.

Plain records (of the usual form, see ``gantry_wire.plain_records``) come in runs and take a fast path: their queue is
looked up once, their unit is written at its queue's cursor, and their keys are indexed together with those of all
records of the same millisecond. All other records, and plain ones with anything unexpected (a queue offset that is not
the next, a deleted topic), take the general path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, final

from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import UNIT, ConsumeQueue
from gantry_broker.store.draft import Draft
from gantry_broker.store.inner_batches import fill_batch
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_dispatch import RecordFields, parse_plain_record_fields, parse_record_fields
from gantry_speedups import native
from gantry_wire.hashing import tags_code
from gantry_wire.message import RECORD_BYTES_MIN
from gantry_wire.names import SCHEDULE_TOPIC
from gantry_wire.plain_records import PlainRecord, PlainRun, keys_of, tag_of

Progress = Callable[[int, int], None]
"""Called with how far the reading has come, and how far it goes, in bytes.

A start counts both from the start of the log, also if it reads only the end.
"""

PutBatch = Callable[[Sequence[Draft], Sequence[int], int], None]
"""Indexes the keys of messages that lie at these physical offsets and were stored at this time."""

CompiledScan: Final[Any] = None if native is None else native.LogScan
"""The compiled scan of plain records; None if it is not loaded."""

COMPILED_BYTES: Final = 1 << 20
"""How much of the log a compiled scan reads at a time, in about a millisecond, since no other thread of Python runs."""

PROGRESS_RECORDS: Final = 10_000
"""Progress is reported after so many records."""
PLAUSIBLE_QUEUE_OFFSET_MAX: Final = 1 << 56
"""A record with a higher queue offset is damaged."""

INDEX_BATCH_MAX: Final = 512
"""Limit of the messages whose keys are indexed together."""
TAGS_MAX: Final = 4_096
"""Limit of the tags whose codes are remembered."""


@final
class ScanDispatcher:
    """Dispatches the records of one recovery, of a slave's log, or of one rebuild of the index."""

    def __init__(
        self, commit_log: CommitLog, queues: QueueTable, index_batch: PutBatch | None,
        delay_levels_ms: tuple[int, ...], progress: Progress | None = None, *, is_tracking_touched: bool = False,
    ) -> None:  # fmt: skip
        """Create the dispatcher. ``index_batch`` indexes messages, as ``KeyIndex.put_batch`` does; None: no index.

        With ``is_tracking_touched`` the queues that get units are remembered for ``take_touched``.
        """
        self._index_end = -1
        self._indexed_keys = 0
        self._touched: set[ConsumeQueue] | None = set() if is_tracking_touched else None
        self.records = 0
        self.last_record = -1
        """The physical offset of the last record that was dispatched; -1 before the first."""

        self.damaged: Final[list[tuple[int, int]]] = []
        """Ranges of records that are good, but claim a queue offset that is impossible."""

        self.unknown_topics = 0
        """Number of records whose topic cannot be the name of a directory, so that they are in no queue."""

        self._only: set[ConsumeQueue] | None = None
        self._log: Final = commit_log
        self._queues: Final = queues
        self._index_batch: Final = index_batch
        self._delay_levels_ms: Final = delay_levels_ms
        self._progress: Final = progress
        self._plain_queues: dict[tuple[bytes, int], ConsumeQueue | None] = {}
        """Queues of plain records; None for those that take the general path."""

        self._deleted = queues.deleted
        """The deleted topics when these queues were remembered; another map means that a topic was deleted since."""

        self._tags: Final[dict[bytes, int]] = {b"": 0}
        self._drafts: list[Draft] = []
        self._physical_offsets: list[int] = []
        self._drafts_ms = 0
        self._reported_records = 0

    def restrict_to(self, only: set[ConsumeQueue] | None) -> None:
        """Write units only to these queues from now on, and leave ``last_record`` and the log's newest time unchanged.

        None removes the restriction.
        """
        self._only = only
        self._plain_queues.clear()

    def skip_indexed(self, end: int, key_count: int) -> None:
        """Do not index messages before the physical offset ``end``, nor the first ``key_count`` keys of the one there.

        These are indexed already. The other keys of that message were to come into the next file.
        """
        self._index_end, self._indexed_keys = end, key_count

    def take_touched(self) -> set[ConsumeQueue]:
        """Return the queues that got units since the last call."""
        touched, self._touched = self._touched, set()
        return touched or set()

    # -- one record of any kind ----------------------------------------------------------------------------------------

    def dispatch_record(self, view: memoryview, position: int, physical: int, size: int) -> None:
        """Dispatch one good record of any kind."""
        self._count(1, physical)
        fields = parse_record_fields(view, position, size, self._delay_levels_ms)
        if self._only is None:
            self.last_record = physical
            self._log.note_store_time(fields.store_timestamp_ms)
        self._dispatch_fields(fields, physical, size)
        self.flush()

    def _count(self, records: int, physical: int) -> None:
        self.records += records
        if self.records - self._reported_records >= PROGRESS_RECORDS:
            self._reported_records = self.records
            if self._progress is not None:
                begin = self._log.min_physical
                self._progress(physical - begin, self._log.files.end_offset - begin)

    def _dispatch_fields(self, fields: RecordFields, physical: int, size: int) -> None:
        if self._queues.is_deleted(fields.topic, physical):
            return  # Even a queue without messages would bring the topic back.
        if not fields.is_queued and not fields.keys:
            return  # a void record
        try:
            queue = self._queues.get_or_create(fields.topic, fields.queue_id)
        except ValueError:
            self.unknown_topics += 1
            return
        if fields.is_queued and (self._only is None or queue in self._only):
            self._put_unit(queue, fields.queue_offset, physical, size, fields.tags_code, fields.offsets)
            if self._touched is not None:
                self._touched.add(queue)
        if self._index_batch is not None and fields.keys and physical >= self._index_end:
            self._put_keys(queue, fields.keys, physical, fields.store_timestamp_ms)

    def _put_unit(
        self, queue: ConsumeQueue, offset: int, physical: int, size: int, code: int, offsets: int = 1
    ) -> None:
        """Write the unit of a record, and fillers for the other queue ``offsets`` that a batch in one record takes."""
        if not 0 <= offset <= PLAUSIBLE_QUEUE_OFFSET_MAX:
            self.damaged.append((physical, physical + size))
            return
        if offset < queue.readable_end:
            self._queues.restart_at(queue, offset)
        gap = offset - queue.readable_end
        if queue.files.files and gap * RECORD_BYTES_MIN > self._log.files.end_offset - self._log.min_physical:
            # The gap has more messages than the log has room for: the record's own offsets are corrupt.
            self.damaged.append((physical, physical + size))
            return
        queue.put(offset, physical, size, code)
        if offsets > 1:
            fill_batch(queue, offset + offsets, physical)

    def _put_keys(self, queue: ConsumeQueue, keys: tuple[str, ...], physical: int, timestamp_ms: int) -> None:
        if physical == self._index_end:
            keys = keys[self._indexed_keys :]
        if timestamp_ms != self._drafts_ms or len(self._drafts) == INDEX_BATCH_MAX:
            self.flush()
            self._drafts_ms = timestamp_ms
        self._drafts.append((queue, b"", b"", 0, 0, 0, b"", 0, 0, 0, 0, keys))  # type: ignore[arg-type]  # faster
        self._physical_offsets.append(physical)

    def flush(self) -> None:
        """Index the keys that are collected for the current millisecond."""
        if self._drafts and self._index_batch is not None:
            self._index_batch(self._drafts, self._physical_offsets, self._drafts_ms)
        self._drafts, self._physical_offsets = [], []

    # -- plain records in a run ----------------------------------------------------------------------------------------

    def dispatch_plain_records(self, records: Iterable[PlainRecord], physical: int) -> int:
        """Dispatch all of ``records``, the first of which lies at ``physical``. Return where the run ends."""
        if self._deleted is not self._queues.deleted:  # a new topic of the same name has other queues
            self._deleted = self._queues.deleted
            self._plain_queues.clear()
        if CompiledScan is not None and self._only is None and isinstance(records, PlainRun):
            return self._dispatch_compiled(records)
        return self._dispatch_records(records, physical)

    def _dispatch_compiled(self, run: PlainRun) -> int:
        """Dispatch a run by the compiled scan, and by Python the records before which that stops."""
        position: int = run.position
        base = run.base_offset
        index_from = -1 if self._index_batch is None else max(0, self._index_end)
        while True:
            scan, stop = CompiledScan(self._find_queue), min(run.stop, position + COMPILED_BYTES)
            position = scan.dispatch(run.view, position, stop, base, run.is_sealed, run.verify_crc, index_from)
            if scan.count:
                self._note_scan(scan)
            if stop <= position < run.stop:
                continue
            record = next(run.records_from(position), None)
            if record is None:
                return base + position
            position = self._dispatch_records((record,), base + position) - base

    def _find_queue(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        try:
            return self._plain_queues[topic, queue_id]
        except KeyError:
            return self._queue_of(topic, queue_id)

    def _note_scan(self, scan: Any) -> None:
        """Index the keys of the records of a compiled scan, and count them."""
        if self._touched is not None:
            self._touched.update(scan.touched())
        keys = scan.keys
        if self._index_batch is not None and len(keys):
            if keys.place(0)[0] == self._index_end:
                keys.drop_first(self._indexed_keys)
            self._index_batch(keys, (), scan.newest_ms)
        self.last_record = scan.last_physical
        self._log.note_store_time(scan.newest_ms)
        self._count(scan.count, scan.last_physical)

    def _dispatch_records(self, records: Iterable[PlainRecord], physical: int) -> int:
        size, count, touched = 0, 0, self._touched
        newest_ms = self._log.last_timestamp_ms
        is_indexing, known, tags, pack_unit = self._index_batch is not None, self._plain_queues, self._tags, UNIT.pack
        for record in records:
            physical, size, topic, queue_id, offset, timestamp_ms, properties = record
            count += 1
            if timestamp_ms > newest_ms:
                newest_ms = timestamp_ms
            try:
                queue = known[topic, queue_id]
            except KeyError:
                queue = self._queue_of(topic, queue_id)
            if queue is None:
                self._dispatch_fields(parse_plain_record_fields(record, self._delay_levels_ms), physical, size)
                continue
            tag = tag_of(properties)
            code = tags.get(tag)
            if code is None:
                code = self._tags_code_of(tag)
            if offset == queue.readable_end and queue.position < queue.limit:
                queue.put_next(pack_unit(physical, size, code))
            else:
                self._put_unit(queue, offset, physical, size, code)
            if touched is not None:
                touched.add(queue)
            if is_indexing and physical >= self._index_end:
                keys = keys_of(properties)
                if keys:
                    self._put_keys(queue, keys, physical, timestamp_ms)
        self.flush()
        if count and self._only is None:
            self.last_record = physical
            self._log.note_store_time(newest_ms)
        self._count(count, physical)
        return physical + size

    def _queue_of(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        """Return the queue whose plain records take the fast path, or None."""
        name = topic.decode("utf-8", "replace")
        queue = None
        if name != SCHEDULE_TOPIC and name not in self._queues.deleted:
            with suppress(ValueError):
                queue = self._queues.get_or_create(name, queue_id)
        if self._only is not None and queue not in self._only:
            queue = None
        self._plain_queues[topic, queue_id] = queue
        return queue

    def _tags_code_of(self, tag: bytes) -> int:
        code = tags_code(tag.decode("utf-8", "replace"))
        if len(self._tags) < TAGS_MAX:
            self._tags[tag] = code
        return code
