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

from exactly_once import log_comparison  # noqa: E402 - found by the line above
from exactly_once.job_process import MERGE_POINTS, JobProcess, KillKind, Plan, plans  # noqa: E402
from exactly_once.listing_watcher import ListingWatcher, name_faults  # noqa: E402
from local_group_kit import FREE_PORTS, Group  # noqa: E402

from gantry_pipelines.archive.manifest_reader import read_manifest  # noqa: E402
from gantry_pipelines.archive.storage import Folder  # noqa: E402
from gantry_pipelines.archive.verification import verify  # noqa: E402

RUNS: Final = ROOT / ".gantry"
TOPIC: Final = "exactly-once"
RUN_TIMEOUT_S: Final = 3600.0
DAY_MS: Final = 24 * 3600 * 1000
LONG_TIMEOUTS: Final = {
    "spark.python.authenticate.socketTimeout": "10m",
    "spark.network.timeout": "30m",
    "spark.executor.heartbeatInterval": "5m",
}
"""Long timeouts: on a machine with two busy cores a Python worker may need minutes to start."""
BROKER_DOWN: Final = "30s"
"""How long a killed broker stays down before it is started again."""


@final
@dataclass
class Run:
    """The state of one run: its processes, counters and findings."""

    folder: Path
    group: Group
    messages: int
    draw: random.Random
    findings: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Number of runs, kills and listings by their description, which is printed at the end."""

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
            "engine": {
                "cores": plan.cores,
                "sparkConf": LONG_TIMEOUTS | {"spark.local.dir": str(self.folder / "spark")},
            },
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

    def start(self, plan: Plan, *words: str) -> JobProcess:
        """Start the job as planned. `words` are further arguments of `crashing_archive`."""
        given = ["--conf", str(self.conf(plan)), "--task-bytes", str(plan.task_bytes), *words]
        if plan.kind is KillKind.POINT:
            given += ["--driver", f"{plan.point}:{plan.times}"]
        if plan.kind is KillKind.WORKER_POINT:
            given += ["--worker", f"{plan.point}:{plan.times}"]
        return JobProcess(given, self.folder / "archive.log", self.kills_file)

    def run_plan(self, plan: Plan) -> None:
        """Run the job, kill it as planned, and check a listing of the archive."""
        kills_before, left = self.recorded_kills(), self.staged()
        process = self.start(plan)
        try:
            is_killed = self._kill(process, plan, left)
            code = process.wait(RUN_TIMEOUT_S)
        finally:
            process.kill_rest()
        is_killed = is_killed or self.recorded_kills() > kills_before
        self.kills += is_killed
        self.killed_runs += is_killed
        self.counts["runs that were not killed" if plan.kind is KillKind.NONE else
                 f"killed: {plan.kind}" if is_killed else "ended before its kill"] += 1  # fmt: skip
        if code != 0 and not is_killed:
            self.findings.append(f"{plan}: ended with {code} without a kill: {process.tail()}")
        self.findings += [f"after {plan}: {fault}" for fault in name_faults(self.archive)]
        print_line(f"  {plan}: {'killed' if is_killed else 'not killed'}, exit {code}; {self.records()} records")

    def _kill(self, process: JobProcess, plan: Plan, left: frozenset[str]) -> bool:
        if plan.kind is KillKind.EARLY:
            process.until(lambda: self.writer() == process.pid, RUN_TIMEOUT_S)
            if process.is_over():
                return False
            process.kill_all()
            return True
        if plan.kind not in (KillKind.ALL, KillKind.DRIVER, KillKind.JVM, KillKind.WORKER):
            return False
        if not process.until(lambda: bool(self.staged() - left), RUN_TIMEOUT_S):
            return False
        time.sleep(self.draw.random() * 0.5)  # anywhere in a batch
        match plan.kind:
            case KillKind.ALL:
                process.kill_all()
            case KillKind.DRIVER:
                process.kill_driver()
            case KillKind.JVM:
                return process.kill_jvm()
            case KillKind.WORKER:
                return process.kill_worker()
        return True

    def fail_over(self) -> None:
        """Kill the broker while a run is inside a batch; the run must continue and end with 0."""
        plan = Plan(KillKind.NONE, rows_max=max(1, self.messages // 10))
        left = self.staged()
        process = self.start(plan)
        try:
            is_inside = process.until(lambda: bool(self.staged() - left), RUN_TIMEOUT_S)
            [(name, epoch)] = self.group.masters().values()
            self.group.run_command("kill", name, "--down", BROKER_DOWN)
            self.group.wait_until(lambda: any(one[1] > epoch for one in self.group.masters().values()), RUN_TIMEOUT_S)
            code = process.wait(RUN_TIMEOUT_S)
        finally:
            process.kill_rest()
        self.kills += 1
        self.counts["killed: the broker, with a failover" + (" inside a batch" if is_inside else "")] += 1
        if code != 0:
            self.findings.append(f"a failover ended the archive with {code}: {process.tail()}")
        self.group.wait_until(self.group.is_healthy, RUN_TIMEOUT_S)
        print_line(f"  the broker {name} was killed, and another took over; the archive ended with {code}")

    def lose_checkpoint(self) -> None:
        """Delete the checkpoint, as if its volume were lost."""
        shutil.rmtree(self.archive / "_checkpoint")
        self.counts["a lost checkpoint"] += 1
        print_line("  the checkpoint is deleted")

    def compact(self) -> None:
        """Compact all files, with a kill at each step, while readers list the archive."""
        now_ms = int(time.time() * 1000) + 3 * DAY_MS
        rows = sum(file.rows for file in read_manifest(Folder(str(self.archive))).data())
        with ListingWatcher(self.archive, rows) as watcher:
            for point in MERGE_POINTS:
                kills_before = self.recorded_kills()
                words = ["--merge-only", "--merge-at", str(now_ms)]
                process = self.start(Plan(KillKind.POINT, point), *words)
                code = process.wait(RUN_TIMEOUT_S)
                process.kill_rest()
                is_killed = self.recorded_kills() > kills_before
                self.kills += is_killed
                self.counts["killed: a compaction" if is_killed else "a compaction that had nothing to do"] += 1
                if code and not is_killed:
                    self.findings.append(f"a compaction ended with {code}: {process.tail()}")
                print_line(f"  compaction, {point}: {'killed' if is_killed else 'not killed'}, exit {code}")
            process = self.start(Plan(KillKind.NONE), "--merge-only", "--merge-at", str(now_ms))
            code = process.wait(RUN_TIMEOUT_S)
            if code:
                self.findings.append(f"the last compaction ended with {code}: {process.tail()}")
        self.findings += watcher.findings
        self.counts["whole listings beside a compaction"] += watcher.listings
        print_line(f"  {watcher.listings} whole listings beside it, {watcher.listed_again} that had to list again")


def exit_on_sigterm(_number: int, _frame: FrameType | None) -> None:
    """Exit on SIGTERM, so that brokers are stopped."""
    sys.exit(1)


def print_line(text: str) -> None:
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
        print_line(f"{int(line)} sends were acknowledged")


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
    signal.signal(signal.SIGTERM, exit_on_sigterm)
    seed = random.randrange(1 << 32) if seed is None else seed
    RUNS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="exactly-once-", dir=RUNS))
    group = Group(folder / "group")
    began_s = time.monotonic()
    print_line(f"seed {seed}, {messages} messages, {kills} kills, in {folder}")
    group.up(*FREE_PORTS)
    try:
        run = Run(folder, group, messages, random.Random(seed))
        run_plans(run, kills)
        judge(run)
    finally:
        group.down()
    click.echo(f"  {run.kills:>5}  kills in all")
    if run.killed_runs < kills:
        run.findings.append(f"only {run.killed_runs} runs were killed, which proves too little: try another seed")
    for what, count in sorted(run.counts.items()):
        click.echo(f"  {count:>5}  {what}")
    print_line(f"{time.monotonic() - began_s:.0f} s")
    if run.findings:
        for finding in run.findings[:20]:
            click.echo(f"FOUND {finding}")
        click.echo(f"kept in {folder}; again: scripts/exactly-once --messages {messages} --kills {kills} --seed {seed}")
        sys.exit(1)
    if not keep:
        shutil.rmtree(folder)
    click.echo("each message once, for every reader")


def run_plans(run: Run, kills: int) -> None:
    """Send messages, and run and kill the archive job. Each run finds new messages, and more arrive meanwhile."""
    those = plans(run.draw, kills, run.messages)
    steps: list[Callable[[], None]] = [functools.partial(run.run_plan, plan) for plan in those]
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
    run.run_plan(Plan(KillKind.NONE, cores=1, rows_max=run.messages))
    run.compact()
    run.run_plan(Plan(KillKind.NONE))


def judge(run: Run) -> None:
    """Compare the archive with the log by all readers, and verify it."""
    log = run.folder / "log.parquet"
    rows, numbers = log_comparison.read_log(run.group.name_server, TOPIC, log)
    lines = (run.folder / "acknowledged").read_text().split()
    acknowledged = {int(line) for line in lines}
    print_line(f"the log has {rows} messages, {len(numbers)} different ones; {len(acknowledged)} were acknowledged")
    if len(acknowledged) < run.messages:
        run.findings.append(f"only {len(acknowledged)} sends were acknowledged")
    if rows != len(numbers):
        run.findings.append("the log has messages twice, so that this run proves nothing")
    if acknowledged - numbers:
        run.findings.append(f"{len(acknowledged - numbers)} acknowledged messages are not in the log")
    for name, compare in {
        "pyarrow": log_comparison.compare_with_pyarrow,
        "DuckDB": log_comparison.compare_with_duckdb,
        "Spark": log_comparison.compare_with_spark,
    }.items():
        found = compare(run.archive, log)
        run.findings += found
        print_line(f"  {name}: {'; '.join(found) or f'{rows} rows, all bodies equal to the log'}")
    verdict = verify(Folder(str(run.archive)), is_deep=True)
    run.findings += [str(finding) for finding in verdict.findings]
    print_line(f"  verify --deep: {verdict.text()}")


if __name__ == "__main__":
    main()
