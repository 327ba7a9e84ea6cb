"""A job: ten rounds of one cell, with a store, a history and a seed of their own.

With a store that grows over fifty rounds most of the time would go into reading the same messages again; and a fault in
a short job is repeated in a short time. Job 0 of a run has the run's seed, the next one the next number, so
that one job can be repeated alone. Jobs run in parallel, in the processes of a pool.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crash.cells import CELLS
from crash.plans import JOB_ROUNDS
from crash.rounds import CrashRun
from crash.sabotage import Sabotage
from crash.verdict import Verdict

RUNS: Final = Path(__file__).resolve().parents[3] / ".gantry"
"""The folder below which each job has a folder of its own."""
PROGRAM: Final = ".venv/bin/python broker/tests/crash/run_crash.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The parameters of one job. They are sent to another process, so all are plain values."""

    cell: str
    """The name of the cell: a flush mode and a medium of the write buffer, as in `async-tmpfs`."""

    seed: int
    rounds: int
    volume: str | None = None
    """The folder on the cell's medium, if the medium needs one."""

    producers: int = 4
    sabotage: Sabotage = Sabotage.NONE
    is_kept: bool = False
    """Whether store, logs and history are kept even if no fault was found."""

    is_verbose: bool = False
    """Whether a line is printed for each round."""

    @property
    def replay(self) -> str:
        """The command that repeats this job."""
        words = f"{PROGRAM} --cells {self.cell} --seed {self.seed} --rounds {self.rounds} --producers {self.producers}"
        return words if self.sabotage is Sabotage.NONE else f"{words} --sabotage {self.sabotage.value}"


def jobs_of(cell: str, seed: int, rounds: int) -> list[Job]:
    """Divide a cell's rounds into jobs."""
    starts = range(0, rounds, JOB_ROUNDS)
    return [
        Job(cell=cell, seed=seed + number, rounds=min(JOB_ROUNDS, rounds - start))
        for number, start in enumerate(starts)
    ]


def run_job(job: Job) -> tuple[Verdict, Path | None]:
    """Run a job below `RUNS`. Return its verdict, and its folder if it was kept."""
    RUNS.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"crash-{job.cell}-", dir=RUNS))
    with (directory / "rounds.log").open("w") as log:

        def report_progress(text: str) -> None:
            log.write(text + "\n")
            log.flush()
            if job.is_verbose:
                print(f"{job.cell} {job.seed}: {text}", flush=True)

        verdict = run_job_in(directory, job, report_progress)
    if verdict.faults or job.is_kept:
        return verdict, directory
    shutil.rmtree(directory)
    return verdict, None


def run_job_in(directory: Path, job: Job, report_progress: Callable[[str], None]) -> Verdict:
    """Run a job in `directory`, with its buffers in a new folder on its volume."""
    pool_path = Path(tempfile.mkdtemp(dir=job.volume)) if job.volume is not None else None
    try:
        run = CrashRun(
            directory, CELLS[job.cell], job.seed, pool_path=pool_path, producers=job.producers,
            sabotage=job.sabotage, report_progress=report_progress,
        )  # fmt: skip
        return asyncio.run(run.run(job.rounds))
    finally:
        if pool_path is not None:
            shutil.rmtree(pool_path)
