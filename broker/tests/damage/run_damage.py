"""The damage run: every kind of file of a store, damaged in every way, with clients that know what they have sent.

Exit code 0 when every trial that was possible ended in one of four good outcomes; 1 with at least one FAULT, and for
each its evidence and the command that repeats it, and 1 if a template could not be built.
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

from damage.damage_kinds import DamageKind, NotPossible
from damage.file_kinds import FileKind
from damage.observed_run import load_observed_run, observed_run_path
from damage.plan import BrokerState, Combination, Stop, TemplateKind, Trial, combinations, plan, trial_of
from damage.process_run import run_broker_processes
from damage.processes_of_trials import ForkPool, ProcessEnd, Work, run_all
from damage.sabotage_of_trials import Sabotage
from damage.shard import Setup
from damage.template import build_template
from damage.trial import DAMAGE_TEXT, judged, prepare_trial, run_broker
from damage.verdict import Fault, FaultKind, Outcome, Verdict

from gantry_testing.slowness import patience
from gantry_wire.structs import make_structs_ready

ROOT: Final = Path(__file__).resolve().parents[3]
RUNS: Final = ROOT / ".gantry"
MEMORY: Final = Path("/dev/shm")
TRIALS: Final = len(combinations())
"""Default number of trials: each combination once."""
SLICE_SEED: Final = 20
SLICE_TRIALS: Final = 60
"""Seed and number of the trials that are among the tests."""
PROCESS_COMBINATIONS: Final = (
    (FileKind.LOG_NEWEST, DamageKind.MISSING, Stop.CLEAN, BrokerState.STOPPED),
    (FileKind.LOG_MIDDLE, DamageKind.FLIPPED, Stop.CLEAN, BrokerState.STOPPED),
    (FileKind.LOG_MIDDLE, DamageKind.TRUNCATED, Stop.UNCLEAN, BrokerState.STOPPED),
    (FileKind.LOG_FIRST, DamageKind.FLIPPED, Stop.CLEAN, BrokerState.RUNNING),
    (FileKind.QUEUE, DamageKind.SWAPPED, Stop.UNCLEAN, BrokerState.STOPPED),
    (FileKind.LOG_MIDDLE, DamageKind.MISSING, Stop.UNCLEAN, BrokerState.STOPPED),
)
"""The trials with processes: losses, a flipped bit before the start and under the broker, a truncated file, a queue."""
RUN_TIMEOUT_S: Final = 60.0
"""How long one run of the broker in a trial may take, on a fast machine."""
SHOWN_MAX: Final = 60
"""How many FAULTs are printed."""
PROGRESS_TRIALS: Final = 200
"""After so many trials a line of progress is printed."""


class Result(msgspec.Struct, frozen=True):
    """A trial with its verdict."""

    number: int
    combination: str
    done: str
    """What the damage was, and to which file."""
    outcome: str
    faults: list[Fault]
    notes: list[str]
    command: str
    """The command that repeats the trial."""


@final
class DamageRun:
    """One damage run: many trials, in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        jobs: int,
        *,
        keeps: bool,
        sabotage: Sabotage = Sabotage.NONE,
        has_processes: bool = False,
    ) -> None:
        self.directory: Final = directory
        self.results: list[Result] = []
        self.not_possible: Counter[str] = Counter()
        self._seed: Final = seed
        self._jobs: Final = jobs
        self._keeps: Final = keeps
        self._sabotage: Final = sabotage
        self._run_broker: Final = run_broker_processes if has_processes else run_broker
        self._option: Final = "--processes " if has_processes else ""
        self._templates: Final = directory / "templates"
        self._ended: dict[str, ProcessEnd] = {}

    def build_templates(self, trials: Sequence[Trial]) -> list[str]:
        """Build the templates from which trials begin; return the failures."""
        works = []
        for kind in sorted({trial.template for trial in trials}):
            for is_foreign in (False, True):
                folder = self._templates / kind.folder_name(is_foreign=is_foreign)
                folder.mkdir(parents=True)
                build = partial(_build, folder, kind, self._seed + is_foreign)
                works.append(Work(folder.name, build, folder.with_suffix(".log")))
        return run_all(works, self._jobs, patience(RUN_TIMEOUT_S * 2))

    def run(self, trials: Sequence[Trial]) -> None:
        """Run all trials; the results are in `results`, the trials that were not possible in `not_possible`."""
        chains = (self._chain(trial) for trial in trials)
        ForkPool(self._jobs, patience(RUN_TIMEOUT_S)).run(chains, self._run_ended)

    def _run_ended(self, name: str, how: ProcessEnd) -> None:
        self._ended[name] = how

    def _chain(self, trial: Trial) -> Iterator[Work]:
        """Yield the processes of one trial, one after the other; the verdict follows at the end."""
        folder = self.directory / f"trial-{trial.number}"
        folder.mkdir()
        output = folder / "output.log"
        try:
            prepare_trial(trial, self._templates, folder)
        except NotPossible as error:
            self.not_possible[f"{trial.combination.file_kind} {trial.combination.damage}: {error}"] += 1
            shutil.rmtree(folder)
            return
        faults: list[Fault] = []
        notes: list[str] = []
        for number in (1, 2):
            name = f"{trial.number}/{number}"
            yield Work(name, partial(self._run_broker, trial, self._templates, folder, number), output)
            how = self._ended.pop(name)
            if how.is_late:
                faults.append(
                    Fault(FaultKind.HUNG, f"run {number} did not end in {RUN_TIMEOUT_S:.0f} s, more on a slow machine")
                )
                break
            if how.code == 1:
                text = lines_of(output)
                if text and "NotPossible" in text[-1]:
                    self.not_possible[f"{trial.combination.file_kind} {trial.combination.damage}: {text[-1]}"] += 1
                    shutil.rmtree(folder)
                    return
                faults.append(Fault(FaultKind.BROKEN, f"run {number}: {_last_words(text)}"))
                break
            if how.code not in (0, -9):
                run = load_observed_run(folder, number)
                run.ended_by = f"signal {-how.code}"
                observed_run_path(folder, number).write_bytes(msgspec.msgpack.encode(run))
                notes.append(f"run {number} was ended by signal {-how.code}")
        verdict_path = folder / "verdict.json"
        yield Work(f"{trial.number}/judge", partial(_judge, folder, verdict_path, self._sabotage), output)
        self._ended.pop(f"{trial.number}/judge")
        if verdict_path.exists():
            verdict = msgspec.json.decode(verdict_path.read_bytes(), type=Verdict)
        else:
            tail = lines_of(output)[-1:]
            verdict = Verdict(Outcome.FAULT, [Fault(FaultKind.BROKEN, f"the judge failed: {tail}")])
        outcome = Outcome.FAULT if faults else verdict.outcome
        done = (folder / DAMAGE_TEXT).read_text() if (folder / DAMAGE_TEXT).exists() else "not damaged"
        self.results.append(
            Result(
                trial.number, trial.combination.name, done, outcome, [*faults, *verdict.faults],
                [*notes, *verdict.notes], replay_command(trial, self._option),
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


def _build(folder: Path, kind: TemplateKind, seed: int) -> None:
    asyncio.run(build_template(folder, kind, seed))


def _judge(folder: Path, path: Path, sabotage: Sabotage) -> None:
    path.write_bytes(msgspec.json.encode(judged(folder, sabotage)))


def replay_command(trial: Trial, option: str = "") -> str:
    """Return the command that repeats one trial alone."""
    return f"scripts/damage {option}--seed {trial.seed} --replay '{trial.number}:{trial.combination.name}'"


def table(results: Sequence[Result]) -> str:
    """Return the table of outcomes by kind of file and kind of damage."""
    names = {Outcome.COMPLETE: "c", Outcome.REPORTED: "r", Outcome.HEALED: "h", Outcome.REFUSED: "x"}
    counted: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        kind, damage = result.combination.split("/")[:2]
        counted.setdefault((kind, damage), Counter())[result.outcome] += 1
    width = 22
    lines = ["kind".ljust(24) + "".join(str(damage).ljust(width) for damage in DamageKind)]
    for kind in FileKind:
        columns = []
        for damage in DamageKind:
            counts = counted.get((kind, damage), Counter())
            text = " ".join(f"{counts[name]}{letter}" for name, letter in names.items() if counts[name])
            if counts[Outcome.FAULT]:
                text = f"{text} {counts[Outcome.FAULT]} FAULT".strip()
            columns.append((text or "-").ljust(width))
        if any(column.strip() != "-" for column in columns):
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
        Combination(kind, damage, stop, broker, Setup.ALONE)
        for kind, damage, stop, broker in PROCESS_COMBINATIONS[:count]
    ]  # fmt: skip
    trials = [trial_of(seed, number, combination) for number, combination in enumerate(chosen)]
    return [msgspec.structs.replace(trial, has_write_buffers=False) for trial in trials]


def parse_replay(text: str, seed: int) -> Trial:
    """Parse ``NUMBER:KIND/DAMAGE/STOP/BROKER/SETUP`` of a trial."""
    number, _, name = text.partition(":")
    try:
        kind, how, stop, broker, setup = name.split("/")
        combination = Combination(FileKind(kind), DamageKind(how), Stop(stop), BrokerState(broker), Setup(setup))
        return trial_of(seed, int(number), combination)
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
    help="Only combinations with all these words: a kind of file, a damage, clean, unclean, running, stopped, a setup.",
)  # fmt: skip
@click.option("--replay", metavar="TRIAL", help="Repeat one trial, as a FAULT names it, and keep its files.")
@click.option(
    "--slice", "is_slice", is_flag=True,
    help="The fixed trials that are among the tests; --trials, --seed, --only and --replay have no effect.",
)  # fmt: skip
@click.option(
    "--sabotage", type=click.Choice([one.value for one in Sabotage]), default="none", show_default=True,
    help="Falsify the result of each trial before it is judged, to see the judge find a FAULT.",
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
            planned = process_trials(seed, min(trials, len(PROCESS_COMBINATIONS)))
            planned = [one for one in planned if replay in (None, f"{one.number}:{one.combination.name}")]
    if not planned:
        raise click.UsageError("no trial fits these options")
    began_at = time.monotonic()
    base = MEMORY if MEMORY.is_dir() else RUNS
    directory = Path(tempfile.mkdtemp(prefix="gantry-damage-", dir=base))
    click.echo(f"seed {seed}, {len(planned)} trials, {jobs} at a time, in {directory}")
    make_structs_ready()  # Brokers in these processes have threads, as in a broker's own process.
    run = DamageRun(
        directory,
        seed,
        jobs,
        keeps=keep or replay is not None,
        sabotage=Sabotage(sabotage),
        has_processes=has_processes,
    )
    failed = run.build_templates(planned)
    for text in failed:
        click.echo(f"a template could not be built: {text}")
    if failed:
        sys.exit(1)
    run.run(planned)
    is_good = report(run, json_path or RUNS / "damage.json", seed, time.monotonic() - began_at)
    if is_good and not keep and not replay:
        shutil.rmtree(directory)
    sys.exit(0 if is_good else 1)


def report(run: DamageRun, json_path: Path, seed: int, took_s: float) -> bool:
    """Print the table and the faults, and write all results as JSON; return whether all trials are good."""
    results = sorted(run.results, key=lambda one: one.number)
    json_path.parent.mkdir(parents=True, exist_ok=True)
    document = {"seed": seed, "trials": msgspec.to_builtins(results), "not_possible": dict(run.not_possible)}
    json_path.write_text(json.dumps(document, indent=1))
    click.echo(f"\n{table(results)}\n")
    faults = [result for result in results if result.outcome == Outcome.FAULT]
    for result in faults[:SHOWN_MAX]:
        click.echo(f"FAULT {result.combination}: {result.done}")
        for fault in result.faults:
            click.echo(f"      {fault.kind}: {fault.text}")
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
