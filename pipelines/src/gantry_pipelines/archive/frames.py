"""The frames that the archive hands to Spark, and what it makes of them: pure, so that they are tested as values.

No message is in them: the source gives one row for each file that a worker wrote.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from gantry_pipelines.archive.layout import Place
from gantry_pipelines.archive.manifest import ArchivedFile, Kind
from pyspark_rocketmq.model import QueueId, QueueRange

FILE_TYPES: Final = {
    "topic": "string",
    "broker": "string",
    "queue": "int",
    "begin": "bigint",
    "end": "bigint",
    "day": "string",
    "rows": "bigint",
    "bytes": "bigint",
    "checksum": "string",
    "firstTimeUs": "bigint",
    "lastTimeUs": "bigint",
    "kind": "string",
    "staged": "string",
}
FILE_SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, kind in FILE_TYPES.items())
_ARROW: Final = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
FILE_ARROW: Final = pa.schema([pa.field(name, _ARROW[kind]) for name, kind in FILE_TYPES.items()])


def transform(files: DataFrame) -> DataFrame:
    """One row for each file, those of a task by queue and offset.

    Nothing here may need a second look at the rows (a global sort samples them first): each look writes the files
    again."""
    return files.select(*FILE_TYPES).sortWithinPartitions("topic", "broker", "queue", "begin")


def row_of(file: ArchivedFile) -> dict[str, Any]:
    """A file as a row."""
    queue = file.range.queue
    return {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue": queue.number,
        "begin": file.range.begin,
        "end": file.range.end,
        "day": file.place.day,
        "rows": file.rows,
        "bytes": file.size_bytes,
        "checksum": file.checksum,
        "firstTimeUs": file.first_time_us,
        "lastTimeUs": file.last_time_us,
        "kind": file.kind.value,
        "staged": file.staged,
    }


def file_of(row: Mapping[str, Any]) -> ArchivedFile:
    """A row as a file."""
    queue = QueueId(row["topic"], row["broker"], row["queue"])
    return ArchivedFile(
        Place(QueueRange(queue, row["begin"], row["end"]), row["day"]),
        row["rows"],
        row["bytes"],
        row["checksum"],
        row["firstTimeUs"],
        row["lastTimeUs"],
        Kind(row["kind"]),
        row["staged"],
    )


def as_batch(files: Iterable[ArchivedFile]) -> pa.RecordBatch:
    """Files as Spark takes them."""
    return pa.RecordBatch.from_pylist([row_of(file) for file in files], schema=FILE_ARROW)
