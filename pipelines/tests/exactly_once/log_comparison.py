"""Read the log with an ordinary consumer, and compare the archive with it by several readers.

The log is pulled and decoded by `gantry_client`; the archive's source decodes by code of its own, and reads from the
sidecars if it can. The log becomes a Parquet file (queue, offset, body), the `log_file` of each comparison. pyarrow,
DuckDB and Spark read the archive, and compare all rows with this file in both directions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from exactly_once.load import number_of

from gantry_client.sync import PullConsumer

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("queue", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("body", pa.binary()),
]
SCHEMA: Final = pa.schema(_FIELDS)
PULL: Final = 256
CHUNK: Final = 50_000


def read_log(name_server: str, topic: str, path: Path) -> tuple[int, set[int]]:
    """Write all messages of a topic to a file; return their number, and the numbers in their verified bodies."""
    numbers: set[int] = set()
    count = 0
    with PullConsumer(name_server, "ExactlyOnceTruth") as consumer, pq.ParquetWriter(path, SCHEMA) as parquet:
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            assert offset == 0, f"messages of {queue} have expired"
            rows: list[dict[str, Any]] = []
            while offset < end:
                result = consumer.fetch(queue, offset, messages_max=PULL)
                for message in result.messages:
                    numbers.add(number_of(message.body))
                    rows.append({"queue": queue.queue_id, "offset": message.queue_offset, "body": message.body})
                offset = result.next_offset
                if len(rows) >= CHUNK or offset >= end:
                    parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
                    count, rows = count + len(rows), []
    return count, numbers


def compare_with_pyarrow(root: Path, log_file: Path) -> list[str]:
    """Describe the difference between the archive, read with pyarrow, and the log; empty if they are equal."""
    partitions = ds.partitioning(pa.schema([("topic", pa.string()), ("day", pa.string())]), flavor="hive")
    archive: Any = ds.dataset(str(root / "data"), format="parquet", partitioning=partitions)
    order: Any = [("queue", "ascending"), ("offset", "ascending"), ("body", "ascending")]
    seen = archive.to_table(columns=["queue", "offset", "body"]).sort_by(order).combine_chunks()
    log = pq.read_table(log_file).sort_by(order).combine_chunks()
    if seen.equals(log):
        return []
    return [f"pyarrow sees {seen.num_rows} rows, the log has {log.num_rows}, and they are not the same"]


def compare_with_duckdb(root: Path, log_file: Path) -> list[str]:
    """Describe the difference between the archive, read with DuckDB, and the log; empty if they are equal."""
    connection = duckdb.connect()
    try:
        connection.execute("SET threads=1")
        seen = f"SELECT queue, \"offset\", body FROM read_parquet('{root}/data/**/*.parquet')"
        log = f"SELECT queue, \"offset\", body FROM read_parquet('{log_file}')"
        counts = [
            connection.execute(f"SELECT count(*) FROM ({query})").fetchall()[0][0]
            for query in (seen, log, f"{seen} EXCEPT ALL {log}", f"{log} EXCEPT ALL {seen}")
        ]
    finally:
        connection.close()
    rows, wanted, more, fewer = counts
    if rows == wanted and not more and not fewer:
        return []
    return [f"DuckDB sees {rows} rows, the log has {wanted}; {more} are too many and {fewer} are missing"]


def compare_with_spark(root: Path, log_file: Path) -> list[str]:
    """Describe the difference between the archive, read with Spark, and the log; empty if they are equal."""
    from gantry_pipelines import spark_session

    session = spark_session("exactly-once", cores=1, conf={"spark.driver.memory": "1g"})
    try:
        seen = session.read.parquet(str(root / "data")).select("queue", "offset", "body")
        log = session.read.parquet(str(log_file)).select("queue", "offset", "body")
        rows, wanted = seen.count(), log.count()
        more, fewer = seen.exceptAll(log).count(), log.exceptAll(seen).count()
    finally:
        session.stop()
    if rows == wanted and not more and not fewer:
        return []
    return [f"Spark sees {rows} rows, the log has {wanted}; {more} are too many and {fewer} are missing"]
