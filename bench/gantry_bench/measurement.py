"""The report of one run, and the summary of several.

This module is pure. A run is the JSON object that the load generator prints; repetitions of the same load are reduced
to the median of each figure, separately, because one disturbed run must not decide. Most goals are ratios between two
servers measured in turn on the same machine, because absolute times depend on the machine. It does not use processes,
files or tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from statistics import median
from typing import Final, Literal

import msgspec

from gantry_bench.errors import BenchmarkFailed

ModeName = Literal["a", "a1", "b"]


class Mode(msgspec.Struct, frozen=True):
    """A shape of load: the number of connections, and how the frames of a connection are sent."""

    name: str
    connections: int
    outstanding: int
    """Sends in flight on each connection."""
    frames_per_write: int
    cpu_ratio_max: float | None
    """Goal: the broker's CPU time per message is at most this many times the echo server's. None: shown without a
    goal."""
    topics: int = 0
    """The number of topics that messages go to in turn, each with one queue; 0 for one topic with four queues."""

    @property
    def text(self) -> str:
        """Describe the mode for a table."""
        if self.connections > 1:
            return f"{self.name}: {self.connections} connections, {self.outstanding} outstanding each"
        per_write = "one frame per write" if self.frames_per_write == 1 else f"{self.frames_per_write} frames per write"
        return f"{self.name}: {self.connections} connection, {self.outstanding} outstanding, {per_write}"


MODES: Final[dict[ModeName, Mode]] = {
    "a": Mode(name="a", connections=1, outstanding=64, frames_per_write=64, cpu_ratio_max=10.0),
    "a1": Mode(name="a1", connections=1, outstanding=64, frames_per_write=1, cpu_ratio_max=None),
    "b": Mode(name="b", connections=64, outstanding=1, frames_per_write=1, cpu_ratio_max=3.0),
}


class Sender(msgspec.Struct, frozen=True):
    """The form of the requests of one kind of client."""

    name: str
    text: str
    """The description in a table."""

    code: Literal[310, 10, 320] = 310
    header: Literal["json", "rocketmq"] = "json"
    order: Literal["java", "go"] = "java"
    """The order of the header's parts and fields."""
    keys: int = 0
    """The number of keys of each message."""
    batch_messages: int = 1
    """The number of messages in one request of code 320."""
    is_signed: bool = False
    """Whether requests are signed, for a broker with access control."""


JAVA: Final = Sender(name="java", text="code 310, JSON, Java's order")
SENDERS: Final = {
    sender.name: sender
    for sender in (
        JAVA,
        Sender(name="keys", text="code 310, JSON, two keys", keys=2),
        Sender(name="sorted", text="code 310, JSON, another order of the header", order="go"),
        Sender(name="go", text="code 10, JSON, Go's order", code=10, order="go"),
        Sender(name="binary", text="code 310, binary header", header="rocketmq"),
        Sender(name="binary-v1", text="code 10, binary header", code=10, header="rocketmq"),
        Sender(name="batch", text="code 320, batches of 16", code=320, batch_messages=16),
        Sender(name="signed", text="code 310, JSON, signed", is_signed=True),
    )
}
"""The kinds of clients that `make bench-send` compares; the first is the usual one."""
SENDER_RATIO_MAX: Final = 1.5
"""Goal: a message of any sender costs the broker at most this many times as much as one of the first."""
C_SERVER_RATIO_MAX: Final[dict[str, float]] = {"a": 1.6, "b": 1.5}
"""Goal: the broker's CPU time per message of 1 KiB, as a multiple of the C server's, by mode."""
APACHE_RATIO_MIN: Final[dict[str, float]] = {"a": 4.0, "b": 3.0}
"""Goal: Apache's CPU time per message of 1 KiB, as a multiple of the broker's, by mode."""
REFUSED_SHARE_MAX: Final = 0.01
"""A server that refuses more is not compared: refusals cost CPU time, too, which is counted for the other messages."""
GOAL_BODY_BYTES: Final = 1024
"""The body size of the goals that compare with the C server and with Apache."""
IDLE_RESIDENT_BYTES_MAX: Final = 120 * 1024 * 1024
"""Goal: a broker that has just started uses less than this, without the mapped files of its store."""


class LoadShape(msgspec.Struct, frozen=True):
    """The load that the load generator reports to have sent."""

    connections: int
    outstanding: int
    frames_per_write: int
    body_bytes: int
    frame_bytes: int
    header: str
    is_echo: bool
    code: int = 310
    order: str = "java"
    keys: int = 0
    batch_messages: int = 1
    is_signed: bool = False
    topics: int = 0


class Latency(msgspec.Struct, frozen=True):
    """Microseconds from before the write to after the read that brought the answer."""

    mean: float
    p50: float
    p99: float
    p99_9: float
    max: float


class ServerUsage(msgspec.Struct, frozen=True):
    """CPU time of the server process, all threads, during the measurement."""

    user_seconds: float
    system_seconds: float
    cpu_seconds: float
    is_precise: bool
    """Whether `cpu_seconds` is from the scheduler's count of nanoseconds, and not from clock ticks of 10 ms."""

    cpu_us_per_message: float
    utilisation: float


class Report(msgspec.Struct, frozen=True):
    """One run, as the load generator printed it."""

    load: LoadShape
    messages: int
    seconds: float
    messages_per_second: float
    frames_per_write_mean: float
    replies_per_read_mean: float
    latency_us: Latency
    errors: int
    refused_by_code: dict[str, int]
    wrong_opaque: int
    """Answers that matched no request."""
    wrong_reply: int
    """Answers that were not understood."""
    first_refusal: str
    own_cpu_seconds: float
    """CPU time of the load generator itself."""
    own_utilisation: float
    server: ServerUsage


class Summary(msgspec.Struct, frozen=True):
    """The median of every figure over the repetitions of one load, and the sum of the errors."""

    repetitions: int
    messages_per_second: float
    p50_us: float
    p99_us: float
    p99_9_us: float
    cpu_us_per_message: float
    cpu_us_per_message_least: float
    cpu_us_per_message_most: float
    frames_per_write: float
    replies_per_read: float
    server_utilisation: float
    load_generator_utilisation: float
    errors: int
    """The number of refusals and of wrong answers."""
    messages: int = 0
    """The number of accepted messages."""

    @property
    def refused_share(self) -> float:
        """The refusals and wrong answers, of all answers."""
        return self.errors / (self.errors + self.messages) if self.errors else 0.0


class Goal(msgspec.Struct, frozen=True):
    """A goal of a benchmark with the measured value."""

    text: str
    limit: float
    measured: float
    unit: str
    is_floor: bool = False
    """Whether the measured figure must be at least the limit, instead of at most."""

    @property
    def is_met(self) -> bool:
        """Whether the goal is met. A value equal to the limit meets it."""
        return self.measured >= self.limit if self.is_floor else self.measured <= self.limit

    @property
    def limit_text(self) -> str:
        """Describe the limit for a table."""
        return f"{'at least' if self.is_floor else 'at most'} {self.limit:g} {self.unit}"


def read_report(text: bytes) -> Report:
    """Parse the output of the load generator."""
    try:
        return msgspec.json.decode(text, type=Report)
    except msgspec.MsgspecError as error:
        raise BenchmarkFailed(f"cannot read the load generator's report ({error}): {text[:200]!r}") from error


def summarise(reports: Sequence[Report]) -> Summary:
    """Reduce the repetitions of one load to medians. Raises BenchmarkFailed if there is none,
    or if one has no accepted message.
    """
    if not reports:
        raise BenchmarkFailed("there is no run to summarise")
    if not all(report.messages for report in reports):
        raise BenchmarkFailed(f"no message of a run was accepted; first refusal: {first_refusal(reports)}")
    cpu_us = [report.server.cpu_us_per_message for report in reports]
    return Summary(
        repetitions=len(reports),
        messages_per_second=median(report.messages_per_second for report in reports),
        p50_us=median(report.latency_us.p50 for report in reports),
        p99_us=median(report.latency_us.p99 for report in reports),
        p99_9_us=median(report.latency_us.p99_9 for report in reports),
        cpu_us_per_message=median(cpu_us),
        cpu_us_per_message_least=min(cpu_us),
        cpu_us_per_message_most=max(cpu_us),
        frames_per_write=median(report.frames_per_write_mean for report in reports),
        replies_per_read=median(report.replies_per_read_mean for report in reports),
        server_utilisation=median(report.server.utilisation for report in reports),
        load_generator_utilisation=median(report.own_utilisation for report in reports),
        errors=sum(report.errors for report in reports),
        messages=sum(report.messages for report in reports),
    )


def first_refusal(reports: Sequence[Report]) -> str:
    """Return the text of the first answer that was not code 0, or a sentence that there was none."""
    return next((report.first_refusal for report in reports if report.first_refusal), "none was recorded")


def cpu_ratio(broker: Summary, echo: Summary) -> float:
    """Return the broker's CPU time per message as a multiple of the echo server's.

    Without CPU time of either there is no ratio: the result is not a number, and meets no goal.
    """
    if not broker.cpu_us_per_message or not echo.cpu_us_per_message:
        return nan
    return broker.cpu_us_per_message / echo.cpu_us_per_message


def cpu_goal(mode: Mode, body_bytes: int, broker: Summary, echo: Summary) -> Goal | None:
    """Return the CPU goal of a mode for one body size, if the mode has one."""
    if mode.cpu_ratio_max is None:
        return None
    return Goal(
        text=f"broker CPU per message, mode {mode.name}, body {body_bytes} B",
        limit=mode.cpu_ratio_max,
        measured=cpu_ratio(broker, echo),
        unit="x echo",
    )


def memory_goal(resident_bytes: int) -> Goal:
    """Return the goal for the resident memory of an idle broker."""
    mebibyte = 1024 * 1024
    return Goal(
        text="idle resident memory, mapped store files aside",
        limit=IDLE_RESIDENT_BYTES_MAX / mebibyte,
        measured=resident_bytes / mebibyte,
        unit="MiB",
    )
