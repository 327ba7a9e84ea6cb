"""A toy log whose archive is published to tables, and what must hold of these tables at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import duckdb
from spark_kit.listings import RowCounts
from spark_kit.table_readers import TABLE_READERS
from spark_kit.toy_log import HOUR_US, ToyLog
from spark_kit.toy_run import days_later_ms

from gantry_pipelines.archive.layout import day_of
from gantry_pipelines.archive.settings import TableParameters
from gantry_pipelines.archive.storage import Storage
from gantry_pipelines.archive.tables.model import TableRoot
from gantry_pipelines.archive.tables.publication import root_of
from gantry_spec.pipelines.parts import TableFormat
from pyspark_rocketmq.model import QueueId

QUEUES: Final = (QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1), QueueId("bills", "broker-b", 0))
LOG: Final = ToyLog({QUEUES[0]: 250, QUEUES[1]: 120, QUEUES[2]: 30}, step_us=HOUR_US // 20)
BEGINNING: Final = ToyLog({QUEUES[0]: 90, QUEUES[2]: 30}, step_us=LOG.step_us)
"""What the log has after a while."""

LAST_DAY: Final = "2026-11-23"
LATER_MS: Final = days_later_ms(LAST_DAY, 3)
BOTH: Final = TableParameters((TableFormat.ICEBERG, TableFormat.DELTA))


def all_rows(log: ToyLog = LOG) -> RowCounts:
    """Return every row of a log, once."""
    return Counter(
        (queue.topic, queue.broker, queue.number, offset, log.row(queue, offset)["body"])
        for queue, end in log.ends.items()
        for offset in range(end)
    )


def rows_of_day(day: str) -> RowCounts:
    """Return the rows of the log that were stored on a day."""
    found = all_rows()
    for queue, end in LOG.ends.items():
        for offset in range(end):
            row = LOG.row(queue, offset)
            if day_of(row["storeTime"], "UTC") != day:
                del found[(queue.topic, queue.broker, queue.number, offset, row["body"])]
    return found


def faults_of_tables(storage: Storage, wanted: RowCounts | None = None, *, links: bool = True) -> list[str]:
    """Return what is wrong with the tables, by each reader; with `wanted`, also which rows they lack."""
    found: list[str] = []
    topics = sorted({queue.topic for queue in LOG.ends})
    roots = [root_of(storage, topic) if links else _root_in_data(storage, topic) for topic in topics]
    for name, (seen, faults) in rows_of_tables(roots).items():
        found += [*faults, *(f"{name}: {fault}" for fault in row_faults(seen, wanted))]
    return found


def rows_of_tables(roots: Sequence[TableRoot]) -> dict[str, tuple[RowCounts, list[str]]]:
    """Return the rows that each reader finds in the newest snapshots of these tables, and what it cannot read."""
    found: dict[str, tuple[RowCounts, list[str]]] = {}
    for name, read in TABLE_READERS.items():
        seen: RowCounts = Counter()
        faults: list[str] = []
        for root in roots:
            try:
                seen += read(root)
            except (OSError, RuntimeError, duckdb.Error) as error:
                faults.append(f"{name}: {root.topic} cannot be read: {str(error).splitlines()[0]}")
        found[name] = seen, faults
    return found


def row_faults(seen: RowCounts, wanted: RowCounts | None, known: RowCounts | None = None) -> list[str]:
    """Describe duplicate, unknown and, with `wanted`, missing rows. `known` is the log, by default the toy log."""
    known = all_rows() if known is None else known
    strange = [row[:4] for row in seen if row not in known]
    doubled = [row[:4] for row, count in seen.items() if count > 1]
    missing = [] if wanted is None else [row[:4] for row in wanted if row not in seen]
    named = {"strange": strange, "doubled": doubled, "missing": missing}
    return [f"{len(rows)} {word}, {rows[0]}" for word, rows in named.items() if rows]


def _root_in_data(storage: Storage, topic: str) -> TableRoot:
    return TableRoot(topic, f"{storage}/data/topic={topic}")
