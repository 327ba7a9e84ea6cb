"""Appended messages are counted by topic, once for each batch, and exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.errors import MessageTooLarge
from gantry_broker.store.message_store import MessageStore
from gantry_testing.store_world import StoreWorld, make_world


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    made = make_world("faulty", tmp_path)
    made.open()
    return made


def counted(store: MessageStore) -> dict[str, tuple[int, int]]:
    return {topic: (tally.count, tally.size) for topic, tally in store.queues.tallies.items()}


def lengths(store: MessageStore, physical_offsets: list[int]) -> int:
    """Return the lengths of these records in the log."""
    records = [store.guard.message_at(offset) for offset in physical_offsets]
    assert None not in records
    return sum(len(record or b"") for record in records)


def test_batches_of_one_topic_are_counted_over_all_queues(world: StoreWorld) -> None:
    """All queues of a topic share one tally, over all batches."""
    places: list[int] = []
    for size in (1, 5, 2):
        places += world.append([world.draft("orders", number % 3, body=b"x" * (number + 1)) for number in range(size)])[
            0
        ]

    assert counted(world.store) == {"orders": (8, lengths(world.store, places))}


def test_batch_of_several_topics_is_counted_by_topic(world: StoreWorld) -> None:
    """Each topic counts the bytes of its own records, in any order."""
    topics = ["a", "b", "a", "c", "c", "b", "a"]
    places, _ = world.append(
        [world.draft(topic, 0, body=topic.encode() * 9 * (n + 1)) for n, topic in enumerate(topics)]
    )

    of = {topic: [place for place, one in zip(places, topics, strict=True) if one == topic] for topic in set(topics)}
    assert counted(world.store) == {topic: (len(found), lengths(world.store, found)) for topic, found in of.items()}


def test_blank_records_are_not_counted(world: StoreWorld) -> None:
    """The blank record at a file's end counts for no topic, in a batch of one topic or of several."""
    file_bytes = world.settings.mapped_file_size_commit_log
    body = bytes(file_bytes // 5)
    for topics in (("a",) * 7, ("a", "b") * 4):
        before = counted(world.store)
        begin = world.store.log.wrote
        places, _ = world.append([world.draft(topic, 0, body=body) for topic in topics])
        assert begin // file_bytes < places[-1] // file_bytes, "expected a file to end within the batch"
        for topic in set(topics):
            own = [place for place, one in zip(places, topics, strict=True) if one == topic]
            count, size = before.get(topic, (0, 0))
            expected = (count + len(own), size + lengths(world.store, own))
            assert counted(world.store)[topic] == expected


def test_refused_batch_is_not_counted(world: StoreWorld) -> None:
    """A batch with a message that is too large changes no tally, not even those of its other messages."""
    world.append([world.draft("a", 0)])
    before = counted(world.store)
    with pytest.raises(MessageTooLarge):
        world.append([world.draft("a", 0), world.draft("b", 0, body=bytes(world.settings.mapped_file_size_commit_log))])

    assert {topic: found for topic, found in counted(world.store).items() if found[0]} == before


def test_tally_of_a_deleted_topic_restarts(world: StoreWorld) -> None:
    """The tally is deleted with the queues of the topic."""
    world.append([world.draft("a", 0), world.draft("a", 1)])
    world.store.delete_topic("a")
    assert counted(world.store) == {}

    world.append([world.draft("a", 0)])
    assert counted(world.store)["a"][0] == 1
