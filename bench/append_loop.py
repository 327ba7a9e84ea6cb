"""One run of the append tail, in a process of its own: a paced loop of appends, with the duration of each call.

    python bench/append_loop.py '{"medium": "tmpfs", ...}'          a LoopPlan; prints a LoopReport

The loop imitates the broker's event loop: it waits without the interpreter lock, builds the drafts of one pass as the
send path does, and appends them in one call; progress of the helper threads is handled in between, as the broker does.
Calls are due at fixed times: a slow call delays the next ones but does not reduce their number. Only the call itself is
timed, with the medium "control" exactly as with all others.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from array import array
from typing import Final

import msgspec
from gantry_bench.memory_disk import MemoryDisk
from gantry_bench.tail import CallTimes, LoopPlan, LoopReport, call_times

from gantry_broker.__main__ import set_up_garbage_collector
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.settings import FlushSettings, PoolSettings, StoreSettings
from gantry_wire.message import encode_host

QUEUES_COUNT: Final = 4
PR_SET_TIMERSLACK: Final = 29


class Progress:
    """A flag that helper threads set and the loop checks."""

    def __init__(self) -> None:
        self.is_new = False

    def __call__(self) -> None:
        self.is_new = True


def store_settings(plan: LoopPlan) -> StoreSettings:
    """Return default settings except for the log files, the buffer and the flush."""
    pool = PoolSettings()
    if plan.medium not in ("control", "none"):
        pool = PoolSettings(is_enabled=True, buffers_count=plan.buffers_count, path=plan.pool_path)
    return StoreSettings(
        mapped_file_size_commit_log=plan.segment_bytes,
        is_preallocating=plan.medium != "control",
        flush=FlushSettings(flush_interval_ms=plan.flush_interval_ms, flush_pages_min=0),
        pool=pool,
    )


def fail(error: Exception) -> None:
    """End the run, because a store that cannot write gives no measurement."""
    print(f"the store failed: {error}", file=sys.stderr, flush=True)
    os._exit(1)


class Loop:
    """A store and the drafts for it. Its methods run in one thread; the store has helper threads of its own."""

    def __init__(self, plan: LoopPlan) -> None:
        self._plan = plan
        self._progress = Progress()
        is_control = plan.medium == "control"
        self.store = MessageStore(
            plan.store_path,
            store_settings(plan),
            disk=MemoryDisk() if is_control else RealDisk(),
            clock=SystemClock(),
            store_host=encode_host("127.0.0.1", 10_911),
            on_fatal=fail,
            on_progress=self._progress,
        )
        self.store.open(is_flushing=not is_control)
        self._queues = [self.store.queues.get_or_create("AppendTail", queue_id) for queue_id in range(QUEUES_COUNT)]
        self._host = encode_host("127.0.0.1", 40_000)
        self._body = os.urandom(plan.body_bytes)
        self._number = 0

    def run(self, seconds: float) -> tuple[array[int], int]:
        """Append for the given time; return the duration of each call and the maximum delay of a call, in
        nanoseconds."""
        plan, progress = self._plan, self._progress
        messages_per_call = plan.messages_per_call
        count = int(plan.messages_per_second * seconds / messages_per_call)
        took = array("Q", bytes(8 * count))
        period_ns = 1e9 * messages_per_call / plan.messages_per_second
        clock, sleep, append, advance = time.perf_counter_ns, time.sleep, self.store.append, self.store.advance
        late_ns_max = 0
        start = clock()
        for place in range(count):
            due = start + int(place * period_ns)
            now = clock()
            sleep(max(0, due - now) / 1e9)  # also when late, because an event loop polls for events in any case
            while (now := clock()) < due:
                sleep((due - now) / 1e9)
            if now - due > late_ns_max:
                late_ns_max = now - due
            drafts = self._drafts(messages_per_call, due // 1_000_000)
            began = clock()
            append(drafts)  # type: ignore[arg-type]  # plain tuples of Draft's fields, as in the send path
            took[place] = clock() - began
            if progress.is_new:
                progress.is_new = False
                advance()
        return took, late_ns_max

    def _drafts(self, count: int, now_ms: int) -> list[tuple[object, ...]]:
        """Return the drafts of one pass of the send path."""
        queues, body, host = self._queues, self._body, self._host
        drafts: list[tuple[object, ...]] = []
        for number in range(self._number, self._number + count):
            # The unique id of a Java client: its own 20 characters, milliseconds, a counter.
            key = "7F00000100002A139A55%08X%04X" % (now_ms & 0xFFFFFFFF, number & 0xFFFF)  # noqa: UP031
            properties = b"UNIQ_KEY\x01" + key.encode() + b"\x02WAIT\x01true\x02"
            drafts.append((queues[number % QUEUES_COUNT], body, properties, 0, 0, number, host, 0, 0, 0, 0, (key,)))
        self._number += count
        return drafts


def measure(plan: LoopPlan) -> LoopReport:
    """Warm up, measure and close the store."""
    loop = Loop(plan)
    # The default slack of 50 us would turn an even pace into bursts of three.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    set_up_garbage_collector()
    loop.run(plan.warm_up_seconds)
    store = loop.store
    syncs, wrote = store.log.sync_count, store.log.wrote
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    took, late_ns_max = loop.run(plan.seconds)
    after, elapsed = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - began
    times: CallTimes = call_times(took)
    report = LoopReport(
        medium=plan.medium,
        used_medium=store.pools.status.medium,
        messages=len(took) * plan.messages_per_call,
        seconds=elapsed,
        wrote_bytes=store.log.wrote - wrote,
        call_us=times,
        late_ms_max=late_ns_max / 1e6,
        syncs=store.log.sync_count - syncs,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        page_faults=after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt,
    )
    store.close()
    return report


def main() -> int:
    plan = msgspec.json.decode(sys.argv[1], type=LoopPlan)
    print(msgspec.json.encode(measure(plan)).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
