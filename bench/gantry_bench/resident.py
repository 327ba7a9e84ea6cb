"""The memory of a broker, idle and under load, without a buffer and with one on each medium.

Three kinds of memory are distinguished: the mapped files of the store, which are page cache in any case; the
write buffers, whose size is configured; and everything else, which is the broker itself.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.loadgen import LoadGenerator, Timing
from gantry_bench.machine import Cores
from gantry_bench.measurement import MODES
from gantry_bench.memory import ResidentMemory, read_resident_memory
from gantry_bench.processes import start_broker, start_name_server
from gantry_bench.tail import Medium

SAMPLE_SECONDS: Final = 0.25
SHOWN_LOAD: Final = "a1"


class ResidentCell(msgspec.Struct, frozen=True):
    """The figures of one broker."""

    medium: Medium
    buffers_bytes: int
    idle: ResidentMemory
    loaded: ResidentMemory
    """The sample with the most own memory."""

    messages_per_second: float

    def own_bytes(self, memory: ResidentMemory) -> int:
        """Return the memory without mapped files and buffers."""
        return memory.counted_bytes - self.buffers_bytes


class MemorySampler:
    """Samples the memory of a process in a thread of its own."""

    def __init__(self, process_id: int, store: Path) -> None:
        self._process_id = process_id
        self._store = store
        self._is_over = threading.Event()
        self.samples: list[ResidentMemory] = []

    @contextmanager
    def sample_meanwhile(self) -> Iterator[None]:
        """Sample for the duration of the context."""
        thread = threading.Thread(target=self._sample)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _sample(self) -> None:
        while True:
            self.samples.append(read_resident_memory(self._process_id, store=self._store))
            if self._is_over.wait(SAMPLE_SECONDS):
                return


def run_resident(
    load: LoadGenerator,
    media: Mapping[Medium, str],
    *,
    segment_bytes: int,
    buffers_count: int,
    body_bytes: int,
    timing: Timing,
    cores: Cores,
    folder: Path,
    report_progress: Callable[[str], None] = lambda text: None,
) -> list[ResidentCell]:
    """Measure one broker after the other; ``media`` has the places of the buffers."""
    cells = []
    for medium, pool_path in media.items():
        report_progress(f"resident memory, {medium}")
        keys = {"mappedFileSizeCommitLog": str(segment_bytes), **buffer_keys(medium, pool_path, buffers_count)}
        own = folder / f"resident-{medium}"
        with (
            start_name_server(folder) as name_server,
            start_broker(own, name_server=name_server, core=cores.server, extra=keys) as broker,
        ):
            sampler = MemorySampler(broker.target.process_id, own / "store")
            with sampler.sample_meanwhile():
                run = load.run(MODES[SHOWN_LOAD], body_bytes, target=broker.target, timing=timing)
        shutil.rmtree(own)
        cells.append(
            ResidentCell(
                medium=medium,
                buffers_bytes=0 if medium == "none" else segment_bytes * buffers_count,
                idle=broker.idle_memory,
                loaded=max(sampler.samples, key=lambda sample: sample.counted_bytes),
                messages_per_second=run.report.messages_per_second,
            )
        )
    return cells


def buffer_keys(medium: Medium, pool_path: str, buffers_count: int) -> dict[str, str]:
    """Return the lines of `broker.conf` for a medium."""
    if medium == "none":
        return {}
    keys = {"transientStorePoolEnable": "true", "transientStorePoolSize": str(buffers_count)}
    return {**keys, "transientStorePoolPath": pool_path} if pool_path else keys


def resident_figures(cells: Sequence[ResidentCell], conditions: list[str]) -> Figures:
    """Return a row for each medium, in MiB."""
    rows = []
    for cell in cells:
        sizes = (
            cell.own_bytes(cell.idle), cell.own_bytes(cell.loaded), cell.buffers_bytes,
            cell.idle.store_files_bytes, cell.loaded.store_files_bytes,
        )  # fmt: skip
        rows.append([
            cell.medium, *(f"{size / (1 << 20):,.1f}" for size in sizes), f"{cell.messages_per_second:,.0f}",
        ])  # fmt: skip
    return Figures(
        name="resident memory",
        headings=[
            "buffer", "own, idle MiB", "own, under load MiB", "buffers MiB", "mapped files, idle MiB",
            "mapped files, under load MiB", "load, msgs/s",
        ],
        rows=rows,
        notes=conditions,
    )  # fmt: skip
