"""The write buffers of a store, looked at from outside: what each says it is, and what it holds that the log lacks.

    | header, one page | position 0 of the file ... [start ...... committed ...... stop) zeros ... file size |

A buffer may be written at this moment by a broker that runs; then its end moves, and what is shown is a moment. Buffers
are mapped for reading only: hugetlbfs gives no other way to everybody, and neither medium has sectors that fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gantry_broker.ports.buffers import PIECE_NAME_PREFIX, VOLUME_LOCK
from gantry_broker.ports.reading import LockHolder, ReadingDisk
from gantry_broker.store.inspect.facts import StoreFacts
from gantry_broker.store.replay import Expected, FoundBuffer, buffered_from, whole_records
from gantry_broker.store.write_buffer import BufferState, read_committed, read_facts, read_state


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBuffer:
    """One buffer."""

    name: str
    bytes: int
    state: str
    """``free``, ``live`` or ``void``; or why it cannot be read."""

    store: str = ""
    is_of_this_store: bool = False
    generation: int = 0
    epoch: int = 0
    base_offset: int = 0
    start: int = 0
    committed: int = 0
    stop: int = 0
    """Behind its last whole record."""

    records_not_committed: int = 0
    """Whole records behind what its process last said to be committed."""

    @property
    def bytes_not_committed(self) -> int:
        return max(0, self.stop - self.committed)


@dataclass(slots=True, kw_only=True)
class BufferDirectory:
    """A directory of write buffers."""

    path: str
    medium: str = ""
    holder: LockHolder | None = None
    fault: str = ""
    """Why there is nothing to see; empty if all is well."""

    buffers: list[SeenBuffer] = field(default_factory=list)

    @property
    def live(self) -> list[SeenBuffer]:
        return [buffer for buffer in self.buffers if buffer.state == "live"]


def buffer_directory(disk: ReadingDisk, facts: StoreFacts, path: str | None) -> BufferDirectory | None:
    """What is in ``path``, or where the store says its buffers were; None when neither names a directory."""
    where = path or (facts.identity.pool_path if facts.identity is not None else "")
    if not where:
        return None
    found = disk.facts(where)
    if found is None or not found.is_directory:
        return BufferDirectory(path=where, fault="there is no such directory here")
    seen = BufferDirectory(
        path=where, medium=disk.file_system(where), holder=disk.lock_holder(f"{where}/{VOLUME_LOCK}")
    )
    store = facts.identity.uuid if facts.identity is not None else ""
    seen.buffers += [
        _look(disk, f"{where}/{name}", store) for name in disk.list(where) if name.startswith(PIECE_NAME_PREFIX)
    ]
    return seen


def found_buffers(disk: ReadingDisk, directory: BufferDirectory) -> list[FoundBuffer]:
    """The live ones, with their bytes, as recovery's plan wants them."""
    found: list[FoundBuffer] = []
    for seen in directory.live:
        view = map_file(disk, f"{directory.path}/{seen.name}")
        facts = read_facts(view)
        if facts is not None:
            found.append(FoundBuffer.of(seen.name, facts, view[facts.header_bytes :][: facts.file_size]))
    return found


def expected_of(facts: StoreFacts) -> Expected:
    """What a write buffer must say to be replayed."""
    return Expected.of(facts.identity, facts.log[0].size if facts.log else 0, is_clean=facts.is_clean)


def written_unbuffered(disk: ReadingDisk, facts: StoreFacts, boot_id: str, path: str | None = None) -> int:
    """Up to where a killed process had written the log, as far as no write buffer holds it; 0 if that is not known."""
    directory = buffer_directory(disk, facts, path)
    if directory is None:
        return facts.written(boot_id)
    if directory.fault:
        return 0
    return min(facts.written(boot_id), buffered_from(found_buffers(disk, directory), expected_of(facts)))


def map_file(disk: ReadingDisk, path: str) -> memoryview:
    """A whole file, read-only. The view outlives the descriptor."""
    file = disk.open(path)
    try:
        return file.map()
    finally:
        file.close()


def _look(disk: ReadingDisk, path: str, store: str) -> SeenBuffer:
    name = path.rpartition("/")[2]
    try:
        view = map_file(disk, path)
    except OSError as exc:
        return SeenBuffer(name=name, bytes=0, state=f"unreadable: {exc.strerror}")
    state = read_state(view)
    facts = read_facts(view) if state is BufferState.LIVE else None
    if facts is None:
        return SeenBuffer(name=name, bytes=len(view), state=state.name.lower())
    buffer = FoundBuffer.of(name, facts, view[facts.header_bytes :][: facts.file_size])
    committed = min(max(read_committed(view), facts.start), buffer.end_offset)
    stop, records = whole_records(buffer, committed)
    if not records:
        # A hint is all that "committed" is: it may lie, or stand inside of a record for a moment.
        stop, _ = whole_records(buffer, facts.start)
    return SeenBuffer(
        name=name,
        bytes=len(view),
        state=state.name.lower(),
        store=facts.store,
        is_of_this_store=facts.store == store,
        generation=facts.generation,
        epoch=facts.epoch,
        base_offset=facts.base_offset,
        start=facts.start,
        committed=committed,
        stop=max(stop, committed),
        records_not_committed=records,
    )
