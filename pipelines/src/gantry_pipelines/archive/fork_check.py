"""Check that the log of a broker still has the messages that an archive has: that no fork lies below the archived end.

The last archived message of each queue is compared with the broker's message at the same offset. A log is written from
its begin to its end, so if the two are the same message at the same place of the log, everything before it is the same,
too. After a fork below it, or if the topic was created again, another message is there, or none.

A broker that has deleted the last archived message cannot be compared: then only the offsets have to meet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from gantry_pipelines.archive.manifest import ArchivedFile, RangeKind
from gantry_pipelines.archive.storage import Storage
from pyspark_rocketmq.errors import DataLost, LogForked
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange, Replica, Task
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.settings import ReadSettings

COLUMNS: Final = ("messageId", "physicalOffset", "size", "storeTime")
"""The columns that identify a message; all archives have them."""

FILES_AT_A_TIME: Final = 16
"""How many files are opened at the same time, because an object store answers slowly."""

ADVICE: Final = "keep this archive, and start a new one"
"""The remedy in the errors of forks."""


@final
@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message as the archive has it."""

    queue: QueueId
    offset: int
    identity: tuple[Any, ...]
    """The values of `COLUMNS`; the time is in microseconds since 1970."""


def comparable_files(
    live: Mapping[QueueId, Sequence[ArchivedFile]], bounds: Mapping[QueueId, Bounds], queues: Iterable[QueueId]
) -> list[ArchivedFile]:
    """Return the last file of each of these queues, if its last message is still at the broker."""
    found: list[ArchivedFile] = []
    for queue in sorted(queues):
        last = [file for file in live[queue] if file.kind is RangeKind.DATA][-1]
        if queue in bounds and bounds[queue].begin <= last.range.end - 1 < bounds[queue].end:
            found.append(last)
    return found


def last_messages(
    storage: Storage, files: Sequence[ArchivedFile], path_of: Callable[[ArchivedFile], str]
) -> list[KnownMessage]:
    """Return the last message of each of these files. Raises FileNotFoundError."""

    def read(file: ArchivedFile) -> KnownMessage:
        with storage.open(path_of(file)) as opened, pq.ParquetFile(opened) as parquet:
            group = parquet.read_row_group(parquet.num_row_groups - 1, columns=["offset", *COLUMNS])
        [(offset, identity)] = _identities(group.slice(group.num_rows - 1).to_batches())
        assert offset == file.range.end - 1, f"expected offset {file.range.end - 1} at the end of {file.place.path}"
        return KnownMessage(file.range.queue, offset, identity)

    if not files:
        return []
    with ThreadPoolExecutor(min(FILES_AT_A_TIME, len(files))) as pool:
        return list(pool.map(read, files))


def check_not_forked(known: Sequence[KnownMessage], replicas: tuple[Replica, ...], settings: ReadSettings) -> None:
    """Raise LogForked if a broker has another message at the offset of one of these; deleted ones are skipped.

    All of them are of the broker of these replicas.
    """
    if not known:
        return
    wanted = sorted(known, key=lambda one: one.queue)
    task = Task(
        broker=wanted[0].queue.broker,
        replicas=replicas,
        transport=settings.transport,
        ranges=tuple(QueueRange(one.queue, one.offset, one.offset + 1) for one in wanted),
        columns=("topic", "queue", "offset", *COLUMNS),
    )
    try:
        batches = list(read_task(task, settings))
    except DataLost:
        return
    compare_messages(wanted, batches)


def compare_messages(known: Sequence[KnownMessage], batches: Sequence[pa.RecordBatch]) -> None:
    """Raise LogForked unless the broker's messages are the known ones. Batches may lack some of them."""
    expected = {(one.queue.topic, one.queue.number): one for one in known}
    for batch in batches:
        topics, numbers = batch.column("topic").to_pylist(), batch.column("queue").to_pylist()
        for topic, number, (offset, identity) in zip(topics, numbers, _identities([batch]), strict=True):
            one = expected[str(topic), int(str(number))]
            if (offset, identity) != (one.offset, one.identity):
                raise LogForked(
                    f"{one.queue}: the log has message {identity[0]} at offset {one.offset}, but the archive has"
                    f" {one.identity[0]}: the log has forked, or the topic was created again; {ADVICE}"
                )


def _identities(batches: Sequence[pa.RecordBatch]) -> list[tuple[int, tuple[Any, ...]]]:
    """Return offset and identity of each row."""
    rows: list[tuple[int, tuple[Any, ...]]] = []
    for batch in batches:
        columns = [
            batch.column(name).cast(pa.int64()).to_pylist() if name == "storeTime" else batch.column(name).to_pylist()
            for name in COLUMNS
        ]
        offsets: list[Any] = batch.column("offset").to_pylist()
        rows += list(zip(offsets, zip(*columns, strict=True), strict=True))
    return rows
