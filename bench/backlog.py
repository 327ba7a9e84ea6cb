"""`make bench-backlog`: the broker's cost of a consumer that catches up, on both code paths and on Apache's broker.

Each broker stores messages of 1 KiB in the four queues of a topic. Then one consumer with one connection pulls them, 32
messages at a time and one pull of each queue in flight, as Java's push consumer does; at the end of a queue it starts
again. All messages are in the page cache. The brokers take turns; the figures are medians.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e" / "interop"))

import click
import msgspec
from gantry_bench import speedups
from gantry_bench.backlog import (
    MESSAGES_AT_ONCE,
    BacklogReport,
    PullRun,
    backlog_goals,
    backlog_table,
)
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.ha_apache import apache_missing_reason, start_apache_broker
from gantry_bench.loadgen import LoadGenerator, Target, Timing, build
from gantry_bench.machine import Cores, OtherWork, pinned, read_process_cpu_seconds
from gantry_bench.measurement import GOAL_BODY_BYTES, MODES
from gantry_bench.processes import start_broker, start_name_server
from gantry_bench.reported_run import Benchmark
from gantry_bench.results import json_option
from gantry_bench.send_figures import SERVER_TEXTS, GantryPath, ServerName
from gantry_bench.speedups import Setting

from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command, decode_command
from gantry_wire.frame import FrameReader

TOPIC: Final = "GantryBench"
QUEUES: Final = 4
SUBSCRIPTION_IN_HEADER: Final = 4
TIMEOUT_SECONDS: Final = 10.0
FILLS_MAX: Final = 20
READ_BYTES: Final = 1 << 18
ENDS: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)
"""The answers without messages: the consumer has read all of the queue."""
SETTINGS: Final[dict[GantryPath, Setting]] = {"python": "off", "compiled": "auto"}


class Scale(msgspec.Struct, frozen=True):
    """The size of a run."""

    fill: Timing
    messages_min: int
    """The fewest messages of a backlog; a broker that stores fewer in the time gets the same load again."""
    repetitions: int
    seconds: float
    first_seconds: float
    """The pulls before the first measurement, in which Java compiles its hot code."""
    has_apache: bool


FULL: Final = Scale(
    fill=Timing(warm_up_ms=0, duration_ms=2000),
    messages_min=20_000,
    repetitions=3,
    seconds=2.0,
    first_seconds=5.0,
    has_apache=True,
)
QUICK: Final = Scale(
    fill=Timing(warm_up_ms=0, duration_ms=500),
    messages_min=1000,
    repetitions=1,
    seconds=0.4,
    first_seconds=1.0,
    has_apache=True,
)


@final
class Consumer:
    """One connection with one pull of each queue in flight; an opaque is the number of the queue."""

    def __init__(self, target: Target) -> None:
        host, _, port = target.address.rpartition(":")
        self._connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._offsets = [0] * QUEUES
        self._pulls = self._messages = self._size_bytes = 0

    def close(self) -> None:
        """Close the connection to the broker."""
        self._connection.close()

    def pull_for(self, seconds: float) -> tuple[int, int, int, float]:
        """Pull for a time; return the numbers of pulls, of messages and of bytes, and the seconds until the last."""
        self._pulls = self._messages = self._size_bytes = 0
        began = time.monotonic()
        self._connection.sendall(b"".join(self._request(queue) for queue in range(QUEUES)))
        in_flight = QUEUES
        while in_flight:
            data = self._connection.recv(READ_BYTES)
            if not data:
                raise BenchmarkFailed("the broker closed the consumer's connection")
            answered = [self._take(decode_command(frame)) for frame in self._reader.feed(data)]
            if time.monotonic() - began < seconds:
                self._connection.sendall(b"".join(map(self._request, answered)))
            else:
                in_flight -= len(answered)
        return self._pulls, self._messages, self._size_bytes, time.monotonic() - began

    def _take(self, answer: Command) -> int:
        queue = answer.opaque
        offset = self._offsets[queue]
        if answer.code in ENDS:
            if offset == 0:
                raise BenchmarkFailed(f"queue {queue} has no messages to pull")
            self._offsets[queue] = 0
        elif answer.code == ResponseCode.SUCCESS:
            self._offsets[queue] = int(answer.ext["nextBeginOffset"])
            self._pulls += 1
            self._messages += self._offsets[queue] - offset
            self._size_bytes += len(answer.body)
        else:
            raise BenchmarkFailed(f"a pull was refused with {answer.code}: {answer.remark}")
        return queue

    def _request(self, queue: int) -> bytes:
        ext = {
            "consumerGroup": "bench_puller", "topic": TOPIC, "queueId": str(queue),
            "queueOffset": str(self._offsets[queue]), "maxMsgNums": str(MESSAGES_AT_ONCE),
            "sysFlag": str(SUBSCRIPTION_IN_HEADER), "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subVersion": "0", "subscription": "*", "expressionType": "TAG",
        }  # fmt: skip
        return Command(code=RequestCode.PULL_MESSAGE, opaque=queue, ext=ext).encode()


def start_brokers(
    stack: ExitStack, folder: Path, cores: Cores, scale: Scale, missing: dict[ServerName, str]
) -> dict[ServerName, Target]:
    """Start every broker that is available; ``missing`` gets the reasons why others are not."""
    name_server = stack.enter_context(start_name_server(folder))
    targets: dict[ServerName, Target] = {}
    for path, setting in SETTINGS.items():
        known = speedups.probe(setting)
        if path == "compiled" and not known.is_compiled:
            missing[path] = known.reason
            continue
        broker = start_broker(
            folder / path, name_server=name_server, core=cores.server, extra={"brokerName": path},
            prefix=speedups.prefix_for(setting),
        )  # fmt: skip
        targets[path] = stack.enter_context(broker).target
    reason = apache_missing_reason() if scale.has_apache else "not requested"
    if reason:
        missing["apache"] = reason
    else:
        targets["apache"] = stack.enter_context(start_apache_broker(folder / "apache"))
    return targets


def fill(targets: Mapping[ServerName, Target], scale: Scale, cores: Cores) -> None:
    """Store messages on every broker. Apache's may refuse sends until Java has compiled its hot code."""
    load = LoadGenerator(build(), core=cores.load)
    for name, target in targets.items():
        stored = 0
        for _ in range(FILLS_MAX):
            report = load.run(MODES["a"], GOAL_BODY_BYTES, target=target, timing=scale.fill).report
            stored += report.messages
            if stored >= scale.messages_min:
                break
        else:
            raise BenchmarkFailed(f"{SERVER_TEXTS[name]} stored only {stored:,} messages: {report.first_refusal}")


def measure(scale: Scale, cores: Cores, folder: Path, report_progress: Callable[[str], None]) -> BacklogReport:
    """Measure every broker, in turn."""
    runs: list[PullRun] = []
    missing: dict[ServerName, str] = {}
    others = 0.0
    try:
        with ExitStack() as stack:
            report_progress("starting and filling the brokers")
            targets = start_brokers(stack, folder, cores, scale, missing)
            fill(targets, scale, cores)
            consumers = {name: Consumer(target) for name, target in targets.items()}
            for consumer in consumers.values():
                stack.callback(consumer.close)
                consumer.pull_for(scale.first_seconds)
            for number in range(1, scale.repetitions + 1):
                report_progress(f"pulls, turn {number} of {scale.repetitions}")
                for name, consumer in consumers.items():
                    process_id = targets[name].process_id
                    with OtherWork(process_id) as other, pinned(cores.load):
                        before = read_process_cpu_seconds(process_id)
                        pulls, messages, size_bytes, seconds = consumer.pull_for(scale.seconds)
                        cpu_seconds = read_process_cpu_seconds(process_id) - before
                    runs.append(PullRun(name, pulls, messages, size_bytes, seconds, cpu_seconds))
                    others = max(others, other.cores)
    except OSError as error:
        raise BenchmarkFailed(f"pulls failed: {error}") from error
    return BacklogReport(runs=runs, missing=missing, other_cores=others)


BENCHMARK: Final = Benchmark(
    name="backlog",
    measure=measure,
    figures=lambda report, scale: backlog_table(report),
    goals=lambda report, scale: backlog_goals(report),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Run for seconds to check the benchmark itself; the figures mean little.")
@click.option("--without-apache", "is_alone", is_flag=True, help="Measure only Gantry's brokers; needs no Java.")
@json_option
@click.option("--assert-goals", is_flag=True, help="Exit with 1 when the goal is missed.")
def main(*, quick: bool, is_alone: bool, json_path: Path | None, assert_goals: bool) -> None:
    """Measure pulls of a backlog by one consumer, on both code paths and on Apache's broker. About two minutes."""
    scale = msgspec.structs.replace(QUICK if quick else FULL, has_apache=not is_alone)
    BENCHMARK.run(scale, assert_goals=assert_goals, json_path=json_path)


if __name__ == "__main__":
    main()
