"""Chapters: a cell's rounds in portions of ten, each with a store, a history and a seed of its own.

A store that grew over fifty rounds would spend the time with reading the same messages again; and a fault in a short
chapter is replayed in a short time. Chapter 0 of a run has the run's seed, the next one the next number, so that a
chapter is replayed by a run of its own. A chapter runs in a process of its own, beside those of other cells.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crash.cells import CELLS
from crash.plans import CHAPTER_ROUNDS
from crash.rounds import CrashRun
from crash.sabotage import Sabotage
from crash.verdict import Verdict

RUNS: Final = Path(__file__).resolve().parents[3] / ".gantry"
PROGRAM: Final = ".venv/bin/python broker/tests/crash/run_crash.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """What one of them is to do. Goes to another process, so it is made of plain values."""

    cell: str
    seed: int
    rounds: int
    volume: str | None = None
    """The folder on the cell's medium, if it has one."""

    producers: int = 4
    sabotage: Sabotage = Sabotage.NONE
    is_kept: bool = False
    is_verbose: bool = False

    @property
    def replay(self) -> str:
        """The command that does it again."""
        words = f"{PROGRAM} --cells {self.cell} --seed {self.seed} --rounds {self.rounds} --producers {self.producers}"
        return words if self.sabotage is Sabotage.NONE else f"{words} --sabotage {self.sabotage.value}"


def chapters(cell: str, seed: int, rounds: int) -> list[Chapter]:
    """A cell's rounds in portions."""
    starts = range(0, rounds, CHAPTER_ROUNDS)
    return [
        Chapter(cell=cell, seed=seed + number, rounds=min(CHAPTER_ROUNDS, rounds - start))
        for number, start in enumerate(starts)
    ]


def run_chapter(chapter: Chapter) -> tuple[Verdict, Path | None]:
    """Run it below `RUNS`: what it found, and where its store is, if it was kept."""
    RUNS.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"crash-{chapter.cell}-", dir=RUNS))
    with (directory / "rounds.log").open("w") as log:

        def say(text: str) -> None:
            log.write(text + "\n")
            log.flush()
            if chapter.is_verbose:
                print(f"{chapter.cell} {chapter.seed}: {text}", flush=True)

        verdict = crash(directory, chapter, say)
    if verdict.faults or chapter.is_kept:
        return verdict, directory
    shutil.rmtree(directory)
    return verdict, None


def crash(directory: Path, chapter: Chapter, say: Callable[[str], None]) -> Verdict:
    """Run it in `directory`; its buffers in a folder of their own on its volume."""
    pool_path = Path(tempfile.mkdtemp(dir=chapter.volume)) if chapter.volume is not None else None
    try:
        run = CrashRun(
            directory, CELLS[chapter.cell], chapter.seed, pool_path=pool_path, producers=chapter.producers,
            sabotage=chapter.sabotage, say=say,
        )  # fmt: skip
        return asyncio.run(run.run(chapter.rounds))
    finally:
        if pool_path is not None:
            shutil.rmtree(pool_path)
