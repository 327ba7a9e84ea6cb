"""The machine of a run, and the other work on it meanwhile.

Figures from a shared machine are only reliable if it was quiet, so every run is reported with the CPU time that other
programs used, as a number of cores. Cores are assigned here too: one for the server, another for the load generator,
so that neither can take time from the other.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

import gantry_speedups

CLOCK_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
KERNEL_THREAD_FLAG: Final = 0x00200000
"""PF_KTHREAD of the kernel's sched.h, in the flags of /proc/PID/stat."""

WARM_BYTES_MAX: Final = 1024**3
WARM_STEP_BYTES: Final = 1024**2


class Cores(msgspec.Struct, frozen=True):
    """The cores of the server and of the load generator; None if there is only one core and nothing is pinned."""

    server: int | None
    load: int | None


class Machine(msgspec.Struct, frozen=True):
    """The facts about the machine that a reader needs to assess the figures."""

    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    """The version of Python, and which hot path this process and the servers that it starts run."""

    uvloop: str


def assign_cores(available: set[int]) -> Cores:
    """Return the two lowest cores that this process may use."""
    if len(available) < 2:
        return Cores(server=None, load=None)
    first, second = sorted(available)[:2]
    return Cores(server=first, load=second)


def pin(pid: int, core: int | None) -> None:
    """Pin a process with all its threads to one core. Threads that it starts later stay there too."""
    if core is not None:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Run this thread on one core; processes that run already are not affected."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def touch_memory(available_bytes: int) -> int:
    """Touch the machine's memory before a run; return the number of bytes.

    A virtual machine gets memory from its host when it first touches it, at microseconds per page, and returns it
    soon after freeing it. A log's pages are always new, so a broker would pay the host's cost in one run and not in
    the next. Touching as much as a run may need and freeing it at once leaves pages that only the kernel has to
    clear.
    """
    size = max(mmap.PAGESIZE, min(WARM_BYTES_MAX, available_bytes // 4))
    with mmap.mmap(-1, size) as memory:
        for start in range(0, size, WARM_STEP_BYTES):
            memory[start : start + WARM_STEP_BYTES] = bytes(min(WARM_STEP_BYTES, size - start))
    return size


def read_available_bytes() -> int:
    """Return how much memory could be used without swapping."""
    return available_bytes(Path("/proc/meminfo").read_text())


def available_bytes(meminfo_text: str) -> int:
    """Return MemAvailable from the text of /proc/meminfo."""
    for line in meminfo_text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0


def describe_machine() -> Machine:
    """Return the facts about this machine."""
    processor = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    return Machine(
        processor=processor,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        kernel=platform.release(),
        python=f"{platform.python_version()}, {gantry_speedups.hot_path} hot path",
        uvloop=version("uvloop"),
    )


class Process(msgspec.Struct, frozen=True):
    """What the kernel says of one process."""

    parent: int
    cpu_seconds: float
    """Its own CPU time, and that of children that ended and were waited for."""

    is_kernel_thread: bool


class OtherWork:
    """Measures how many cores' worth of time other programs used during the context.

    Others are those that neither this process nor one of the ``servers`` started. Interrupts and the kernel's own
    threads are not programs: most of their time is work for the measured processes, such as packets over loopback.
    """

    def __init__(self, *servers: int) -> None:
        self.cores = 0.0
        self._own = {os.getpid(), *servers}
        self._began = self._before = 0.0

    def __enter__(self) -> OtherWork:
        self._began, self._before = time.monotonic(), self._others_cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.cores = max(0.0, self._others_cpu_seconds() - self._before) / (time.monotonic() - self._began)

    def _others_cpu_seconds(self) -> float:
        return others_cpu_seconds(read_processes(), self._own)


def others_cpu_seconds(processes: Mapping[int, Process], own: Iterable[int]) -> float:
    """Return the CPU time of all programs so far, without the processes `own` and all that descend from them."""
    children: dict[int, list[int]] = {}
    for number, process in processes.items():
        children.setdefault(process.parent, []).append(number)
    owned, open_numbers = set(own), list(own)
    while open_numbers:
        descendants = children.get(open_numbers.pop(), [])
        owned.update(descendants)
        open_numbers.extend(descendants)
    return sum(
        process.cpu_seconds
        for number, process in processes.items()
        if number not in owned and not process.is_kernel_thread
    )


def read_processes() -> dict[int, Process]:
    """Return all processes that run now, by number."""
    processes = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                processes[int(folder.name)] = parse_process((folder / "stat").read_text(errors="replace"))
    return processes


def parse_process(stat_text: str) -> Process:
    """Return one process from its /proc/PID/stat; its name, in brackets, may hold any characters."""
    fields = _fields_after_name(stat_text)
    return Process(
        parent=int(fields[1]),
        cpu_seconds=sum(map(int, fields[11:15])) / CLOCK_TICKS_PER_SECOND,
        is_kernel_thread=bool(int(fields[6]) & KERNEL_THREAD_FLAG),
    )


def _fields_after_name(stat_text: str) -> list[str]:
    return stat_text[stat_text.rindex(")") + 1 :].split()


def process_cpu_seconds(stat_text: str) -> float:
    """Return the CPU time of one process from its /proc/PID/stat; its name, in brackets, may hold any characters."""
    fields = _fields_after_name(stat_text)
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_SECOND


def read_process_cpu_seconds(process_id: int) -> float:
    """Return the CPU time of one process and its threads so far."""
    return process_cpu_seconds(Path(f"/proc/{process_id}/stat").read_text())
