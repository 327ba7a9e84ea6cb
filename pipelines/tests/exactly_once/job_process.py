"""The process of an archive job, and the plans by which it is killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, final

from gantry_pipelines.archive import crash_points

TESTS: Final = Path(__file__).resolve().parents[1]
POLL_S: Final = 0.05


class KillKind(StrEnum):
    """How a run is killed."""

    ALL = "driver, JVM and workers, inside a batch"
    DRIVER = "driver only, inside a batch"
    JVM = "JVM only, inside a batch"
    WORKER = "a Python worker, inside a batch"
    EARLY = "driver, JVM and workers, before the first batch"
    POINT = "driver at a crash point"
    WORKER_POINT = "worker at a crash point"
    NONE = "not killed"


DRIVER_POINTS: Final = (
    crash_points.BEFORE_RECORD,
    crash_points.AFTER_RECORD,
    crash_points.MID_BATCH,
    crash_points.AFTER_BATCH,
)
WORKER_POINTS: Final = (crash_points.MID_DATA, crash_points.AFTER_DATA)
MERGE_POINTS: Final = (crash_points.MID_MERGE, crash_points.AFTER_MERGE, crash_points.AFTER_EXCHANGE)


@final
@dataclass(frozen=True)
class Plan:
    """The plan of one run: how it is killed, and its settings."""

    kind: KillKind
    point: str = ""
    """The crash point, if `kind` is `POINT` or `WORKER_POINT`."""
    times: int = 1
    """The hit of the crash point at which the process is killed, from 1."""
    cores: int = 2
    task_bytes: int = 64 << 20
    """The maximum size of a Spark task (`archive.taskBytes`)."""
    rows_max: int = 100_000
    """The maximum number of rows of a batch (`maxRowsPerTrigger`)."""

    def __str__(self) -> str:
        where = f" {self.point}:{self.times}" if self.point else ""
        sizes = f"{self.cores} cores, tasks of {self.task_bytes >> 10} KiB, {self.rows_max} rows a batch"
        return f"{self.kind}{where}; {sizes}"


def plans(draw: random.Random, kills: int, messages: int) -> list[Plan]:
    """Return plans with `kills` kills, of all kinds and crash points in turn, each with random settings."""
    kinds = [(KillKind.POINT, point) for point in DRIVER_POINTS] + [
        (KillKind.WORKER_POINT, point) for point in WORKER_POINTS
    ]
    kinds += [(kind, "") for kind in (KillKind.ALL, KillKind.DRIVER, KillKind.JVM, KillKind.WORKER, KillKind.EARLY)]
    draw.shuffle(kinds)
    found: list[Plan] = []
    while len(found) < kills:
        kind, point = kinds[len(found) % len(kinds)]
        times = (
            draw.randint(1, 3)
            if point in (crash_points.AFTER_RECORD, crash_points.MID_BATCH, crash_points.AFTER_DATA)
            else 1
        )
        found.append(
            Plan(kind, point, times, draw.choice((1, 2, 3)), draw.choice((256 << 10, 4 << 20, 64 << 20)),
                 max(1, messages // draw.choice((5, 10, 20))))
        )  # fmt: skip
    return found


@final
class JobProcess:
    """One process of the archive job with its children, in a session of its own. `words` are its arguments."""

    def __init__(self, words: list[str], log: Path, kills: Path) -> None:
        self._log: Final = log
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "GANTRY_KILLS": str(kills)}
        with log.open("ab") as output:
            self._process: Final = subprocess.Popen(
                [sys.executable, "-m", "exactly_once.crashing_archive", *words],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env=environment,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> int:
        """Wait for the process, and return its exit code."""
        return self._process.wait(timeout_s)

    def until(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the predicate is true; return False if the process ended before."""
        deadline = time.monotonic() + timeout_s
        while not predicate():
            if self.is_over():
                return False
            assert time.monotonic() < deadline, f"it neither came true nor ended: {self.tail()}"
            time.sleep(POLL_S)
        return True

    def kill_all(self) -> None:
        """Kill the driver and all of its children at once."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """Kill only the Python driver; the JVM then ends."""
        os.kill(self._process.pid, signal.SIGKILL)

    def kill_jvm(self) -> bool:
        """Kill only the JVM, whose workers then end; return False if it has already ended."""
        return _kill_first(children(self._process.pid, "java"))

    def kill_worker(self) -> bool:
        """Kill one active worker, preferably a forked one; return False if there is none."""
        workers = [pid for java in children(self._process.pid, "java") for pid in descendants(java, "pyspark")]
        return _kill_first(workers[-1:])

    def kill_rest(self) -> None:
        """Kill all processes that are left, and wait for the driver."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def tail(self) -> str:
        """Return the end of the log."""
        return self._log.read_text(errors="replace")[-3000:]


def _kill_first(pids: list[int]) -> bool:
    for pid in pids[:1]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True
    return False


def children(pid: int, word: str) -> list[int]:
    """Return the children of a process whose command line has this word."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and word.encode() in command:
            found.append(int(folder.name))
    return sorted(found)


def descendants(pid: int, word: str) -> list[int]:
    """Return all descendants of a process whose command line has this word."""
    found = children(pid, word)
    return [*found, *(one for child in found for one in descendants(child, word))]
