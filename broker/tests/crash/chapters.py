"""Chapters: a cell's rounds in portions of ten, each with its own store, history and seed.

With a store that grows over fifty rounds most of the time would go into reading the same messages again; and a fault in
a short chapter is repeated in a short time. Chapter 0 of a run has the run's seed, the next one the next number, so
that one chapter can be repeated alone. Chapters run in parallel, in the processes of a pool.
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
    """The task of one chapter. It is sent to another process, so it has plain values only."""

    cell: str
    seed: int
    rounds: int
    volume: str | None = None
    """The folder on the cell's medium, if the medium needs one."""

    producers: int = 4
    sabotage: Sabotage = Sabotage.NONE
    is_kept: bool = False
    is_verbose: bool = False

    @property
    def replay(self) -> str:
        """The command that repeats this chapter."""
        words = f"{PROGRAM} --cells {self.cell} --seed {self.seed} --rounds {self.rounds} --producers {self.producers}"
        return words if self.sabotage is Sabotage.NONE else f"{words} --sabotage {self.sabotage.value}"


def chapters(cell: str, seed: int, rounds: int) -> list[Chapter]:
    """Divide a cell's rounds into chapters."""
    starts = range(0, rounds, CHAPTER_ROUNDS)
    return [
        Chapter(cell=cell, seed=seed + number, rounds=min(CHAPTER_ROUNDS, rounds - start))
        for number, start in enumerate(starts)
    ]


def run_chapter(chapter: Chapter) -> tuple[Verdict, Path | None]:
    """Run a chapter below `RUNS`. Return its verdict, and its folder if it was kept."""
    RUNS.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"crash-{chapter.cell}-", dir=RUNS))
    with (directory / "rounds.log").open("w") as log:

        def report_progress(text: str) -> None:
            log.write(text + "\n")
            log.flush()
            if chapter.is_verbose:
                print(f"{chapter.cell} {chapter.seed}: {text}", flush=True)

        verdict = crash(directory, chapter, report_progress)
    if verdict.faults or chapter.is_kept:
        return verdict, directory
    shutil.rmtree(directory)
    return verdict, None


def crash(directory: Path, chapter: Chapter, report_progress: Callable[[str], None]) -> Verdict:
    """Run a chapter in `directory`, with its buffers in a new folder on its volume."""
    pool_path = Path(tempfile.mkdtemp(dir=chapter.volume)) if chapter.volume is not None else None
    try:
        run = CrashRun(
            directory, CELLS[chapter.cell], chapter.seed, pool_path=pool_path, producers=chapter.producers,
            sabotage=chapter.sabotage, report_progress=report_progress,
        )  # fmt: skip
        return asyncio.run(run.run(chapter.rounds))
    finally:
        if pool_path is not None:
            shutil.rmtree(pool_path)
