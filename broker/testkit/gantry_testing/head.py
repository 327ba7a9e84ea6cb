"""The head of a store's log, deleted at once and in this thread: what retention does in a broker, for store tests."""

from __future__ import annotations

from gantry_broker.store.message_store import MessageStore
from gantry_testing.store_world import StoreWorld

POINT_INTERVAL_MS = 60_000
"""Longer than any test lets pass between two recovery points."""


def remove_before(store: MessageStore, offset: int) -> int:
    """Delete the files of the log that end at or before ``offset``, and what is derived; how many log files went."""
    trims = store.removal.measure(offset)
    count = store.removal.retire(offset, trims)
    store.removal.unlink()
    return count


def remove_files(store: MessageStore, count: int) -> int:
    """Delete the ``count`` oldest files of the log; where it begins now."""
    ends = [file.end_offset for file in store.removal.facts() if file.is_removable][:count]
    assert len(ends) == count, f"only {len(ends)} files can go"
    remove_before(store, ends[-1])
    return store.log.min_physical


def write_point(world: StoreWorld) -> None:
    """Have a recovery point written, everything before it synced, and retired files closed."""
    world.clock.advance(POINT_INTERVAL_MS)
    world.store.flush_step()
