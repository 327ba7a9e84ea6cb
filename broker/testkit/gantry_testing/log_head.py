"""Deletion of the oldest log files in store tests: what a broker's retention does, in one call and without waiting."""

from __future__ import annotations

from gantry_broker.store.message_store import MessageStore
from gantry_testing.store_world import StoreWorld

CLOCK_STEP_MS = 60_000
"""A step of the clock after which a recovery point is due: longer than the interval of the test's store."""


def remove_before(store: MessageStore, offset: int) -> int:
    """Delete the log files that end at or before ``offset``, with derived data; return the number of log files."""
    trims = store.removal.measure(offset)
    count = store.removal.retire(offset, trims)
    store.removal.unlink()
    return count


def remove_files(store: MessageStore, count: int) -> int:
    """Delete the ``count`` oldest files of the log; return its new begin."""
    ends = [file.end_offset for file in store.removal.describe_oldest_files() if file.is_removable][:count]
    assert len(ends) == count, f"only {len(ends)} files can be deleted"
    remove_before(store, ends[-1])
    return store.log.min_physical


def write_recovery_point(world: StoreWorld) -> None:
    """Run the flush thread's round in which a recovery point is due: it syncs, writes it, and closes deleted files."""
    world.clock.advance(CLOCK_STEP_MS)
    world.store.flush_step()
