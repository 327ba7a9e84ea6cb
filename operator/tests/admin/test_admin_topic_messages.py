"""The newest messages of all queues of a topic: merged, in pages without a gap or a duplicate, from real files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from admin_scene import BrokerChild, Load, SidecarChild, broker_process, sidecar_process, wait_for

from gantry_admin import topic_messages
from gantry_admin.errors import Problem
from gantry_admin.ranges import Span
from gantry_admin.store_files import StoreFiles
from gantry_admin.topic_messages import TopicPage, read_topic_messages
from gantry_store_files import UNIT, QueueBounds
from gantry_store_files.queue_units import FILLER_SIZE
from gantry_testing.local import TOPIC
from gantry_wire.message import StoredMessage

PATH = f"/v1/topics/{TOPIC}/messages"
SENT = 40
QUEUES = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    """A broker with 40 messages in four queues in turn, and its sidecar."""
    store = tmp_path_factory.mktemp("store")
    with broker_process(store) as broker, sidecar_process(store, "--open-reads") as sidecar:
        for number in range(SENT):
            broker.send(1, body=f"message {number}".encode(), queueId=str(number % QUEUES))
        wait_for(lambda: total(sidecar.get(PATH).json()) == SENT, "all messages are confirmed")
        yield broker, sidecar


def total(document: dict[str, Any]) -> int:
    """Return the number of messages in the queues of an answer; 0 for a refusal."""
    return sum(queue["end"] - queue["begin"] for queue in document.get("queues", []))


def texts(document: dict[str, Any]) -> list[str]:
    return [message["body"]["shown"] for message in document["messages"]]


def pages(sidecar: SidecarChild, path: str) -> Iterator[dict[str, Any]]:
    """Yield all pages of an address, the newest first."""
    document = sidecar.get(path).json()
    yield document
    while document["older"] is not None:
        document = sidecar.get(f"{path}&before={document['older']}").json()
        yield document


def test_messages_of_all_queues_are_merged_newest_first(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """The order is that of the log and not of the queues; a page continues where the last one ended."""
    _, sidecar = pair
    first = sidecar.get(f"{PATH}?count=6").json()

    assert texts(first) == [f"message {number}" for number in range(39, 33, -1)]
    assert [message["queue_id"] for message in first["messages"]] == [3, 2, 1, 0, 3, 2]
    assert [(queue["queue_id"], queue["begin"], queue["end"]) for queue in first["queues"]] == [
        (queue_id, 0, 10) for queue_id in range(QUEUES)
    ]
    assert first["broker_name"] and (first["queues_left_out"], first["unreadable"]) == (0, 0)
    assert [text for page in pages(sidecar, f"{PATH}?count=7") for text in texts(page)] == [
        f"message {number}" for number in reversed(range(SENT))
    ]


def test_one_queue_and_a_time_limit_the_page(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """`queue_id` leaves out the other queues, `until_ms` the messages stored at that time or later."""
    _, sidecar = pair
    one = [text for page in pages(sidecar, f"{PATH}?queue_id=2&count=3") for text in texts(page)]
    everything = sidecar.get(f"{PATH}?count={SENT}").json()["messages"]
    time_ms = everything[15]["stored_wall_ms"]
    earlier = [text for page in pages(sidecar, f"{PATH}?count=9&until_ms={time_ms}") for text in texts(page)]

    assert one == [f"message {number}" for number in range(38, 0, -4)]
    assert earlier == [message["body"]["shown"] for message in everything if message["stored_wall_ms"] < time_ms]
    assert 0 < len(earlier) < SENT - 15
    assert sidecar.get(f"{PATH}?until_ms=1").json()["messages"] == []


def test_invalid_requests_are_refused(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """404 for an unknown topic, queue or shard, 422 for a parameter out of its range."""
    _, sidecar = pair

    assert sidecar.get("/v1/topics/unknown/messages").status_code == 404
    assert sidecar.get(f"{PATH}?queue_id=77").status_code == 404
    assert sidecar.get(f"{PATH}?shard=unknown").status_code == 404
    for query in ("count=0", "count=65", "before=-1", "before=x", f"before={1 << 63}", "queue_id=-1", "until_ms=-1"):
        assert sidecar.get(f"{PATH}?{query}").status_code == 422, query
    assert sidecar.get(f"{PATH}?before=0").json()["messages"] == []


def test_no_message_is_left_out_or_returned_twice_while_messages_arrive(tmp_path: Path) -> None:
    """Pages are read during a load: together they are all messages before the first page, and each of them once."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path, "--open-reads") as sidecar:
        sidecar.wait_ready()
        with Load(broker, body=b"x" * 100) as load:
            wait_for(lambda: load.acknowledged > 100 and total(sidecar.get(PATH).json()) > 100, "messages are stored")
            read = []
            for page in pages(sidecar, f"{PATH}?count=20&body_bytes=0"):
                read.append(page)
                load.wait_for_progress()
        found = [(one["queue_id"], one["queue_offset"]) for page in read for one in page["messages"]]
        ends = {queue["queue_id"]: queue["end"] for queue in read[0]["queues"]}

    assert total(read[-1]) > total(read[0]), "messages arrived meanwhile"
    assert sorted(found) == sorted((queue_id, offset) for queue_id, end in ends.items() for offset in range(end))


# -- pages of files with lost messages ---------------------------------------------------------------------------------


class FakeFiles:
    """Queues as lists of units; a unit without a size is a lost message."""

    def __init__(self, queues: Mapping[int, list[tuple[int, int]]]) -> None:
        self.queues = queues

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(self.queues)

    def bounds(self, topic: str, queue_id: int, begin: int, end: int) -> QueueBounds:
        if queue_id not in self.queues:
            raise Problem(404, "queue not found")
        return QueueBounds(0, sum(physical < end for physical, _ in self.queues[queue_id]))

    def units(self, topic: str, queue_id: int, start: int, end: int) -> bytes:
        return b"".join(
            UNIT.pack(physical, size or FILLER_SIZE, 0) for physical, size in self.queues[queue_id][start:end]
        )


def read_all(queues: Mapping[int, list[tuple[int, int]]], count: int) -> list[int]:
    """Return the offsets in the log of all messages, as pages return them."""
    files, found, before = cast("StoreFiles", FakeFiles(queues)), [], None
    for _ in range(1000):
        page = read_topic_messages(files, Span(0, 1 << 40), TopicPage("orders", count, None, before))
        found += [message.physical_offset for message in page.messages]
        if page.older is None:
            return found
        assert before is None or page.older < before, "each page ends before the one that precedes it"
        before = page.older
    raise AssertionError("the pages have no end")


class FakeMessage:
    def __init__(self, physical: int, size: int) -> None:
        self.physical_offset, self.size = physical, size


@pytest.fixture
def fake_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every unit with a size have a record."""

    def record_at(files: object, span: Span, physical: int, size: int) -> StoredMessage:
        return cast("StoredMessage", FakeMessage(physical, size))

    monkeypatch.setattr(topic_messages, "record_at", record_at)


LOST = [(1000 + number * 200, 0) for number in range(30)]
QUEUES_WITH_LOST = {
    0: [(100, 100), (200, 100), *LOST, (9000, 100)],
    1: [(300 + number * 500, 100) for number in range(18)],
}
"""Queue 0 has thirty lost messages between its messages, more than a page has units."""


@pytest.mark.usefixtures("fake_records")
@pytest.mark.parametrize("count", [1, 3, 20, 64])
def test_lost_messages_leave_no_gap_in_the_pages(count: int) -> None:
    """Pages that hold only lost messages of one queue do not skip those of another; all have an end."""
    expected = sorted((at for units in QUEUES_WITH_LOST.values() for at, size in units if size), reverse=True)

    assert read_all(QUEUES_WITH_LOST, count) == expected


@pytest.mark.usefixtures("fake_records")
def test_pages_without_a_floor_leave_messages_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without the limit for a queue whose newest units are lost messages, earlier messages are left out."""
    newest_units = topic_messages._newest_units

    def without_floor(files: StoreFiles, span: Span, page: TopicPage, queue_id: int) -> object:
        return newest_units(files, span, page, queue_id)._replace(floor=0)

    monkeypatch.setattr(topic_messages, "_newest_units", without_floor)

    assert 200 not in read_all(QUEUES_WITH_LOST, 20)


@pytest.mark.usefixtures("fake_records")
def test_long_records_make_a_page_shorter_and_leave_none_out() -> None:
    """Records of 3 MiB: an answer has at most 8 MiB of them, and the next page has the others."""
    queues = {
        0: [(number << 22, 3 << 20) for number in range(10)],
        1: [((number << 22) + (3 << 20), 200) for number in range(10)],
    }
    page = read_topic_messages(cast("StoreFiles", FakeFiles(queues)), Span(0, 1 << 40), TopicPage("orders", 20))

    assert sum(message.size for message in page.messages) <= 8 << 20
    assert sorted(read_all(queues, 20)) == sorted(at for units in queues.values() for at, _ in units)
