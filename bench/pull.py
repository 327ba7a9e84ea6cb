"""`make bench-pull`: the cost of verifying every read of a pull.

One broker runs in this process, and one client in another process pulls stored messages without a pause. Verification
is switched off and on in turns of a fraction of a second, so that other work on the machine affects both; the figures
are medians over the turns. *Hot* reads are of messages whose checksums were verified before, as after they were sent.
*First* reads are of the same messages, but the broker forgets every few milliseconds which ones it has verified, as
after a start: their records are verified one by one. The messages of one queue are adjacent in the log if there is one
queue, and far apart if there are many. Rates are pulls of 32 messages per second of the broker's CPU time: a rate by
the clock would also measure the client and other work on the machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

import click
import msgspec
import uvloop
from gantry_bench.machine import Machine, OtherWork, describe_machine
from gantry_bench.measurement import Goal
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.table import print_goals
from rich.console import Console
from rich.table import Table

from gantry_broker.app import Broker
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.setting_keys import broker_settings
from gantry_testing.ports import free_ports
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.frame import FrameReader
from gantry_wire.message import encode_host

RESULTS: Final = Path(__file__).resolve().parent / "results"
TOPIC: Final = "PullBench"
QUEUES: Final = (1, 4, 16)
BODY_BYTES: Final = 1024
MESSAGES_AT_ONCE: Final = 32
OUTSTANDING: Final = 4
SUBSCRIPTION_IN_HEADER: Final = 4
HOT_SLOWDOWN_MAX: Final = 0.05


class Scale(msgspec.Struct, frozen=True):
    """The size of a run."""

    messages: int
    turns: int
    turn_s: float


FULL: Final = Scale(messages=160_000, turns=40, turn_s=0.25)
QUICK: Final = Scale(messages=16_000, turns=4, turn_s=0.1)


class Cell(msgspec.Struct, frozen=True):
    """One row of the table: pulls per second of the broker's CPU time."""

    reads: str
    queues: int
    unverified: float
    verified: float
    slowdown: float
    """The relative decrease of the rate, as the median over consecutive turns, so that changing load cancels out. It is
    negative if the noise is larger than the cost.
    """


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    others_cores: float
    scale: Scale
    cells: list[Cell]


def pull_forever(port: int, queues: int, ends: list[int]) -> None:
    """Pull all queues in turn, repeatedly, with a few requests in flight. Runs in another process."""
    reader, places = FrameReader(), [0] * queues
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def requests() -> Iterator[bytes]:
            while True:
                for queue_id in range(queues):
                    ext = {
                        "consumerGroup": "bench_puller", "topic": TOPIC, "queueId": str(queue_id),
                        "queueOffset": str(places[queue_id]), "maxMsgNums": str(MESSAGES_AT_ONCE),
                        "sysFlag": str(SUBSCRIPTION_IN_HEADER), "commitOffset": "0", "suspendTimeoutMillis": "0",
                        "subVersion": "0", "subscription": "*", "expressionType": "TAG",
                    }  # fmt: skip
                    places[queue_id] = (places[queue_id] + MESSAGES_AT_ONCE) % (ends[queue_id] - MESSAGES_AT_ONCE)
                    yield Command(code=RequestCode.PULL_MESSAGE, ext=ext).encode()

        source = requests()
        connection.sendall(b"".join(next(source) for _ in range(OUTSTANDING)))
        while data := connection.recv(1 << 18):
            answered = sum(1 for _ in reader.feed(data))
            if answered:
                connection.sendall(b"".join(next(source) for _ in range(answered)))


@contextmanager
def run_puller(port: int, queues: int, ends: list[int]) -> Iterator[None]:
    """Run the client for the duration of the context."""
    process = multiprocessing.get_context("spawn").Process(target=pull_forever, args=(port, queues, ends), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def fill(broker: Broker, queues: int, messages: int) -> list[int]:
    """Store messages in all queues in turn, as senders do; return the ends of the queues."""
    broker.core.topics.put(TopicConfig(topic_name=TOPIC, read_queue_nums=queues, write_queue_nums=queues))
    store, host, body = broker.store, encode_host("127.0.0.1", 40_000), bytes(range(256)) * (BODY_BYTES // 256)
    found = [store.queues.get_or_create(TOPIC, queue_id) for queue_id in range(queues)]
    for start in range(0, messages, 64):
        drafts = []
        for number in range(start, start + 64):
            key = f"7F00000100002A139A55{number:08X}{number & 0xFFFF:04X}"
            properties = b"UNIQ_KEY\x01" + key.encode() + b"\x02WAIT\x01true\x02"
            drafts.append((found[number % queues], body, properties, 0, 0, number, host, 0, 0, 0, 0, (key,)))
        store.append(drafts)  # type: ignore[arg-type]  # plain tuples of Draft's fields, as in the send path
    return [queue.end for queue in found]


async def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition by polling."""
    while not is_so():  # noqa: ASYNC110 - a count of the broker's, which sets no event
        await asyncio.sleep(0.01)


async def measure_rate(broker: Broker, scale: Scale, *, is_verifying: bool, is_first: bool) -> float:
    """Return the pulls per second of CPU time in one turn."""
    store, stats = broker.store, broker.core.stats
    store.guard.is_verifying = is_verifying
    pulls, cpu, end = stats.get_found, time.process_time(), time.monotonic() + scale.turn_s
    while time.monotonic() < end:
        if is_first:
            store.queues.forget_sums()
        await asyncio.sleep(0.01)
    return (stats.get_found - pulls) / (time.process_time() - cpu)


async def measure(root: Path, scale: Scale, queues: int) -> list[Cell]:
    """Measure hot and first reads of a topic with this number of queues."""
    main, fast, replication = free_ports(3)
    conf = {
        "storePathRootDir": str(root), "brokerName": "bench", "bindAddress": "127.0.0.1", "listenPort": str(main),
        "fastListenPort": str(fast), "haListenPort": str(replication), "mappedFileSizeCommitLog": str(64 << 20),
        "maxHashSlotNum": "1000", "maxIndexNum": "4000000",
    }  # fmt: skip
    broker = Broker(broker_settings(conf), disk=RealDisk(), clock=SystemClock())
    await broker.start()
    cells = []
    try:
        ends = fill(broker, queues, scale.messages)
        with run_puller(broker.port, queues, ends):
            await wait_until(lambda: broker.core.stats.get_found > 0)
            for reads in ("hot", "first"):
                rates: dict[bool, list[float]] = {False: [], True: []}
                for turn in range(2 * scale.turns + 2):
                    is_verifying = bool(turn % 2)
                    one = await measure_rate(broker, scale, is_verifying=is_verifying, is_first=reads == "first")
                    if turn > 1:
                        rates[is_verifying].append(one)
                off, on = rates[False], rates[True]
                slowdown = median(1 - after / before for before, after in zip(off, on, strict=True))
                cells.append(Cell(reads, queues, median(off), median(on), slowdown))
    finally:
        await broker.close()
    return cells


def print_cells(console: Console, cells: list[Cell]) -> None:
    table = Table(title="pulls of 32 messages of 1 KiB per second of the broker's CPU time")
    for column in ("reads", "queues", "not verified", "verified", "slower by"):
        table.add_column(column, justify="left" if column == "reads" else "right")
    for cell in cells:
        rates = f"{cell.unverified:,.0f}", f"{cell.verified:,.0f}"
        table.add_row(cell.reads, str(cell.queues), *rates, f"{cell.slowdown:.1%}")
    console.print(table)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Run for seconds to check the benchmark itself; the figures mean little.")
@ASSERT_GOALS
def main(quick: bool, assert_goals: bool) -> None:
    """Measure the cost of verification for pulls of messages that were read before, and for first reads."""
    console, scale = Console(), QUICK if quick else FULL
    started_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    RESULTS.mkdir(parents=True, exist_ok=True)
    cells: list[Cell] = []
    with OtherWork() as others:
        for queues in QUEUES:
            with tempfile.TemporaryDirectory(prefix="pull-", dir=RESULTS) as folder:
                cells += uvloop.run(measure(Path(folder), scale, queues))
    print_cells(console, cells)
    hot = [cell.slowdown for cell in cells if cell.reads == "hot"]
    goals = [Goal(text="hot reads are slower by", limit=HOT_SLOWDOWN_MAX * 100, measured=max(hot) * 100, unit="%")]
    print_goals(console, goals)
    path = RESULTS / f"pull-{started_at.replace(':', '').replace('-', '')}.json"
    results = Results(
        started_at=started_at, machine=describe_machine(), others_cores=others.cores, scale=scale, cells=cells
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    console.print(f"results: {path}", soft_wrap=True, highlight=False)
    if assert_goals and not all(goal.is_met for goal in goals):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
