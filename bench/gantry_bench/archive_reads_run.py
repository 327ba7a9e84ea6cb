"""One run of the benchmark of reads from an archive: a broker, its archive server, and consumers in Java.

    messages are sent -> archived -> deleted from the log, except for its end -> sends, and sends beside a consumer

The broker has settings by which it deletes as much as it may, as on a full disk, from the start. Nothing may be deleted
before it is archived, which the run checks. Then each consumer, of a new group, reads all messages from the first one
on, and the run fails if one of them is missing, or was delivered twice. The broker has a core for itself, if there are
two. The archive server and the consumers are on the other one, with the lowest priority: on machines of their own they
would not disturb the load generator.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from gantry_interop import java, versions

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import Figures
from gantry_bench.loadgen import LoadGenerator, Run, Timing, build
from gantry_bench.machine import Cores, OtherWork, read_process_cpu_seconds
from gantry_bench.measurement import Goal, Mode
from gantry_bench.processes import Broker, Server, run_server, start_broker, start_name_server, wait_for_line
from gantry_bench.runtime_info import read_log_end
from gantry_bench.spark_group import BODIES_COUNT, order_bodies
from gantry_client import Message, Producer
from gantry_store_files.segments import parse_segment_name
from gantry_testing.ports import free_broker_port

TOPIC: Final = "BenchArchive"
BROKER_NAME: Final = "bench"
QUEUES: Final = 4
BATCH_COUNT: Final = 200
ARCHIVED_SHARE_MIN: Final = 0.95
"""At least so much of the topic must be in the archive only."""
P99_RATIO_MAX: Final = 1.2
"""Goal: the p99 of sends beside a consumer of the archive is at most this multiple of that without one."""
SENDS: Final = Mode(name="sends", connections=4, outstanding=1, frames_per_write=1, cpu_ratio_max=None)
DELETION_ROUNDS_SECONDS: Final = 3.0
"""So long the broker could delete messages that are not archived, in several rounds."""
DELETION_SECONDS_MAX: Final = 120.0
ARCHIVE_SECONDS_MAX: Final = 900.0
ATTACH_SECONDS_MAX: Final = 300.0
PATIENCE_SECONDS: Final = 60
"""The seconds without a new message after which a consumer gives up."""


class ArchiveReadsScale(msgspec.Struct, frozen=True):
    """The size of a run."""

    messages: int
    repetitions: int
    timing: Timing
    """The duration of each measurement of sends."""

    body_bytes: int = 1024
    segment_bytes: int = 32 << 20


FULL: Final = ArchiveReadsScale(messages=1_000_000, repetitions=3, timing=Timing(warm_up_ms=1000, duration_ms=10_000))
QUICK: Final = ArchiveReadsScale(
    messages=20_000, repetitions=1, timing=Timing(warm_up_ms=200, duration_ms=1_000), segment_bytes=1 << 20
)


class Reading(msgspec.Struct, frozen=True):
    """What one consumer got, and what that took."""

    seconds: float
    messages: int
    broker_cpu_seconds: float
    server_cpu_seconds: float
    sends: int
    """The number of sends that the broker took beside it."""

    has_slave: bool = False
    slave_cpu_seconds: float = 0.0


class SendTurn(msgspec.Struct, frozen=True):
    """One measurement of sends: alone, or beside a consumer."""

    is_beside: bool
    has_slave: bool
    """Whether the broker has a slave, which then reads the archive for the consumer."""

    per_second: float
    p50_us: float
    p99_us: float
    errors: int


class ArchiveReadsReport(msgspec.Struct, frozen=True):
    """The results of a run."""

    archived_share: float
    """The share of the topic's bytes that is in the archive only."""

    readings: list[Reading]
    turns: list[SendTurn]
    broker_cpu_us_per_send: float
    """The broker's CPU time for a send without a consumer."""

    broker_cpu_us_per_copied_send: float
    """The same with a slave."""

    other_cores: float


async def send_messages(name_server: str, scale: ArchiveReadsScale) -> None:
    """Send the messages, each with its number at the beginning of its body. Raises BenchmarkFailed."""
    ends = [body[: scale.body_bytes - 16] for body in order_bodies(min(BODIES_COUNT, scale.messages))]
    firsts = iter(range(0, scale.messages, BATCH_COUNT))

    async def send(producer: Producer) -> None:
        for first in firsts:
            numbers = range(first, min(scale.messages, first + BATCH_COUNT))
            batch = [Message(TOPIC, b"%016d" % number + ends[number % len(ends)], tags="new") for number in numbers]
            receipts = await producer.send_batch(batch)
            if not all(one.is_acknowledged for one in receipts):
                raise BenchmarkFailed(f"a batch was not acknowledged: {receipts[0].status.name}")

    async with Producer(name_server, "bench-archive") as producer, asyncio.TaskGroup() as group:
        for _ in range(QUEUES):
            group.create_task(send(producer))


def archive(name_server: str, store: Path, destination: Path) -> None:
    """Run the archive's job until it has all messages. Raises BenchmarkFailed."""
    directories = json.dumps({BROKER_NAME: str(store)})
    settings = {
        "runtime.nameServers": f"[{name_server}]", "runtime.directories": directories,
        "runtime.destination": str(destination), "transport": "file", "topics.include": f"[{TOPIC}]",
    }  # fmt: skip
    command = [sys.executable, "-m", "gantry_pipelines", "archive", "--once"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ARCHIVE_SECONDS_MAX, check=False)
    if done.returncode:
        raise BenchmarkFailed(f"the archive's job failed: {(done.stdout + done.stderr)[-1500:]}")


@contextmanager
def start_archive_server(folder: Path, destination: Path, socket_path: Path, core: int | None) -> Iterator[Server]:
    """Start the archive server, with the lowest priority; yield it once it listens."""
    command = [
        "nice", "-n", "19", sys.executable, "-m", "gantry_pipelines", "serve",
        "--set", f"runtime.destination={destination}", "--set", f"serving.socket={socket_path}",
        "--set", f"topics.include=[{TOPIC}]",
    ]  # fmt: skip
    with run_server(command, log=folder / "archive-server.log", core=core) as server:
        wait_for_line(server, what="archive server", beginning="serve: serving the archive")
        yield server


def archived_share(store: Path, wrote: int) -> float:
    """Return the share of a log's bytes ``[0, wrote)`` that is not in its files any more."""
    names = (parse_segment_name(path.name) for path in (store / "commitlog").iterdir())
    return min(offset for offset in names if offset is not None) / wrote


def wait_for_deletion(store: Path, wrote: int) -> float:
    """Wait until the log has lost what is archived; return the share that is in the archive only."""
    deadline = time.monotonic() + DELETION_SECONDS_MAX
    share = 0.0
    while time.monotonic() < deadline:
        share = archived_share(store, wrote)
        if share >= ARCHIVED_SHARE_MIN:
            return share
        time.sleep(0.2)
    raise BenchmarkFailed(
        f"only {share:.0%} of the log were deleted: less than 10 % of the disk are used, or not all is archived"
    )


class Consumer:
    """A consumer in Java that reads the topic from its first message."""

    def __init__(self, folder: Path, name_server: str, number: int, messages: int, core: int | None) -> None:
        program = java.Program(java.CLIENT_MODULES[versions.PEER], "dev.gantry.interop.FromFirst", is_measured=True)
        arguments = [name_server, TOPIC, f"bench-archive-{number}", str(messages), str(PATIENCE_SECONDS)]
        home = folder / f"consumer-{number}"
        self.process = subprocess.Popen(
            ["nice", "-n", "19", *program.command(home, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env=java.environment(home),
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )

    def is_running(self) -> bool:
        return self.process.poll() is None

    def result(self) -> dict[str, Any]:
        """Return what it has printed at its end. Raises BenchmarkFailed if a message was missing or delivered twice."""
        output, _ = self.process.communicate()
        found: dict[str, Any] = json.loads(output or b"{}")
        if not found or any(found[name] for name in ("missing", "duplicates", "unreadable")):
            raise BenchmarkFailed(f"the consumer did not get each message once: {found or self.process.returncode}")
        return found


class _Bench:
    """The processes of one run, and what was measured."""

    def __init__(self, scale: ArchiveReadsScale, cores: Cores, folder: Path, name_server: str) -> None:
        self.scale: Final = scale
        self.cores: Final = cores
        self.folder: Final = folder
        self.name_server: Final = name_server
        self.generator: Final = LoadGenerator(build(), core=cores.load)
        self.readings: list[Reading] = []
        self.turns: list[SendTurn] = []

    def send(self, broker: Broker, *, is_beside: bool, has_slave: bool) -> Run:
        run = self.generator.run(SENDS, self.scale.body_bytes, target=broker.target, timing=self.scale.timing)
        report = run.report
        latency = report.latency_us
        self.turns.append(
            SendTurn(is_beside, has_slave, report.messages_per_second, latency.p50, latency.p99, report.errors)
        )
        return run

    def read(self, broker: Broker, server: Server, slave: Broker | None, *, is_beside_sends: bool) -> None:
        """Let a consumer read everything, and measure sends again and again meanwhile if ``is_beside_sends``."""
        number = len(self.readings)
        consumer = Consumer(self.folder, self.name_server, number, self.scale.messages, self.cores.load)
        processes = [broker.server, server, *([] if slave is None else [slave.server])]
        before = [read_process_cpu_seconds(one.process_id) for one in processes]
        sends = count = 0
        while is_beside_sends and consumer.is_running():
            run = self.send(broker, is_beside=True, has_slave=slave is not None)
            sends += run.report.messages
            count += 1
        if count > 1:
            self.turns.pop()  # the consumer has ended during the last measurement
        found = consumer.result()
        after = [read_process_cpu_seconds(one.process_id) for one in processes]
        broker_s, server_s, *slave_s = (one - other for one, other in zip(after, before, strict=True))
        self.readings.append(
            Reading(found["seconds"], found["distinct"], broker_s, server_s, sends, slave is not None, sum(slave_s))
        )

    def measure(
        self, broker: Broker, server: Server, slave: Broker | None, report_progress: Callable[[str], None]
    ) -> float:
        """Measure consumers alone, then sends alone and beside a consumer. Return the broker's CPU us per send."""
        self.read(broker, server, slave, is_beside_sends=False)
        cpu_us = 0.0
        for number in range(1, self.scale.repetitions + 1):
            report_progress(f"sends alone, and beside a consumer: {number} of {self.scale.repetitions}")
            run = self.send(broker, is_beside=False, has_slave=slave is not None)
            cpu_us = run.report.server.cpu_us_per_message
            self.read(broker, server, slave, is_beside_sends=True)
        return cpu_us


def broker_keys(scale: ArchiveReadsScale, socket_path: Path) -> dict[str, str]:
    """Return the settings of a broker that deletes as much of its log as it may, and of its slave."""
    return {
        "brokerName": BROKER_NAME, "defaultTopicQueueNums": str(QUEUES), "archiveReadsOnSlave": "true",
        "mappedFileSizeCommitLog": str(scale.segment_bytes), "archiveSocketPath": str(socket_path),
        "diskMaxUsedSpaceRatio": "10", "diskSpaceCleanForciblyRatio": "10", "diskSpaceWarningLevelRatio": "98",
        "maxMessageSize": "262144", "deleteUnconsumed": "true", "cleanResourceInterval": "500",
    }  # fmt: skip


def measure(
    scale: ArchiveReadsScale, cores: Cores, folder: Path, report_progress: Callable[[str], None]
) -> ArchiveReadsReport:
    """Run everything once. Raises BenchmarkFailed."""
    java.build()
    destination, socket_path = folder / "archive", folder / "archive.sock"
    keys, port = broker_keys(scale, socket_path), free_broker_port()
    keys["haListenPort"] = str(port + 1)
    store = folder / "broker" / "store"
    with (
        start_name_server(folder) as name_server,
        start_archive_server(folder, destination, socket_path, cores.load) as server,
        start_broker(
            folder / "broker", name_server=name_server, core=cores.server, extra=keys, port=port
        ) as broker,
    ):  # fmt: skip
        report_progress(f"sending {scale.messages:,} messages of {scale.body_bytes} bytes")
        asyncio.run(send_messages(name_server, scale))
        time.sleep(DELETION_ROUNDS_SECONDS)
        wrote = read_log_end(broker.target.address)
        if archived_share(store, wrote):
            raise BenchmarkFailed("messages were deleted that are not archived")
        report_progress("archiving them")
        archive(name_server, store, destination)
        share = wait_for_deletion(store, wrote)
        bench = _Bench(scale, cores, folder, name_server)
        with OtherWork(broker.target.process_id) as others:
            report_progress(f"{share:.1%} of them are in the archive only; a consumer reads them")
            cpu_us = bench.measure(broker, server, None, report_progress)
            report_progress("a slave copies the log, and a consumer reads the archive from it")
            with start_slave(folder, name_server, broker, keys, cores.load) as slave:
                copied_cpu_us = bench.measure(broker, server, slave, report_progress)
        return ArchiveReadsReport(share, bench.readings, bench.turns, cpu_us, copied_cpu_us, others.cores)


@contextmanager
def start_slave(
    folder: Path, name_server: str, master: Broker, keys: Mapping[str, str], core: int | None
) -> Iterator[Broker]:
    """Start a slave, with the lowest priority; yield it once it has the log. Raises BenchmarkFailed."""
    follow = f"127.0.0.1:{keys['haListenPort']}"
    own = {**keys, "haListenPort": "-1", "brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": follow}
    low = ("nice", "-n", "19")
    with start_broker(folder / "slave", name_server=name_server, core=core, extra=own, prefix=low) as slave:
        deadline = time.monotonic() + ATTACH_SECONDS_MAX
        while read_log_end(slave.target.address) != read_log_end(master.target.address):
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"the slave did not copy the log within {ATTACH_SECONDS_MAX:g} s")
            time.sleep(0.5)
        yield slave


def latency_ratio(turns: Sequence[SendTurn], *, has_slave: bool) -> float:
    """Return the median p99 of sends beside a consumer, as a multiple of that without one."""
    beside, alone = (median_of(turns, is_beside, has_slave, lambda turn: turn.p99_us) for is_beside in (True, False))
    return beside / alone if alone else 0.0


def median_of(
    turns: Sequence[SendTurn], is_beside: bool, has_slave: bool, read: Callable[[SendTurn], float]
) -> float:  # fmt: skip
    """Return the median of a figure."""
    return statistics.median(
        read(turn) for turn in turns if turn.is_beside is is_beside and turn.has_slave is has_slave
    )  # fmt: skip


def archive_reads_goals(report: ArchiveReadsReport, _scale: ArchiveReadsScale) -> list[Goal]:
    """Return the goals: how much is only in the archive, and what its readers cost sends."""
    ratios = [
        Goal(
            f"p99 of sends beside a consumer of the archive, read by {'a slave' if has_slave else 'the master'}",
            P99_RATIO_MAX, latency_ratio(report.turns, has_slave=has_slave), "x without one",
        )
        for has_slave in (False, True)
    ]  # fmt: skip
    return [
        Goal("of the topic is only in the archive", ARCHIVED_SHARE_MIN, report.archived_share, "", is_floor=True),
        *ratios,
    ]


def cpu_us_beside_sends(report: ArchiveReadsReport, one: Reading) -> float:
    """Return the master's CPU time for a message that was read, without that of sends."""
    per_send = report.broker_cpu_us_per_copied_send if one.has_slave else report.broker_cpu_us_per_send
    return (one.broker_cpu_seconds - one.sends * per_send / 1e6) / one.messages * 1e6


def archive_reads_figures(report: ArchiveReadsReport, scale: ArchiveReadsScale) -> list[Figures]:
    """Return the tables of reads and of sends."""
    reads = [
        [
            "the slave" if one.has_slave else "the master",
            "nothing" if not one.sends else f"{one.sends / one.seconds:,.0f} sends/s",
            f"{one.messages / one.seconds:,.0f}",
            f"{one.messages * scale.body_bytes / one.seconds / 1e6:.0f}",
            f"{cpu_us_beside_sends(report, one):.1f}",
            f"{one.slave_cpu_seconds / one.messages * 1e6:.1f}" if one.has_slave else "",
            f"{one.server_cpu_seconds / one.messages * 1e6:.1f}",
        ]
        for one in report.readings
    ]
    turns = report.turns
    sends = [
        [
            "" if not is_beside else "by the slave" if has_slave else "by the master",
            "with a slave" if has_slave else "alone",
            *(
                f"{median_of(turns, is_beside, has_slave, read):,.0f}"
                for read in (lambda turn: turn.per_second, lambda turn: turn.p50_us, lambda turn: turn.p99_us)
            ),
        ]
        for has_slave in (False, True)
        for is_beside in (False, True)
    ]
    return [
        Figures(
            name="archive: reads",
            headings=[
                "read by", "beside", "messages/s", "MB/s", "master's CPU us/message", "slave's", "archive server's",
            ],
            rows=reads,
            notes=[
                f"{scale.messages:,} messages of {scale.body_bytes} bytes, {report.archived_share:.1%} of them only in "
                "the archive, read by a push consumer of RocketMQ's Java client from the first one on; each was "
                "delivered once. The CPU time of sends is subtracted from the master's. The slave's includes what it "
                "copied.",
            ],
        ),
        Figures(
            name="archive: sends",
            headings=["archive read", "master", "sends/s", "p50 us", "p99 us"],
            rows=sends,
            notes=[
                f"{SENDS.connections} connections with one send in flight each; medians of measurements of "
                f"{scale.timing.duration_ms / 1000:g} s. Programs that are not of the run used "
                f"{report.other_cores:.1f} cores.",
            ],
        ),
    ]  # fmt: skip
