"""Healed records, kept for a service that may have skipped them because they were damaged.

Records that the service has not reached yet are among them: its handler leaves those out.
"""

from collections.abc import Callable
from typing import Final, final

from gantry_broker.store.message_store import MessageStore

HEALED_MAX: Final = 10_000
"""How many offsets are remembered: the same limit as for damaged ranges."""


@final
class HealedRecords:
    """The offsets of healed records of some topics, until they are processed. Owned by the event loop."""

    def __init__(self, store: MessageStore, *topics: str) -> None:
        self.offsets: Final[set[int]] = set()
        """Physical offsets of the healed records that wait to be processed."""
        self._store: Final = store
        self._topics: Final = topics
        store.repair.on_healed_record.append(self._add)

    def __repr__(self) -> str:
        return f"<HealedRecords of {self._topics} offsets={len(self.offsets)}>"

    def process(self, handle: Callable[[bytes], None]) -> None:
        """Call ``handle`` with each record in log order. If it raises, that record and the following ones are kept."""
        for offset in sorted(self.offsets):
            record = self._store.guard.message_at(offset, is_known=True)
            if record is not None:
                handle(record)
            self.offsets.discard(offset)

    def on_log_changed(self, end: int) -> None:
        """Forget offsets from ``end`` on, where the log ends now: other records will be appended there."""
        self.offsets.difference_update([offset for offset in self.offsets if offset >= end])

    def _add(self, topic: str, offset: int) -> None:
        if topic in self._topics and len(self.offsets) < HEALED_MAX:
            self.offsets.add(offset)
