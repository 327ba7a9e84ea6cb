"""One run of the timer benchmark: a broker, many pending timers, others that come due, a restart, and recalls.

    idle memory -> `pending` messages, due over a day -> memory -> a rate of messages that are due after seconds
        -> lateness -> `kill -9`, restart -> time until a timer is delivered -> recalls raced against delivery

The lateness of a message is the store time of its delivered copy minus the time at which it was due, both the broker's.
A message that is lost, delivered twice or early, or delivered after an accepted recall, is an error of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.delay_load import TOPIC, DelaySender, Stored, queue_end, read_queue, wait_for_end
from gantry_bench.delay_run import DELIVERY_SECONDS_MAX, MEBIBYTE, quantile
from gantry_bench.figures import Figures
from gantry_bench.machine import Cores, OtherWork, read_process_cpu_seconds
from gantry_bench.measurement import Goal
from gantry_bench.memory import read_resident_memory
from gantry_bench.processes import Broker, restart_broker, start_broker, start_name_server
from gantry_remoting import Channel
from gantry_wire import Command, RequestCode
from gantry_wire import properties as keys
from gantry_wire.commands.timers import RecallMessage
from gantry_wire.properties import format_properties

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
RSS_GROWTH_MAX: Final = 100.0
LATE_MS_P99_MAX: Final = 100.0
PENDING_FIRST_S: Final = 7_200
"""The pending messages are due from two hours on, over a day, at ``PENDING_TIMES`` different times."""
PENDING_SPAN_S: Final = 86_400
PENDING_TIMES: Final = 96
DUE_QUEUE: Final = 1
RECALL_QUEUE: Final = 2
RECALL_DELAY_MS: Final = 2_000
RECALLS_AT_ONCE: Final = 50
TIMEOUT_MS: Final = 60_000


class TimerScale(msgspec.Struct, frozen=True):
    """The size of a run."""

    pending: int
    due_per_second: int
    due_seconds: float
    recalls: int
    body_bytes: int
    segment_bytes: int


FULL: Final = TimerScale(
    pending=1_000_000, due_per_second=5_000, due_seconds=30.0, recalls=1_000, body_bytes=128, segment_bytes=1 << 30
)
QUICK: Final = TimerScale(
    pending=2_000, due_per_second=500, due_seconds=1.0, recalls=50, body_bytes=64, segment_bytes=16 << 20
)


class TimerReport(msgspec.Struct, frozen=True):
    """The results of a run."""

    pending: int
    delivered: int
    errors: int
    idle_bytes: int
    pending_bytes: int
    """Memory without mapped files, with the pending messages."""
    due_bytes: int
    """Memory without mapped files, after the deliveries."""
    late_ms_p50: float
    late_ms_p99: float
    late_ms_max: float
    pending_cpu: float
    """The share of one core while nothing is due."""
    due_cpu: float
    """The share of one core while messages are sent, stored and delivered at the rate."""
    restart_seconds: float
    """From the start of the process after `kill -9` until a timer message is delivered."""
    recalled: int
    """Recalls that were accepted; the other messages were delivered before."""
    other_cores: float

    @property
    def growth_mebibytes(self) -> float:
        return (max(self.pending_bytes, self.due_bytes) - self.idle_bytes) / MEBIBYTE


def count_errors(stored: list[Stored], expected: set[int], forbidden: set[int]) -> int:
    """Return how many messages are early, lost, delivered twice, or delivered although they were recalled."""
    counts = Counter(one.serial for one in stored)
    early = sum(one.stored_ms < one.due_ms for one in stored)
    lost = len(expected - counts.keys())
    twice = sum(count > 1 for count in counts.values())
    return early + lost + twice + len(forbidden & counts.keys())


async def send_pending(sender: DelaySender, count: int) -> None:
    """Send messages that are not due during the run, some to each of their times."""
    for index in range(PENDING_TIMES):
        share = count * (index + 1) // PENDING_TIMES - count * index // PENDING_TIMES
        delay_ms = (PENDING_FIRST_S + PENDING_SPAN_S * index // PENDING_TIMES) * 1000
        await sender.send(share, level=delay_ms, queue_id=0)


async def race_recalls(channel: Channel, count: int, *, body_bytes: int) -> tuple[int, int]:
    """Recall messages while they come due; return how many recalls were accepted, and the number of errors."""
    handles: dict[int, str] = {}
    for serial in range(count):
        properties = format_properties({keys.UNIQUE_KEY: f"{serial:031X}R", keys.TIMER_DELAY_MS: str(RECALL_DELAY_MS)})
        fields = {
            "a": "bench", "b": TOPIC, "c": "TBW102", "d": "8", "e": str(RECALL_QUEUE), "f": "0", "g": "1700000000000",
            "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        body = serial.to_bytes(8) + bytes(body_bytes - 8)
        reply = await channel.request(Command(code=RequestCode.SEND_MESSAGE_V2, ext=fields, body=body), TIMEOUT_MS)
        handles[serial] = reply.ext["recallHandle"]
    accepted: set[int] = set()

    async def recall(serial: int) -> None:
        header = RecallMessage(topic=TOPIC, recall_handle=handles[serial]).write()
        reply = await channel.request(Command(code=RequestCode.RECALL_MESSAGE, ext=header), TIMEOUT_MS)
        if reply.code == 0:
            accepted.add(serial)

    await asyncio.sleep(RECALL_DELAY_MS / 2000)
    order = sorted(handles, key=lambda serial: (serial * 7919) % count)
    for first in range(0, count, RECALLS_AT_ONCE):
        await asyncio.gather(*(recall(serial) for serial in order[first : first + RECALLS_AT_ONCE]))
        await asyncio.sleep(RECALL_DELAY_MS / 1000 * RECALLS_AT_ONCE / count)
    expected = handles.keys() - accepted
    await asyncio.sleep(RECALL_DELAY_MS / 1000)
    await wait_for_end(channel, TOPIC, RECALL_QUEUE, len(expected), seconds=DELIVERY_SECONDS_MAX)
    stored = await read_queue(channel, TOPIC, RECALL_QUEUE, await queue_end(channel, TOPIC, RECALL_QUEUE))
    return len(accepted), count_errors(stored, set(expected), accepted)


def measure_timers(
    scale: TimerScale, cores: Cores, folder: Path, report_progress: Callable[[str], None]
) -> TimerReport:
    """Measure one broker, from its start to its stop, with one restart after a kill."""
    keys_of_broker = {"mappedFileSizeCommitLog": str(scale.segment_bytes)}
    own = folder / "timers"
    with (
        start_name_server(folder) as name_server,
        start_broker(own, name_server=name_server, core=cores.server, extra=keys_of_broker) as broker,
    ):
        with OtherWork(broker.target.process_id) as others:
            report = asyncio.run(_measure_due(broker, scale, own, report_progress))
        broker.server.process.kill()
        broker.server.process.wait()
        report_progress("restart after kill -9")
        began = time.monotonic()
        with restart_broker(own, port=int(broker.target.address.rpartition(":")[2]), core=cores.server) as again:
            restart_seconds, recalled, errors = asyncio.run(_measure_again(again, scale, began, report_progress))
    return msgspec.structs.replace(
        report, other_cores=others.cores, restart_seconds=restart_seconds, recalled=recalled,
        errors=report.errors + errors,
    )  # fmt: skip


async def _measure_due(
    broker: Broker, scale: TimerScale, own: Path, report_progress: Callable[[str], None]
) -> TimerReport:
    process = broker.target.process_id

    def memory() -> int:
        return read_resident_memory(process, store=own / "store").counted_bytes

    sender = await DelaySender.open(
        broker.target.address, body_bytes=scale.body_bytes, property_name=keys.TIMER_DELAY_MS
    )
    report_progress(f"{scale.pending:,} pending timers")
    await send_pending(sender, scale.pending)
    first = sender.sent
    pending_bytes, cpu = memory(), read_process_cpu_seconds(process)
    await asyncio.sleep(scale.due_seconds / 3)
    pending_cpu = (read_process_cpu_seconds(process) - cpu) / (scale.due_seconds / 3)
    report_progress(f"{scale.due_per_second:,} a second come due")
    cpu = read_process_cpu_seconds(process)
    await sender.send_paced(scale.due_per_second, scale.due_seconds, levels=(3_000,))
    due_cpu = (read_process_cpu_seconds(process) - cpu) / scale.due_seconds
    expected = set(range(first, sender.sent)) - sender.refused
    await sender.close()
    channel = await Channel.connect(broker.target.address)
    await wait_for_end(channel, TOPIC, DUE_QUEUE, len(expected), seconds=DELIVERY_SECONDS_MAX)
    report_progress("reading back")
    stored = await read_queue(channel, TOPIC, DUE_QUEUE, await queue_end(channel, TOPIC, DUE_QUEUE))
    await channel.close()
    late = [float(one.stored_ms - one.due_ms) for one in stored]
    return TimerReport(
        pending=scale.pending, delivered=len(late), errors=sender.errors + count_errors(stored, expected, set()),
        idle_bytes=broker.idle_memory.counted_bytes, pending_bytes=pending_bytes, due_bytes=memory(),
        late_ms_p50=quantile(late, 0.5), late_ms_p99=quantile(late, 0.99), late_ms_max=max(late),
        pending_cpu=pending_cpu, due_cpu=due_cpu, restart_seconds=0.0, recalled=0, other_cores=0.0,
    )  # fmt: skip


async def _measure_again(
    broker: Broker, scale: TimerScale, began: float, report_progress: Callable[[str], None]
) -> tuple[float, int, int]:
    """Return the seconds until a timer is delivered, the accepted recalls, and the errors."""
    channel = await Channel.connect(broker.target.address)
    end = await queue_end(channel, TOPIC, 3)
    sender = await DelaySender.open(
        broker.target.address, body_bytes=scale.body_bytes, property_name=keys.TIMER_DELAY_MS
    )
    await sender.send(1, level=1, queue_id=3)
    await wait_for_end(channel, TOPIC, 3, end + 1, seconds=DELIVERY_SECONDS_MAX)
    restart_seconds = time.monotonic() - began
    report_progress(f"{scale.recalls:,} recalls raced against delivery")
    recalled, errors = await race_recalls(channel, scale.recalls, body_bytes=scale.body_bytes)
    await sender.close()
    await channel.close()
    return restart_seconds, recalled, errors + sender.errors


def timer_goals(report: TimerReport, scale: TimerScale) -> list[Goal]:
    """Return the goals with their measured values."""
    rate = f"{scale.due_per_second:,} due per second"
    return [
        Goal(f"memory growth with {report.pending:,} pending timers", RSS_GROWTH_MAX, report.growth_mebibytes, "MiB"),
        Goal(f"timer lateness p99 at {rate}", LATE_MS_P99_MAX, report.late_ms_p99, "ms"),
    ]


def timer_figures(report: TimerReport, scale: TimerScale) -> Figures:
    """Return a table with one row."""
    sizes = (report.idle_bytes, report.pending_bytes, report.due_bytes)
    return Figures(
        name="timers",
        headings=[
            "pending", "due per second", "delivered", "p50 ms", "p99 ms", "max ms", "idle MiB", "pending MiB",
            "after deliveries MiB", "core, pending", "core, due", "restart s", "recalls accepted",
        ],
        rows=[[
            f"{report.pending:,}", f"{scale.due_per_second:,}", f"{report.delivered:,}", f"{report.late_ms_p50:.0f}",
            f"{report.late_ms_p99:.0f}", f"{report.late_ms_max:.0f}",
            *(f"{size / MEBIBYTE:.1f}" for size in sizes), f"{report.pending_cpu:.2f}", f"{report.due_cpu:.2f}",
            f"{report.restart_seconds:.1f}", f"{report.recalled:,} of {scale.recalls:,}",
        ]],
        notes=[
            "Memory is the broker's own, without the mapped files of its store. `restart` is the time from the start "
            "of the process after kill -9 until a timer is delivered.",
            f"Other programs used {report.other_cores:.1f} cores meanwhile.",
        ],
    )  # fmt: skip
