"""The results of tasks as table rows: for their transfer from workers to the driver, and for the table of findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from gantry_pipelines.audit.model import Check, Coverage, Finding, FindingKind, QueueRun, Row, Span

_COLUMNS: Final[dict[str, pa.DataType]] = {
    "broker": pa.string(), "replica": pa.int32(), "check": pa.string(), "kind": pa.string(), "topic": pa.string(),
    "queue": pa.int32(), "offset": pa.int64(), "physical": pa.int64(), "size": pa.int64(), "count": pa.int64(),
    "detail": pa.string(),
}  # fmt: skip
"""The columns of findings, with their types."""

FINDINGS: Final = pa.schema(_COLUMNS)
"""Columns of the table of findings; -1 in place of an unknown number."""

ROWS: Final = pa.schema(
    [
        pa.field("row", pa.string()), *FINDINGS, pa.field("end", pa.int64()), pa.field("units", pa.int64()),
        pa.field("compared", pa.int64()), pa.field("decoded", pa.int64()),
    ]
)  # fmt: skip
"""Columns of a task's results: findings, queue runs and coverage, which share columns; `row` has the type."""

ROWS_DDL: Final = (
    "row string, broker string, replica int, check string, kind string, topic string, queue int, offset bigint, "
    "physical bigint, size bigint, count bigint, detail string, end bigint, units bigint, compared bigint, "
    "decoded bigint"
)
"""The same columns as ``ROWS``, as Spark's DDL."""


def findings_table(findings: Iterable[Finding]) -> pa.Table:
    """Convert findings to a table."""
    return pa.Table.from_pylist([_finding_document(one) for one in findings], schema=FINDINGS)


def rows_batch(rows: Iterable[Row]) -> pa.RecordBatch:
    """Convert the results of one task to an Arrow batch."""
    return pa.RecordBatch.from_pylist([_row_document(row) for row in rows], schema=ROWS)


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Convert a table of `rows_batch` back to results."""
    for row in table.to_pylist():
        if row["row"] == "finding":
            yield Finding(
                row["broker"], row["replica"], Check(row["check"]), FindingKind(row["kind"]), row["topic"],
                row["queue"], row["offset"], row["physical"], row["size"], row["count"], row["detail"],
            )  # fmt: skip
        elif row["row"] == "run":
            yield QueueRun(row["broker"], row["topic"], row["queue"], row["offset"], row["end"], row["physical"])
        else:
            span = Span(row["physical"], row["end"])
            yield Coverage(
                row["broker"], span, row["count"], row["units"], row["compared"], row["decoded"], row["detail"]
            )


def _finding_document(one: Finding) -> dict[str, Any]:
    return {
        "broker": one.broker, "replica": one.replica, "check": one.check.value, "kind": one.kind.value,
        "topic": one.topic, "queue": one.queue, "offset": one.offset, "physical": one.physical, "size": one.size,
        "count": one.count, "detail": one.detail,
    }  # fmt: skip


def _row_document(row: Row) -> dict[str, Any]:
    if isinstance(row, Finding):
        return {"row": "finding", **_finding_document(row)}
    if isinstance(row, QueueRun):
        return {
            "row": "run", "broker": row.broker, "topic": row.topic, "queue": row.queue, "offset": row.begin,
            "end": row.end, "physical": row.physical,
        }  # fmt: skip
    return {
        "row": "coverage", "broker": row.broker, "physical": row.span.begin, "end": row.span.end, "count": row.records,
        "units": row.units, "compared": row.bytes_compared, "decoded": row.bytes_decoded, "detail": row.note,
    }  # fmt: skip
