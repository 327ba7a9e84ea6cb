"""Held dispatch releases exactly the confirmed messages.

*Dispatch* makes appended messages visible: it moves the readable end of their queues, and adds their keys to the index.
While it is held, messages are stored and wait.
"""

from __future__ import annotations

from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import StoreWorld


def test_held_messages_are_stored_and_invisible(world: StoreWorld) -> None:
    """While dispatch is held, offsets are assigned and bytes are written, but consumers see nothing."""
    notified: list[object] = []
    world.store.on_appended.append(notified.append)
    world.store.dispatcher.hold()

    world.send(count=3)

    queue = world.store.queues.get_or_create("orders", 0)
    assert (queue.end, queue.readable_end) == (3, 0)
    assert world.bodies() == []
    assert notified == []
    assert world.store.dispatcher.dispatched == 0
    assert world.store.guard.message_at(0) is not None


def test_release_shows_exactly_the_confirmed_messages(world: StoreWorld) -> None:
    """A message is visible when its last byte is confirmed, in order in each queue."""
    world.store.dispatcher.hold()
    world.send("orders", 4)
    world.send("bills", 4)
    world.send("orders", 4)

    for end, topic, _, offset, _ in world.sent:
        world.store.dispatcher.release(end - 1)
        assert world.store.queues.get_or_create(topic, 0).readable_end == offset
        world.store.dispatcher.release(end)
        assert world.store.queues.get_or_create(topic, 0).readable_end == offset + 1
        assert world.store.dispatcher.dispatched == end

    assert world.bodies("orders") == world.sent_bodies("orders")
    assert world.bodies("bills") == world.sent_bodies("bills")


def test_held_keys_are_found_after_their_release(world: StoreWorld) -> None:
    """The index is updated after the queues."""
    world.store.dispatcher.hold()
    world.append([world.draft(keys="k"), world.draft(keys="k")])
    assert world.store.keys.records("orders", "k", 9, 0, 1 << 60)[0] == []

    world.store.dispatcher.release(world.store.log.wrote)

    assert len(world.store.keys.records("orders", "k", 9, 0, 1 << 60)[0]) == 2


def test_end_of_holding_shows_everything_and_later_messages_at_once(world: StoreWorld) -> None:
    """When holding ends, the append loop makes messages visible itself again."""
    world.store.dispatcher.hold()
    world.send(count=3)

    world.store.dispatcher.release(world.store.log.wrote, keep_holding=False)
    world.send(count=200)

    assert world.bodies() == world.sent_bodies()


def test_a_recovery_point_never_passes_what_is_dispatched(world: StoreWorld) -> None:
    """Killed while messages are held, the next start dispatches them from the log."""
    world.send(count=5)
    world.store.dispatcher.hold()
    world.send(count=2)
    world.append([world.draft("orders", i % 2) for i in range(6)])
    through = world.sent[6].end
    world.store.dispatcher.release(world.sent[9].end)
    world.clock.advance(60_000)
    world.store.flush_step()
    world.kill()

    report = world.open()

    assert (report.start, report.records) == (through, 6)
    assert report.queues_rebuilt == []
    for queue_id in (0, 1):
        assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)


def test_clean_stop_shows_held_messages_that_are_confirmed_by_then(world: StoreWorld) -> None:
    """Everything is flushed then, so the queues are complete, and the stop is clean."""
    world.store.dispatcher.hold()
    world.send(count=3)
    world.close()

    report = world.open()

    assert report.is_clean
    assert world.bodies() == world.sent_bodies()


def test_full_disk_delays_visibility_without_losing_messages() -> None:
    """A full disk stops a release in the middle; with space it continues where it stopped."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.store.dispatcher.hold()
    for queue_id in range(3):
        world.send(count=15, queue_id=queue_id)
    world.store.log.preallocate()
    world.faulty_disk.capacity = world.faulty_disk.space("/").used + 10 * 20

    assert not world.store.advance()
    assert len(world.bodies()) == 10
    world.store.flush_step()
    world.faulty_disk.capacity = 1 << 30

    assert world.store.advance()
    for queue_id in range(3):
        assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)


def test_topic_deleted_while_its_messages_are_held_is_not_recreated(world: StoreWorld) -> None:
    """Its held messages are dropped, and other topics are not affected."""
    world.store.dispatcher.hold()
    world.send("orders", 3)
    world.send("bills", 3)
    world.store.delete_topic("orders")

    world.store.advance()

    assert world.store.queues.topics() == {"bills": [0]}
    assert not world.disk.exists(world.path("consumequeue/orders"))
    assert len(world.bodies("bills")) == 3
