"""Runs the measurements of `make bench-spark`: fills a group, reads it in every way in turns, writes, and times sends.

Rows are read from the slave's files unless a way differs, as Parquet is read from files; the reader beside the sends
uses the slave's sidecar, as from another machine. One core runs the master and the sender; the other one runs the slave
and the reader, which has SCHED_IDLE and is stopped while sends are measured alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from gantry_bench import spark_figures as ways
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.machine import Cores, OtherWork, pin
from gantry_bench.processes import ROOT
from gantry_bench.spark_archive import archive, count_archived_rows
from gantry_bench.spark_figures import SendQuantiles, SparkReport, SparkScale, Way
from gantry_bench.spark_group import SINK_TOPIC, TOPIC, Group, fill, measure_latencies_ms, start_group
from gantry_bench.spark_repeated import RepeatedBatchSource
from gantry_bench.spark_tuples import TupleSource
from gantry_pipelines.archive.archived_topics import read_archived_topics
from gantry_pipelines.session import spark_session
from pyspark_rocketmq.schema import HEADER_COLUMNS

CORES: Final = 2
IDLE_S: Final = 5.0
READER_START_S: Final = 120.0
SLAVE_S: Final = 120.0
PARQUET: Final = "parquet"
ARCHIVE: Final = "archive"
HYBRID: Final = "archive-of-most"


def measure(scale: SparkScale, cores: Cores, folder: Path, report_progress: Callable[[str], None]) -> SparkReport:
    """Run the whole measurement and return its report."""
    before = _measure_other_cores()
    os.environ["PYTHONPATH"] = str(ROOT / "bench")  # Spark's workers import the reader of tuples from there
    with start_group(folder / "group") as source:
        spark = spark_session(
            "bench-spark",
            cores=CORES,
            conf={"spark.driver.memory": "3g", "spark.sql.parquet.compression.codec": "zstd"},
        )
        try:
            spark.dataSource.register(TupleSource)
            spark.dataSource.register(RepeatedBatchSource)
            fill_and_archive(spark, source, scale.rows, folder / HYBRID, report_progress)
            stored = sum(one.stat().st_blocks * 512 for one in (source.slave_store / "commitlog").iterdir())
            measured, wrong = _measure_ways(spark, source, scale, folder, report_progress)
            sinks = _measure_sinks(spark, source, scale, folder, report_progress)
        finally:
            spark.stop()
        alone, beside = _measure_sends(source, scale, folder, cores, report_progress)
        report = SparkReport(
            bytes_stored=stored,
            ways=measured + sinks,
            alone=alone,
            beside=beside,
            archive_bytes=_size(folder / ARCHIVE),
            parquet_bytes=_size(folder / PARQUET),
            rows_wrong=wrong,
            other_cores=0.0,
        )
    return _with_other_cores(report, max(before, _measure_other_cores()))


def _with_other_cores(report: SparkReport, cores: float) -> SparkReport:
    return msgspec.structs.replace(report, other_cores=cores)


def _measure_other_cores() -> float:
    with OtherWork() as work:
        time.sleep(IDLE_S)
    return work.cores


def fill_and_archive(
    spark: SparkSession, source: Group, rows: int, target: Path, report_progress: Callable[[str], None]
) -> None:
    """Send the messages, and archive `ARCHIVED_SHARE` of them."""
    archived = int(rows * ways.ARCHIVED_SHARE)
    report_progress(f"sending {rows:,} messages of 1 KiB")
    fill(source, archived)
    _wait_for_slave(spark, source, archived)
    report_progress("archiving nine tenths of them")
    if archive(source, target) != archived:
        raise BenchmarkFailed(f"expected {archived} messages in {target}")
    fill(source, rows, first=archived)
    _wait_for_slave(spark, source, rows)


def _wait_for_slave(spark: SparkSession, source: Group, rows: int) -> None:
    """Wait until the slave has this number of messages."""
    deadline = time.monotonic() + SLAVE_S
    while read_topic(spark, source, "file", columns="offset").count() != rows:
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"the slave does not have {rows} messages after {SLAVE_S} s")
        time.sleep(0.2)


# -- reading and writing files -----------------------------------------------------------------------------------------


def _measure_ways(
    spark: SparkSession, source: Group, scale: SparkScale, folder: Path, report_progress: Callable[[str], None]
) -> tuple[list[Way], int]:
    """Time each way to read or write the rows; return also how many rows were missing or too many. The first turn
    is not counted.

    The JVM compiles hot code during the first turn, while files of the log are still being written to the disk.
    """
    found: dict[str, list[float]] = {}
    parquet, archived = folder / PARQUET, folder / ARCHIVE

    def measure_way(name: str, work: Callable[[], object]) -> None:
        report_progress(name if turn else f"warming up: {name}")
        began = time.perf_counter()
        work()
        if turn:
            found.setdefault(name, []).append(time.perf_counter() - began)

    for turn in range(scale.repetitions + 1):
        for old in (parquet, archived):
            shutil.rmtree(old, ignore_errors=True)
        measure_way(ways.ALL, lambda: drain(read_topic(spark, source, "file")))
        measure_way(ways.PARQUET_WRITE, partial(write_parquet, spark, source, parquet))
        measure_way(ways.PARQUET_READ, partial(read_parquet, spark, parquet))
        measure_way(ways.HYBRID, lambda: drain(read_hybrid(spark, source, folder / HYBRID)))
        measure_way(ways.CEILING, lambda: drain(read_repeated(spark, source, scale.rows)))
        measure_way(ways.HEADERS, lambda: drain(read_topic(spark, source, "file", columns=",".join(HEADER_COLUMNS))))
        if turn:  # needs no warm-up, because it compiles no code of its own
            measure_way(ways.TUPLES, lambda: drain(read_tuples(spark, source)))
        measure_way(ways.ARCHIVE, partial(archive, source, archived))
        measure_way(ways.HTTP, lambda: drain(read_topic(spark, source, "http")))
        measure_way(ways.PULL, lambda: drain(read_topic(spark, source, "pull")))
    report_progress("counting")
    counts = [
        read_topic(spark, source, "file").count(), read_topic(spark, source, "http", columns="offset").count(),
        read_tuples(spark, source).count(), read_repeated(spark, source, scale.rows).count(),
        spark.read.parquet(str(parquet)).count(), count_archived_rows(archived),
        read_hybrid(spark, source, folder / HYBRID).count(),
    ]  # fmt: skip
    wrong = sum(abs(scale.rows - count) for count in counts)
    return [Way(name, scale.rows, seconds) for name, seconds in found.items()], wrong


def read_topic(spark: SparkSession, source: Group, transport: str, **options: str) -> DataFrame:
    """Read the topic by one transport."""
    return spark.read.format("rocketmq").options(**source.options(transport), **options).load()


def read_hybrid(spark: SparkSession, source: Group, archived: Path) -> DataFrame:
    """Read the topic from its archive, and what is not archived from the slave's files."""
    return read_archived_topics(spark, str(archived), **source.options("file"))


def read_tuples(spark: SparkSession, source: Group) -> DataFrame:
    """Read the topic by the reader of tuples."""
    options = {"store": str(source.slave_store), "topic": TOPIC, "broker": source.broker}
    return spark.read.format("rocketmq_tuples").options(**options).load()


def read_repeated(spark: SparkSession, source: Group, rows: int) -> DataFrame:
    """Read as many rows, all from one repeated batch."""
    return spark.read.format("rocketmq_repeated").options(**source.options("file"), rows=str(rows)).load()


def drain(frame: DataFrame) -> None:
    """Load every row into the JVM and discard it."""
    frame.write.format("noop").mode("overwrite").save()


def write_parquet(spark: SparkSession, source: Group, path: Path) -> None:
    """Write all columns with Spark's own writer."""
    read_topic(spark, source, "file").write.parquet(str(path))


def read_parquet(spark: SparkSession, path: Path) -> None:
    """Read all columns with Spark's own reader."""
    drain(spark.read.parquet(str(path)))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


# -- writing to a topic ------------------------------------------------------------------------------------------------


def _measure_sinks(
    spark: SparkSession, source: Group, scale: SparkScale, folder: Path, report_progress: Callable[[str], None]
) -> list[Way]:
    """Measure the sink, at-least-once and transactional, with rows that Spark holds in memory."""
    rows = spark.read.parquet(str(folder / PARQUET)).select("body", "tags", "keys").limit(scale.sink_rows)
    rows = rows.repartition(CORES * 2).cache()
    if rows.count() != scale.sink_rows:
        raise BenchmarkFailed("the rows for the sink are missing")
    measured = []
    for name, more in ((ways.SINK, {}), (ways.SINK_TRANSACTIONAL, {"transactional": "true"})):
        took = []
        for _ in range(scale.repetitions):
            report_progress(name)
            began = time.perf_counter()
            options = {"nameServers": source.name_server, "topic": SINK_TOPIC, **more}
            rows.write.format("rocketmq").options(**options).mode("append").save()
            took.append(time.perf_counter() - began)
        measured.append(Way(name, scale.sink_rows, took))
    return measured


# -- sends beside a reader ---------------------------------------------------------------------------------------------


def _measure_sends(
    source: Group, scale: SparkScale, folder: Path, cores: Cores, report_progress: Callable[[str], None]
) -> tuple[SendQuantiles, SendQuantiles]:
    """Measure sends to the master in turns: while Spark reads from the slave, and while it is stopped."""
    report_progress("sends beside a reader")
    for pid in source.pids(of_slave=True):
        pin(pid, cores.load)
    for pid in (os.getpid(), *source.pids(of_slave=False)):
        pin(pid, cores.server)
    took: dict[bool, list[float]] = {False: [], True: []}
    with start_reader(source, folder, cores.load) as process:
        measure_latencies_ms(source, scale.sends)
        for turn in range(scale.turns * 2):
            is_beside = turn % 2 == 1
            os.killpg(process.pid, signal.SIGCONT if is_beside else signal.SIGSTOP)
            took[is_beside] += measure_latencies_ms(source, scale.sends)
            if process.poll() is not None:
                raise BenchmarkFailed("the reader beside the sends has ended")
    return _quantiles("none", took[False]), _quantiles("Spark, from the slave", took[True])


def _quantiles(name: str, values: list[float]) -> SendQuantiles:
    cuts = quantiles(values, n=100)
    return SendQuantiles(reader=name, count=len(values), p50_ms=cuts[49], p99_ms=cuts[98])


@contextmanager
def start_reader(source: Group, folder: Path, core: int | None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process group that reads the topic repeatedly from the slave's sidecar."""
    ready_file = folder / "reading"
    log = (folder / "reader.log").open("wb")
    process = subprocess.Popen(
        [
            "chrt", "--idle", "0", sys.executable, str(ROOT / "bench" / "spark_reader.py"), str(source.folder),
            str(ready_file),
        ],
        stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + READER_START_S
        while not ready_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkFailed(f"the reader did not start: {(folder / 'reader.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGCONT)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()
