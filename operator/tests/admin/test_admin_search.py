"""The search of a topic: the scan of real files, its process, its limits, and its answers over HTTP.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from admin_scene import NO_TLS, TOKEN, SidecarChild, broker_process, sidecar_process, wait_for, write_token_files

from gantry_admin.ranges import OFFSET_MAX, Span
from gantry_admin.search import topic_scan
from gantry_admin.search.topic_scan import TopicScan
from gantry_admin.store_files import StoreFiles
from gantry_testing.local import Dialogue, dialogue, expire, properties_text, running_broker
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.codes import RequestCode
from gantry_wire.compress import Codec, compress_body
from gantry_wire.message import StoredMessage, decode_record
from gantry_wire.search import MessageMatcher, SearchCriteria

WHOLE = Span(0, OFFSET_MAX)
MESSAGES = 400
NICENESS = 3
"""Not the default, with which a process would hardly run on a busy machine."""
SLOWLY = ("--log-rate", "1000000", "--log-burst", "1000000", "--log-nice", str(NICENESS))
"""Options of a sidecar that reads 1 MB/s, so that a scan of a whole topic takes long."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> StoreWorld:
    """A stopped store with several log files, and messages of two topics in several queues, some of them compressed."""
    rng = random.Random(5)
    world = make_world("real", tmp_path_factory.mktemp("search") / "store")
    world.open()
    for number in range(MESSAGES):
        body, flags = random_body(rng, number), 0
        if number % 7 == 0:
            body, flags = compress_body(body, Codec.ZLIB), Codec.ZLIB.flags
        topic = "orders" if number % 3 else "bills"
        draft = world.draft(
            topic, number % 4, body=body, keys=f"order-{number % 50}", tag=rng.choice(("paid", "sent")), sys_flag=flags
        )  # fmt: skip
        world.append([draft])
        world.clock.advance(10)
    world.close()
    assert len(list((Path(world.root) / "commitlog").iterdir())) > 3, "expected a log of several files"
    return world


def random_body(rng: random.Random, number: int) -> bytes:
    words = " ".join(rng.choice(("needle", "hay", "NEEDLE", "a\\b", "stack")) for _ in range(rng.randint(0, 5)))
    document = {"order": {"id": number % 20}, "words": words, "fill": "x" * rng.randint(0, 900)}
    return json.dumps(document).encode()


def scan(files: StoreFiles, criteria: SearchCriteria, span: Span = WHOLE, **options: Any) -> TopicScan:
    return TopicScan(files, "orders", span, MessageMatcher(criteria), **options)


def run(made: TopicScan, hits_max: int = 10_000) -> list[StoredMessage]:
    """Run a scan to its end, and return what it found."""
    found: list[bytes] = []
    while not made.is_complete:
        step = made.step(hits_max - len(found))
        found += step.records
        if step.is_limited:
            break
    made.close()
    return [decode_record(record) for record in found]


# -- the scan ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "criteria",
    [
        SearchCriteria(),
        SearchCriteria(text="needle"),
        SearchCriteria(text="needle", ignores_case=True),
        SearchCriteria(text="a\\\\b"),
        SearchCriteria(json_paths=("$.order.id = 7",)),
        SearchCriteria(json_paths=("$.order.id != 7", "$.words contains 'stack'")),
        SearchCriteria(key="order-5"),
        SearchCriteria(tag="paid", text="hay"),
        SearchCriteria(sql="KEYS = 'order-4'"),
        SearchCriteria(from_ms=1, to_ms=1 << 60, tag="sent"),
    ],
    ids=str,
)
@pytest.mark.parametrize("window", [1 << 20, 700], ids=["one window", "many windows"])
def test_scan_with_needles_finds_what_a_scan_of_all_records_finds(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch, criteria: SearchCriteria, window: int
) -> None:
    """The same messages in the same order, newest first, for any size of the windows; every message is counted once."""
    monkeypatch.setattr(topic_scan, "WINDOW_BYTES", window)
    files = StoreFiles(Path(world.root))
    fast, slow = scan(files, criteria), scan(files, criteria, uses_needle=False)
    found = run(fast)

    assert found == run(slow)
    assert [one.physical_offset for one in found] == sorted((one.physical_offset for one in found), reverse=True)
    assert len(found) > 0 and {one.topic for one in found} == {"orders"}
    assert fast.scanned == fast.total == slow.scanned
    assert fast.unreadable == 0


def test_time_range_limits_what_is_read(world: StoreWorld) -> None:
    """Only the units of the time range count, and only their records are read."""
    files = StoreFiles(Path(world.root))
    every = run(scan(files, SearchCriteria()))
    newest, oldest = every[0].store_timestamp_ms, every[-1].store_timestamp_ms
    middle = (newest + oldest) // 2
    late = scan(files, SearchCriteria(from_ms=middle))
    found = run(late)

    assert [one for one in every if one.store_timestamp_ms >= middle] == found
    assert late.total == late.scanned == len(found) < len(every)


def test_limit_ends_the_scan_with_the_exact_share(world: StoreWorld) -> None:
    """What lies before the last hit does not count as scanned."""
    made = scan(StoreFiles(Path(world.root)), SearchCriteria())

    assert len(run(made, hits_max=5)) == made.scanned == 5


def test_nothing_beyond_the_readable_end_is_found(world: StoreWorld) -> None:
    """The guard: a scan up to an offset finds only messages whose whole record is before it."""
    files = StoreFiles(Path(world.root))
    every = run(scan(files, SearchCriteria()))
    end = every[20].physical_offset + every[20].size - 1  # within a record

    found = run(scan(files, SearchCriteria(), Span(0, end)))
    assert found == every[21:]


def test_scan_without_the_readable_end_finds_more(world: StoreWorld) -> None:
    """Twin: the files have further records, which only the end of the span excludes."""
    files = StoreFiles(Path(world.root))
    every = run(scan(files, SearchCriteria()))

    assert len(run(scan(files, SearchCriteria(), WHOLE))) > len(every[21:])


def test_damaged_record_is_counted_as_unreadable(world: StoreWorld, tmp_path: Path) -> None:
    """A record whose body does not match its checksum is no hit, and the scan continues behind it."""
    files = copy_of(world, tmp_path)
    every = run(scan(files, SearchCriteria()))
    victim = every[10]
    segment = next(one for one in files.log_segments() if one.base_offset <= victim.physical_offset < one.end_offset)
    with open(segment.path, "r+b") as file:
        file.seek(victim.physical_offset - segment.base_offset + 90)
        file.write(b"\x00\x00\x00")
    made = scan(files, SearchCriteria())

    assert run(made) == [one for one in every if one != victim]
    assert made.unreadable == 1 and made.scanned == made.total


def test_messages_deleted_during_a_scan_are_counted(
    world: StoreWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deletes the oldest log file before the scan reaches it: its messages count as deleted, not scanned."""
    monkeypatch.setattr(topic_scan, "WINDOW_BYTES", 5_000)
    files = copy_of(world, tmp_path)
    every = run(scan(files, SearchCriteria()))
    made = scan(files, SearchCriteria())
    first = made.step(10_000)
    oldest, second = files.log_segments()[:2]
    os.unlink(oldest.path)
    found = [decode_record(record) for record in first.records] + run(made)

    kept = [one for one in every if one.physical_offset >= second.base_offset]
    assert found == kept
    assert made.deleted == len(every) - len(kept) > 0
    assert made.scanned + made.deleted == made.total


def copy_of(world: StoreWorld, folder: Path) -> StoreFiles:
    """Return the files of a copy of the store, which the test may change."""
    shutil.copytree(world.root, folder / "copy")
    return StoreFiles(folder / "copy")


async def test_scan_while_a_broker_rolls_and_deletes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are added and deleted during the scan: what existed at its start is found, or counted as deleted."""
    monkeypatch.setattr(topic_scan, "WINDOW_BYTES", 20_000)
    async with (
        running_broker(tmp_path / "store", maxMessageSize="65536", mappedFileSizeCommitLog=str(256 << 10)) as broker,
        dialogue(broker) as client,
    ):
        await send_batches(client, 100, 20)
        files, end = StoreFiles(tmp_path / "store"), broker.store.log.wrote
        await asyncio.to_thread(broker.store.flush)
        before = len(files.log_segments())
        made = scan(files, SearchCriteria(text="needle"), Span(0, end))
        found = [decode_record(one) for one in made.step(10_000).records]
        await send_batches(client, 100, 20)
        assert len(files.log_segments()) > before, "the log has rolled"
        await asyncio.to_thread(broker.store.flush)
        await expire(broker)
        oldest = files.log_segments()[0].base_offset
        found += run(made)

        assert made.total == 2_000 and all(one.physical_offset < end for one in found)
        assert made.deleted > 0 and made.scanned + made.deleted == made.total
        assert oldest > 0


async def send_batches(client: Dialogue, batches: int, size: int, topic: str = "orders") -> None:
    """Send batches of messages; the first of each has the needle."""
    for number in range(batches):
        entries = [
            BatchEntry(0, (b"needle " if index == 0 else b"hay ") + bytes(300), properties_text(KEYS="k").encode())
            for index in range(size)
        ]
        fields = {"batch": "true", "topic": topic, "queueId": str(number % 4)}
        reply = await client.send(encode_batch(entries), code=RequestCode.SEND_BATCH_MESSAGE, **fields)
        assert reply.code == 0, reply.remark


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def events_of(sidecar: SidecarChild, query: str, **headers: str) -> list[tuple[str, dict[str, Any]]]:
    """Return kind and data of all events of a stream that ends."""
    return list(open_events(sidecar, query, **headers))


def open_events(sidecar: SidecarChild, query: str, **headers: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and data of the events of a stream."""
    with httpx.stream("GET", f"{sidecar.url}{query}", headers=headers, timeout=60, verify=NO_TLS) as answer:
        assert answer.status_code == 200, answer.read()
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarChild]:
    """The sidecar of a broker with a few thousand messages, which reads slowly."""
    store = tmp_path_factory.mktemp("served")
    with (
        broker_process(store) as broker,
        sidecar_process(store, "--open-reads", *SLOWLY) as sidecar,
    ):

        async def fill() -> None:
            client = await Dialogue.open(broker.address)
            await send_batches(client, 200, 200)
            await client.close()

        asyncio.run(fill())
        wait_for(lambda: sidecar.get("/v1/log").json().get("end") == broker.log_end, "all messages are readable")
        yield sidecar


def search_processes(sidecar: SidecarChild) -> list[int]:
    """Return the ids of the sidecar's search processes."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == sidecar.child.process.pid and b"scan_process" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def test_key_and_limit_are_answered_at_once(served: SidecarChild) -> None:
    """Hits come first, newest first; the end names the limit."""
    *hits, (kind, end) = events_of(served, "/v1/search?topic=orders&limit=3&text=needle")

    found = [data["physical_offset"] for name, data in hits if name == "hit"]
    assert len(found) == 3 and found == sorted(found, reverse=True)
    assert (kind, end["reason"], end["hits"]) == ("end", "limit", 3)
    assert 0 < end["scanned_messages"] < end["total_messages"] == 40_000


def test_deadline_ends_a_search_with_the_share_that_was_scanned(served: SidecarChild) -> None:
    """Reading is limited by the rate of log readers, so the deadline comes first; the share is below one."""
    *others, (kind, end) = events_of(served, "/v1/search?topic=orders&text=absent&deadline_s=2")

    assert (kind, end["reason"]) == ("end", "deadline")
    assert 0 < end["share"] < 1 and end["share"] == end["scanned_messages"] / end["total_messages"]
    assert {name for name, _ in others} == {"progress"}


def test_search_is_a_process_of_low_priority_that_ends_with_its_client(served: SidecarChild) -> None:
    """While the client reads, there is one process with the niceness of readers; it ends when the client leaves."""
    events = open_events(served, "/v1/search?topic=orders&text=absent&deadline_s=60")
    next(events)
    [process] = search_processes(served)
    wait_for(lambda: os.getpriority(os.PRIO_PROCESS, process) == NICENESS, "the priority is low")
    events.close()  # type: ignore[attr-defined]

    wait_for(lambda: search_processes(served) == [], "the process has ended")


def test_more_searches_than_the_limit_are_refused(served: SidecarChild) -> None:
    """A third search is answered 429 until one of the two has ended."""
    query = "/v1/search?topic=orders&text=absent&deadline_s=60"
    two = [open_events(served, query) for _ in range(2)]
    for events in two:
        next(events)

    refused = served.get(query)
    assert refused.status_code == 429 and refused.headers["Retry-After"] == "5"
    for events in two:
        events.close()  # type: ignore[attr-defined]
    wait_for(lambda: search_processes(served) == [], "both have ended")
    assert events_of(served, "/v1/search?topic=orders&limit=1")[-1][1]["reason"] == "limit"


def test_killed_search_process_ends_the_stream(served: SidecarChild) -> None:
    """The end says that the search was stopped, and has the last share."""
    events = open_events(served, "/v1/search?topic=orders&text=absent&deadline_s=60")
    next(events)
    [process] = search_processes(served)
    os.kill(process, signal.SIGKILL)

    kind, end = list(events)[-1]
    assert (kind, end["reason"]) == ("end", "stopped") and "unexpectedly" in end["fault"]


@pytest.mark.parametrize(
    ("query", "status", "part"),
    [
        ("topic=nowhere", 404, "topic not found"),
        ("topic=orders&json_path=$.a ~ 1", 400, "position 4"),
        ("topic=orders&sql=a =", 400, "SQL filter"),
        ("topic=orders&from_ms=2&to_ms=1", 400, "time range is empty"),
        ("topic=../etc", 422, "topic"),
        ("topic=orders&limit=0", 422, "limit"),
        ("topic=orders&text=" + "x" * 2_000, 422, "text"),
        ("topic=orders&shard=nowhere", 404, "no peer"),
    ],
)
def test_invalid_searches_are_refused(served: SidecarChild, query: str, status: int, part: str) -> None:
    """Each parameter is checked before a process is started."""
    answer = served.get(f"/v1/search?{query}")

    assert answer.status_code == status and part in answer.json()["reason"]
    assert search_processes(served) == []


def test_search_and_tail_need_the_permission_to_read(tmp_path: Path) -> None:
    """Without a token they are refused, with one they are not."""
    options = write_token_files(tmp_path / "tokens")
    with broker_process(tmp_path / "store") as broker, sidecar_process(tmp_path / "store", *options) as sidecar:
        broker.send(1, topic="orders")
        wait_for(lambda: sidecar.get("/v1/log", token=TOKEN).json().get("end") == broker.log_end, "it is readable")

        for path in ("/v1/search?topic=orders", "/v1/tail?topic=orders"):
            assert sidecar.get(path).status_code == 401
            first = next(open_events(sidecar, path, Authorization=f"Bearer {TOKEN}"))
            assert first[0] in ("progress", "status")


@pytest.mark.verify
def test_streams_of_another_shard_are_relayed(tmp_path: Path) -> None:
    """`?shard=` passes on the peer's hits, its errors, and the tail with the id after which it continues."""
    with (
        broker_process(tmp_path / "a", brokerName="a"),
        broker_process(tmp_path / "b", brokerName="b") as second,
        sidecar_process(tmp_path / "b", "--open-reads") as peer,
        sidecar_process(tmp_path / "a", "--open-reads", "--peer", peer.url) as sidecar,
    ):
        second.send(3, topic="orders", body=b"needle")
        wait_for(lambda: sidecar.get("/v1/topics?shard=b").status_code == 200, "the peer is known")
        wait_for(lambda: peer.get("/v1/log").json().get("end") == second.log_end, "all is readable")

        events = events_of(sidecar, "/v1/search?topic=orders&text=needle&shard=b")
        assert [name for name, _ in events if name == "hit"] == ["hit"] * 3
        assert events[-1][1]["reason"] == "complete"
        refused = sidecar.get("/v1/search?topic=orders&json_path=$.a ~ 1&shard=b")
        assert refused.status_code == 400 and "position 4" in refused.json()["reason"]
        tail = open_events(sidecar, "/v1/tail?topic=orders&shard=b", **{"Last-Event-ID": "0:1"})
        assert [next(tail)[1]["queue_offset"] for _ in range(2)] == [1, 2]
