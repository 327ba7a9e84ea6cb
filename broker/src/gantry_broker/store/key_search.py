"""Messages by their keys: what the index finds, compared with the log.

The index holds hashes only, so equal hashes of other keys come along. An entry that leads to no message with such a
hash is a fault of the index, which is then rebuilt from the log.
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.errors import IndexRebuilding
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.derived_repair import DerivedRepair
from gantry_broker.store.key_hash import key_hash
from gantry_broker.store.key_index import KeyIndex, KeyMatches
from gantry_broker.store.log_guard import LogGuard
from gantry_broker.store.record_dispatch import record_facts
from gantry_broker.store.recovery import Seals
from gantry_wire.message import RecordFault, check_record


@final
class KeySearch:
    """Owned by the loop's thread."""

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
        """Where records are that may carry ``key``, newest first, and how far the index has come."""
        index = self._index
        if index is None:
            return KeyMatches([], 0, 0)
        was_behind = index.is_behind
        matches = index.find(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)
        value, kept = key_hash(topic, key), []
        for physical in matches.physical_offsets:
            if self._is_indexed_right(physical, value):
                kept.append(physical)
            else:
                index.distrust_entry(physical, f"an entry leads to {physical}, where no message has its key")
        if index.is_behind and not was_behind:
            for listener in self._repair.on_damage:
                listener()
        return matches._replace(physical_offsets=kept, is_complete=not index.is_behind)

    def _is_indexed_right(self, physical: int, value: int) -> bool:
        """Whether the record at ``physical`` has a key with this hash, or is rotten: that is not the index's fault."""
        written = self._log.view(physical)
        if not written:
            return physical < self._log.min_physical
        self._log.demand_own(physical)
        check = check_record(written, 0, physical_offset=physical, is_sealed=self._seals(physical).is_ours)
        if not check.is_good:
            return check.fault in (RecordFault.CRC, RecordFault.SEAL)
        facts = record_facts(written, 0, check.size, self._delay_levels_ms)
        return any(key_hash(facts.topic, key) == value for key in facts.keys)

    def records(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> tuple[list[bytes], int, int]:
        """Records that may carry ``key`` (equal hashes come along), and how far the index has come: time, offset.

        Raises ``IndexRebuilding`` where there may be more.
        """
        matches = self.matches(topic, key, count_max, begin_ms, end_ms)
        if not matches.is_complete:
            raise IndexRebuilding("the key index is being rebuilt from the commit log; try again later")
        found = (self._guard.message_at(offset) for offset in matches.physical_offsets)
        records = [record for record in found if record is not None]
        return records, matches.last_timestamp_ms, matches.last_physical
