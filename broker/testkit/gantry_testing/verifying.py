"""Helpers for tests of `gantry store verify`: a store with all kinds of data, and functions to check findings.

world = fill_store(make_world("real", tmp_path));  damage it;  found = only_finding(verify(world))
"""

from __future__ import annotations

from typing import Final

from gantry_broker.store.inspect.findings import Finding, Harm, Kind, Message
from gantry_broker.store.inspect.verify import Verifier, VerifyOptions, VerifyReport
from gantry_testing.faulty_reading_disk import FaultyReadingDisk
from gantry_testing.store_world import TINY, StoreWorld

LOG: Final = "commitlog/00000000000000000000"
"""The name of the first file of the log, relative to the store."""

QUEUE: Final = "consumequeue/orders/0/00000000000000000000"
"""The name of the first file of a queue."""

ALL: Final = VerifyOptions()
"""The options with which everything is verified."""


def fill_store(world: StoreWorld) -> StoreWorld:
    """Fill the store: three files of log, five queues, two index files, 200 messages; it is left open."""
    world.open()
    for i in range(100):
        world.send("orders", queue_id=i % 3)
        world.send("bills", queue_id=i % 2)
    return world


def flush(world: StoreWorld) -> None:
    """Make everything durable, with a recovery point after it."""
    world.clock.advance(60_000)
    world.store.flush_step()


def verify(world: StoreWorld, order: VerifyOptions = ALL) -> VerifyReport:
    return Verifier(FaultyReadingDisk(world.disk), world.root, order).run()


def only_finding(report: VerifyReport) -> Finding:
    """Return the only finding that the report must have."""
    assert len(report.findings.kept) == 1, report.findings.kept
    return report.findings.kept[0]


def kinds(report: VerifyReport) -> set[tuple[Kind, Harm]]:
    return {(finding.kind, finding.harm) for finding in report.findings.kept}


def locate_record(world: StoreWorld, number: int) -> tuple[int, int, Message]:
    """Return (offset, size, queue and its offset) of the ``number``-th message that was sent, counted from 0."""
    start = sorted(world.records)[number]
    _, topic, queue_id, queue_offset, _ = world.sent[number]
    return start, len(world.records[start]), Message(topic, queue_id, queue_offset)


def overwrite_log(world: StoreWorld, offset: int, data: bytes) -> None:
    """Overwrite bytes at a position of the log."""
    file_size = TINY.mapped_file_size_commit_log
    world.overwrite(f"commitlog/{offset - offset % file_size:020d}", offset % file_size, data)
