"""A store that is filled, or recovered, and then killed: by itself, with SIGKILL, as soon as it has printed its report.

    python bench/store_process.py fill '{"store_path": ..., "log_bytes": ...}'      prints a FillReport
    python bench/store_process.py recover '{"store_path": ...}'                     prints a RecoverReport

Nothing is closed, so the next process finds the state after a crash. Filling uses the store as sending does, in
batches, with all threads running; recovering is what a broker does before it listens.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from typing import Final, NoReturn

import msgspec
from gantry_bench.recovery import FillPlan, FillReport, RecoverPlan, RecoverReport

from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.settings import StoreSettings
from gantry_wire.message import encode_host

BATCH_MESSAGES: Final = 64
QUEUES_COUNT: Final = 4
PAUSE_SECONDS: Final = 0.01


def fail(error: Exception) -> None:
    """End the run, because a store that cannot write gives no measurement."""
    print(f"the store failed: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def make_store(path: str, segment_bytes: int) -> MessageStore:
    """Return a store that is not open yet."""
    settings = StoreSettings(mapped_file_size_commit_log=segment_bytes)
    host = encode_host("127.0.0.1", 10_911)
    return MessageStore(path, settings, disk=RealDisk(), clock=SystemClock(), store_host=host, on_fatal=fail)


def fill(plan: FillPlan) -> FillReport:
    """Append until the log has the planned size."""
    store = make_store(plan.store_path, plan.segment_bytes)
    store.open()
    queues = [store.queues.get_or_create("RecoverySpeed", queue_id) for queue_id in range(QUEUES_COUNT)]
    host, body = encode_host("127.0.0.1", 40_000), os.urandom(plan.body_bytes)
    began, number = time.perf_counter(), 0
    while store.log.wrote < plan.log_bytes:
        drafts = []
        for _ in range(BATCH_MESSAGES):
            key = "7F00000100002A139A55%08X%04X" % (number >> 16, number & 0xFFFF)  # noqa: UP031
            properties = b"UNIQ_KEY\x01" + key.encode() + b"\x02WAIT\x01true\x02"
            drafts.append((queues[number % QUEUES_COUNT], body, properties, 0, 0, number, host, 0, 0, 0, 0, (key,)))
            number += 1
        store.append(drafts)  # type: ignore[arg-type]  # plain tuples of Draft's fields, as in the send path
        if store.log.wrote - store.log.flushed > plan.unflushed_bytes_max:
            time.sleep(PAUSE_SECONDS)
    return FillReport(end=store.log.wrote, messages=number, seconds=time.perf_counter() - began)


def recover(plan: RecoverPlan) -> RecoverReport:
    """Open the store, and report duration and CPU time."""
    store = make_store(plan.store_path, plan.segment_bytes)
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    report = store.open(is_flushing=False)
    elapsed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return RecoverReport(
        is_clean=report.is_clean,
        start=report.start,
        end=report.end,
        records=report.records,
        seconds=elapsed,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def main() -> NoReturn:
    verb, text = sys.argv[1:]
    if verb == "fill":
        done: FillReport | RecoverReport = fill(msgspec.json.decode(text, type=FillPlan))
    else:
        done = recover(msgspec.json.decode(text, type=RecoverPlan))
    print(msgspec.json.encode(done).decode(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


if __name__ == "__main__":
    main()
