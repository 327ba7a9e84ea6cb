"""The group that Spark reads: a master and a slave with their sidecars, started by `gantry up`, and its messages."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, final

from gantry_bench.errors import BenchmarkFailed
from gantry_cli.local.records import GroupRecord
from gantry_cli.local.state import GroupState
from gantry_client import Admin, Message, Producer

TOPIC: Final = "bench-spark"
SINK_TOPIC: Final = "bench-spark-out"
SENDS_TOPIC: Final = "bench-spark-sends"
QUEUES: Final = 4
BODY_BYTES: Final = 1024
BATCH_COUNT: Final = 500
OUTSTANDING: Final = 4
BODIES_COUNT: Final = 20_000
"""The number of different bodies, so that none occurs twice in one page of Parquet."""
ROOM_BYTES: Final = BODY_BYTES - len('{"order":0000000000000000,')
SEED: Final = 20_261_122
LETTERS: Final = "eeeetttaaooiinnsshhrrdlucmwfgypbvk"
TAGS: Final = ("new", "paid", "sent", "done")
READY_S: Final = 300.0

_MANIFEST: Final = f"""
apiVersion: gantry.dev/v1alpha1
kind: BrokerGroup
metadata: {{name: bench}}
spec:
  topics:
    - {{name: {TOPIC}, queues: {QUEUES}}}
    - {{name: {SINK_TOPIC}, queues: {QUEUES}}}
    - {{name: {SENDS_TOPIC}, queues: 1}}
  broker:
    diskMaxUsedSpaceRatio: "95"
    diskSpaceCleanForciblyRatio: "99"
    diskSpaceWarningLevelRatio: "99"
  replication: {{mode: Async}}
  writeBuffer: {{medium: "Off", segmentSize: 256Mi}}
"""


@final
class Group:
    """A running broker group that Spark reads."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        record = GroupState(folder).read_group()
        if record is None:
            raise BenchmarkFailed(f"{folder} contains no group")
        self.record: Final[GroupRecord] = record

    @property
    def name_server(self) -> str:
        return ";".join(self.record.addresses)

    @property
    def broker(self) -> str:
        """The broker's name for clients."""
        return f"{self.record.name}-0"

    @property
    def token(self) -> str:
        """The token that the sidecars accept."""
        return (self.folder / "token").read_text().split(":", 1)[1].strip()

    @property
    def slave_store(self) -> Path:
        return Path(next(one.store for one in self.record.members if one.number != 1))

    def pids(self, *, of_slave: bool) -> list[int]:
        """The process ids of the master or the slave, and of its sidecar."""
        members = [one for one in self.record.members if (one.number != 1) == of_slave]
        return [pid for one in members for pid in (one.pid, one.sidecar_pid) if pid is not None]

    def options(self, transport: str) -> dict[str, str]:
        """The options of the data source."""
        options = {"nameServers": self.name_server, "subscribe": TOPIC, "transport": transport}
        if transport == "http":
            options |= {"sidecars": ",".join(one.sidecar_url for one in self.record.members), "token": self.token}
        if transport == "file":
            options |= {"directories": f'{{"{self.broker}": "{self.slave_store}"}}'}
        return options


@contextmanager
def start_group(folder: Path) -> Iterator[Group]:
    """Start a group on free ports, and stop it afterwards; its data stays."""
    manifest = folder.with_suffix(".yaml")
    manifest.write_text(_MANIFEST)
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
    _gantry("up", "--data", str(folder), "--detach", "-f", str(manifest), *ports)
    try:
        yield Group(folder)
    finally:
        _gantry("down", "--data", str(folder))


def _gantry(*words: str) -> None:
    result = subprocess.run([sys.executable, "-m", "gantry_cli", *words], capture_output=True, text=True, check=False)
    if result.returncode:
        raise BenchmarkFailed(f"gantry {words[0]}: {result.stdout}{result.stderr}")


def fill(group: Group, rows: int, *, first: int = 0) -> None:
    """Send the messages `[first, rows)`. Raises BenchmarkFailed if one is not acknowledged, or others are stored."""
    asyncio.run(_fill(group.name_server, first, rows))


async def _fill(name_server: str, first: int, rows: int) -> None:
    numbers = iter(range(first, rows, BATCH_COUNT))
    bodies = order_bodies(BODIES_COUNT)

    def message(number: int) -> Message:
        body = b'{"order":%016d,' % number + bodies[number % len(bodies)]
        return Message(TOPIC, body, tags=TAGS[number % len(TAGS)], keys=[f"order-{number}"])

    async with Producer(name_server, "bench-spark") as producer:

        async def send() -> None:
            for begin in numbers:
                receipts = await producer.send_batch([message(n) for n in range(begin, min(rows, begin + BATCH_COUNT))])
                if not all(one.is_acknowledged for one in receipts):
                    raise BenchmarkFailed(f"a batch was not acknowledged: {receipts[0].status.name}")

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(OUTSTANDING):
                    tasks.create_task(send())
        except* BenchmarkFailed as failures:
            raise next(error for error in failures.exceptions if isinstance(error, BenchmarkFailed)) from failures
    async with Admin(name_server) as admin:
        ends = await admin.topics.stats(TOPIC)
        stored = sum(one.max_offset - one.min_offset for one in ends.values())
    if stored != rows:
        raise BenchmarkFailed(f"{rows} messages should be stored, but {stored} are stored")


def order_bodies(count: int) -> list[bytes]:
    """Return the part after an order's number in a body of `BODY_BYTES`: all different, from one seed. The text
    is like a shop's JSON, but cut to the size, so that it cannot be parsed.
    """
    random = Random(SEED)
    return [_order_body(random) for _ in range(count)]


def _order_body(random: Random) -> bytes:
    def word() -> str:
        return "".join(random.choices(LETTERS, k=random.randrange(4, 11)))

    lines: list[dict[str, object]] = []
    order = {
        "customer": random.randrange(10**9),
        "session": random.randbytes(16).hex(),
        "placed": f"2026-{random.randrange(1, 13):02}-{random.randrange(1, 29):02}T12:{random.randrange(60):02}:00Z",
        "address": {"name": f"{word()} {word()}", "street": f"{word()} {random.randrange(200)}", "city": word()},
        "lines": lines,
    }
    while len(found := json.dumps(order, separators=(",", ":"))) < ROOM_BYTES:
        price = random.randrange(100, 100_000)
        lines.append({"sku": random.randbytes(4).hex(), "title": f"{word()} {word()}", "count": 1, "price": price})
    return found[1:ROOM_BYTES].encode() + b"}"


def measure_latencies_ms(group: Group, count: int) -> list[float]:
    """Return the durations of sequential sends to the master."""

    async def send() -> list[float]:
        took = []
        async with Producer(group.name_server, "bench-spark") as producer:
            message = Message(SENDS_TOPIC, bytes(BODY_BYTES))
            await producer.send(message)
            for _ in range(count):
                began = time.perf_counter()
                await producer.send(message)
                took.append((time.perf_counter() - began) * 1000)
        return took

    return asyncio.run(send())
