"""Lives of an archive job, and the ways in which they end before their time."""

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

from gantry_pipelines.archive import points

TESTS: Final = Path(__file__).resolve().parents[1]
POLL_S: Final = 0.05


class Death(StrEnum):
    """How a life ends."""

    ALL = "driver, JVM and workers, inside a batch"
    DRIVER = "driver only, inside a batch"
    JVM = "JVM only, inside a batch"
    WORKER = "a Python worker, inside a batch"
    EARLY = "driver, JVM and workers, before the first batch"
    POINT = "driver at a named point"
    WORKER_POINT = "worker at a named point"
    NONE = "not at all"


DRIVER_POINTS: Final = (points.BEFORE_RECORD, points.AFTER_RECORD, points.MID_BATCH, points.AFTER_BATCH)
WORKER_POINTS: Final = (points.MID_DATA, points.AFTER_DATA)
MERGE_POINTS: Final = (points.MID_MERGE, points.AFTER_MERGE, points.AFTER_EXCHANGE)


@final
@dataclass(frozen=True)
class Plan:
    """One life."""

    death: Death
    point: str = ""
    times: int = 1
    cores: int = 2
    task_bytes: int = 64 << 20
    rows_max: int = 100_000

    def __str__(self) -> str:
        where = f" {self.point}:{self.times}" if self.point else ""
        sizes = f"{self.cores} cores, tasks of {self.task_bytes >> 10} KiB, {self.rows_max} rows a batch"
        return f"{self.death}{where}; {sizes}"


def plans(draw: random.Random, kills: int, messages: int) -> list[Plan]:
    """So many lives that are killed, every way and place among them, each with cores, sizes and limits of its own."""
    kinds = [(Death.POINT, point) for point in DRIVER_POINTS] + [(Death.WORKER_POINT, point) for point in WORKER_POINTS]
    kinds += [(death, "") for death in (Death.ALL, Death.DRIVER, Death.JVM, Death.WORKER, Death.EARLY)]
    draw.shuffle(kinds)
    found: list[Plan] = []
    while len(found) < kills:
        death, point = kinds[len(found) % len(kinds)]
        times = draw.randint(1, 3) if point in (points.AFTER_RECORD, points.MID_BATCH, points.AFTER_DATA) else 1
        found.append(
            Plan(death, point, times, draw.choice((1, 2, 3)), draw.choice((256 << 10, 4 << 20, 64 << 20)),
                 max(1, messages // draw.choice((5, 10, 20))))
        )  # fmt: skip
    return found


@final
class Life:
    """One process of the job and its children, in a session of its own."""

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
        """Its exit code."""
        return self._process.wait(timeout_s)

    def until(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it came true while the process lived."""
        deadline = time.monotonic() + timeout_s
        while not predicate():
            if self.is_over():
                return False
            assert time.monotonic() < deadline, f"it neither came true nor ended: {self.tail()}"
            time.sleep(POLL_S)
        return True

    def kill_all(self) -> None:
        """Everybody at once."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """Only Python's driver; the JVM notices."""
        os.kill(self._process.pid, signal.SIGKILL)

    def kill_jvm(self) -> bool:
        """Only the JVM; its workers notice. False where it is not there any more."""
        return _kill_first(children(self._process.pid, "java"))

    def kill_worker(self) -> bool:
        """One worker that is at work, by preference a forked one; False where none is there."""
        workers = [pid for java in children(self._process.pid, "java") for pid in descendants(java, "pyspark")]
        return _kill_first(workers[-1:])

    def end(self) -> None:
        """Whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def tail(self) -> str:
        """The end of what it said."""
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
    """Children whose command line has this word."""
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
    """Children, and theirs."""
    found = children(pid, word)
    return [*found, *(one for child in found for one in descendants(child, word))]
