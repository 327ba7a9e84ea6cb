"""The damage run: every kind of file of a store, damaged in every way, with clients that know what they have sent.

Exit code 0 when every trial that was possible ended in one of four good outcomes; 1 with at least one FAULT, and for
each its evidence and the command that repeats it, and 1 if a world could not be built.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, final

import click
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from damage.harms import Harm, NotPossible
from damage.judge import Fault, Outcome, Sort, Verdict
from damage.kinds import Kind
from damage.plan import Cell, Stop, Trial, When, cells, plan, trial_of
from damage.process_life import live_with_processes
from damage.processes_of_trials import Ended, Forks, Work, run_all
from damage.sabotage_of_trials import Lie
from damage.shard import Setup
from damage.trial import DONE, judged, live, load_phase, phase_path, prepare_trial, world_name
from damage.world import build_world

from gantry_testing.slowness import patience
from gantry_wire.structs import make_structs_ready

ROOT: Final = Path(__file__).resolve().parents[3]
RUNS: Final = ROOT / ".gantry"
MEMORY: Final = Path("/dev/shm")
TRIALS: Final = len(cells())
"""Default number of trials: each combination once."""
SLICE_SEED: Final = 20
SLICE_TRIALS: Final = 60
PROCESS_CELLS: Final = (
    (Kind.LOG_NEWEST, Harm.MISSING, Stop.CLEAN, When.STOPPED),
    (Kind.LOG_MIDDLE, Harm.FLIPPED, Stop.CLEAN, When.STOPPED),
    (Kind.LOG_MIDDLE, Harm.TRUNCATED, Stop.UNCLEAN, When.STOPPED),
    (Kind.LOG_FIRST, Harm.FLIPPED, Stop.CLEAN, When.RUNNING),
    (Kind.QUEUE, Harm.SWAPPED, Stop.UNCLEAN, When.STOPPED),
    (Kind.LOG_MIDDLE, Harm.MISSING, Stop.UNCLEAN, When.STOPPED),
)
"""The trials with processes: losses, rot before the start and under the broker, a truncated file, a derived file."""
LIFE_TIMEOUT_S: Final = 60.0
SHOWN_MAX: Final = 60
PROGRESS_TRIALS: Final = 200


class Result(msgspec.Struct, frozen=True):
    """A trial with its verdict."""

    number: int
    cell: str
    done: str
    """What the damage was, and to which file."""
    outcome: str
    faults: list[Fault]
    notes: list[str]
    command: str


@final
class Run:
    """One run, in its own directory."""

    def __init__(
        self, directory: Path, seed: int, jobs: int, *, keeps: bool, lie: Lie = Lie.NONE, has_processes: bool = False
    ) -> None:
        self.directory: Final = directory
        self.results: list[Result] = []
        self.not_possible: Counter[str] = Counter()
        self._seed: Final = seed
        self._jobs: Final = jobs
        self._keeps: Final = keeps
        self._lie: Final = lie
        self._live: Final = live_with_processes if has_processes else live
        self._option: Final = "--processes " if has_processes else ""
        self._worlds: Final = directory / "worlds"
        self._ended: dict[str, Ended] = {}

    def build_worlds(self, trials: Sequence[Trial]) -> list[str]:
        """Build the worlds from which trials begin; return the failures."""
        wanted = sorted({(trial.cell.setup, trial.is_pooled) for trial in trials})
        works = []
        for setup, is_pooled in wanted:
            for is_foreign in (False, True):
                folder = self._worlds / world_name(setup, is_pooled=is_pooled, is_foreign=is_foreign)
                folder.mkdir(parents=True)
                build = partial(_build, folder, setup, self._seed + is_foreign, is_pooled)
                works.append(Work(folder.name, build, folder.with_suffix(".log")))
        return run_all(works, self._jobs, patience(LIFE_TIMEOUT_S * 2))

    def run(self, trials: Sequence[Trial]) -> None:
        """Run all trials; the results are in `results`, the trials that were not possible in `not_possible`."""
        chains = (self._chain(trial) for trial in trials)
        Forks(self._jobs, patience(LIFE_TIMEOUT_S)).run(chains, self._life_ended)

    def _life_ended(self, name: str, how: Ended) -> None:
        self._ended[name] = how

    def _chain(self, trial: Trial) -> Iterator[Work]:
        """Yield the processes of one trial, one after the other; the verdict follows at the end."""
        folder = self.directory / f"trial-{trial.number}"
        folder.mkdir()
        output = folder / "output.log"
        try:
            prepare_trial(trial, self._worlds, folder)
        except NotPossible as error:
            self.not_possible[f"{trial.cell.kind} {trial.cell.harm}: {error}"] += 1
            shutil.rmtree(folder)
            return
        faults: list[Fault] = []
        notes: list[str] = []
        for number in (1, 2):
            name = f"{trial.number}/{number}"
            yield Work(name, partial(self._live, trial, self._worlds, folder, number), output)
            how = self._ended.pop(name)
            if how.is_late:
                faults.append(
                    Fault(Sort.HUNG, f"life {number} did not end in {LIFE_TIMEOUT_S:.0f} s, more on a slow machine")
                )
                break
            if how.code == 1:
                text = lines_of(output)
                if text and "NotPossible" in text[-1]:
                    self.not_possible[f"{trial.cell.kind} {trial.cell.harm}: {text[-1]}"] += 1
                    shutil.rmtree(folder)
                    return
                faults.append(Fault(Sort.BROKEN, f"life {number}: {_last_words(text)}"))
                break
            if how.code not in (0, -9):
                phase = load_phase(folder, number)
                phase.ended_by = f"signal {-how.code}"
                phase_path(folder, number).write_bytes(msgspec.msgpack.encode(phase))
                notes.append(f"life {number} was ended by signal {-how.code}")
        verdict_path = folder / "verdict.json"
        yield Work(f"{trial.number}/judge", partial(_judge, folder, verdict_path, self._lie), output)
        self._ended.pop(f"{trial.number}/judge")
        if verdict_path.exists():
            verdict = msgspec.json.decode(verdict_path.read_bytes(), type=Verdict)
        else:
            tail = lines_of(output)[-1:]
            verdict = Verdict(Outcome.FAULT, [Fault(Sort.BROKEN, f"the judge failed: {tail}")])
        outcome = Outcome.FAULT if faults else verdict.outcome
        done = (folder / DONE).read_text() if (folder / DONE).exists() else "not damaged"
        self.results.append(
            Result(
                trial.number, trial.cell.name, done, outcome, [*faults, *verdict.faults], [*notes, *verdict.notes],
                replay_command(trial, self._option),
            )
        )  # fmt: skip
        if outcome is not Outcome.FAULT and not self._keeps:
            shutil.rmtree(folder)
        if len(self.results) % PROGRESS_TRIALS == 0:
            count = sum(result.outcome is Outcome.FAULT for result in self.results)
            click.echo(f"{len(self.results)} trials done, {count} FAULTs")


def lines_of(output: Path) -> list[str]:
    """Return the output lines of a process; none if it could not create the file."""
    try:
        return output.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return []


def _last_words(lines: Sequence[str]) -> str:
    """Return the place and the error of a failed process."""
    places = [line.strip() for line in lines if line.lstrip().startswith("File ")]
    return f"{lines[-1]} ({places[-1] if places else 'nowhere'})" if lines else "no output"


def _build(folder: Path, setup: Setup, seed: int, is_pooled: bool) -> None:
    asyncio.run(build_world(folder, setup, seed, is_pooled=is_pooled))


def _judge(folder: Path, path: Path, lie: Lie) -> None:
    path.write_bytes(msgspec.json.encode(judged(folder, lie)))


def replay_command(trial: Trial, option: str = "") -> str:
    """Return the command that repeats one trial alone."""
    return f"scripts/damage {option}--seed {trial.seed} --replay '{trial.number}:{trial.cell.name}'"


def table(results: Sequence[Result]) -> str:
    """Return the table of outcomes by kind of file and way of damage."""
    names = {Outcome.COMPLETE: "c", Outcome.REPORTED: "r", Outcome.HEALED: "h", Outcome.REFUSED: "x"}
    counted: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        kind, harm = result.cell.split("/")[:2]
        counted.setdefault((kind, harm), Counter())[result.outcome] += 1
    width = 22
    lines = ["kind".ljust(24) + "".join(str(harm).ljust(width) for harm in Harm)]
    for kind in Kind:
        columns = []
        for harm in Harm:
            counts = counted.get((kind, harm), Counter())
            text = " ".join(f"{counts[name]}{letter}" for name, letter in names.items() if counts[name])
            if counts[Outcome.FAULT]:
                text = f"{text} {counts[Outcome.FAULT]} FAULT".strip()
            columns.append((text or "-").ljust(width))
        if any(cell.strip() != "-" for cell in columns):
            lines.append(str(kind).ljust(24) + "".join(columns).rstrip())
    lines.append(
        "c complete, r reported and served around, h healed from a replica, x refused with a remedy that works"
    )
    return "\n".join(lines)


def the_slice() -> list[Trial]:
    """Return the trials that are part of the tests."""
    return plan(SLICE_SEED, TRIALS)[:SLICE_TRIALS]


def process_trials(seed: int, count: int) -> list[Trial]:
    """Return the trials with real processes: alone, without write buffers, each a way in which users meet damage."""
    chosen = [
        Cell(kind, harm, stop, when, Setup.ALONE)
        for kind, harm, stop, when in PROCESS_CELLS[:count]
    ]  # fmt: skip
    trials = [trial_of(seed, number, cell) for number, cell in enumerate(chosen)]
    return [msgspec.structs.replace(trial, is_pooled=False) for trial in trials]


def parse_replay(text: str, seed: int) -> Trial:
    """Parse ``NUMBER:KIND/HARM/STOP/WHEN/SETUP`` of a trial."""
    number, _, name = text.partition(":")
    try:
        kind, how, stop, when, setup = name.split("/")
        cell = Cell(Kind(kind), Harm(how), Stop(stop), When(when), Setup(setup))
        return trial_of(seed, int(number), cell)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no trial: {error}") from error


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--trials", default=TRIALS, show_default=True, help="How many; each combination comes once before any twice."
)
@click.option("--seed", type=int, help="Repeat the plan of an earlier run; by default a new seed is drawn.")
@click.option("--jobs", default=4, show_default=True, help="Trials at a time.")
@click.option(
    "--only", multiple=True, metavar="WORD[/WORD...]",
    help="Only combinations that have all these words: a kind, a way, clean, unclean, running, stopped, a setup.",
)  # fmt: skip
@click.option("--replay", metavar="TRIAL", help="Repeat one trial, as a FAULT names it, and keep its files.")
@click.option(
    "--slice", "is_slice", is_flag=True,
    help="The fixed trials that are among the tests; --trials, --seed, --only and --replay have no effect.",
)  # fmt: skip
@click.option(
    "--sabotage", type=click.Choice([one.value for one in Lie]), default="none", show_default=True,
    help="Lie to the judge about each trial, to see it find a FAULT.",
)  # fmt: skip
@click.option(
    "--processes",
    "has_processes",
    is_flag=True,
    help="A few fixed trials with a real broker process, its sidecar and the command line, which must show what is "
    "reported; --only has no effect.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Where the results go as JSON.")
@click.option("--keep", is_flag=True, help="Keep the files of all trials; those of faults are kept anyway.")
def main(
    trials: int, seed: int | None, jobs: int, only: tuple[str, ...], replay: str | None, is_slice: bool,
    sabotage: str, has_processes: bool, json_path: Path | None, keep: bool,
) -> None:  # fmt: skip
    """Damage every kind of file of a store in every way, and look for wrong and silently missing messages.

    A trial begins with a copy of a store that was really used: stopped cleanly or killed, alone or of a master or slave
    in a sync or async group. One file is damaged, before the start or under the running broker. Clients that know what
    they have sent read everything back, from master and slave, by queue, tag, key and id, and send again; then the
    broker is stopped or killed, started, and read again. Each trial must end complete (clients notice nothing),
    reported and served around, healed from a replica, or refused with the file named and a remedy that works; anything
    else is a FAULT.

    \b
    Examples:
      scripts/damage
      scripts/damage --only log-newest/missing --only 'index/sync group' --trials 100
      scripts/damage --seed 7 --replay '22:log-ahead/truncated/unclean/running/alone'
    """
    if is_slice:
        planned = the_slice()
        seed = SLICE_SEED
    else:
        seed = random.randrange(1 << 32) if seed is None else seed
        planned = [parse_replay(replay, seed)] if replay else plan(seed, trials, only)
        if has_processes:
            planned = process_trials(seed, min(trials, len(PROCESS_CELLS)))
            planned = [one for one in planned if replay in (None, f"{one.number}:{one.cell.name}")]
    if not planned:
        raise click.UsageError("no trial fits these options")
    began_at = time.monotonic()
    base = MEMORY if MEMORY.is_dir() else RUNS
    directory = Path(tempfile.mkdtemp(prefix="gantry-damage-", dir=base))
    click.echo(f"seed {seed}, {len(planned)} trials, {jobs} at a time, in {directory}")
    make_structs_ready()  # Brokers in these processes have threads, as in a broker's own process.
    run = Run(directory, seed, jobs, keeps=keep or replay is not None, lie=Lie(sabotage), has_processes=has_processes)
    failed = run.build_worlds(planned)
    for text in failed:
        click.echo(f"a world could not be built: {text}")
    if failed:
        sys.exit(1)
    run.run(planned)
    is_good = report(run, json_path or RUNS / "damage.json", seed, time.monotonic() - began_at)
    if is_good and not keep and not replay:
        shutil.rmtree(directory)
    sys.exit(0 if is_good else 1)


def report(run: Run, json_path: Path, seed: int, took_s: float) -> bool:
    """Print the table and the faults, and write all results as JSON; return whether all trials are good."""
    results = sorted(run.results, key=lambda one: one.number)
    json_path.parent.mkdir(parents=True, exist_ok=True)
    document = {"seed": seed, "trials": msgspec.to_builtins(results), "not_possible": dict(run.not_possible)}
    json_path.write_text(json.dumps(document, indent=1))
    click.echo(f"\n{table(results)}\n")
    faults = [result for result in results if result.outcome == Outcome.FAULT]
    for result in faults[:SHOWN_MAX]:
        click.echo(f"FAULT {result.cell}: {result.done}")
        for fault in result.faults:
            click.echo(f"      {fault.sort}: {fault.text}")
        click.echo(f"      {result.command}")
    if len(faults) > SHOWN_MAX:
        click.echo(f"and {len(faults) - SHOWN_MAX} FAULTs more: see {json_path}")
    click.echo(f"not possible: {sum(run.not_possible.values())} trials")
    outcomes = Counter(result.outcome for result in results)
    summary = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    click.echo(f"seed {seed}: {len(results)} trials in {took_s:.0f} s: {summary}; as JSON: {json_path}")
    return not faults


if __name__ == "__main__":
    main()
