"""One run of `make bench-search`: a topic, searches with different conditions, a tail, and sends beside a search.

The topic is filled with batches of one body, in which three messages have their own words: the newest, one in the
middle, and the oldest. Searches go through the sidecar, as a console does it. Sends with and without a search beside
them take turns, so that other work of the machine affects both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from admin_scene import BrokerChild, SidecarChild, broker_process, sidecar_process, wait_for

from gantry_bench.figures import Figures
from gantry_bench.machine import Cores
from gantry_bench.measurement import Goal
from gantry_testing.local import Dialogue, properties_text
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.codes import RequestCode

TOPIC: Final = "orders"
QUEUES: Final = 4
BATCH: Final = 1_000
FIRST_HIT_MAX_S: Final = 2.0
P99_RATIO_MAX: Final = 1.2
MEMORY_MAX_MIB: Final = 128.0
"""The goal for the memory of a search process: the interpreter, its modules, and a few blocks of the log."""
DEADLINE_S: Final = 600
TAIL_PAUSE_S: Final = 0.02


class Scale(msgspec.Struct, frozen=True):
    """The size of a run."""

    messages: int
    sends: int
    """Sends of one turn."""

    turns: int
    """Turns with a search, and as many without one."""

    tailed: int
    """Messages whose way through a tail is measured."""


FULL: Final = Scale(messages=10_000_000, sends=2_000, turns=10, tailed=200)
QUICK: Final = Scale(messages=50_000, sends=200, turns=2, tailed=20)


class Search(msgspec.Struct, frozen=True):
    """The result of one search."""

    name: str
    query: str
    hits: int
    first_hit_s: float | None
    total_s: float
    scanned_messages: int
    share: float
    messages_per_second: float
    read_bytes: int
    has_goal: bool
    """Whether the goal for first hits applies: its hits are not only at the old end of the topic."""


class SearchReport(msgspec.Struct, frozen=True):
    """All results of a run."""

    searches: list[Search]
    tail_ms: list[float]
    sends_alone_ms: list[float]
    sends_beside_ms: list[float]
    memory_mib: float
    """The most resident memory of a search process."""

    errors: int


QUERIES: Final = {
    "everything": "limit=20",
    "text, common": "text=plain&limit=20",
    "text, newest": "text=newest-word&limit=1",
    "tag": "tag=sent&limit=20",
    "JSON path, newest": "json_path=$.note = 'newest-word'&limit=1",
    "property, newest": "sql=region = 'newest'&limit=1",
    "key, index": "key=order-middle",
    "text, middle": "text=middle-word&limit=1",
    "text, whole scan": "text=absent-word",
    "text in any case, whole scan": "text=absent-word&ignore_case=true",
    "property, whole scan": "sql=region = 'absent'",
    "JSON path, whole scan": "json_path=$.order.id = 8",
}
"""The searches by their names."""

EXPECTED: Final = {
    "everything": 20,
    "text, common": 20,
    "tag": 20,
    "text, whole scan": 0,
    "text in any case, whole scan": 0,
    "property, whole scan": 0,
    "JSON path, whole scan": 0,
}
"""The hits of searches that do not find exactly one message."""

NO_GOAL: Final = frozenset({"text, middle"})
"""Searches whose first hit depends on the rate of a scan."""


def entry(number: int, word: str = "plain") -> BatchEntry:
    """Return one message of a batch."""
    document = {"order": {"id": 1_000 + number, "state": "paid"}, "items": [{"sku": f"A-{number % 97}"}], "note": word}
    region = word.removesuffix("-word") if word.endswith("-word") else "eu"
    properties = properties_text(
        UNIQ_KEY=f"7F0000010A3C18B4AAC2{number:012X}", KEYS=f"order-{region if word != 'plain' else number}",
        TAGS="created" if number % 2 else "sent", region=region,
    )  # fmt: skip
    return BatchEntry(0, json.dumps(document).encode(), properties.encode())


async def fill(address: str, count: int) -> None:
    """Send the messages of the topic."""
    client = await Dialogue.open(address)

    async def send(batch: bytes, queue_id: int) -> None:
        fields = {"batch": "true", "topic": TOPIC, "queueId": str(queue_id)}
        reply = await client.send(batch, code=RequestCode.SEND_BATCH_MESSAGE, **fields)
        assert reply.code == 0, f"code {reply.code}: {reply.remark}"

    try:
        plain, batches = encode_batch([entry(number) for number in range(BATCH)]), count // BATCH
        await send(encode_batch([entry(1, "oldest-word")]), 0)
        for number in range(batches):
            await send(plain, number % QUEUES)
            if number == batches // 2:
                await send(encode_batch([entry(2, "middle-word")]), 1)
        await send(encode_batch([entry(3, "newest-word")]), 2)
    finally:
        await client.close()


def open_events(sidecar: SidecarChild, query: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and data of the events of a stream."""
    with httpx.stream("GET", f"{sidecar.url}{query}", timeout=DEADLINE_S) as answer:
        assert answer.status_code == 200, answer.read()
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))


def run_search(sidecar: SidecarChild, name: str) -> Search:
    """Run one search to its end."""
    query, began_s = QUERIES[name], time.perf_counter()
    first_s: float | None = None
    end: dict[str, Any] = {}
    for kind, data in open_events(sidecar, f"/v1/search?topic={TOPIC}&deadline_s={DEADLINE_S}&{query}"):
        if kind == "hit" and first_s is None:
            first_s = time.perf_counter() - began_s
        end = data
    return Search(
        name=name, query=query, hits=end["hits"], first_hit_s=first_s, total_s=time.perf_counter() - began_s,
        scanned_messages=end["scanned_messages"], share=end["share"], messages_per_second=end["messages_per_second"],
        read_bytes=end["read_bytes"], has_goal=name not in NO_GOAL,
    )  # fmt: skip


def measure_tail_ms(sidecar: SidecarChild, broker: BrokerChild, count: int) -> list[float]:
    """Return the times from sends to the events of a tail."""
    events = open_events(sidecar, f"/v1/tail?topic={TOPIC}&rate=1000&text=tailed")
    assert next(events)[0] == "status", "the first event has the status"

    async def send() -> None:
        client = await Dialogue.open(broker.address)
        for _ in range(count):
            await client.send_ok(b"tailed %d" % time.time_ns(), topic=TOPIC)
            await asyncio.sleep(TAIL_PAUSE_S)
        await client.close()

    sender = threading.Thread(target=lambda: asyncio.run(send()), daemon=True)
    sender.start()
    found: list[float] = []
    for kind, data in events:
        if kind == "message":
            found.append((time.time_ns() - int(data["body"]["shown"].split()[1])) / 1e6)
        if len(found) == count:
            break
    sender.join()
    return found


def measure_sends_ms(broker: BrokerChild, count: int) -> list[float]:
    """Return the durations of sequential sends."""

    async def send() -> list[float]:
        client = await Dialogue.open(broker.address)
        found = []
        for _ in range(count):
            began_s = time.perf_counter()
            await client.send_ok(b"x" * 1024, topic="beside")
            found.append((time.perf_counter() - began_s) * 1000)
        await client.close()
        return found

    return asyncio.run(send())


class RunningSearch:
    """Searches of the whole topic, one after the other, during the context; notes the memory of their processes."""

    def __init__(self, sidecar: SidecarChild) -> None:
        self.memory_kib = 0
        self._sidecar: Final = sidecar
        self._over: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> RunningSearch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            path = f"/v1/search?topic={TOPIC}&deadline_s={DEADLINE_S}&{QUERIES['text, whole scan']}"
            with contextlib.closing(open_events(self._sidecar, path)) as events:  # type: ignore[type-var]
                for _ in events:
                    self.memory_kib = max(self.memory_kib, read_search_memory_kib(self._sidecar))
                    if self._over.is_set():
                        break


def read_search_memory_kib(sidecar: SidecarChild) -> int:
    """Return the most resident memory of the sidecar's search processes, in KiB; 0 without one."""
    found = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == sidecar.child.process.pid and b"scan_process" in (folder / "cmdline").read_bytes():
                lines = (folder / "status").read_text().splitlines()
                found = max(found, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")))
    return found


def measure(scale: Scale, cores: Cores, folder: Path, note: Callable[[str], None]) -> SearchReport:
    """Fill a topic, and measure everything in one run."""
    conf = {"mappedFileSizeCommitLog": str(256 << 20)}
    with (
        broker_process(folder / "store", **conf) as broker,
        sidecar_process(folder / "store", "--open-reads") as sidecar,
    ):
        note(f"storing {scale.messages:,} messages")
        asyncio.run(fill(broker.address, scale.messages))
        wait_for(lambda: sidecar.get("/v1/log").json().get("end") == broker.log_end, "all messages are readable")
        searches = []
        for name in QUERIES:
            note(f"searching: {name}")
            searches.append(run_search(sidecar, name))
        note("tailing")
        tail_ms = measure_tail_ms(sidecar, broker, scale.tailed)
        alone: list[float] = []
        beside: list[float] = []
        memory_kib = 0
        for turn in range(scale.turns):
            note(f"sending, turn {turn + 1} of {scale.turns}")
            alone += measure_sends_ms(broker, scale.sends)
            with RunningSearch(sidecar) as running:
                wait_for(lambda: running.memory_kib > 0, "the search runs")
                beside += measure_sends_ms(broker, scale.sends)
            memory_kib = max(memory_kib, running.memory_kib)
    errors = sum(one.hits != EXPECTED.get(one.name, 1) for one in searches)
    return SearchReport(searches, tail_ms, alone, beside, memory_kib / 1024, errors)


def p99(values: list[float]) -> float:
    """Return the 99th percentile of durations, in their unit."""
    return statistics.quantiles(values, n=100)[98]


def search_goals(report: SearchReport, scale: Scale) -> list[Goal]:
    """Return the goals: first hits, sends beside a search, memory."""
    first = [one.first_hit_s for one in report.searches if one.has_goal and one.first_hit_s is not None]
    ratio = p99(report.sends_beside_ms) / p99(report.sends_alone_ms)
    return [
        Goal(text="first hit, the slowest search", limit=FIRST_HIT_MAX_S, measured=max(first), unit="s"),
        Goal(text="p99 of sends beside a search", limit=P99_RATIO_MAX, measured=ratio, unit="x without one"),
        Goal(text="memory of a search process", limit=MEMORY_MAX_MIB, measured=report.memory_mib, unit="MiB"),
    ]


def search_figures(report: SearchReport, scale: Scale) -> list[Figures]:
    """Return the tables of searches and of latencies."""
    rows = [
        [
            one.name, f"{one.hits}", "-" if one.first_hit_s is None else f"{one.first_hit_s:.2f}", f"{one.total_s:.2f}",
            f"{one.share:.1%}", f"{one.messages_per_second:,.0f}", f"{one.read_bytes / 1e6:,.0f}",
        ]
        for one in report.searches
    ]  # fmt: skip
    searches = Figures(
        name="searches",
        headings=["search", "hits", "first hit s", "total s", "scanned", "messages/s", "MB read"],
        rows=rows,
        notes=[f"{scale.messages:,} messages in {QUEUES} queues; the default limit of bytes per second applies."],
    )
    latencies = Figures(
        name="latencies",
        headings=["what", "median ms", "p99 ms"],
        rows=[
            [name, f"{statistics.median(values):.2f}", f"{p99(values):.2f}"]
            for name, values in (
                ("tail: from the send to the event", report.tail_ms),
                ("send without a search", report.sends_alone_ms),
                ("send beside a search", report.sends_beside_ms),
            )
        ],
        notes=[f"Memory of a search process: {report.memory_mib:.0f} MiB at most."],
    )
    return [searches, latencies]
