"""Runs Apache's own benchmark Producer and Consumer, with nothing changed but the name server address.

Their numbers depend on the machine and are only shown. The checks are that both make progress and that neither
reports a failure.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gantry_interop import java
from gantry_interop.processes import Child, Nursery, wait_until

PRODUCER = java.Program(java.REFERENCE, "org.apache.rocketmq.example.benchmark.Producer", is_measured=True)
CONSUMER = java.Program(java.REFERENCE, "org.apache.rocketmq.example.benchmark.Consumer", is_measured=True)
SECONDS_MIN = 21
"""The programs report every 10 s, and only after ten samples; shorter runs show no rate."""
CONSUMER_READY_SECONDS_MAX = 180.0
DRAIN_SECONDS_MAX = 120.0
BROKER_SETTINGS = {"waitTimeMillsInSendQueue": "200"}
"""RocketMQ's default: the benchmark checks whether a broker keeps up without rejecting."""

_SEND = re.compile(r"Send TPS: (\d+) \| Max RT\(ms\): (\d+) \| Average RT\(ms\): +([\d.]+) "
                   r"\| Send Failed: (\d+) \| Response Failed: (\d+)")  # fmt: skip
_CONSUME = re.compile(r"Consume TPS: (\d+) \| AVG\(B2C\) RT\(ms\): +([\d.]+) .*\| Consume Fail: (\d+)")


@dataclass(frozen=True)
class BenchmarkReport:
    """The figures that the two programs printed."""

    seconds: float
    """The run time of the producer."""
    send_rates: list[int] = field(default_factory=list)
    send_average_ms: list[float] = field(default_factory=list)
    send_failed: int = 0
    response_failed: int = 0
    consume_rates: list[int] = field(default_factory=list)
    consume_failed: int = 0
    broken: list[str] = field(default_factory=list)
    """The checks that failed, as text."""

    @property
    def kept(self) -> bool:
        return not self.broken

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "kept": self.kept}


def run(nursery: Nursery, name_server: str, seconds: float, home: Path) -> BenchmarkReport:
    """Produce and consume concurrently for the given time, then let the consumer catch up."""
    consumer = nursery.start(
        "benchmark-consumer", CONSUMER.command(home / "consumer", ["-n", name_server]), java.environment(home)
    )
    wait_until(
        "the benchmark consumer's start",
        lambda: "Consumer Started" in consumer.log.read_text(errors="replace"),
        CONSUMER_READY_SECONDS_MAX,
        consumer,
    )
    producer = nursery.start(
        "benchmark-producer", PRODUCER.command(home / "producer", ["-n", name_server]), java.environment(home)
    )
    has_ended_early = _ends_early(seconds, producer, consumer)
    producer.stop()
    if not has_ended_early:
        _drain(consumer)
    consumer.stop()
    return judge(seconds, producer.log.read_text(errors="replace"), consumer.log.read_text(errors="replace"))


def _ends_early(seconds: float, *children: Child) -> bool:
    """Wait for the given time, or until one of the programs ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not all(child.is_running() for child in children):
            return True
        time.sleep(0.2)
    return False


def _drain(consumer: Child) -> None:
    """Wait until the consumer reports a rate of zero, which means that no messages are left."""
    reports = len(_CONSUME.findall(consumer.log.read_text(errors="replace")))
    end = time.monotonic() + DRAIN_SECONDS_MAX
    while time.monotonic() < end and consumer.is_running():
        found = _CONSUME.findall(consumer.log.read_text(errors="replace"))
        if len(found) > reports and found[-1][0] == "0":
            return
        time.sleep(0.2)


def judge(seconds: float, producer_text: str, consumer_text: str) -> BenchmarkReport:
    """Parse the printed lines. The failure counters of both programs count from their start."""
    sends = _SEND.findall(producer_text)
    consumes = _CONSUME.findall(consumer_text)
    send_failed = max((int(line[3]) for line in sends), default=0)
    response_failed = max((int(line[4]) for line in sends), default=0)
    consume_failed = max((int(line[2]) for line in consumes), default=0)
    checks = {
        "the producer reports a rate": any(int(line[0]) > 0 for line in sends),
        "the consumer reports a rate": any(int(line[0]) > 0 for line in consumes),
        "no send fails": send_failed == 0,
        "no response fails": response_failed == 0,
        "no consumption fails": consume_failed == 0,
    }
    return BenchmarkReport(
        seconds=seconds,
        send_rates=[int(line[0]) for line in sends],
        send_average_ms=[float(line[2]) for line in sends],
        send_failed=send_failed,
        response_failed=response_failed,
        consume_rates=[int(line[0]) for line in consumes],
        consume_failed=consume_failed,
        broken=[text for text, holds in checks.items() if not holds],
    )
