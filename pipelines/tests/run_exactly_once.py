"""The exactly-once run: archive messages while all processes are killed, then compare the archive with the log.

Exit code 0 if the archive equals the log for Spark, pyarrow and DuckDB, and nothing else was found; otherwise 1, with
the findings and the command that repeats the run."""

from __future__ import annotations

import functools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Self, final

import click

TESTS: Final = Path(__file__).resolve().parent
ROOT: Final = TESTS.parents[1]
sys.path[:0] = [str(TESTS), str(ROOT / "operator/tests")]

from exactly_once import truth  # noqa: E402 - found by the line above
from exactly_once.listing_watcher import ListingWatcher, name_faults  # noqa: E402
from exactly_once.lives import MERGE_POINTS, Death, Life, Plan, plans  # noqa: E402
from local_group_kit import FREE_PORTS, Group  # noqa: E402

from gantry_pipelines.archive.manifest_reader import read_manifest  # noqa: E402
from gantry_pipelines.archive.storage import Folder  # noqa: E402
from gantry_pipelines.archive.verification import verify  # noqa: E402

RUNS: Final = ROOT / ".gantry"
TOPIC: Final = "exactly-once"
LIFE_TIMEOUT_S: Final = 3600.0
DAY_MS: Final = 24 * 3600 * 1000
PATIENT: Final = {
    "spark.python.authenticate.socketTimeout": "10m",
    "spark.network.timeout": "30m",
    "spark.executor.heartbeatInterval": "5m",
}
"""Long timeouts: on a machine with two busy cores a Python worker may need minutes to start."""
BROKER_DOWN: Final = "30s"


@final
@dataclass
class Run:
    """The state of one run: its processes, counters and findings."""

    folder: Path
    group: Group
    messages: int
    draw: random.Random
    findings: list[str] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    """Number of SIGKILLs of runs, brokers and compactions."""

    killed_runs: int = 0

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    @property
    def kills_file(self) -> Path:
        return self.folder / "kills"

    def recorded_kills(self) -> int:
        """Return the number of kills that processes recorded before killing themselves."""
        return len(self.kills_file.read_text().split()) if self.kills_file.exists() else 0

    def records(self) -> int:
        """Return the number of records in the manifest."""
        return len(list(self.archive.glob("_manifest/records/*/*.json")))

    def staged(self) -> frozenset[str]:
        """Return the staged files, including those of killed processes."""
        return frozenset(path.name for path in self.archive.glob("_staged/*.part"))

    def writer(self) -> int:
        """Return the process that holds the lock, or held it last; 0 if there was none."""
        try:
            return int(json.loads((self.archive / "_manifest/writer.json").read_text())["process"])
        except FileNotFoundError:
            return 0

    def conf(self, plan: Plan) -> Path:
        """Write the configuration of a run, and return its path."""
        token = self.folder / "token"
        token.write_text(self.group.state.token())
        document = {
            "topics": {"include": [TOPIC]},
            "limits": {"maxRowsPerTrigger": plan.rows_max},
            "layout": {"rowsPerFile": max(1000, self.messages // 100), "compactAfter": "0s"},
            "engine": {"cores": plan.cores, "sparkConf": PATIENT | {"spark.local.dir": str(self.folder / "spark")}},
            "runtime": {
                "nameServers": self.group.record.addresses,
                "sidecars": [one.sidecar_url for one in self.group.record.members],
                "tokenFiles": {"*": str(token)},
                "destination": str(self.archive),
                "once": True,
            },
        }
        path = self.folder / "archive.json"
        path.write_text(json.dumps(document))
        return path

    def begin(self, plan: Plan, *words: str) -> Life:
        """Start a run as planned."""
        given = ["--conf", str(self.conf(plan)), "--task-bytes", str(plan.task_bytes), *words]
        if plan.death is Death.POINT:
            given += ["--driver", f"{plan.point}:{plan.times}"]
        if plan.death is Death.WORKER_POINT:
            given += ["--worker", f"{plan.point}:{plan.times}"]
        return Life(given, self.folder / "archive.log", self.kills_file)

    def live(self, plan: Plan) -> None:
        """Run the job, kill it as planned, and check a listing of the archive."""
        kills_before, left = self.recorded_kills(), self.staged()
        life = self.begin(plan)
        try:
            is_killed = self._kill(life, plan, left)
            code = life.wait(LIFE_TIMEOUT_S)
        finally:
            life.end()
        is_killed = is_killed or self.recorded_kills() > kills_before
        self.kills += is_killed
        self.killed_runs += is_killed
        self.met["runs that were not killed" if plan.death is Death.NONE else
                 f"killed: {plan.death}" if is_killed else "ended before its kill"] += 1  # fmt: skip
        if code != 0 and not is_killed:
            self.findings.append(f"{plan}: ended with {code} without a kill: {life.tail()}")
        self.findings += [f"after {plan}: {fault}" for fault in name_faults(self.archive)]
        say(f"  {plan}: {'killed' if is_killed else 'not killed'}, exit {code}; {self.records()} records")

    def _kill(self, life: Life, plan: Plan, left: frozenset[str]) -> bool:
        if plan.death is Death.EARLY:
            life.until(lambda: self.writer() == life.pid, LIFE_TIMEOUT_S)
            if life.is_over():
                return False
            life.kill_all()
            return True
        if plan.death not in (Death.ALL, Death.DRIVER, Death.JVM, Death.WORKER):
            return False
        if not life.until(lambda: bool(self.staged() - left), LIFE_TIMEOUT_S):
            return False
        time.sleep(self.draw.random() * 0.5)  # anywhere in a batch
        match plan.death:
            case Death.ALL:
                life.kill_all()
            case Death.DRIVER:
                life.kill_driver()
            case Death.JVM:
                return life.kill_jvm()
            case Death.WORKER:
                return life.kill_worker()
        return True

    def fail_over(self) -> None:
        """Kill the broker while a run is inside a batch; the run must continue and end with 0."""
        plan = Plan(Death.NONE, rows_max=max(1, self.messages // 10))
        left = self.staged()
        life = self.begin(plan)
        try:
            is_inside = life.until(lambda: bool(self.staged() - left), LIFE_TIMEOUT_S)
            [(name, epoch)] = self.group.masters().values()
            self.group.run_command("kill", name, "--down", BROKER_DOWN)
            self.group.wait_until(lambda: any(one[1] > epoch for one in self.group.masters().values()), LIFE_TIMEOUT_S)
            code = life.wait(LIFE_TIMEOUT_S)
        finally:
            life.end()
        self.kills += 1
        self.met["killed: the broker, with a failover" + (" inside a batch" if is_inside else "")] += 1
        if code != 0:
            self.findings.append(f"a failover ended the archive with {code}: {life.tail()}")
        self.group.wait_until(self.group.is_healthy, LIFE_TIMEOUT_S)
        say(f"  the broker {name} was killed, and another took over; the archive ended with {code}")

    def lose_checkpoint(self) -> None:
        """Delete the checkpoint, as if its volume were lost."""
        shutil.rmtree(self.archive / "_checkpoint")
        self.met["a lost checkpoint"] += 1
        say("  the checkpoint is deleted")

    def compact(self) -> None:
        """Compact all files, with a kill at each step, while readers list the archive."""
        now_ms = int(time.time() * 1000) + 3 * DAY_MS
        rows = sum(file.rows for file in read_manifest(Folder(str(self.archive))).data())
        with ListingWatcher(self.archive, rows) as watcher:
            for point in MERGE_POINTS:
                kills_before = self.recorded_kills()
                words = ["--merge-only", "--merge-at", str(now_ms)]
                life = self.begin(Plan(Death.POINT, point), *words)
                code = life.wait(LIFE_TIMEOUT_S)
                life.end()
                is_killed = self.recorded_kills() > kills_before
                self.kills += is_killed
                self.met["killed: a compaction" if is_killed else "a compaction that had nothing to do"] += 1
                if code and not is_killed:
                    self.findings.append(f"a compaction ended with {code}: {life.tail()}")
                say(f"  compaction, {point}: {'killed' if is_killed else 'not killed'}, exit {code}")
            life = self.begin(Plan(Death.NONE), "--merge-only", "--merge-at", str(now_ms))
            code = life.wait(LIFE_TIMEOUT_S)
            if code:
                self.findings.append(f"the last compaction ended with {code}: {life.tail()}")
        self.findings += watcher.findings
        self.met["whole listings beside a compaction"] += watcher.listings
        say(f"  {watcher.listings} whole listings beside it, {watcher.listed_again} that had to list again")


def end_well(_number: int, _frame: FrameType | None) -> None:
    """Exit on SIGTERM, so that brokers are stopped."""
    sys.exit(1)


def say(text: str) -> None:
    """Print one line with the time."""
    click.echo(f"{time.strftime('%H:%M:%S')} {text}")


@final
class Sender:
    """The producer's process, which sends on request."""

    def __init__(self, run: Run) -> None:
        words = ["--name-server", run.group.name_server, "--topic", TOPIC]
        words += ["--acknowledged", str(run.folder / "acknowledged")]
        self._log: Final = (run.folder / "load.log").open("wb")
        self._process: Final = subprocess.Popen(
            [sys.executable, "-m", "exactly_once.load", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=TESTS, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def ask(self, total: int) -> None:
        """Request that the producer sends until `total` messages are acknowledged; `wait` waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{total}\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Wait until the requested messages are acknowledged."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the producer ended with {self._process.wait()}, see {self._log.name}"
        say(f"{int(line)} sends were acknowledged")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", default=1_000_000, show_default=True, help="How many sends must be acknowledged.")
@click.option("--kills", default=22, show_default=True, help="How many runs of the job are to be killed.")
@click.option("--seed", type=int, help="Seed of the plan: what is killed, in which order. Random by default.")
@click.option("--keep", is_flag=True, help="Keep stores, logs and archive also when nothing was found.")
def main(messages: int, kills: int, seed: int | None, keep: bool) -> None:
    """Archive a topic while all processes are killed, and compare the archive with the log.

    A group of real brokers takes messages and an archive job writes them to Parquet, again and again. Its driver, its
    JVM and its workers are killed inside batches, before them, and between any two steps of archiving a file; the
    broker is killed twice, with a failover; each run that is killed has random cores, sizes and limits; the
    checkpoint is lost once. Then the files are compacted, with a kill at each step, while readers list them. In the end
    the archive must have every acknowledged message, and Spark, pyarrow and DuckDB must read each message of the log
    once.

    \b
    Examples:
      scripts/exactly-once
      scripts/exactly-once --messages 20000 --kills 5
      scripts/exactly-once --seed 7 --keep
    """
    signal.signal(signal.SIGTERM, end_well)
    seed = random.randrange(1 << 32) if seed is None else seed
    RUNS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="exactly-once-", dir=RUNS))
    group = Group(folder / "group")
    began_s = time.monotonic()
    say(f"seed {seed}, {messages} messages, {kills} kills, in {folder}")
    group.up(*FREE_PORTS)
    try:
        run = Run(folder, group, messages, random.Random(seed))
        live(run, kills)
        judge(run)
    finally:
        group.down()
    click.echo(f"  {run.kills:>5}  kills in all")
    if run.killed_runs < kills:
        run.findings.append(f"only {run.killed_runs} runs were killed, which proves too little: try another seed")
    for what, count in sorted(run.met.items()):
        click.echo(f"  {count:>5}  {what}")
    say(f"{time.monotonic() - began_s:.0f} s")
    if run.findings:
        for finding in run.findings[:20]:
            click.echo(f"FOUND {finding}")
        click.echo(f"kept in {folder}; again: scripts/exactly-once --messages {messages} --kills {kills} --seed {seed}")
        sys.exit(1)
    if not keep:
        shutil.rmtree(folder)
    click.echo("each message once, for every reader")


def live(run: Run, kills: int) -> None:
    """Send, archive, kill. Each run finds new messages, and more arrive while it is active."""
    those = plans(run.draw, kills, run.messages)
    steps: list[Callable[[], None]] = [functools.partial(run.live, plan) for plan in those]
    steps.insert(len(those) // 2, run.lose_checkpoint)
    for index in (2 * len(those) // 3, len(those) // 3):
        steps.insert(index, run.fail_over)
    shares = [run.messages * number // (len(steps) + 1) for number in range(1, len(steps) + 2)]
    with Sender(run) as sender:
        sender.ask(shares[0])
        for step, share in zip(steps, shares[1:], strict=True):
            sender.wait()
            sender.ask(share)
            step()
        sender.wait()
    run.live(Plan(Death.NONE, cores=1, rows_max=run.messages))
    run.compact()
    run.live(Plan(Death.NONE))


def judge(run: Run) -> None:
    """Compare the archive with the log by all readers, and verify it."""
    log = run.folder / "log.parquet"
    rows, numbers = truth.read_log(run.group.name_server, TOPIC, log)
    lines = (run.folder / "acknowledged").read_text().split()
    acknowledged = {int(line) for line in lines}
    say(f"the log has {rows} messages, {len(numbers)} different ones; {len(acknowledged)} were acknowledged")
    if len(acknowledged) < run.messages:
        run.findings.append(f"only {len(acknowledged)} sends were acknowledged")
    if rows != len(numbers):
        run.findings.append("the log has messages twice, so that this run proves nothing")
    if acknowledged - numbers:
        run.findings.append(f"{len(acknowledged - numbers)} acknowledged messages are not in the log")
    for name, compare in {"pyarrow": truth.by_pyarrow, "DuckDB": truth.by_duckdb, "Spark": truth.by_spark}.items():
        found = compare(run.archive, log)
        run.findings += found
        say(f"  {name}: {'; '.join(found) or f'{rows} rows, all bodies equal to the log'}")
    verdict = verify(Folder(str(run.archive)), is_deep=True)
    run.findings += [str(finding) for finding in verdict.findings]
    say(f"  verify --deep: {verdict.text()}")


if __name__ == "__main__":
    main()
