"""The matrix: it runs the chosen cells that this machine supports, some jobs at a time, and checks that the run
proves enough.

A cell is a flush mode and a medium of the write buffer; a job is ten rounds of a cell with a store of their own.
A run in which no message was at risk proves nothing. So beside the faults of its jobs a run fails when a crash
point was never reached, when buffers that survive their process had nothing to replay, and when anonymous memory never
lost anything. Fewer rounds than `ROUNDS_DEMANDED` may be too few for that; then it is not checked.
"""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from crash.cells import CELLS, Cell
from crash.jobs import Job, jobs_of, run_job
from crash.media import mounted, why_unsupported
from crash.sabotage import Sabotage
from crash.verdict import Verdict, table

FAULTS_SHOWN_MAX: Final = 12
ROUNDS_DEMANDED: Final = 30
"""A run with fewer rounds of each cell is not required to prove enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run."""

    cells: Sequence[str]
    seed: int
    rounds: int
    """The number of rounds of each cell."""

    parallel_jobs: int = 2
    """The number of jobs that run at a time."""

    producers: int = 4
    sabotage: Sabotage = Sabotage.NONE
    is_kept: bool = False
    """Whether stores, logs and histories are kept even if no fault was found."""

    is_verbose: bool = False
    """Whether a line is printed for each round."""


@dataclass(slots=True)
class Matrix:
    """The results of a run, by cell."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """The counts and faults of each cell that ran, by its name."""

    skipped: dict[str, str] = field(default_factory=dict)
    """Cells that this machine does not support, with the reasons."""


@final
class MatrixRun:
    """One run of the matrix. Used once."""

    def __init__(self, options: Options, directory: Path, report_progress: Callable[[str], None]) -> None:
        """Create the run. File systems are mounted below `directory`."""
        self._options = options
        self._directory = directory
        self._report_progress = report_progress
        self._matrix = Matrix()

    def run(self) -> Matrix:
        """Run all jobs, but no further ones of a cell that has a fault."""
        cells = [CELLS[name] for name in self._options.cells]
        reasons = {medium: why_unsupported(medium) for medium in {cell.medium for cell in cells}}
        self._matrix.skipped = {str(cell): reason for cell in cells if (reason := reasons[cell.medium])}
        runnable = [cell for cell in cells if reasons[cell.medium] is None]
        media = {cell.medium for cell in runnable}
        with mounted(media, self._directory, brokers=self._options.parallel_jobs) as volumes:
            folders = {str(cell): volumes.get(cell.medium) for cell in runnable}
            self._run_all(self._plan(runnable, folders))
        return self._matrix

    def _plan(self, cells: Sequence[Cell], volumes: Mapping[str, Path | None]) -> list[Job]:
        """Return the first job of every cell, then the second of every cell, and so on."""
        options = self._options
        numbered = [
            (number, replace(
                job,
                volume=str(volume) if (volume := volumes[job.cell]) is not None else None,
                producers=options.producers, sabotage=options.sabotage, is_kept=options.is_kept,
                is_verbose=options.is_verbose,
            ))
            for cell in cells
            for number, job in enumerate(jobs_of(str(cell), options.seed, options.rounds))
        ]  # fmt: skip
        return [job for _, job in sorted(numbered, key=lambda pair: pair[0])]

    def _run_all(self, planned: Sequence[Job]) -> None:
        """Run the jobs in spawned processes: a fork would share the loop and the locks of this one."""
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(self._options.parallel_jobs, mp_context=context)
        try:
            running = {executor.submit(run_job, job): job for job in planned}
            for future in as_completed(running):
                if not future.cancelled():
                    self._collect(running[future], *future.result())
                    self._cancel_faulty(running)
        finally:
            executor.shutdown(cancel_futures=True)

    def _cancel_faulty(self, running: Mapping[Future[tuple[Verdict, Path | None]], Job]) -> None:
        """Cancel the jobs that wait and whose cell has a fault."""
        for future, job in running.items():
            verdict = self._matrix.verdicts.get(job.cell)
            if verdict is not None and verdict.faults:
                future.cancel()

    def _collect(self, job: Job, verdict: Verdict, directory: Path | None) -> None:
        """Add the verdict of a job to that of its cell, and report it."""
        self._matrix.verdicts.setdefault(job.cell, Verdict()).add(verdict)
        self._report_progress(
            f"{job.cell}, seed {job.seed}: {verdict.rounds} rounds in {verdict.seconds:.0f} s, "
            f"{verdict.acked:,} acknowledged, {verdict.replayed:,} replayed, {verdict.lost:,} lost, "
            f"{len(verdict.faults)} faults"
        )
        for fault in verdict.faults[:FAULTS_SHOWN_MAX]:
            self._report_progress(f"FOUND {fault}")
        if verdict.faults:
            self._report_progress(f"replay: {job.replay}")
        if directory is not None:
            self._report_progress(f"store, buffers, logs, rounds.log and history.jsonl: {directory}")


def shortcomings(matrix: Matrix, rounds: int) -> list[str]:
    """Return what a run of so many rounds has not proved, for the cells without a fault."""
    if rounds < ROUNDS_DEMANDED:
        return []
    short: list[str] = []
    hits: Counter[str] = Counter()
    wanted: set[str] = set()
    for name, verdict in matrix.verdicts.items():
        cell = CELLS[name]
        hits += verdict.hits
        if verdict.faults:
            continue
        wanted |= {moment.point for moment in cell.crash_moments}
        if cell.must_replay and not (verdict.replayed and verdict.replayed_reported):
            short.append(f"{cell}: no acknowledged message was replayed, or no undisturbed start reported one")
        if cell.may_lose_tail and not verdict.lost:
            short.append(f"{cell}: nothing was lost, so no kill came at a critical moment for the other cells, either")
    return short + [f"no broker ended at {point}" for point in sorted(wanted) if not hits[point]]


def format_totals(matrix: Matrix) -> str:
    """Format the totals of the run as a table with a line for each cell."""
    head = [
        "cell", "rounds", "kills", "at points", "acked", "replayed", "by broker", "consumed", "lost", "twice", "faults",
        "Porcupine", "seconds",
    ]  # fmt: skip
    rows = [head]
    for name, one in matrix.verdicts.items():
        numbers = (
            one.rounds, one.kills, one.hits.total(), one.acked, one.replayed, one.replayed_reported, one.consumed,
            one.lost, one.doubled, len(one.faults),
        )  # fmt: skip
        second = " ".join(f"{count} {verdict}" for verdict, count in sorted(one.second.items())) or "not run"
        rows.append([name, *(f"{number:,}" for number in numbers), second, f"{round(one.seconds):,}"])
    rows += [[name, *(["-"] * (len(head) - 1))] for name in matrix.skipped]
    return table(rows)


def format_points_hit(matrix: Matrix) -> str:
    """Format how often a broker ended at each crash point: a line for each point, a column for each cell."""
    names = list(matrix.verdicts)
    moments = {moment.point: None for name in names for moment in CELLS[name].crash_moments}
    rows = [["ended at", *names, "missed"]]
    for point in moments:
        counts = []
        for name in names:
            is_there = any(moment.point == point for moment in CELLS[name].crash_moments)
            counts.append(str(matrix.verdicts[name].hits[point]) if is_there else "-")
        missed = sum(verdict.misses[point] for verdict in matrix.verdicts.values())
        rows.append([point, *counts, str(missed)])
    return table(rows)
