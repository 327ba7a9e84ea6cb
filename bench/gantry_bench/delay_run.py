"""One run of the delay benchmark: a broker, many waiting messages, and others that come due meanwhile.

    idle memory -> `pending` messages with the longest delay -> memory -> a rate of messages with short delays
        -> memory, how late each message was delivered, and the CPU time

The lateness is the store time of the copy minus that of the original minus its level's delay. Both are the broker's own
stamps, so no clock is compared with another. Every message that comes due is compared by its number, so a lost, a
duplicate or a misordered one fails the run; the waiting messages are not compared.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.delay_load import SCHEDULE_TOPIC, TOPIC, DelaySender, queue_end, read_queue, wait_for_end
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import Figures
from gantry_bench.machine import Cores, OtherWork, read_process_cpu_seconds
from gantry_bench.measurement import Goal
from gantry_bench.memory import read_resident_memory
from gantry_bench.processes import start_broker, start_name_server
from gantry_remoting import Channel

MEBIBYTE: Final = 1 << 20
DELIVERY_SECONDS_MAX: Final = 120.0
RSS_GROWTH_MAX: Final = 100.0
ERROR_MS_P99_MAX: Final = 200.0


class DelayScale(msgspec.Struct, frozen=True):
    """The size of a run."""

    pending: int
    """The number of waiting messages, which do not come due during the run."""
    due_per_second: int
    """The rate at which the other messages are sent, and come due."""
    due_seconds: float
    delays_s: tuple[int, ...]
    """The delays of the levels that come due; one more level, of two hours, holds the waiting messages."""

    body_bytes: int
    segment_bytes: int


FULL: Final = DelayScale(
    pending=1_000_000, due_per_second=5_000, due_seconds=30.0, delays_s=(3, 5, 7), body_bytes=128,
    segment_bytes=1 << 30,
)  # fmt: skip
QUICK: Final = DelayScale(
    pending=2_000, due_per_second=500, due_seconds=1.0, delays_s=(1, 2), body_bytes=64, segment_bytes=16 << 20
)


class DelayReport(msgspec.Struct, frozen=True):
    """The results of a run."""

    pending: int
    delivered: int
    errors: int
    idle_bytes: int
    pending_bytes: int
    """Memory without mapped files, with the waiting messages."""

    due_bytes: int
    """Memory without mapped files, after the deliveries."""

    error_ms_p50: float
    """How much later than its delay a message was delivered; the same for the next two."""
    error_ms_p99: float
    error_ms_max: float
    pending_cpu: float
    """The share of one core while nothing is due."""

    due_cpu: float
    """The share of one core while messages are sent, stored and delivered at the rate."""

    other_cores: float

    @property
    def growth_mebibytes(self) -> float:
        return (max(self.pending_bytes, self.due_bytes) - self.idle_bytes) / MEBIBYTE


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of all values does not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def lateness_of(originals: Sequence[tuple[int, int]], copies: Sequence[tuple[int, int]], delay_ms: int) -> list[float]:
    """Return the lateness of each copy, from (number, time stored) of both. Raises BenchmarkFailed if the numbers
    differ.
    """
    if [serial for serial, _ in originals] != [serial for serial, _ in copies]:
        raise BenchmarkFailed(
            "the delivered messages differ from the sent ones: some are lost, duplicated or out of order"
        )
    return [float(copy - original - delay_ms) for (_, original), (_, copy) in zip(originals, copies, strict=True)]


async def measure_lateness(channel: Channel, scale: DelayScale) -> list[float]:
    """Return the lateness of every message, once all are delivered."""
    late: list[float] = []
    for level, delay_s in enumerate(scale.delays_s, 1):
        end = await queue_end(channel, SCHEDULE_TOPIC, level - 1)
        await wait_for_end(channel, TOPIC, level, end, seconds=DELIVERY_SECONDS_MAX)
        originals = await read_queue(channel, SCHEDULE_TOPIC, level - 1, end)
        copies = await read_queue(channel, TOPIC, level, end)
        pairs = [[(one.serial, one.stored_ms) for one in found] for found in (originals, copies)]
        late += lateness_of(pairs[0], pairs[1], delay_s * 1000)
    return late


def measure(scale: DelayScale, cores: Cores, folder: Path, report_progress: Callable[[str], None]) -> DelayReport:
    """Measure one broker, from its start to its stop."""
    keys = {
        "messageDelayLevel": " ".join(f"{delay}s" for delay in scale.delays_s) + " 2h",
        "mappedFileSizeCommitLog": str(scale.segment_bytes),
    }
    own = folder / "delay"
    with (
        start_name_server(folder) as name_server,
        start_broker(own, name_server=name_server, core=cores.server, extra=keys) as broker,
    ):
        process = broker.target.process_id

        def memory() -> int:
            return read_resident_memory(process, store=own / "store").counted_bytes

        async def run() -> DelayReport:
            sender = await DelaySender.open(broker.target.address, body_bytes=scale.body_bytes)
            report_progress(f"{scale.pending:,} messages that wait")
            await sender.send(scale.pending, level=len(scale.delays_s) + 1, queue_id=0)
            pending_bytes, cpu = memory(), read_process_cpu_seconds(process)
            await asyncio.sleep(scale.due_seconds / 3)
            pending_cpu = (read_process_cpu_seconds(process) - cpu) / (scale.due_seconds / 3)
            report_progress(f"{scale.due_per_second:,} a second come due")
            levels = tuple(range(1, len(scale.delays_s) + 1))
            cpu = read_process_cpu_seconds(process)
            await sender.send_paced(scale.due_per_second, scale.due_seconds, levels=levels)
            due_cpu = (read_process_cpu_seconds(process) - cpu) / scale.due_seconds
            await sender.close()
            channel = await Channel.connect(broker.target.address)
            report_progress("reading back")
            late = await measure_lateness(channel, scale)
            await channel.close()
            return DelayReport(
                pending=scale.pending, delivered=len(late), errors=sender.errors,
                idle_bytes=broker.idle_memory.counted_bytes, pending_bytes=pending_bytes, due_bytes=memory(),
                error_ms_p50=quantile(late, 0.5), error_ms_p99=quantile(late, 0.99), error_ms_max=max(late),
                pending_cpu=pending_cpu, due_cpu=due_cpu, other_cores=0.0,
            )  # fmt: skip

        with OtherWork(process) as others:
            report = asyncio.run(run())
    return msgspec.structs.replace(report, other_cores=others.cores)


def delay_goals(report: DelayReport, scale: DelayScale) -> list[Goal]:
    """Return the goals with their measured values."""
    rate = f"{scale.due_per_second:,} due per second"
    return [
        Goal(f"memory growth with {report.pending:,} pending", RSS_GROWTH_MAX, report.growth_mebibytes, "MiB"),
        Goal(f"delivery error p99 at {rate}", ERROR_MS_P99_MAX, report.error_ms_p99, "ms"),
    ]


def delay_figures(report: DelayReport, scale: DelayScale) -> Figures:
    """Return a table with one row."""
    sizes = (report.idle_bytes, report.pending_bytes, report.due_bytes)
    return Figures(
        name="delayed messages",
        headings=[
            "pending", "due per second", "delivered", "p50 ms", "p99 ms", "max ms", "idle MiB", "pending MiB",
            "after deliveries MiB", "core, pending", "core, due",
        ],
        rows=[[
            f"{report.pending:,}", f"{scale.due_per_second:,}", f"{report.delivered:,}", f"{report.error_ms_p50:.0f}",
            f"{report.error_ms_p99:.0f}", f"{report.error_ms_max:.0f}",
            *(f"{size / MEBIBYTE:.1f}" for size in sizes), f"{report.pending_cpu:.2f}", f"{report.due_cpu:.2f}",
        ]],
        notes=[
            "Memory is the broker's own, without the mapped files of its store; `core` is a share of one core, and "
            "includes storing the messages that are sent at that rate.",
            f"Other programs used {report.other_cores:.1f} cores meanwhile.",
        ],
    )  # fmt: skip
