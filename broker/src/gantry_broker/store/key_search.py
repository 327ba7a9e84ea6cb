"""Search of messages by their keys: matches of the index, compared with the log.

The index holds hashes only, so results include other keys with equal hashes. An entry that points to no message with
such a hash is a fault of the index, which is then rebuilt from the log.
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.errors import IndexRebuilding
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.derived_repair import DerivedRepair
from gantry_broker.store.key_hash import key_hash
from gantry_broker.store.key_index import KeyIndex, KeyMatches
from gantry_broker.store.log_guard import LogGuard
from gantry_broker.store.record_dispatch import parse_record_fields
from gantry_broker.store.recovery import Seals
from gantry_wire.message import RecordFault, check_record


@final
class KeySearch:
    """Finds messages by their keys. Owned by the loop's thread."""

    def __init__(
        self,
        commit_log: CommitLog,
        index: KeyIndex | None,
        guard: LogGuard,
        repair: DerivedRepair,
        seals: Seals,
        delay_levels_ms: tuple[int, ...],
    ) -> None:
        self._log: Final = commit_log
        self._index: Final = index
        self._guard: Final = guard
        self._repair: Final = repair
        self._seals: Final = seals
        self._delay_levels_ms: Final = delay_levels_ms

    def matches(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Return the offsets of records that may carry ``key``, newest first, and the end of the index."""
        index = self._index
        if index is None:
            return KeyMatches([], 0, 0)
        was_behind = index.is_behind
        matches = index.find(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)
        value, kept = key_hash(topic, key), []
        for physical in matches.physical_offsets:
            if self._is_entry_correct(physical, value):
                kept.append(physical)
            else:
                index.mark_entry_damaged(physical, f"an entry points to {physical}, where no message has its key")
        if index.is_behind and not was_behind:
            for listener in self._repair.on_damage:
                listener()
        return matches._replace(physical_offsets=kept, is_complete=not index.is_behind)

    def _is_entry_correct(self, physical: int, value: int) -> bool:
        """Return whether the record at ``physical`` has a key with this hash.

        It is also true for an expired record, and for one with a wrong checksum: these are no faults of the index.
        """
        written = self._log.view(physical)
        if not written:
            return physical < self._log.min_physical
        self._log.require_own_file(physical)
        check = check_record(written, 0, physical_offset=physical, is_sealed=self._seals(physical).is_ours)
        if not check.is_good:
            return check.fault in (RecordFault.CRC, RecordFault.SEAL)
        fields = parse_record_fields(written, 0, check.size, self._delay_levels_ms)
        return any(key_hash(fields.topic, key) == value for key in fields.keys)

    def records(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> tuple[list[bytes], int, int]:
        """Return the records that carry ``key`` or a key with an equal hash, and the end of the index: time, offset.

        Raises ``IndexRebuilding`` if there may be more matches.
        """
        matches = self.matches(topic, key, count_max, begin_ms, end_ms)
        if not matches.is_complete:
            raise IndexRebuilding("the key index is being rebuilt from the commit log; try again later")
        found = (self._guard.message_at(offset) for offset in matches.physical_offsets)
        records = [record for record in found if record is not None]
        return records, matches.last_timestamp_ms, matches.last_physical
