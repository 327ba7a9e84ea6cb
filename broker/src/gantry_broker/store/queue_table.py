"""All consume queues of a store, by topic and queue id, and the directories of their files.

The table makes paths only from topics that ``path_component`` or ``topic_fault`` has accepted, so no topic can name a
file outside ``consumequeue/``.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, final

from gantry_broker.errors import StoreFull, StoreMismatch
from gantry_broker.ports.disk import Disk
from gantry_broker.store.consume_queue import ConsumeQueue, Tally
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.mapped_file import MappedFile
from gantry_broker.store.queue_sums import SumsBudget
from gantry_broker.store.settings import CONSUME_UNIT_BYTES, StoreSettings
from gantry_broker.store.worker import sync_together
from gantry_store_files.queue_units import QUEUE_ID_MAX, is_filler, parse_queue_id
from gantry_store_files.segments import segments_of
from gantry_wire.names import path_component, topic_fault

log = logging.getLogger(__name__)

QUEUE_OFFSET_MAX: Final = (1 << 63) // CONSUME_UNIT_BYTES - 1
"""The position of a unit in its queue's files must fit into 63 bits."""
SHARED_QUEUES_MIN: Final = 64
"""With fewer queues, no threads are started to sync them."""


@final
class QueueTable:
    """The consume queues of one store. Changed by the loop's thread; other threads may iterate over it.

    The thread ``gantry-point`` (``point_writer``) syncs the queues, and closes those that were deleted.
    """

    def __init__(
        self, disk: Disk, directory: str, settings: StoreSettings, on_shortened: Callable[[], None] = lambda: None
    ) -> None:
        """Create the table. ``on_shortened`` is called, in any thread, when ``shortened`` has a new entry."""
        self.directory: Final = directory
        self._disk: Final = disk
        self.file_size: Final = settings.mapped_file_size_consume_queue
        self._stride: Final = settings.consume_queue_reserve_bytes
        self._budget: Final = SumsBudget()
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.tallies: Final[dict[str, Tally]] = {}
        """Counts of what was appended to each topic since this start."""

        self.deleted: Mapping[str, int] = {}
        """Deleted topics, and the log offset from which messages with that name belong to a new topic.

        Replaced, never changed in place: ``gantry-point`` reads it.
        """

        self._unproven: Final[set[str]] = set()
        """Deleted topics of which no message is known. The part of the log that is in no queue may have one."""

        self.shortened: Final[deque[tuple[ConsumeQueue, int]]] = deque()
        """Queues with a file that another process has shortened, and the first unit that was lost. Any thread."""

        self._on_shortened: Final = on_shortened
        self._retired: list[ConsumeQueue | MappedFile] = []
        self._is_directory_dirty = False
        self._unsynced_directories: list[ConsumeQueue] = []
        """Queues whose files are durable, but not yet the names of their directories. Owned by threads that sync."""

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(tuple(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, without files until its first message. Raises ``ValueError`` for an invalid topic or id."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self.make_unlisted(topic, queue_id)
            self._queues[topic, queue_id] = queue
            self.tallies[topic] = queue.tally
        return queue

    def make_unlisted(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a new queue that is not in this table, for a record that is in no queue. Raises ``ValueError``."""
        if not 0 <= queue_id <= QUEUE_ID_MAX:
            raise ValueError(f"{queue_id} is not a queue id: expected 0 to {QUEUE_ID_MAX}")
        directory = f"{self.directory}/{path_component(topic)}/{queue_id}"
        files = FileQueue(
            self._disk, directory, self.file_size, on_shortened=partial(self._mark_shortened, topic, queue_id)
        )
        tally = self.tallies.get(topic) or Tally()
        return ConsumeQueue(topic, queue_id, files, stride=self._stride, tally=tally, budget=self._budget)

    def _mark_shortened(self, topic: str, queue_id: int, start: int) -> None:
        """Mark a queue corrupt whose file has lost the bytes from ``start`` on, so that the loop's thread rebuilds it.

        Any thread may call it.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            queue.mark_corrupt()
            self.shortened.append((queue, start // CONSUME_UNIT_BYTES))
            self._on_shortened()

    def discover(self) -> tuple[ConsumeQueue, ...]:
        """Add every queue that has a directory, and return them all. Names that are no queue are ignored.

        A file in the place of a directory is set aside. Raises ``StoreMismatch`` if all of several files have one size
        that differs from the setting.
        """
        if not self._is_queue_directory(self.directory):
            return ()
        sizes: Counter[int] = Counter()
        for topic in self._disk.list(self.directory):
            if topic_fault(topic) is not None or not self._is_queue_directory(f"{self.directory}/{topic}"):
                continue
            for name in self._disk.list(f"{self.directory}/{topic}"):
                queue_id = parse_queue_id(name)
                if queue_id is not None and self._is_queue_directory(f"{self.directory}/{topic}/{name}"):
                    directory = self.get_or_create(topic, queue_id).files.directory
                    sizes.update(segment.size for segment in segments_of(self._disk, directory))
        if sizes and self.file_size not in sizes and len(sizes) == 1 and sizes.total() > 1:
            size = next(iter(sizes))
            if size > 0 and size % CONSUME_UNIT_BYTES == 0:
                raise StoreMismatch(
                    f"mappedFileSizeConsumeQueue is {self.file_size}, but all files in {self.directory} have {size} "
                    f"bytes: set mappedFileSizeConsumeQueue={size}, or delete {self.directory} to have it rebuilt"
                )
        return tuple(self)

    def _is_queue_directory(self, path: str) -> bool:
        """Return whether ``path`` is a directory. A file there is renamed to a name that no queue has."""
        disk = self._disk
        if disk.is_directory(path):
            return True
        if disk.exists(path):
            log.warning(
                "file in the place of a consume queue directory was set aside", extra={"path": f"{path}.foreign"}
            )
            disk.rename(path, f"{path}.foreign")
        return False

    def topics(self) -> dict[str, list[int]]:
        """Return every topic that has queues, with or without files, with its queue ids in order."""
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self._queues):
            found.setdefault(topic, []).append(queue_id)
        return found

    def queues_not_ending_in_log(self, log_begin: int) -> Iterator[ConsumeQueue]:
        """Yield the queues whose next offset is not 0, and does not follow from the log from ``log_begin`` on.

        All of their messages have expired, or they never had one and got a start offset, or their last messages were
        lost, and fillers, units without a message, stand for them.
        """
        for queue in self:
            if queue.end == queue.readable_end > 0:
                last = queue.unit(queue.end - 1)
                if last is None or last[0] < log_begin or is_filler(last):
                    yield queue

    def raise_end(self, topic: str, queue_id: int, offset: int, physical_offset: int) -> bool:
        """Let the next offset of a queue be at least ``offset``, and return whether it was less.

        A queue without files begins there; another one gets fillers, with the physical offset ``physical_offset``.
        Raises ``StoreFull``, and ``ValueError`` for an invalid queue or offset.
        """
        if not 0 <= offset <= QUEUE_OFFSET_MAX:
            raise ValueError(f"{offset} is not a queue offset: expected 0 to {QUEUE_OFFSET_MAX}")
        queue = self.get_or_create(topic, queue_id)
        is_less = queue.end < offset
        if queue.files.files:
            queue.fill_to(offset, physical_offset)
        elif max(queue.end, offset):
            # An earlier attempt without space for the file has left the offset in memory only.
            queue.set_start_offset(max(queue.end, offset))
        return is_less

    def reserve_to(self, topic: str, queue_id: int, offset: int) -> None:
        """Reserve blocks of a queue's newest file for fillers before ``offset``. Nothing that is read changes.

        Raises ``StoreFull``.
        """
        queue = self.get(topic, queue_id)
        if queue is not None and queue.files.files and queue.readable_end < offset <= QUEUE_OFFSET_MAX:
            file = queue.files.mapped_at(queue.readable_end * CONSUME_UNIT_BYTES)
            if file is not None:
                file.reserve(min(file.size, offset * CONSUME_UNIT_BYTES - file.base_offset))

    def fill_to(self, ends: Mapping[str, Mapping[str, int]], physical_offset: int) -> None:
        """Fill queues up to ``ends``, so that no queue offset of a lost message is used again.

        ``ends`` has the known ends of the queues; the fillers get the physical offset ``physical_offset``. Raises
        ``StoreFull`` after all queues were tried. Until it succeeds, no message may be appended: a queue with files
        does not have its end then.
        """
        error: StoreFull | None = None
        for topic, of_topic in ends.items():
            for queue_id, end in of_topic.items():
                queue = self.get_or_create(topic, int(queue_id))
                try:
                    if queue.end < end:
                        queue.fill_to(end, physical_offset)
                except StoreFull as exc:
                    error = exc
        if error is not None:
            raise error

    def forget_sums(self) -> None:
        """Drop the checksums of all queues, as after a start: every record is verified by its own seal again."""
        for queue in self:
            queue.forget_sums()

    def load_deleted(self, deleted: Mapping[str, int]) -> None:
        """Use the deleted topics of a recovery point."""
        self.deleted = dict(deleted)
        self._unproven.clear()

    def is_deleted(self, topic: str, physical_offset: int) -> bool:
        """Return whether the message at ``physical_offset`` is of a topic that was deleted later."""
        if physical_offset >= self.deleted.get(topic, -1):
            return False
        self._unproven.discard(topic)
        return True

    def limit_deletions(self, end: int) -> None:
        """Limit deletions to ``end``, where the log ends now: messages after it may be of new topics."""
        self.deleted = {topic: min(offset, end) for topic, offset in self.deleted.items()}

    def forget_deletions(self, dispatched: int, min_physical: int) -> None:
        """Drop the deletions that concern no message, so that their number is limited by that of messages in the log.

        They are those before ``min_physical``, where the log begins, and those of topics without a message: none was
        known when the topic was deleted, and none was found in the log up to ``dispatched``.
        """
        kept = {
            topic: end
            for topic, end in self.deleted.items()
            if end > min_physical and (end > dispatched or topic not in self._unproven)
        }
        if len(kept) < len(self.deleted):
            self.deleted = kept
            self._unproven.intersection_update(kept)

    def delete_topic(self, topic: str, log_end: int, *, has_undispatched: bool = False) -> bool:
        """Drop all queues of ``topic`` and their files; their messages lie before ``log_end``.

        With ``has_undispatched`` some of them may not be in a queue yet. Return False if there is nothing to drop.
        """
        queues = [queue for queue in self if queue.topic == topic]
        for queue in queues:
            del self._queues[topic, queue.queue_id]
            queue.forget_sums()
            # ``gantry-point`` may be syncing the queue's files right now, so that thread closes them.
            self._retired.append(queue)
        self.tallies.pop(topic, None)
        directory = f"{self.directory}/{path_component(topic)}"
        while self._disk.exists(directory):
            # Retention may be unlinking files in there at the same time.
            with suppress(FileNotFoundError):
                self._disk.remove_tree(directory)
            self._is_directory_dirty = True
        if not queues and not has_undispatched:
            return False
        if queues:
            self._unproven.discard(topic)
        elif topic not in self.deleted:
            self._unproven.add(topic)
        self.deleted = {**self.deleted, topic: log_end}
        return True

    def remove(self, queue: ConsumeQueue) -> None:
        """Remove ``queue`` and its files, before ``gantry-point`` is started."""
        del self._queues[queue.topic, queue.queue_id]
        queue.reset(self._disk)

    def restart_at(self, queue: ConsumeQueue, offset: int) -> None:
        """Remove the units from queue offset ``offset`` on, because a later record in the log has that offset.

        Its topic was deleted and created again, so its offsets began at 0 again: the newer message counts.
        """
        if offset <= queue.min_offset:
            queue.reset(self._disk)
        else:
            queue.rewind(offset)

    def trim(self, queue: ConsumeQueue, min_offset: int) -> tuple[MappedFile, ...]:
        """Let ``queue`` begin at ``min_offset``, and return the files to unlink; none if the queue was deleted."""
        if self._queues.get((queue.topic, queue.queue_id)) is not queue:
            return ()
        files = queue.trim(min_offset)
        self._retired.extend(files)
        return files

    def sync(self, *, threads: int = 1) -> None:
        """Make every queue durable, names included. Called by ``gantry-point``, or while no other thread runs.

        The files are synced in so many threads if there are many queues.
        """
        while self._retired:
            self._retired.pop().close()
        self._start_writeback()
        queues = tuple(self)
        threads = threads if len(queues) >= SHARED_QUEUES_MIN else 1
        sync_together(self._sync_queue, queues, threads=threads)
        if self._unsynced_directories or self._is_directory_dirty:
            self._is_directory_dirty = False
            try:
                self._sync_directories(self._unsynced_directories, threads=threads)
            except OSError:
                self._is_directory_dirty = True
                raise
            self._unsynced_directories.clear()

    def _sync_queue(self, queue: ConsumeQueue) -> None:
        if queue.sync():
            self._unsynced_directories.append(queue)

    def _start_writeback(self) -> None:
        """Start to write what is dirty in all queues, before they are synced one by one.

        The disk works on all files at once then, and one commit of the file system's journal covers most of them.
        """
        for queue in self:
            if queue.flushed_end != queue.readable_end:
                for file in queue.files.files:
                    if file.end_offset > queue.flushed_end * CONSUME_UNIT_BYTES:
                        file.file.start_writeback()

    def sync_end(self, queue: ConsumeQueue) -> None:
        """Make the end of ``queue`` durable before its last flushed messages are deleted. Any thread may call it."""
        if queue.flushed_end == queue.readable_end and not queue.files.is_directory_dirty:
            return
        try:
            for file in queue.files.files:
                if file.end_offset > queue.flushed_end * CONSUME_UNIT_BYTES:
                    file.file.sync()
            self._disk.sync_directory(queue.files.directory)
        except OSError:
            if self._queues.get((queue.topic, queue.queue_id)) is queue:
                raise
            return  # The topic was deleted meanwhile, and ``gantry-point`` has closed its files.
        self._sync_directories([queue])

    def _sync_directories(self, queues: list[ConsumeQueue], *, threads: int = 1) -> None:
        """Sync the parents of the queues' directories, which hold the names of new ones."""
        parents = sorted({f"{self.directory}/{queue.topic}" for queue in queues})
        sync_together(self._sync_parent, parents, threads=threads)
        self._sync_parent(self.directory)
        # The directory itself is created with the first queue.
        self._disk.sync_directory(self.directory.rpartition("/")[0])

    def _sync_parent(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._disk.sync_directory(path)

    def close(self) -> None:
        for queue in (*self, *self._retired):
            queue.close()
        self._retired.clear()
