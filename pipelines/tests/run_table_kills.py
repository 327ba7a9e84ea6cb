"""Kills at random steps of archives that are published to tables, in folders and in an object store.

Each trial is a new archive. Runs of it are killed at a random crash point or moment: while files are written, or while
the manifest, the tables, a compaction or an expiry changes. Some tables keep no old snapshot. Some archives are of the
shipped job with real brokers and Spark (`driver_trial`), the others of its writer without Spark, which is faster.

After each kill every reader may find each row once at most. After the last run of an archive all readers must find
exactly the rows of the log: pyiceberg, deltalake and DuckDB in the tables, Spark and pyarrow in the files, and `verify`
must find no fault. It prints the kills by kind, and the rows by reader. Exit code 1 if one differs, with the command
that repeats the run."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

TESTS: Final = Path(__file__).resolve().parent
ROOT: Final = TESTS.parents[1]
sys.path[:0] = [str(TESTS), str(ROOT / "operator/tests")]

from exactly_once.driver_trial import DriverTrial  # noqa: E402 - found by the line above
from spark_kit.listings import COLUMNS, READERS, RowCounts  # noqa: E402
from spark_kit.object_store import BUCKET, KEYS, ObjectStore  # noqa: E402
from spark_kit.processes import Group, group  # noqa: E402
from spark_kit.table_trial import (  # noqa: E402
    BOTH,
    LAST_DAY,
    LATER_MS,
    LOG,
    all_rows,
    faults_of_tables,
    rows_of_day,
    rows_of_tables,
)
from spark_kit.toy_run import ToyRun, days_later_ms  # noqa: E402

from gantry_pipelines.archive import crash_points  # noqa: E402
from gantry_pipelines.archive.object_storage import storage_of  # noqa: E402
from gantry_pipelines.archive.settings import SNAPSHOT_AGE_MS  # noqa: E402
from gantry_pipelines.archive.storage import Storage  # noqa: E402
from gantry_pipelines.archive.tables.publication import root_of  # noqa: E402
from gantry_pipelines.archive.tables.table_verification import verify_tables  # noqa: E402
from gantry_pipelines.archive.verification import verify  # noqa: E402
from gantry_pipelines.session import spark_session  # noqa: E402
from gantry_testing.programs import object_store_program  # noqa: E402

RUNS: Final = ROOT / ".gantry"
KILLS_PER_ARCHIVE: Final = 5
DEADLINE_S: Final = 1800.0
"""How long a run without Spark may take on a busy machine."""
FOLDER, STORE = "folder", "object store"
DRIVER: Final = "driver of the job"
MOMENT: Final = "random moment"
KINDS: Final = {
    **dict.fromkeys((crash_points.BEFORE_TABLE, crash_points.AFTER_TABLE), "publication"),
    **dict.fromkeys((crash_points.MID_MERGE, crash_points.AFTER_MERGE, crash_points.AFTER_EXCHANGE), "compaction"),
    **dict.fromkeys((crash_points.MID_EXPIRY, crash_points.MID_DELETION), "expiry or deletion"),
}
"""The kind of a kill of the writer by its crash point; the other points are those of a batch."""
KILLED: Final = (-signal.SIGKILL, -signal.SIGALRM)
FIRST_DAY_EXPIRED_MS: Final = days_later_ms("2026-11-22", 3)
FOLDER_POINTS: Final = tuple(point for point in crash_points.ALL if point != crash_points.AFTER_SCHEMAS)
"""These archives have no declared schemas."""
OBJECT_POINTS: Final = tuple(
    point for point in FOLDER_POINTS
    if point not in (crash_points.MID_MERGE, crash_points.AFTER_MERGE, crash_points.AFTER_EXCHANGE)
)  # fmt: skip
"""Files of an object store are not compacted."""


@dataclass
class Trials:
    """The state of a run: counters and findings."""

    folder: Path
    seed: int
    spark: Any
    store: ObjectStore | None
    group: Group | None
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kills by kind and place."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows of all archives after their last runs, of the log and of each reader."""
    differences: Counter[str] = field(default_factory=Counter)
    """Rows in which a reader differs from the log."""
    findings: list[str] = field(default_factory=list)
    archives: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    _driven: DriverTrial | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a counter or the findings change."""

    def run(self, kills: int, driver_kills: int) -> None:
        """Make archives until there were so many kills, of which so many are kills of the job's driver.

        A thread makes those of the job, which mostly wait for Spark.
        """
        with ThreadPoolExecutor(1) as pool:
            driven = pool.submit(self._drive_all, driver_kills)
            try:
                self._try_all(kills - driver_kills)
                driven.result()
            finally:
                self.is_over.set()
                if self._driven is not None:
                    self._driven.stop()

    def _try_all(self, kills: int) -> None:
        done = 0
        for number in itertools.count(1):
            if done >= kills or self.findings:
                return
            count = min(KILLS_PER_ARCHIVE, kills - done)
            self._trial(f"archive-{number}", count, in_store=self.store is not None and number % 3 == 0)
            done += count
            self._print_progress()

    def _drive_all(self, kills: int) -> None:
        done = 0
        for number in itertools.count(1):
            if done >= kills or self.findings or self.is_over.is_set():
                return
            count = min(KILLS_PER_ARCHIVE, kills - done)
            self._drive(f"driven-{number}", count, in_store=self.store is not None and number % 2 == 0)
            done += count
            self._print_progress()

    def _print_progress(self) -> None:
        with self._lock:
            self.archives += 1
            click.echo(f"{self.kills.total()} kills of {self.archives} archives: {len(self.findings)} findings")

    def _drive(self, name: str, kills: int, *, in_store: bool) -> None:
        """Make one archive with the shipped job, with so many kills of its driver."""
        assert self.group is not None, "expected brokers for kills of the job"
        place = STORE if in_store else FOLDER
        address = self.store.address(name) if in_store and self.store is not None else ""
        trial = DriverTrial(self.folder / name, self.group, name, self._draw_for(name), address)
        self._driven = trial
        for _ in range(kills):
            point, faults = trial.kill()
            if self.is_over.is_set():
                return
            self._find(name, f"the driver, {point}" if point else "a run", faults)
            if not point:
                return
            self._count(DRIVER, place)
            click.echo(f"  {name} in a {place}: killed the driver, {point}")
            if faults:
                return
        faults = trial.finish()
        if self.is_over.is_set():
            return
        self._find(name, "in the last run", faults)
        if not faults:
            self._compare(name, storage_of(trial.address), [trial.topic], trial.log())

    def _trial(self, name: str, kills: int, *, in_store: bool) -> None:
        """Make one archive with so many kills, and compare what all readers find with the log."""
        place, draw = STORE if in_store else FOLDER, self._draw_for(name)
        address = self.store.address(name) if in_store and self.store is not None else ""
        toy_run = ToyRun(
            str(self.folder / name), LOG, destination=address, environment=KEYS if in_store else {},
            tables=replace(BOTH, snapshot_age_ms=draw.choice((0, SNAPSHOT_AGE_MS))),
        )  # fmt: skip
        wanted = all_rows()
        if draw.random() < 0.3:
            toy_run = replace(toy_run, expire_days=3, now_ms=FIRST_DAY_EXPIRED_MS)
            wanted = rows_of_day(LAST_DAY)
        storage = storage_of(address or toy_run.root)
        rows_max = draw.choice((70, 120, 200))
        for _ in range(kills):
            was_killed = False
            while not was_killed:
                victim, how = _victim_of(replace(toy_run, rows_max=rows_max), draw, in_store=in_store)
                code = victim.run_process(DEADLINE_S)
                was_killed = code in KILLED
                if code and not was_killed:
                    self._find(name, how, [f"the run ended with {code}"])
                    return
                if not was_killed:  # it was too fast, or done: give it more to do
                    self._reset(toy_run)
            self._count(KINDS.get(how, MOMENT if how == MOMENT else "batch"), place)
            self._find(name, how, faults_of_tables(storage))
        last = toy_run if toy_run.expire_days else replace(toy_run, is_compacting=not in_store, now_ms=LATER_MS)
        code = last.run_process(DEADLINE_S)
        self._find(name, "in the last run", [f"it ended with {code}"] if code else [])
        if not code:
            self._compare(name, storage, sorted({queue.topic for queue in LOG.ends}), wanted)
        if not self.findings:
            self._reset(toy_run)

    def _compare(self, name: str, storage: Storage, topics: list[str], wanted: RowCounts) -> None:
        """Compare the rows of all readers with the log, and verify the archive and its tables."""
        seen = rows_of_tables([root_of(storage, topic) for topic in topics])
        faults = [fault for _, found in seen.values() for fault in found]
        readers = {reader: rows for reader, (rows, _) in seen.items()}
        # Spark has no library of either format yet, and no connector to S3: it reads the live files, in a store where
        # the server keeps them.
        root = Path(str(storage)) if storage.is_folder else self._bucket_folder(name)
        readers["spark (live files)"] = self._by_spark(root)
        if storage.is_folder:
            readers |= {f"{reader} (live files)": read(root) for reader, read in READERS.items()}
        with self._lock:
            self.rows["log"] += wanted.total()
        for reader, rows in readers.items():
            extra, lacking = (rows - wanted).total(), (wanted - rows).total()
            with self._lock:
                self.rows[reader] += rows.total()
                self.differences[reader] += extra + lacking
            if extra or lacking:
                faults.append(f"{reader} finds {rows.total()} rows: {extra} too many, {lacking} of the log are missing")
        faults += [f"verify: {one}" for one in verify(storage, is_deep=True).findings]
        faults += [f"verify: {one}" for one in verify_tables(storage, BOTH).findings]
        self._find(name, "in the last run", faults)

    def _reset(self, toy_run: ToyRun) -> None:
        """Delete an archive with its checkpoint."""
        shutil.rmtree(toy_run.root, ignore_errors=True)
        shutil.rmtree(f"{toy_run.root}-checkpoint", ignore_errors=True)
        if toy_run.destination and self.store is not None:
            shutil.rmtree(self._bucket_folder(Path(toy_run.root).name), ignore_errors=True)

    def _bucket_folder(self, name: str) -> Path:
        """Return the folder in which the server of the object store keeps an archive."""
        assert self.store is not None
        return self.store.folder / BUCKET / name

    def _draw_for(self, name: str) -> random.Random:
        """Return the draws of one archive, which do not depend on those of others."""
        return random.Random(f"{self.seed} {name}")

    def _count(self, kind: str, place: str) -> None:
        with self._lock:
            self.kills[kind, place] += 1

    def _find(self, name: str, how: str, faults: list[str]) -> None:
        with self._lock:
            self.findings += [f"{name}, {how}: {fault}" for fault in faults]

    def _by_spark(self, root: Path) -> RowCounts:
        """Read the live files with Spark; a topic may have none."""
        if not any((root / "data").glob("topic=*/day=*/*.parquet")):
            return Counter()
        columns = [f"`{name}`" for name in COLUMNS]
        frame = self.spark.read.parquet(f"{root}/data").selectExpr(*columns)
        return Counter((row[0], row[1], row[2], row[3], bytes(row[4])) for row in frame.collect())

    def report(self) -> Iterator[str]:
        """Yield the lines of the result: kills by kind and place, rows by reader, findings."""
        yield f"{'kills of':<28}{FOLDER:>14}{STORE:>14}"
        for kind in sorted({kind for kind, _ in self.kills}):
            yield f"  {kind:<26}{self.kills[kind, FOLDER]:>14}{self.kills[kind, STORE]:>14}"
        places = [sum(count for (_, at), count in self.kills.items() if at == place) for place in (FOLDER, STORE)]
        yield f"  {'all':<26}{places[0]:>14}{places[1]:>14}"
        yield f"{'reader':<28}{'rows':>14}{'differences':>14}"
        for reader, rows in sorted(self.rows.items(), key=lambda item: (item[0] != "log", item[0])):
            yield f"  {reader:<26}{rows:>14}{self.differences[reader]:>14}"
        yield "  Spark 4.3 has no library of Iceberg or Delta yet, and reads the live files in `data`"
        yield "  pyarrow and duckdb read the live files of archives in folders only"


def _victim_of(toy_run: ToyRun, draw: random.Random, *, in_store: bool) -> tuple[ToyRun, str]:
    """Return a run that kills itself somewhere, and where."""
    if not toy_run.expire_days and not in_store and draw.random() < 0.5:
        toy_run = replace(toy_run, is_compacting=True, now_ms=LATER_MS)
    if draw.random() < 0.4:
        return replace(toy_run, kill_after_s=draw.uniform(0.02, 1.5)), MOMENT
    points = OBJECT_POINTS if in_store else FOLDER_POINTS
    if toy_run.expire_days and draw.random() < 0.5:
        points = (crash_points.MID_EXPIRY, crash_points.AFTER_TABLE, crash_points.MID_DELETION)
    point = draw.choice(points)
    return replace(toy_run, crash_at=(point, draw.randint(1, 4))), point


@click.command()
@click.option("--kills", default=200, show_default=True, help="How many processes are killed.")
@click.option("--driver-kills", default=20, show_default=True, help="How many of them run the job with Spark.")
@click.option("--seed", type=int, help="Repeat the draws of a run.")
def main(kills: int, driver_kills: int, seed: int | None) -> None:
    """Kill archives with tables at random steps, and compare what all readers find with the log."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    click.echo(f"seed {seed}, {kills} kills, {driver_kills} of the job's driver")
    RUNS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="table-kills-", dir=RUNS))
    store = ObjectStore(folder / "store") if object_store_program() else None
    click.echo("object store: " + ("yes" if store else "not built; scripts/object-store builds it"))
    os.environ.update(KEYS)
    is_stopped = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        spark = spark_session("table-kills", cores=1)
        stack.callback(spark.stop)
        if store is not None:
            stack.callback(store.kill)
            store.start()
        brokers = stack.enter_context(group(folder / "brokers")) if driver_kills else None
        trials = Trials(folder, seed, spark, store, brokers)
        try:
            trials.run(kills, min(kills, driver_kills))
        except KeyboardInterrupt:
            click.echo(f"stopped after {trials.kills.total()} of {kills} kills")
            is_stopped = True
        finally:
            for line in trials.report():
                click.echo(line)
    for finding in trials.findings:
        click.echo(f"FOUND {finding}")
    if trials.findings:
        again = f"scripts/table-kills --seed {seed} --kills {kills} --driver-kills {driver_kills}"
        raise click.ClickException(f"replay: {again}; archives: {folder}")
    shutil.rmtree(folder)
    if is_stopped:
        raise click.ClickException("stopped before the last kill")
    click.echo(
        f"{trials.kills.total()} kills of {trials.archives} archives: all readers found exactly the rows of the log"
    )


if __name__ == "__main__":
    main()
