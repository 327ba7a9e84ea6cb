"""The key index, which finds messages by topic and key, through hashes only.

Files are named by their creation time and filled one after the other. Results may include messages of other keys with
the same hash; the caller compares the keys. The index is derived data: a damaged or missing index is rebuilt from the
log, and a full disk stops indexing, never a send.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, final

from gantry_broker.errors import StoreFull
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.draft import Draft
from gantry_broker.store.index_file import (
    ENTRY,
    ENTRY_BYTES,
    SLOT,
    IndexCursor,
    IndexFile,
    IndexFileDamaged,
    IndexHeader,
)
from gantry_broker.store.key_hash import (
    MASK,
    TIME_END,
    UNIQUE_KEY_CHARACTERS,
    add_key_pieces,
    key_hash,
    prefix_hashes,
    seeded_hash,
    suffix_hashes,
)
from gantry_broker.store.recovery_point import IndexPoint
from gantry_broker.store.settings import INDEX_HEADER_BYTES, StoreSettings
from gantry_speedups import native
from gantry_store_files.segments import INDEX_NAME_DIGITS, index_names

log = logging.getLogger(__name__)

CompiledKeys: Final[Any] = () if native is None else native.Keys
"""The class of compiled keys, for ``isinstance``; no class if it is not loaded."""

_pack_entry: Final = ENTRY.pack_into
_pack_slot: Final = SLOT.pack_into
_unpack_slot: Final = SLOT.unpack_from


HAS_ENTRY_COUNT_MAX: Final = 1_000
"""How many messages with the same key and second are searched for one of them."""


class KeyMatches(NamedTuple):
    """The result of a search: physical offsets, newest first, and the end of the index."""

    physical_offsets: list[int]
    last_timestamp_ms: int
    """Store time of the last message in the index."""

    last_physical: int
    """Where the last message in the index begins."""

    is_complete: bool = True
    """False while the index is rebuilt or the disk is full: there may be more matches."""


@final
class KeyIndex:
    """The index files of one store. Owned by the loop's thread; ``files`` is replaced, never changed in place.

    The thread ``gantry-point`` (``point_writer``) syncs them, and closes those that are not used any more.
    """

    def __init__(self, disk: Disk, directory: str, settings: StoreSettings, clock: Clock) -> None:
        self.directory: Final = directory
        self.files: tuple[IndexFile, ...] = ()
        self.is_directory_dirty = False
        self.is_behind = False
        """Whether a part of the index is missing. Batches are not indexed until ``IndexRepair`` has rebuilt it."""

        self.damaged: IndexFile | None = None
        """The oldest file that was found damaged."""

        self.damage_reason = ""
        self._retired: list[IndexFile] = []
        self._dropped: list[IndexFile] = []
        """Files that ``gantry-point`` closes and unlinks."""

        self._last_name = ""
        self._disk: Final = disk
        self._clock: Final = clock
        self._settings: Final = settings

    @property
    def end_physical(self) -> int:
        """Messages at or before this physical offset are indexed; -1 when none is."""
        for file in reversed(self.files):
            if file.header.next_number > 1:
                return file.header.end_physical
        return -1

    def count_last_keys(self) -> int:
        """Return how many keys of the last indexed message have an entry: the first ones, since they are in order."""
        end, count = self.end_physical, 0
        for file in reversed(self.files):
            for number in range(file.header.next_number - 1, 0, -1):
                if file.entry(number)[1] != end:
                    return count
                count += 1
        return count

    # -- files ---------------------------------------------------------------------------------------------------------

    def load(self, *, up_to: str | None = None) -> bool:
        """Open the existing files. Return False, with nothing open, if one of them is not an index of these settings.

        Files that were created after the one named ``up_to`` are unlinked, if those before them are good.
        """
        files: list[IndexFile] = []
        is_good = True
        if self._disk.exists(self.directory) and not self._disk.is_directory(self.directory):
            foreign = f"{self.directory}.foreign"
            log.warning("set aside a file found in place of the key index directory", extra={"path": foreign})
            self._disk.rename(self.directory, foreign)
        for name in index_names(self._disk, self.directory):
            path = f"{self.directory}/{name}"
            if up_to is not None and name > up_to:
                self._disk.remove(path)
                self.is_directory_dirty = True
                continue
            size = -1 if self._disk.is_directory(path) else self._disk.file_size(path)
            if size != self._settings.index_file_size or (files and not files[-1].is_complete):
                reason = (
                    f"it has {size} bytes"
                    if size != self._settings.index_file_size
                    else "the file before it is incomplete"
                )
                log.warning(
                    "key index is unusable; rebuilding it from the commit log", extra={"path": path, "reason": reason}
                )
                is_good = False
                break
            file = IndexFile(self._disk.open(path), name, self._settings)
            files.append(file)
            if not file.load():
                log.warning(
                    "key index is unusable; rebuilding it from the commit log",
                    extra={"path": path, "reason": "its header is invalid"},
                )
                is_good = False
                break
        self.files = tuple(files)
        if not is_good:
            self.close()
        return is_good

    def point(self) -> IndexPoint | None:
        """Return the state of the index for a recovery point: its newest file that has an entry."""
        for file in reversed(self.files):
            if file.header.next_number > 1:
                return IndexPoint(file.name, file.header)
        return None

    def ends(self) -> list[tuple[str, int]]:
        """Return the names of all files but the newest, with the start of their last messages. These are final."""
        return [(file.name, file.header.end_physical) for file in self.files[:-1]]

    def find_missing_file(self, ends: list[tuple[str, int]], min_physical: int) -> str | None:
        """Return the name of a file of ``ends`` that is missing although not all of its messages have expired."""
        names = {file.name for file in self.files}
        return next((name for name, end in ends if name not in names and end >= min_physical), None)

    def restore(self, point: IndexPoint, *, is_clean: bool) -> bool:
        """Reset the index to ``point``, unless the last stop was clean. Return False if it lacks data of the point."""
        newest = next((file for file in self.files if file.name == point.name), None)
        if newest is None or newest.header.next_number < point.header.next_number:
            # The header was synced before the point was written, and only ever grows.
            return False
        if not is_clean:
            newest.restore(point.header)
        return True

    def remove_all(self) -> None:
        """Delete all files, before the index is rebuilt."""
        self.close()
        remove_durably(self._disk, self.directory)
        self.is_directory_dirty = False

    def truncate(self, end: int) -> None:
        """Remove the entries of all messages that begin at or after the physical offset ``end``."""
        while self.files and (self.files[-1].header.next_number <= 1 or self.files[-1].header.begin_physical >= end):
            *kept, last = self.files
            self.files = tuple(kept)
            last.file.close()
            self._disk.remove(last.file.path)
            self.is_directory_dirty = True
        if self.files and self.files[-1].header.end_physical >= end:
            self.files[-1].truncate(end)

    def retire_before(self, min_physical: int) -> tuple[IndexFile, ...]:
        """Remove the files from the list whose messages all lie before ``min_physical``; the newest always stays.

        The caller unlinks them, ``gantry-point`` closes them.
        """
        count = 0
        while count < len(self.files) - 1 and self.files[count].header.end_physical < min_physical:
            count += 1
        retired, self.files = self.files[:count], self.files[count:]
        self._retired.extend(retired)
        return retired

    def mark_damaged(self, file: IndexFile, reason: str) -> None:
        """Record that ``file`` is damaged: no batch is indexed until it and all later files have been rebuilt."""
        if file not in self.files:
            return
        if self.damaged is None or self.files.index(file) < self.files.index(self.damaged):
            self.damaged, self.damage_reason = file, reason
        self.is_behind = True

    def mark_names_unsynced(self) -> None:
        """Record that names of files may be in the page cache only; the next ``sync`` makes them durable."""
        self.is_directory_dirty = True

    def mark_behind(self) -> None:
        """Record that the index lacks messages: no batch is indexed before they are added."""
        self.is_behind = True

    def mark_complete(self) -> None:
        """Record that the index has every visible message."""
        self.is_behind = False

    def drop_files_to_rebuild(self) -> None:
        """Remove the damaged file and all later ones from the index, or its newest file if none is damaged."""
        first = len(self.files) - 1
        if self.damaged is not None and self.damaged in self.files:
            first = self.files.index(self.damaged)
        dropped, self.files = self.files[max(first, 0) :], self.files[: max(first, 0)]
        self._last_name = max((self._last_name, *(file.name for file in dropped)))
        self._dropped.extend(dropped)
        self.damaged, self.damage_reason = None, ""

    def unlink(self, file: IndexFile) -> None:
        """Unlink a retired file. Any thread may call it."""
        with suppress(FileNotFoundError):
            self._disk.remove(file.file.path)
        self.is_directory_dirty = True

    def _next_name(self) -> str:
        now_ms = self._clock.wall_ms()
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
        last = max(self._last_name, self.files[-1].name if self.files else "")
        return f"{int(last) + 1:0{INDEX_NAME_DIGITS}d}" if name <= last else name

    def _writable_file(self) -> IndexFile:
        """Return the newest file, or create the next one if it is full.

        Raises ``IndexFileDamaged`` or ``StoreFull``.
        """
        if self.files and not self.files[-1].is_full:
            # Its map must not be touched before its size is restored.
            self.files[-1].raise_if_shortened()
            return self.files[-1]
        self._disk.make_directory(self.directory)
        file = IndexFile.create(self._disk, self.directory, self._next_name(), self._settings)
        if self.files:
            file.inherit_end(self.files[-1].header)
        self.files = (*self.files, file)
        self.is_directory_dirty = True
        return file

    # -- writing -------------------------------------------------------------------------------------------------------

    def put_batch(self, drafts: Sequence[Draft], physical_offsets: Sequence[int], timestamp_ms: int) -> None:
        """Index a batch that was appended at ``timestamp_ms``. Rolled back messages are skipped."""
        if self.is_behind:
            return
        try:
            self._put(drafts, physical_offsets, timestamp_ms)
        except IndexFileDamaged as exc:
            self.mark_damaged(self.files[-1], str(exc))
        except (StoreFull, OSError) as exc:
            # A gap in the middle would never be detected, so indexing stops until the newest file is rebuilt.
            self.is_behind = True
            log.error("key index is behind; it catches up when the disk has space", extra={"reason": str(exc)})

    def put_for_rebuild(self, drafts: Sequence[Draft], physical_offsets: Sequence[int], timestamp_ms: int) -> None:
        """Index a batch while the index is behind, for a rebuild.

        Raises ``StoreFull`` and ``OSError``; then the newest file is discarded, and rebuilt.
        """
        try:
            self._put(drafts, physical_offsets, timestamp_ms)
        except IndexFileDamaged as exc:
            raise OSError(errno.EIO, str(exc)) from exc

    def _put(self, drafts: Sequence[Draft], physical_offsets: Sequence[int], timestamp_ms: int) -> None:
        """Write hash, slot and entry for every key of a batch. This is the index's part of the append loop."""
        if isinstance(drafts, CompiledKeys):
            self._put_compiled(drafts)
            return
        if not any(draft[11] for draft in drafts):
            return
        cursor = IndexCursor(self._writable_file(), timestamp_ms)
        view, slots = cursor.file.view, cursor.file.slots
        number, numbers_end, position, seconds = cursor.number, cursor.numbers_end, cursor.position, cursor.seconds
        used, indexed = 0, -1
        # These are locals, since the lookup of a module's name would cost time for every message.
        prefixes, suffixes, time_end, mask = prefix_hashes, suffix_hashes, TIME_END, MASK
        key_characters, slots_start, entry_bytes = UNIQUE_KEY_CHARACTERS, INDEX_HEADER_BYTES, ENTRY_BYTES
        unpack_slot, pack_slot, pack_entry = _unpack_slot, _pack_slot, _pack_entry
        for (queue, _, _, sys_flag, _, _, _, _, _, _, _, keys), physical in zip(drafts, physical_offsets, strict=True):
            if not keys or sys_flag & 0xC == 0xC:
                continue
            indexed = physical
            for key in keys:
                if number == numbers_end:
                    cursor = self._advance(cursor, number, used)
                    view, slots, used = cursor.file.view, cursor.file.slots, 0
                    number, numbers_end = cursor.number, cursor.numbers_end
                    position, seconds = cursor.position, cursor.seconds
                if len(key) == key_characters:
                    try:
                        value = (queue.key_seed_unique + prefixes[key[:time_end]] + suffixes[key[time_end:]]) & mask
                    except KeyError:
                        if key.isascii():
                            value = (queue.key_seed_unique + add_key_pieces(key)) & MASK
                        else:
                            value = seeded_hash(queue.key_seed, key) & MASK
                else:
                    value = seeded_hash(queue.key_seed, key) & MASK
                if value > 0x7FFFFFFF:
                    value = 0x1_0000_0000 - value
                    if value == 0x8000_0000:
                        value = 0
                slot_position = slots_start + value % slots * 4
                (previous,) = unpack_slot(view, slot_position)
                if not 0 < previous < number:
                    previous = 0
                    used += 1
                pack_entry(view, position, value, physical, seconds, previous)
                pack_slot(view, slot_position, number)
                position += entry_bytes
                number += 1
        cursor.finish(number, used, indexed)

    def _put_compiled(self, keys: Any) -> None:
        """Do the same for compiled keys, each of which has its own store time."""
        end, first = len(keys), 0
        if not end:
            return
        cursor = IndexCursor(self._writable_file(), keys.place(0)[1])
        while True:
            file = cursor.file
            count, used = keys.put(
                file.view, file.slots, first, cursor.number, cursor.numbers_end, cursor.position, cursor.begin_ms
            )
            first += count
            physical, timestamp_ms = keys.place(first - 1)
            cursor.finish(cursor.number + count, used, physical, timestamp_ms)
            if first == end:
                return
            file = file if file.header.next_number < file.count_max else self._writable_file()
            cursor = IndexCursor(file, keys.place(first)[1])

    def _advance(self, cursor: IndexCursor, number: int, used: int) -> IndexCursor:
        """Return a cursor with room for the entry ``number``, in the same file or in a new one."""
        _, last_physical = cursor.file.entry(number - 1)
        cursor.finish(number, used, last_physical)
        file = cursor.file if number < cursor.file.count_max else self._writable_file()
        return IndexCursor(file, cursor.timestamp_ms)

    # -- reading -------------------------------------------------------------------------------------------------------

    def find(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Return messages that may carry ``key`` and were stored in ``[begin_ms, end_ms]``, newest first."""
        value = key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.files):
            if len(found) >= count_max:
                break
            if file.header.next_number > 1 and file.header.covers(begin_ms, end_ms):
                try:
                    found += file.find(value, count_max=count_max - len(found), begin_ms=begin_ms, end_ms=end_ms)
                except IndexFileDamaged as exc:
                    self.mark_damaged(file, str(exc))
        last = self.files[-1].header if self.files else IndexHeader()
        # Earlier versions indexed the last message again at each start without a recovery point.
        return KeyMatches(list(dict.fromkeys(found)), last.end_timestamp_ms, last.end_physical, not self.is_behind)

    def has_entry(self, topic: str, key: str, physical: int, timestamp_ms: int) -> bool:
        """Return whether the message at ``physical``, which was stored at ``timestamp_ms``, is indexed by ``key``."""
        begin_ms, end_ms = timestamp_ms - 1000, timestamp_ms + 1000
        matches = self.find(topic, key, count_max=HAS_ENTRY_COUNT_MAX, begin_ms=begin_ms, end_ms=end_ms)
        return physical in matches.physical_offsets

    def mark_entry_damaged(self, physical: int, reason: str) -> None:
        """Record that the file with the entry for ``physical``, or the one that lacks it, is damaged."""
        file = next((file for file in self.files if physical <= file.header.end_physical), None)
        if file is not None:
            self.mark_damaged(file, reason)
        elif self.files:
            self.mark_damaged(self.files[-1], reason)
        else:
            self.mark_behind()

    # -- durability ----------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make all entries and names durable. Called by ``gantry-point``."""
        while self._retired:
            self._retired.pop().file.close()
        while self._dropped:
            dropped = self._dropped.pop()
            dropped.file.close()
            self.unlink(dropped)
        for file in self.files:
            file.sync()
        if self.is_directory_dirty:
            self.is_directory_dirty = False
            try:
                self._disk.sync_directory(self.directory)
            except OSError:
                self.is_directory_dirty = True
                raise

    def close(self) -> None:
        for file in (*self.files, *self._retired, *self._dropped):
            file.file.close()
        self.files = ()
        self._retired.clear()
        self._dropped.clear()
        self.damaged, self.damage_reason = None, ""
