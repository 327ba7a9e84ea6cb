"""Read topics from an archive and its brokers as one DataFrame: archived messages as Parquet, the others from brokers.

    manifest, read once --+
                          +-- plan -- files of `data` or `_tables` -- Spark's Parquet reader --+
    bounds of brokers ----+      \\                                                             +-- union
                                  +-- ranges of brokers ------------- tasks in Python ----------+

Spark reads Parquet in columns, and faster than any source in Python. So a query over a topic that is mostly archived is
about as fast as one over its Parquet files alone.

The plan is made when the DataFrame is created, and does not change: each execution of a query reads the same messages.
Files are read by their names, so a file that disappears is an error and never a gap. Compaction removes files that are
still planned; a plan therefore prefers the links of the archive's tables, which stay for a day.
"""

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from gantry_pipelines.archive.format import read_format
from gantry_pipelines.archive.layout import DATA
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.read_planning import FilePart
from gantry_pipelines.archive.remainder import FileSlice, Work, broker_works, file_works, remainder_frame
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_pipelines.archive.topics_planner import ArchivedTopicsPlanner, PlannedRead
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.options import ReadOptions, read_options
from pyspark_rocketmq.schema import ddl

PARTS_IN_FILTER_MAX: Final = 50
"""Files that are read in part by one scan: each needs a condition of its own."""

REQUIRED_FILES: Final = {"ignoreMissingFiles": False, "ignoreCorruptFiles": False}
"""Options that override the settings of a session: a planned file is never left out."""

GLOB_SIGN: Final = re.compile(r"[][{}*?\\]")
"""The signs of patterns in paths that Spark reads."""


def read_archived_topics(spark: SparkSession, archive: str, **options: object) -> DataFrame:
    """Return topics as one DataFrame, from an archive and, what is not archived, from brokers.

    `archive` is the folder or the address of an archive, and the options are those of `spark.read.format("rocketmq")`.
    The rows are those that the source would return if no message had ever been deleted from the brokers.

    Raises NoArchive, ManifestBroken, InvalidOption, NoReplica, Refused, DataLost, and LogForked.
    """
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    parsed = read_options(given, is_stream=False)
    storage = storage_of(archive)
    planner = ArchivedTopicsPlanner(storage, read_format(storage), parsed)
    with Catalog(parsed.settings) as catalog:
        read = planner.plan(catalog)
    return _data_frame(spark, storage, parsed, read)


def _data_frame(spark: SparkSession, storage: Storage, options: ReadOptions, read: PlannedRead) -> DataFrame:
    """Return the union of what is read from brokers and from files. What Spark reads slowest comes first."""
    works: list[Work] = [*broker_works(read.tasks, read.known)]
    frames: list[DataFrame] = []
    if isinstance(storage, Folder):
        frames = list(_parquet_frames(spark, storage, options, read))
    else:
        slices = [_file_slice(part, read.paths[part.file]) for part in read.plan.parts]
        works += file_works(storage, slices, options.columns, options.tags)
    if works or not frames:
        frames.insert(0, remainder_frame(spark, works, options.columns, options.settings))
    return reduce(DataFrame.union, frames)


def _file_slice(part: FilePart, path: str) -> FileSlice:
    file = part.file
    count = part.end - part.begin
    size_bytes = file.size_bytes * count // max(1, file.rows)
    return FileSlice(path, file.range.queue.topic, part.begin - file.range.begin, count, size_bytes)


def _parquet_frames(
    spark: SparkSession, storage: Folder, options: ReadOptions, read: PlannedRead
) -> Iterator[DataFrame]:
    """Yield DataFrames over files: those in `data` together, those elsewhere by topic; files read in part apart."""
    scans: dict[tuple[str, bool], list[FilePart]] = {}
    for part in read.plan.parts:
        is_in_data = read.paths[part.file] == part.file.place.path
        scans.setdefault(("" if is_in_data else part.file.range.queue.topic, part.is_whole), []).append(part)
    for (topic, is_whole), parts in sorted(scans.items()):
        step = len(parts) if is_whole else PARTS_IN_FILTER_MAX
        for first in range(0, len(parts), step):
            some = parts[first : first + step]
            frame = _scan(spark, storage, read.columns, topic, [read.paths[part.file] for part in some])
            if not is_whole:
                frame = frame.where(reduce(Column.__or__, map(_is_in_part, some)))
            if options.tags is not None:
                frame = frame.where(F.col("tags").isin(*sorted(options.tags)))
            yield frame.select(*options.columns)


def _scan(
    spark: SparkSession, storage: Folder, columns: tuple[str, ...], topic: str, paths: Sequence[str]
) -> DataFrame:
    """Return all columns of these files, which are of one topic, or in `data` (then `topic` is empty)."""
    reader = spark.read.options(**REQUIRED_FILES)
    schema = ddl(columns)
    addresses = [_address(storage, path) for path in paths]
    if not topic:
        folder = f"file://{Path(storage.root, DATA)}"
        return reader.option("basePath", folder).schema(f"{schema}, topic string, day string").parquet(*addresses)
    # The condition is true. It only makes the column nullable, as it is in the source.
    name = F.when(F.lit(True), F.lit(topic))
    return reader.schema(schema).parquet(*addresses).withColumn("topic", name)


def _is_in_part(part: FilePart) -> Column:
    queue = part.file.range.queue
    is_of_queue = (F.col("topic") == queue.topic) & (F.col("broker") == queue.broker) & (F.col("queue") == queue.number)
    return is_of_queue & (F.col("offset") >= part.begin) & (F.col("offset") < part.end)


def _address(storage: Folder, path: str) -> str:
    """Return the address of a file for Spark, which takes the signs of patterns literally after a backslash."""
    return f"file://{GLOB_SIGN.sub(lambda match: chr(92) + match[0], str(Path(storage.root, path)))}"
