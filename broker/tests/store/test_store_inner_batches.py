"""Records of RocketMQ that are batches take several queue offsets: on slaves, after promotions and after any stop."""

from __future__ import annotations

import pytest

from gantry_broker.store.copying import LogCopier
from gantry_broker.store.inner_batches import InnerBatch, find_inner_batch
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import verify
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.message import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP, StoredMessage, encode_record
from gantry_wire.properties import INNER_BASE, INNER_NUM, format_properties

COUNTS = (3, 1, 5, 1, 4)
"""How many messages each record has; together they take the queue offsets 0 to 13."""
BATCHES = {0: InnerBatch(0, 3), 4: InnerBatch(4, 9), 10: InnerBatch(10, 14)}
"""The batches by their first queue offsets."""
ENDS = 14
STORED_MS = 1_700_000_000_000


def make_records(counts: tuple[int, ...] = COUNTS, *, named: int | None = None) -> list[bytes]:
    """Return the records of a log, as RocketMQ writes them. ``named`` replaces the number of messages in a record."""
    records: list[bytes] = []
    offset = physical = 0
    for count in counts:
        body, flags, properties = b"%d" % offset, 0, {"TAGS": "a"}
        if count > 1:
            body = encode_batch(BatchEntry(0, b"%d" % number, b"") for number in range(offset, offset + count))
            flags = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
            properties |= {INNER_NUM: str(named or count), INNER_BASE: str(offset)}
        message = StoredMessage(
            topic="orders", queue_id=0, body=body, queue_offset=offset, physical_offset=physical, sys_flag=flags,
            store_timestamp_ms=STORED_MS + 10 * offset, properties_bytes=format_properties(properties).encode(),
        )  # fmt: skip
        records.append(encode_record(message, is_sealed=True))
        physical += len(records[-1])
        offset += count
    return records


def make_slave() -> tuple[StoreWorld, LogCopier]:
    """Return an empty slave, and what copies a log to it."""
    world = StoreWorld(FaultyDisk(), "/slave", TINY)
    world.open()
    return world, world.store.start_copying()


def assert_served(world: StoreWorld) -> None:
    """Check that each offset inside of a batch leads to its record, and that the other offsets have their own."""
    queue = world.store.queues.get_or_create("orders", 0)
    for offset in range(ENDS):
        start = max(first for first in (0, 3, 4, 9, 10) if first <= offset)
        expected = BATCHES[start] if offset != start else None
        assert find_inner_batch(world.store.log, queue, offset) == expected, offset
    assert [one.queue_offset for one in world.messages()][:5] == [0, 3, 4, 9, 10]


@pytest.mark.parametrize("shown", range(len(COUNTS) + 1))
def test_promoted_slave_continues_after_the_last_batch(shown: int) -> None:
    """Unconfirmed batches keep their queue offsets and stay invisible; new messages follow them."""
    slave, copier = make_slave()
    records = make_records()
    start = 0
    for record in records:
        start = copier.append(record, start)
    confirmed = sum(map(len, records[:shown]))
    copier.dispatch(confirmed)
    queue = slave.store.queues.get_or_create("orders", 0)

    copier.hold_undispatched()

    assert (queue.readable_end, queue.end) == (sum(COUNTS[:shown]), ENDS)
    assert slave.append([slave.draft("orders", 0, body=b"held")])[1] == [ENDS]
    slave.store.dispatcher.release(start)
    assert queue.readable_end == ENDS
    assert_served(slave)
    slave.store.dispatcher.release(slave.store.log.wrote)
    slave.store.dispatcher.release(slave.store.log.wrote, keep_holding=False)
    assert slave.append([slave.draft("orders", 0, body=b"new")])[1] == [ENDS + 1]
    assert slave.bodies()[-2:] == [b"held", b"new"]
    assert_served(slave)


def test_promotion_without_new_messages_fills_the_last_batch() -> None:
    """The queue is as long for consumers as it is for the next message, and a demotion releases held offsets."""
    slave, copier = make_slave()
    data = b"".join(make_records())
    copier.append(data, 0)
    copier.hold_undispatched()
    queue = slave.store.queues.get_or_create("orders", 0)
    slave.store.dispatcher.drop_held_batches()
    assert (queue.readable_end, queue.end) == (0, 0)

    copier = slave.store.start_copying()
    copier.collect_undispatched()
    copier.hold_undispatched()
    slave.store.dispatcher.release(len(data))
    slave.store.dispatcher.release(len(data), keep_holding=False)

    assert (queue.readable_end, queue.end) == (ENDS, ENDS)
    assert slave.append([slave.draft("orders", 0, body=b"new")])[1] == [ENDS]
    assert slave.bodies()[-1] == b"new"


@pytest.mark.parametrize("ending", ["close", "kill", "power"])
@pytest.mark.parametrize("is_flushed", [False, True])
def test_offsets_of_batches_survive_every_stop(ending: str, is_flushed: bool) -> None:
    """The offsets after the last batch are not assigned again, and verification finds nothing to report."""
    slave, copier = make_slave()
    data = b"".join(make_records())
    copier.append(data, 0)
    slave.store.flush()
    while not copier.dispatch(len(data)):
        pass
    if is_flushed:
        slave.store.flush_step()
    match ending:
        case "close":
            slave.close()
        case "kill":
            slave.kill()
        case "power":
            slave.lose_power()
    slave.open()

    queue = slave.store.queues.get_or_create("orders", 0)
    assert (queue.min_offset, queue.readable_end, queue.end) == (0, ENDS, ENDS)
    assert slave.append([slave.draft("orders", 0, body=b"new")])[1] == [ENDS]
    slave.store.dispatcher.release(slave.store.log.wrote)
    assert_served(slave)
    slave.close()
    report = verify(slave)
    assert report.findings.kept == []
    assert report.records == report.units == len(COUNTS) + 1


@pytest.mark.parametrize("named", [0x8000, -1, 10**12])
def test_impossible_number_of_messages_counts_as_one(named: int) -> None:
    """RocketMQ stores the number as a short; a record with another one takes a single offset."""
    slave, copier = make_slave()
    data = make_records((3,), named=named)[0]
    copier.append(data, 0)
    while not copier.dispatch(len(data)):
        pass

    assert slave.store.queues.get_or_create("orders", 0).end == 1


def test_search_by_time_counts_a_batch_as_stored_at_once() -> None:
    """The first message of a batch is found at the time of its record, and the next record after that time.

    Fillers cannot point to the record at the log's very beginning, so a search may end inside of that batch.
    """
    slave, copier = make_slave()
    data = b"".join(make_records())
    copier.append(data, 0)
    while not copier.dispatch(len(data)):
        pass

    for at_ms, expected in ((0, 0), (1, 1), (31, 4), (40, 4), (41, 9), (90, 9), (91, 10), (100, 10), (101, 14)):
        assert slave.store.times.offset_by_time("orders", 0, STORED_MS + at_ms) == expected, at_ms
