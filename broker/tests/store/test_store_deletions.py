"""The table of deleted topics has only topics of which the log may have messages, however many are deleted."""

from __future__ import annotations

import pytest

from gantry_broker.store.copying import LogCopier
from gantry_broker.store.queue_table import QueueTable
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import StoreWorld

MISSING = 50


def make_world(root: str) -> StoreWorld:
    world = StoreWorld(FaultyDisk(), root)
    world.open()
    return world


def lagging_slave() -> tuple[StoreWorld, LogCopier, int, int]:
    """Return a slave that has copied messages of three topics and dispatched none, and where those of the first end."""
    master, slave = make_world("/master"), make_world("/slave")
    copier = slave.store.start_copying()
    for topic in ("orders", "bills", "orders"):
        master.send(topic, 3)
    end = 0
    for start, record in sorted(master.records.items()):
        end = copier.append(record, start)
    return slave, copier, master.sent[5].end, end


def delete_missing(world: StoreWorld, end: int) -> None:
    """Delete topics that do not exist, as a slave does for topics that its master has deleted."""
    for number in range(MISSING):
        world.store.delete_topic(f"missing-{number}", before=end)


def show_all(world: StoreWorld, copier: LogCopier) -> None:
    while not copier.dispatch(world.store.log.wrote):
        pass


# -- a master ----------------------------------------------------------------------------------------------------------


def held_master() -> StoreWorld:
    """Return a master with messages that are not confirmed, and not dispatched."""
    world = make_world("/store")
    world.store.dispatcher.hold()
    world.send("orders", 3)
    assert world.store.dispatcher.dispatched < world.store.log.wrote
    return world


def test_a_master_keeps_no_deletion_of_a_topic_without_messages() -> None:
    """Topics that do not exist are not deleted, also while messages wait for their confirmation."""
    world = held_master()

    for number in range(MISSING):
        assert not world.store.delete_topic(f"missing-{number}")

    assert world.store.queues.deleted == {}


def test_a_master_keeps_the_deletion_of_messages_that_are_not_confirmed() -> None:
    """The queue of each message exists before it is dispatched, so the deletion holds after a crash as well."""
    world = held_master()
    assert world.store.delete_topic("orders")
    world.store.delete_topic("missing")
    world.store.dispatcher.release(world.store.log.wrote)
    world.store.delete_topic("missing")
    assert set(world.store.queues.deleted) == {"orders"}
    world.clock.advance(60_000)
    world.store.flush_step()
    world.disk.remove_tree(world.path("consumequeue"))
    world.kill()

    world.open()

    assert world.store.queues.topics() == {}


# -- a slave -----------------------------------------------------------------------------------------------------------


def test_a_slave_forgets_deletions_of_topics_without_messages() -> None:
    """Once the log is dispatched up to a deletion, it is known whether the log has a message of the topic."""
    slave, copier, _, end = lagging_slave()
    delete_missing(slave, end)
    slave.store.delete_topic("orders", before=end)
    assert len(slave.store.queues.deleted) == MISSING + 1

    show_all(slave, copier)
    slave.store.delete_topic("missing", before=end)

    assert slave.store.queues.deleted == {"orders": end}
    assert slave.store.queues.topics() == {"bills": [0]}


def test_without_forgetting_the_table_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: all deletions would be kept as long as the process runs."""
    monkeypatch.setattr(QueueTable, "forget_deletions", lambda table, dispatched, min_physical: None)
    slave, copier, _, end = lagging_slave()
    delete_missing(slave, end)
    show_all(slave, copier)
    slave.store.delete_topic("missing", before=end)

    assert len(slave.store.queues.deleted) == MISSING


def deleted_after_a_second_deletion(slave: StoreWorld, copier: LogCopier, first_end: int, end: int) -> dict[str, int]:
    """Delete a topic, dispatch its messages, and delete it again, when it has none; return the kept deletions."""
    slave.store.delete_topic("bills", before=first_end)
    copier.dispatch(first_end)
    slave.store.delete_topic("bills", before=end)
    show_all(slave, copier)
    slave.store.delete_topic("missing", before=end)
    return dict(slave.store.queues.deleted)


def test_a_topic_without_new_messages_stays_deleted() -> None:
    """A second deletion, for which no message is found, does not make the first one forgotten."""
    assert deleted_after_a_second_deletion(*lagging_slave())["bills"] > 0


def test_if_messages_were_not_noticed_the_topic_would_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without a note that the log has messages of the topic, its deletion would be forgotten."""

    def is_deleted(table: QueueTable, topic: str, physical_offset: int) -> bool:
        return physical_offset < table.deleted.get(topic, -1)

    monkeypatch.setattr(QueueTable, "is_deleted", is_deleted)

    assert deleted_after_a_second_deletion(*lagging_slave()) == {}


def test_a_promoted_slave_keeps_deletions_of_messages_that_are_held() -> None:
    """A promotion reads the undispatched part of the log as well, and notes which topics have messages there."""
    slave, copier, _, end = lagging_slave()
    slave.store.delete_topic("bills", before=end)
    delete_missing(slave, end)

    copier.hold_undispatched()
    slave.store.dispatcher.release(slave.store.log.wrote)
    slave.store.delete_topic("missing")

    assert slave.store.queues.deleted == {"bills": end}
    assert slave.store.queues.topics() == {"orders": [0]}


def test_while_records_are_damaged_no_deletion_is_forgotten() -> None:
    """A damaged record may be the only message of a deleted topic, and return from a replica."""
    slave, copier, _, end = lagging_slave()
    delete_missing(slave, end)
    show_all(slave, copier)
    slave.store.guard.damage.report(0, 10)
    slave.store.delete_topic("missing", before=end)

    assert len(slave.store.queues.deleted) == MISSING


def test_deletions_before_the_log_are_forgotten() -> None:
    """When retention has deleted all log files before a deletion, no message of the topic is left."""
    table = make_world("/store").store.queues
    table.get_or_create("orders", 0)
    table.delete_topic("orders", 100)

    table.forget_deletions(1000, 99)
    assert table.deleted == {"orders": 100}
    table.forget_deletions(1000, 100)
    assert table.deleted == {}
