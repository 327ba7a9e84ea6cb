"""Kills at random steps of archives that are published to tables, in folders and in an object store.

Each trial is a new archive. Runs of it are killed at a random crash point or moment: while files are written, or while
the manifest, the tables, a compaction or an expiry changes. Some tables keep no old snapshot. After each kill every
reader may find each row once at most. After the last run all of them must find exactly the rows of the log: pyiceberg,
deltalake and DuckDB in the tables, Spark, pyarrow and DuckDB in the files. Exit code 1 if one does not, with the
command that repeats the run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

TESTS: Final = Path(__file__).resolve().parent
ROOT: Final = TESTS.parents[1]
sys.path[:0] = [str(TESTS), str(ROOT / "operator/tests")]

from spark_kit.listings import COLUMNS, READERS, RowCounts  # noqa: E402 - found by the line above
from spark_kit.object_store import BUCKET, KEYS, ObjectStore  # noqa: E402
from spark_kit.table_trial import (  # noqa: E402
    BOTH,
    LAST_DAY,
    LATER_MS,
    LOG,
    all_rows,
    faults_of_tables,
    row_faults,
    rows_of_day,
)
from spark_kit.toy_run import ToyRun, days_later_ms  # noqa: E402

from gantry_pipelines.archive import crash_points  # noqa: E402
from gantry_pipelines.archive.object_storage import storage_of  # noqa: E402
from gantry_pipelines.archive.settings import SNAPSHOT_AGE_MS  # noqa: E402
from gantry_pipelines.session import spark_session  # noqa: E402
from gantry_testing.programs import object_store_program  # noqa: E402

RUNS: Final = ROOT / ".gantry"
KILLS_PER_ARCHIVE: Final = 5
KILLED: Final = (-signal.SIGKILL, -signal.SIGALRM)
FIRST_DAY_EXPIRED_MS: Final = days_later_ms("2026-11-22", 3)
FOLDER_POINTS: Final = crash_points.ALL
OBJECT_POINTS: Final = tuple(
    point for point in FOLDER_POINTS
    if point not in (crash_points.MID_MERGE, crash_points.AFTER_MERGE, crash_points.AFTER_EXCHANGE)
)  # fmt: skip
"""Files of an object store are not compacted."""


@dataclass
class Trials:
    """The state of a run: counters and findings."""

    folder: Path
    draw: random.Random
    spark: Any
    store: ObjectStore | None
    kills: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    archives: int = 0

    def run(self, kills: int) -> None:
        """Make archives until there were so many kills."""
        while self.kills.total() < kills and not self.findings:
            self.archives += 1
            in_store = self.store is not None and self.archives % 3 == 0
            self._trial(min(KILLS_PER_ARCHIVE, kills - self.kills.total()), in_store=in_store)
            click.echo(f"{self.kills.total()} kills of {self.archives} archives: {len(self.findings)} findings")

    def _trial(self, kills: int, *, in_store: bool) -> None:
        """Make one archive with so many kills, and compare what all readers find with the log."""
        name = f"archive-{self.archives}"
        address = self.store.address(name) if in_store and self.store is not None else ""
        toy_run = ToyRun(
            str(self.folder / name), LOG, destination=address, environment=KEYS if in_store else {},
            tables=replace(BOTH, snapshot_age_ms=self.draw.choice((0, SNAPSHOT_AGE_MS))),
        )  # fmt: skip
        wanted = all_rows()
        if self.draw.random() < 0.3:
            toy_run = replace(toy_run, expire_days=3, now_ms=FIRST_DAY_EXPIRED_MS)
            wanted = rows_of_day(LAST_DAY)
        storage = storage_of(address or toy_run.root)
        rows_max = self.draw.choice((70, 120, 200))
        for _ in range(kills):
            was_killed = False
            while not was_killed:
                victim, how = self._victim(replace(toy_run, rows_max=rows_max), in_store=in_store)
                code = victim.run_process()
                was_killed = code in KILLED
                if code and not was_killed:
                    self._find(name, how, [f"the run ended with {code}"])
                    return
                if not was_killed:  # it was too fast, or done: give it more to do
                    self._reset(toy_run)
            self.kills[how] += 1
            self._find(name, how, faults_of_tables(storage))
        last = toy_run if toy_run.expire_days else replace(toy_run, is_compacting=not in_store, now_ms=LATER_MS)
        code = last.run_process()
        faults = [f"the last run ended with {code}"] if code else faults_of_tables(storage, wanted)
        if not in_store:
            faults += [f"{reader}: {one}" for reader, read in self._listings().items()
                       for one in row_faults(read(Path(toy_run.root)), wanted)]  # fmt: skip
        self._find(name, "the last run", faults)
        if not self.findings:
            self._reset(toy_run)

    def _victim(self, toy_run: ToyRun, *, in_store: bool) -> tuple[ToyRun, str]:
        """Return a run that kills itself somewhere, and where."""
        if not toy_run.expire_days and not in_store and self.draw.random() < 0.5:
            toy_run = replace(toy_run, is_compacting=True, now_ms=LATER_MS)
        if self.draw.random() < 0.4:
            return replace(toy_run, kill_after_s=self.draw.uniform(0.02, 1.5)), "at a random moment"
        points = OBJECT_POINTS if in_store else FOLDER_POINTS
        if toy_run.expire_days and self.draw.random() < 0.5:
            points = (crash_points.MID_EXPIRY, crash_points.AFTER_TABLE)
        point = self.draw.choice(points)
        return replace(toy_run, crash_at=(point, self.draw.randint(1, 4))), point

    def _reset(self, toy_run: ToyRun) -> None:
        """Delete an archive with its checkpoint."""
        shutil.rmtree(toy_run.root, ignore_errors=True)
        shutil.rmtree(f"{toy_run.root}-checkpoint", ignore_errors=True)
        if toy_run.destination and self.store is not None:
            shutil.rmtree(self.store.folder / BUCKET / Path(toy_run.root).name, ignore_errors=True)

    def _find(self, name: str, how: str, faults: list[str]) -> None:
        self.findings += [f"{name}, killed {how}: {fault}" for fault in faults]

    def _listings(self) -> dict[str, Any]:
        return {**READERS, "spark": self._by_spark}

    def _by_spark(self, root: Path) -> RowCounts:
        frame = self.spark.read.parquet(f"{root}/data").selectExpr(*(f"`{name}`" for name in COLUMNS))
        return Counter((row[0], row[1], row[2], row[3], bytes(row[4])) for row in frame.collect())


@click.command()
@click.option("--kills", default=200, show_default=True, help="How many processes are killed.")
@click.option("--seed", type=int, help="Repeat the draws of a run.")
def main(kills: int, seed: int | None) -> None:
    """Kill archives with tables at random steps, and compare what all readers find with the log."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    click.echo(f"seed {seed}, {kills} kills")
    RUNS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="table-kills-", dir=RUNS))
    store = ObjectStore(folder / "store") if object_store_program() else None
    click.echo("object store: " + ("yes" if store else "not built; scripts/object-store builds it"))
    spark = spark_session("table-kills", cores=1)
    os.environ.update(KEYS)
    trials = Trials(folder, random.Random(seed), spark, store)
    try:
        if store is not None:
            store.start()
        trials.run(kills)
    finally:
        if store is not None:
            store.kill()
        spark.stop()
    for how, count in sorted(trials.kills.items()):
        click.echo(f"  {count:4} kills {how}")
    for finding in trials.findings:
        click.echo(f"FOUND {finding}")
    if trials.findings:
        raise click.ClickException(f"replay: scripts/table-kills --seed {seed} --kills {kills}; archives: {folder}")
    shutil.rmtree(folder)
    click.echo(
        f"{trials.kills.total()} kills of {trials.archives} archives: all readers found exactly the rows of the log"
    )


if __name__ == "__main__":
    main()
