"""One load of a gRPC proxy: the command line of `loadgen proxy`, and its report.

The generator is in Go and speaks HTTP/2 by itself, so that it costs less than what it measures, and is the same for
every proxy. It sends the headers of an SDK, some of them new in each call.
"""

from __future__ import annotations

import subprocess
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.proxy_stacks import GROUP, TOPIC, ProxyStack

GRACE_SECONDS: Final = 60.0
"""How long a generator may take beyond its load, for connections and last replies."""
OUTSTANDING_PER_CLIENT: Final = 16
"""How many calls share one connection, as the calls of one application do."""


class Mode(Enum):
    """What a load consists of."""

    SEND = "send"
    RECEIVE = "receive"
    """Receives of up to 32 messages, and an acknowledgement of each message in a call of its own."""

    IDLE = "idle"
    """Clients with an open Telemetry stream that call nothing."""


class Latency(msgspec.Struct, frozen=True):
    """How long calls took, in microseconds: sends, or acknowledgements."""

    mean: float
    p50: float
    p99: float
    p99_9: float
    max: float


class ProxyReport(msgspec.Struct, frozen=True):
    """The report that the generator prints."""

    mode: str
    connections: int
    outstanding: int
    body_bytes: int
    messages: int
    seconds: float
    messages_per_second: float
    latency_us: Latency
    receives: int
    empty_receives: int
    errors: int
    refused_by_code: dict[str, int]
    first_refusal: str
    own_cpu_seconds: float
    cpu_seconds: list[float]
    """Of each process of the proxy, and of the broker."""

    resident_bytes_before: list[int]
    resident_bytes: list[int]

    @property
    def proxy_cpu_seconds(self) -> float:
        return sum(self.cpu_seconds[:-1])

    @property
    def broker_cpu_seconds(self) -> float:
        return self.cpu_seconds[-1]

    @property
    def proxy_growth_bytes(self) -> int:
        """By how much the memory of the proxy grew."""
        return sum(self.resident_bytes[:-1]) - sum(self.resident_bytes_before[:-1])


class ProxyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What to load a proxy with, and for how long."""

    mode: Mode
    outstanding: int
    warm_up_ms: int
    duration_ms: int
    body_bytes: int = 1024
    messages: int = 0
    """End after so many; 0 for no limit."""

    connections: int = 0
    """The number of clients; 0 for the usual one."""

    @property
    def client_count(self) -> int:
        return self.connections or max(1, self.outstanding // OUTSTANDING_PER_CLIENT)


def arguments(load: ProxyLoad, stack: ProxyStack) -> list[str]:
    """Return the command line after the program."""
    return [
        "proxy",
        f"-mode={load.mode.value}",
        f"-address={stack.address}",
        f"-topic={TOPIC}",
        f"-group={GROUP}",
        f"-broker-name={stack.broker_name}",
        f"-connections={load.client_count}",
        f"-outstanding={load.outstanding}",
        f"-body-bytes={load.body_bytes}",
        f"-messages={load.messages}",
        f"-warm-up={load.warm_up_ms}ms",
        f"-duration={load.duration_ms}ms",
        f"-pids={','.join(map(str, (*stack.proxy_ids, stack.broker_id)))}",
    ]


def run_load(binary: Path, load: ProxyLoad, stack: ProxyStack) -> ProxyReport:
    """Load a proxy once. Raises BenchmarkFailed if it cannot be measured."""
    seconds = (load.warm_up_ms + load.duration_ms) / 1000 + GRACE_SECONDS
    try:
        done = subprocess.run([str(binary), *arguments(load, stack)], capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkFailed(f"the load generator did not end within {seconds:.0f} s at {stack.name}") from error
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        raise BenchmarkFailed(f"{stack.name}: {text or 'the load generator failed silently'}")
    try:
        return msgspec.json.decode(done.stdout, type=ProxyReport)
    except msgspec.MsgspecError as error:
        raise BenchmarkFailed(f"{stack.name}: the load generator printed no report: {error}") from error
