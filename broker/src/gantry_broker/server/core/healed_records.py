"""Records that services skipped because they were damaged, and process again after they were healed."""

from collections.abc import Callable
from typing import Final, final

from gantry_broker.store.message_store import MessageStore

HEALED_MAX: Final = 10_000
"""Places that are remembered: as many as damaged ranges are."""


@final
class HealedRecords:
    """Places of healed messages of some topics. Owned by the event loop."""

    def __init__(self, store: MessageStore, *topics: str) -> None:
        self.places: Final[set[int]] = set()
        self._store: Final = store
        self._topics: Final = topics
        store.repair.on_healed_record.append(self._healed)

    def __repr__(self) -> str:
        return f"<HealedRecords of {self._topics} places={len(self.places)}>"

    def take(self, handle: Callable[[bytes], None]) -> None:
        """Hand each record over, in the order of the log. When ``handle`` raises, that one and the rest stay."""
        for place in sorted(self.places):
            record = self._store.guard.message_at(place, is_known=True)
            if record is not None:
                handle(record)
            self.places.discard(place)

    def log_cut(self, end: int) -> None:
        """Forget what lay behind ``end``: no record needs to begin at those places of the new log."""
        self.places.difference_update([place for place in self.places if place >= end])

    def _healed(self, topic: str, place: int) -> None:
        if topic in self._topics and len(self.places) < HEALED_MAX:
            self.places.add(place)
