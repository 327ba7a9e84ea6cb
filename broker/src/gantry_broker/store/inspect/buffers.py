"""Inspection of the write buffers of a store: the header of each, and the records that the log lacks.

    | header, one page | position 0 of the file ... [start ...... committed ...... stop) zeros ... file size |

A running broker may write a buffer meanwhile; then its end moves, and the summary is a snapshot. Buffers are mapped,
read-only: hugetlbfs supports no other way of reading, and neither medium has sectors that fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gantry_broker.ports.buffers import PIECE_NAME_PREFIX, VOLUME_LOCK
from gantry_broker.ports.reading import LockHolder, ReadingDisk
from gantry_broker.store.inspect.facts import StoreFacts
from gantry_broker.store.replay import ExpectedHeader, FoundBuffer, find_first_buffered, scan_buffered_records
from gantry_broker.store.write_buffer import BufferState, read_committed, read_header, read_state


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSummary:
    """The header of one write buffer, and the range of records that it holds."""

    name: str
    """The name of the buffer's file."""

    bytes: int
    """The size of the buffer's file."""

    state: str
    """``free``, ``live`` or ``void``; or the reason why it cannot be read."""

    store: str = ""
    """The uuid of the store that wrote the buffer."""

    is_of_this_store: bool = False
    """Whether the header names this store."""

    generation: int = 0
    """The number of the start of the store that wrote the buffer."""

    epoch: int = 0
    """The epoch in which the buffer was written."""

    base_offset: int = 0
    """The offset at which the buffer's log file begins."""

    start: int = 0
    """The offset from which on the buffer holds the log."""

    committed: int = 0
    """The end up to which its process last recorded the bytes as copied into the log file."""

    stop: int = 0
    """End of its last whole record."""

    records_not_committed: int = 0
    """Number of whole records after the committed end that its process last recorded."""

    @property
    def bytes_not_committed(self) -> int:
        return max(0, self.stop - self.committed)


@dataclass(slots=True, kw_only=True)
class BufferDirectory:
    """A directory of write buffers, with their summaries."""

    path: str
    """The directory on hugetlbfs or tmpfs."""

    medium: str = ""
    """The file system of the directory, such as ``hugetlbfs``."""

    holder: LockHolder | None = None
    """The process that has locked the directory; None if there is none."""

    fault: str = ""
    """Why the directory cannot be inspected; empty if it can."""

    buffers: list[BufferSummary] = field(default_factory=list)

    @property
    def live(self) -> list[BufferSummary]:
        return [buffer for buffer in self.buffers if buffer.state == "live"]


def read_buffer_directory(disk: ReadingDisk, facts: StoreFacts, path: str | None) -> BufferDirectory | None:
    """Return the buffers in ``path``, or in the directory that the store records; None if neither is given."""
    where = path or (facts.identity.pool_path if facts.identity is not None else "")
    if not where:
        return None
    found = disk.metadata(where)
    if found is None or not found.is_directory:
        return BufferDirectory(path=where, fault="there is no such directory here")
    directory = BufferDirectory(
        path=where, medium=disk.file_system(where), holder=disk.lock_holder(f"{where}/{VOLUME_LOCK}")
    )
    store = facts.identity.uuid if facts.identity is not None else ""
    directory.buffers += [
        _summarize_buffer(disk, f"{where}/{name}", store)
        for name in disk.list(where)
        if name.startswith(PIECE_NAME_PREFIX)
    ]
    return directory


def read_live_buffers(disk: ReadingDisk, directory: BufferDirectory) -> list[FoundBuffer]:
    """Return the live buffers, with their bytes, as ``plan_replay`` takes them."""
    found: list[FoundBuffer] = []
    for buffer in directory.live:
        view = map_file(disk, f"{directory.path}/{buffer.name}")
        header = read_header(view)
        if header is not None:
            found.append(FoundBuffer.of(buffer.name, header, view[header.header_bytes :][: header.file_size]))
    return found


def expected_header(facts: StoreFacts) -> ExpectedHeader:
    """Return the header values that a write buffer must have to be replayed."""
    return ExpectedHeader.of(facts.identity, facts.log[0].size if facts.log else 0, is_clean=facts.is_clean)


def find_unbuffered_end(disk: ReadingDisk, facts: StoreFacts, boot_id: str, path: str | None = None) -> int:
    """Return the end to which a killed process had written the log, without bytes in write buffers; 0 if unknown."""
    directory = read_buffer_directory(disk, facts, path)
    if directory is None:
        return facts.written_end(boot_id)
    if directory.fault:
        return 0
    return min(
        facts.written_end(boot_id), find_first_buffered(read_live_buffers(disk, directory), expected_header(facts))
    )


def map_file(disk: ReadingDisk, path: str) -> memoryview:
    """Map a whole file, read-only. The view outlives the descriptor."""
    file = disk.open(path)
    try:
        return file.map()
    finally:
        file.close()


def _summarize_buffer(disk: ReadingDisk, path: str, store: str) -> BufferSummary:
    name = path.rpartition("/")[2]
    try:
        view = map_file(disk, path)
    except OSError as exc:
        return BufferSummary(name=name, bytes=0, state=f"unreadable: {exc.strerror}")
    state = read_state(view)
    header = read_header(view) if state is BufferState.LIVE else None
    if header is None:
        return BufferSummary(name=name, bytes=len(view), state=state.name.lower())
    buffer = FoundBuffer.of(name, header, view[header.header_bytes :][: header.file_size])
    committed = min(max(read_committed(view), header.start), buffer.end_offset)
    stop, records = scan_buffered_records(buffer, committed)
    if not records:
        # The committed end in the header is a hint only: it may be wrong, or inside of a record for a moment.
        stop, _ = scan_buffered_records(buffer, header.start)
    return BufferSummary(
        name=name,
        bytes=len(view),
        state=state.name.lower(),
        store=header.store,
        is_of_this_store=header.store == store,
        generation=header.generation,
        epoch=header.epoch,
        base_offset=header.base_offset,
        start=header.start,
        committed=committed,
        stop=max(stop, committed),
        records_not_committed=records,
    )
