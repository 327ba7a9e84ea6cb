"""Kills of a transactional sink: a Spark program and a group of brokers, of which processes are killed at bad moments.

    runs of the program ----- with orders: which process dies at which crash point, or at which time
    brokers (sync, 2) ------- the master is killed, its slave promoted, the old one comes back as a slave
    in the end -------------- every row of the files is in the topic once, as an ordinary consumer reads it

The shipped sink runs; only the empty function of its crash points is replaced (`hook/sitecustomize.py`).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, final

import pyarrow as pa
import pyarrow.parquet as parquet
from gantry_histories.events import Journal
from replication.group import Group
from replication.network import Network
from replication.supervisor import NoPromotion, Supervisor

from gantry_client import Admin, ClientError, PullConsumer

HERE: Final = Path(__file__).resolve().parent
PROGRAM: Final = HERE / "program.py"
TOPIC: Final = "Delivered"
RUN_TIMEOUT_S: Final = 1800.0
BROKERS_TIMEOUT_S: Final = 180.0
POLL_S: Final = 0.05
SETTINGS: Final = {
    "brokerRole": "SYNC_MASTER",
    "mappedFileSizeCommitLog": str(32 << 20),
    "mappedFileSizeConsumeQueue": "300000",
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
    "slaveTimeout": "5000",
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceCleanForciblyRatio": "99",
    "diskSpaceWarningLevelRatio": "99",
}


class Kill(NamedTuple):
    """One order: kill a process at the n-th hit of a crash point, or after some seconds."""

    what: str
    """driver: all processes of the program. committer: the process in which Spark commits; the query fails and is
    started again in its session. worker: one that runs a task. broker: the master."""
    point: str
    """A crash point of `pyspark_rocketmq.sink.crash_points`, or `random` for a random moment."""
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.what}:{self.point}:{self.nth}"


DRIVER: Final = (
    Kill("driver", "halves-known"), Kill("driver", "marker-stored"), Kill("driver", "one-ended", 1),
    Kill("driver", "one-ended", 700), Kill("driver", "all-ended"), Kill("driver", "halves-known", 2),
    Kill("driver", "marker-stored", 2), Kill("driver", "one-ended", 1500), Kill("driver", "all-ended", 2),
    Kill("driver", "chunk-stored"), Kill("driver", "chunk-stored", 2), Kill("driver", "random"),
    Kill("driver", "random"), Kill("driver", "random"),
)  # fmt: skip
COMMITTER: Final = (
    Kill("committer", "halves-known"), Kill("committer", "marker-stored"), Kill("committer", "one-ended", 1),
    Kill("committer", "one-ended", 900), Kill("committer", "all-ended"), Kill("committer", "halves-known", 2),
    Kill("committer", "marker-stored", 2), Kill("committer", "one-ended", 1999),
)  # fmt: skip
WORKER: Final = (Kill("worker", "chunk-stored"), Kill("worker", "chunk-stored", 3), Kill("worker", "chunk-stored", 2))
BROKER: Final = (
    Kill("broker", "chunk-stored"), Kill("broker", "halves-known"), Kill("broker", "marker-stored"),
    Kill("broker", "one-ended", 300), Kill("broker", "random"),
)  # fmt: skip
ALL: Final = (*COMMITTER, *WORKER, *BROKER, *DRIVER)


@final
@dataclass
class Verdict:
    """The outcome for the rows."""

    rows: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)
    """The kills whose crash point was not hit before the program ended."""
    runs: int = 0
    """The number of times that the program was started."""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected)

    def __str__(self) -> str:
        summary = f"{self.rows} rows, {len(self.kills)} kills, {self.runs} runs of the program, {self.seconds:.0f} s: "
        faults = [
            f"{len(found)} {name} (the first: {found[0]})"
            for name, found in (("LOST", self.lost), ("DUPLICATED", self.duplicated), ("UNEXPECTED", self.unexpected))
            if found
        ]
        return summary + ("; ".join(faults) or "each row was delivered once")


@final
class Suite:
    """A run of the program with its kills. Belongs to one event loop."""

    def __init__(self, folder: Path, group: Group, supervisor: Supervisor, *, rows_each: int, seed: int) -> None:
        self._folder: Final = folder
        self._group: Final = group
        self._supervisor: Final = supervisor
        self._rows_each: Final = rows_each
        self._random: Final = random.Random(seed)
        self._orders: Final = folder / "orders"
        self._process: asyncio.subprocess.Process | None = None
        self.verdict: Final = Verdict()

    async def run(self, kills: Sequence[Kill], batches: int) -> Verdict:
        """Execute all kills, then let the program write the remaining rows undisturbed."""
        began = time.monotonic()
        if not (self._folder / "source").exists():  # otherwise an interrupted run is continued
            self._write_files(batches)
        try:
            for kill in kills:
                print(f"-- {kill}", flush=True)
                async with asyncio.timeout(RUN_TIMEOUT_S):
                    if not await self._execute_kill(kill):
                        self.verdict.not_reached.append(str(kill))
            await self._finish()
        finally:
            if self._process is not None:
                await kill_tree(self._process)
        await self._verify(batches)
        self.verdict.seconds = time.monotonic() - began
        return self.verdict

    def _write_files(self, batches: int) -> None:
        source = self._folder / "source"
        source.mkdir()
        for batch in range(batches):
            bodies = [f"{batch}-{number}" for number in range(self._rows_each)]
            middle = len(bodies) // 2
            for part, some in enumerate((bodies[:middle], bodies[middle:])):
                table = pa.table({"body": pa.array(some, pa.string())})
                parquet.write_table(table, source / f"{batch:05d}-{part}.parquet")
                os.utime(source / f"{batch:05d}-{part}.parquet", (1_700_000_000 + batch, 1_700_000_000 + batch))

    async def _execute_kill(self, kill: Kill) -> bool:
        """Give an order to the running program, or to a new one, and return whether it was executed."""
        self._give_order(kill)
        process = self._process or await self._start()
        ending = asyncio.ensure_future(process.wait())
        reached = asyncio.ensure_future(self._wait_for_point(kill))
        await asyncio.wait([ending, reached], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not reached.done():
            reached.cancel()
            self._process = None
            assert process.returncode == 0, (
                f"the program ended with {process.returncode}: see {self._folder}/program.log"
            )
            return False
        self.verdict.kills.append(str(kill))
        if kill.what == "broker":
            await self._kill_broker()
        if kill.what == "driver":
            self._process = None
            await kill_tree(process)
        return True

    async def _finish(self) -> None:
        self._give_order(None)
        process = self._process or await self._start()
        async with asyncio.timeout(RUN_TIMEOUT_S):
            code = await process.wait()
        self._process = None
        assert code == 0, f"the last run ended with {code}: see {self._folder}/program.log"

    async def _start(self) -> asyncio.subprocess.Process:
        self.verdict.runs += 1
        with (self._folder / "program.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, str(PROGRAM), self._group.name_server_address, TOPIC, str(self._folder / "source"),
                str(self._folder / "checkpoint"), env=self._environment(), stdout=log, stderr=log,
                stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return self._process

    async def _wait_for_point(self, kill: Kill) -> None:
        if kill.point == "random":
            await asyncio.sleep(self._random.uniform(12.0, 40.0))
            return
        while not (self._orders / "reached").exists():  # noqa: ASYNC110 - another process's file
            await asyncio.sleep(POLL_S)

    def _give_order(self, kill: Kill | None) -> None:
        self._orders.mkdir(exist_ok=True)
        for name in ("order", *(file.name for file in self._orders.iterdir())):  # the order is removed first
            (self._orders / name).unlink(missing_ok=True)
        if kill is not None and kill.point != "random":
            action = {"driver": "wait", "committer": "die", "worker": "die", "broker": "continue"}[kill.what]
            (self._orders / "new").write_text(f"{kill.point} {kill.nth} {action}")
            (self._orders / "new").rename(self._orders / "order")

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(HERE / "hook"), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "PYTHONPATH": path, "SINK_KILLS": str(self._orders)}

    async def _kill_broker(self) -> None:
        old = self._supervisor.master
        await old.kill()
        async with asyncio.timeout(BROKERS_TIMEOUT_S):
            while True:
                try:
                    await self._supervisor.promote_among(self._group.others(old))
                    break
                except NoPromotion:
                    await asyncio.sleep(POLL_S)
        await old.process.start()
        await self._supervisor.order_to_follow([old])
        await self._supervisor.wait_until_caught_up(BROKERS_TIMEOUT_S)

    async def _verify(self, batches: int) -> None:
        found = Counter(await read_bodies(self._group.name_server_address))
        wanted = {f"{batch}-{number}" for batch in range(batches) for number in range(self._rows_each)}
        verdict = self.verdict
        verdict.rows = len(wanted)
        verdict.lost = sorted(wanted - found.keys())
        verdict.duplicated = sorted(body for body, count in found.items() if count > 1)
        verdict.unexpected = sorted(found.keys() - wanted)


async def read_bodies(name_server: str) -> list[str]:
    """Return all bodies of the topic."""
    bodies: list[str] = []
    async with PullConsumer(name_server, "readers") as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.fetch(queue, offset)
                bodies += [message.body.decode() for message in result.messages]
                offset = result.next_offset
    return bodies


async def kill_tree(process: asyncio.subprocess.Process) -> None:
    """Kill a process and all its descendants with kill -9: Spark's worker daemon is in its own process group."""
    victims = [*descendants(process.pid), process.pid]
    for pid in reversed(victims):  # the virtual machine before its workers
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await process.wait()


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants, each before its ancestors."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), []):
            found.append(child)
            pending.append(child)
    return found[::-1]


@asynccontextmanager
async def running_suite(folder: Path, *, rows_each: int, seed: int) -> AsyncIterator[Suite]:
    """Start brokers and a topic, or continue in the folder of an earlier run."""
    async with AsyncExitStack() as stack:
        network = stack.enter_context(Network(2, is_isolated=False))
        journal = Journal(stack.enter_context((folder / "history.jsonl").open("ab")))
        group = await stack.enter_async_context(Group(folder, network, members=2, settings=SETTINGS))
        is_new = not (folder / "source").exists()
        await group.start()
        supervisor = await stack.enter_async_context(Supervisor(group, journal, acks_needed=1))
        await (supervisor.promote_first() if is_new else supervisor.promote_most_complete())
        await supervisor.wait_until_caught_up(BROKERS_TIMEOUT_S)
        if is_new:
            await make_topic(group.name_server_address)
        yield Suite(folder, group, supervisor, rows_each=rows_each, seed=seed)


async def make_topic(name_server: str) -> None:
    """Create the topic as soon as the name server lists the master."""
    async with Admin(name_server) as admin, asyncio.timeout(BROKERS_TIMEOUT_S):
        while True:
            with suppress(ClientError):
                await admin.topics.create(TOPIC, queues=4)
                return
            await asyncio.sleep(POLL_S)
