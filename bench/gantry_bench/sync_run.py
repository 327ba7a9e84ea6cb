"""Runs synchronous flush: three brokers with empty stores, and each load on each of them in turn.

All three run throughout; an idle one does nothing. So other work on the machine is spread over all of them, as in the
send benchmark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gantry_bench.group_commit import SLOW_SYNC_MS, Flush, SyncRun, load_of
from gantry_bench.loadgen import LoadGenerator, Timing
from gantry_bench.machine import Cores
from gantry_bench.processes import BROKER_PROGRAM, Broker, start_broker, start_name_server
from gantry_bench.runtime_info import read_progress

SLOW_PROGRAM: Final = ("gantry_testing.slow_broker", "--sync-delay-ms", str(SLOW_SYNC_MS), "--")
KINDS: Final[tuple[tuple[Flush, str, Sequence[str]], ...]] = (
    ("async", "ASYNC_FLUSH", BROKER_PROGRAM),
    ("sync", "SYNC_FLUSH", BROKER_PROGRAM),
    ("slow", "SYNC_FLUSH", SLOW_PROGRAM),
)


def run_sync(
    load: LoadGenerator,
    levels: Sequence[int],
    *,
    body_bytes: int,
    repetitions: int,
    timing: Timing,
    cores: Cores,
    folder: Path,
    report_progress: Callable[[str], None] = lambda text: None,
) -> list[SyncRun]:
    """Run every level on every broker, several times."""
    runs = []
    with ExitStack() as stack:
        name_server = stack.enter_context(start_name_server(folder))
        brokers: dict[Flush, Broker] = {}
        for flush, setting, program in KINDS:
            own = folder / f"broker-{flush}"
            stack.callback(shutil.rmtree, own, ignore_errors=True)
            keys = {"brokerName": f"broker-{flush}", "flushDiskType": setting}
            brokers[flush] = stack.enter_context(
                start_broker(own, name_server=name_server, core=cores.server, extra=keys, program=program)
            )
        for level in levels:
            report_progress(f"synchronous flush, {level} outstanding")
            for _ in range(repetitions):
                for flush, broker in brokers.items():
                    runs.append(_run_once(load, level, flush, broker, body_bytes=body_bytes, timing=timing))
    return runs


def _run_once(
    load: LoadGenerator, level: int, flush: Flush, broker: Broker, *, body_bytes: int, timing: Timing
) -> SyncRun:
    before = read_progress(broker.target.address)
    run = load.run(load_of(level), body_bytes, target=broker.target, timing=timing)
    progress = read_progress(broker.target.address).since(before)
    return SyncRun(level=level, flush=flush, run=run, progress=progress)
