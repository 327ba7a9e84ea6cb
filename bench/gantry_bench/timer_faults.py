"""Timers across faults: a kill, a promotion, and a wall clock that is set forward or back, while timers are due.

    send at a rate, with one delay ---> [ due at that rate ... | fault | ... due at that rate ]
                                                               `- outage -- catch-up -'

A timer that is due during the outage is late by its rest; the *outage* and the *catch-up* are reported, and the
lateness of all others. With a clock that is set forward, the timers of the skipped time are due at once, and the
catch-up begins then. All times are the broker's. A lost or an early timer is an error of the run; one that is delivered
twice is none, if a process was killed: it was delivered in the seconds before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.delay_load import TOPIC, DelaySender, Stored, queue_end, read_queue
from gantry_bench.delay_run import DELIVERY_SECONDS_MAX, quantile
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import Figures
from gantry_bench.machine import Cores, OtherWork
from gantry_bench.measurement import Goal
from gantry_bench.processes import Broker, restart_broker, start_broker, start_name_server
from gantry_remoting import Channel
from gantry_remoting.errors import RemotingError
from gantry_status.order_client import order_once
from gantry_status.orders import Follow, Promote
from gantry_testing.ports import free_broker_port
from gantry_testing.shifted_broker import ShiftFile
from gantry_wire import properties as keys

LATE_MS_P99_MAX: Final = 100.0
CATCH_UP_SECONDS_MAX: Final = 10.0
DUE_QUEUE: Final = 1
POLL_SECONDS: Final = 0.2
FIRST_EPOCH: Final = 256
SHIFTED_PROGRAM: Final = "gantry_testing.shifted_broker"
MEMBERS: Final = ("first", "second")


class FaultScale(msgspec.Struct, frozen=True):
    """The size of a run."""

    due_per_second: int
    due_seconds: float
    delay_ms: int
    """The delay of all timers; more than ``due_seconds``, so that all are sent before the first is due."""
    fault_seconds: float
    """When the fault comes, after the first timer is due."""
    jump_ms: int
    """By how much the clock is set forward or back."""
    body_bytes: int
    segment_bytes: int


FULL: Final = FaultScale(
    due_per_second=5_000, due_seconds=20.0, delay_ms=25_000, fault_seconds=5.0, jump_ms=10_000, body_bytes=128,
    segment_bytes=1 << 30,
)  # fmt: skip
QUICK: Final = FaultScale(
    due_per_second=200, due_seconds=3.0, delay_ms=4_000, fault_seconds=1.0, jump_ms=1_000, body_bytes=64,
    segment_bytes=16 << 20,
)  # fmt: skip


class FaultCell(msgspec.Struct, frozen=True):
    """The results with one fault."""

    name: str
    delivered: int
    errors: int
    """Refused sends, and messages that are lost or early."""
    repeated: int
    outage_seconds: float
    waited: int
    """The timers that were due in the outage, or before it was caught up."""
    catch_up_seconds: float
    """From the end of the outage until these are delivered."""
    late_ms_p50: float
    """The lateness of all others; the same for the next two."""
    late_ms_p99: float
    late_ms_max: float


class FaultReport(msgspec.Struct, frozen=True):
    """The results with all faults."""

    cells: list[FaultCell]
    other_cores: float

    @property
    def errors(self) -> int:
        return sum(cell.errors for cell in self.cells)


def judge(
    name: str, stored: Iterable[Stored], expected: set[int], *, stopped_ms: int, resumed_ms: int | None, refused: int,
    set_back_ms: int = 0,
) -> FaultCell:  # fmt: skip
    """Return the figures of a run, whose fault was at ``stopped_ms``.

    The outage ended at ``resumed_ms``; if that is None, with the first message that was stored afterwards. It is caught
    up with the first message that is due later and not late. A message that was due when the clock was set back by
    ``set_back_ms`` is not early if it is stored afterwards: the broker had found it due by the clock before.
    """
    everything = list(stored)
    first: dict[int, Stored] = {}
    for one in everything:
        first.setdefault(one.serial, one)
    early = sum(one.stored_ms + (set_back_ms if one.due_ms <= stopped_ms else 0) < one.due_ms for one in everything)
    after = [one.stored_ms for one in everything if one.stored_ms > stopped_ms]
    end_ms = min(after, default=stopped_ms) if resumed_ms is None else resumed_ms
    in_time = [one for one in first.values() if one.due_ms >= end_ms and one.stored_ms - one.due_ms <= LATE_MS_P99_MAX]
    resumed = min(in_time, key=lambda one: one.due_ms, default=None)
    last_ms = max(after, default=end_ms)
    limit_ms, caught_up_ms = (last_ms + 1, last_ms) if resumed is None else (resumed.due_ms, resumed.stored_ms)
    waited = {one.serial for one in first.values() if one.stored_ms > stopped_ms and one.due_ms < limit_ms}
    if not waited:
        caught_up_ms = end_ms
    late = [float(one.stored_ms - one.due_ms) for one in first.values() if one.serial not in waited] or [0.0]
    return FaultCell(
        name=name, delivered=len(first), errors=refused + early + len(expected - first.keys()),
        repeated=len(everything) - len(first), outage_seconds=(end_ms - stopped_ms) / 1000, waited=len(waited),
        catch_up_seconds=(caught_up_ms - end_ms) / 1000, late_ms_p50=quantile(late, 0.5),
        late_ms_p99=quantile(late, 0.99), late_ms_max=max(late),
    )  # fmt: skip


async def send_all(address: str, scale: FaultScale) -> tuple[set[int], int]:
    """Send the timers, and wait until the fault is to come; return their numbers, and how many were refused."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    sender = await DelaySender.open(address, body_bytes=scale.body_bytes, property_name=keys.TIMER_DELAY_MS)
    await sender.send_paced(scale.due_per_second, scale.due_seconds, levels=(scale.delay_ms,))
    await sender.close()
    await asyncio.sleep(began + scale.delay_ms / 1000 + scale.fault_seconds - loop.time())
    return set(range(sender.sent)) - sender.refused, len(sender.refused)


async def read_all(address: str, expected: set[int]) -> list[Stored]:
    """Return everything that is delivered, once it is complete, or when nothing is delivered any more.

    The queue is read when it has stopped growing, so that the reader takes no CPU time from the broker.
    """
    deadline = time.monotonic() + DELIVERY_SECONDS_MAX
    channel = await Channel.connect(address)
    try:
        found: list[Stored] = []
        end = 0
        while not expected <= {one.serial for one in found} and time.monotonic() < deadline:
            before, end = end, await queue_end(channel, TOPIC, DUE_QUEUE)
            if end > before:
                deadline = time.monotonic() + DELIVERY_SECONDS_MAX
            if end == before > len(found) or end >= len(expected) + len(found):
                found = await read_queue(channel, TOPIC, DUE_QUEUE, end)
            await asyncio.sleep(POLL_SECONDS)
        return found
    finally:
        await channel.close()


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def measure_kill(scale: FaultScale, cores: Cores, folder: Path) -> FaultCell:
    """Kill a broker while timers are due, and start it again at once."""
    own = folder / "kill"
    with start_name_server(folder) as name_server:
        with start_broker(own, name_server=name_server, core=cores.server, extra=_keys(scale)) as broker:
            expected, refused = asyncio.run(send_all(broker.target.address, scale))
            stopped_ms = _kill(broker)
        with restart_broker(own, port=_port(broker), core=cores.server) as again:
            stored = asyncio.run(read_all(again.target.address, expected))
    return judge("kill -9, restart", stored, expected, stopped_ms=stopped_ms, resumed_ms=None, refused=refused)


def measure_promotion(scale: FaultScale, cores: Cores, folder: Path) -> FaultCell:
    """Kill the master of a synchronous pair while timers are due, promote its slave, and start the other as a slave.

    The two brokers share the cores, because they run at the same time.
    """
    with ExitStack() as stack:
        name_server = stack.enter_context(start_name_server(folder))
        pair: dict[str, Broker] = {}
        ports: dict[str, int] = {}
        for number, name in enumerate(MEMBERS, 1):
            ports[name] = free_broker_port()
            more = {
                "brokerRole": "SYNC_MASTER", "roleAtStart": "UNASSIGNED", "brokerId": str(number),
                "inSyncReplicas": "2", "haListenPort": str(ports[name] + 1),
                "controlSocketPath": str(folder / f"{name}.socket"),
            }  # fmt: skip
            pair[name] = stack.enter_context(
                start_broker(
                    folder / name, name_server=name_server, core=None, extra=_keys(scale) | more, port=ports[name]
                )
            )  # fmt: skip
        first, second = (str(folder / f"{name}.socket") for name in MEMBERS)
        order_once(first, Promote(epoch=FIRST_EPOCH, electable=[2]))
        order_once(second, Follow(epoch=FIRST_EPOCH, master=f"127.0.0.1:{ports['first'] + 1}"))
        asyncio.run(_wait_until_accepted(pair["first"].target.address))
        expected, refused = asyncio.run(send_all(pair["first"].target.address, scale))
        stopped_ms = _kill(pair["first"])
        order_once(second, Promote(epoch=FIRST_EPOCH + 1, electable=[1]))
        # Without a slave a synchronous master may acknowledge, and show, nothing: the killed member is started again.
        stack.enter_context(restart_broker(folder / "first", port=ports["first"], core=None))
        order_once(first, Follow(epoch=FIRST_EPOCH + 1, master=f"127.0.0.1:{ports['second'] + 1}"))
        stored = asyncio.run(read_all(pair["second"].target.address, expected))
    return judge("kill -9, promotion", stored, expected, stopped_ms=stopped_ms, resumed_ms=None, refused=refused)


def measure_jump(scale: FaultScale, cores: Cores, folder: Path, *, by_ms: int) -> FaultCell:
    """Set the broker's wall clock forward or back while timers are due."""
    own = folder / f"jump{by_ms}"
    shift = ShiftFile(folder / f"shift{by_ms}")
    program = (SHIFTED_PROGRAM, "--shift-file", str(folder / f"shift{by_ms}"), "--")
    with (
        start_name_server(folder) as name_server,
        start_broker(own, name_server=name_server, core=cores.server, extra=_keys(scale), program=program) as broker,
    ):
        expected, refused = asyncio.run(send_all(broker.target.address, scale))
        shift.set(by_ms)
        stopped_ms = wall_ms()
        stored = asyncio.run(read_all(broker.target.address, expected))
    name = f"clock set {'forward' if by_ms > 0 else 'back'} by {abs(by_ms) // 1000} s"
    # The timers of the skipped time are due at the new time; with a clock that is set back none are.
    resumed_ms = stopped_ms + max(by_ms, 0)
    return judge(
        name, stored, expected, stopped_ms=stopped_ms, resumed_ms=resumed_ms, refused=refused,
        set_back_ms=max(-by_ms, 0),
    )  # fmt: skip


def measure_faults(
    scale: FaultScale, cores: Cores, folder: Path, report_progress: Callable[[str], None]
) -> FaultReport:
    """Measure every fault, each with brokers of its own."""
    cells: list[FaultCell] = []
    with OtherWork() as others:
        report_progress("timers across kill -9 and a restart")
        cells.append(measure_kill(scale, cores, folder))
        report_progress("timers across a promotion")
        cells.append(measure_promotion(scale, cores, folder))
        for by_ms in (scale.jump_ms, -scale.jump_ms):
            report_progress(f"timers across a wall clock that jumps by {by_ms} ms")
            cells.append(measure_jump(scale, cores, folder, by_ms=by_ms))
    return FaultReport(cells=cells, other_cores=others.cores)


def fault_goals(report: FaultReport, scale: FaultScale) -> list[Goal]:
    """Return the goals with their measured values."""
    goals: list[Goal] = []
    for cell in report.cells:
        text = f"timers, {cell.name}"
        goals.append(Goal(f"{text}: lateness p99 outside of the outage", LATE_MS_P99_MAX, cell.late_ms_p99, "ms"))
        goals.append(Goal(f"{text}: catch-up", CATCH_UP_SECONDS_MAX, cell.catch_up_seconds, "s"))
    return goals


def fault_figures(report: FaultReport, scale: FaultScale) -> Figures:
    """Return a table with a row for each fault."""
    return Figures(
        name="timers across faults",
        headings=[
            "fault", "delivered", "errors", "repeated", "outage s", "due in it", "catch-up s", "others p50 ms",
            "p99 ms", "max ms",
        ],
        rows=[
            [
                cell.name, f"{cell.delivered:,}", f"{cell.errors:,}", f"{cell.repeated:,}",
                f"{cell.outage_seconds:.1f}", f"{cell.waited:,}", f"{cell.catch_up_seconds:.1f}",
                f"{cell.late_ms_p50:.0f}", f"{cell.late_ms_p99:.0f}", f"{cell.late_ms_max:.0f}",
            ]
            for cell in report.cells
        ],
        notes=[
            f"{scale.due_per_second:,} timers a second are due for {scale.due_seconds:g} s; the fault comes after "
            f"{scale.fault_seconds:g} s. The outage ends with the first delivery after the fault; with a clock that is "
            "set forward, it is the time that was skipped. `others` were due before the fault, or after the catch-up.",
            f"Other programs used {report.other_cores:.1f} cores meanwhile.",
        ],
    )  # fmt: skip


def _keys(scale: FaultScale) -> dict[str, str]:
    return {"mappedFileSizeCommitLog": str(scale.segment_bytes)}


def _kill(broker: Broker) -> int:
    """Kill a broker; return the wall clock time."""
    broker.server.process.kill()
    killed_ms = wall_ms()
    broker.server.process.wait()
    return killed_ms


def _port(broker: Broker) -> int:
    return int(broker.target.address.rpartition(":")[2])


async def _wait_until_accepted(address: str) -> None:
    """Wait until a synchronous master accepts a message, so that its slave follows."""
    deadline = time.monotonic() + DELIVERY_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            sender = await DelaySender.open(address, body_bytes=8)
            await sender.send(1, level=0, queue_id=0)
            await sender.close()
            if not sender.errors:
                return
        except (OSError, RemotingError):
            pass
        await asyncio.sleep(POLL_SECONDS)
    raise BenchmarkFailed(f"{address} accepts no message within {DELIVERY_SECONDS_MAX:.0f} s: no slave follows")
