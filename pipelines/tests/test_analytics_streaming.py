"""The end of the analytics' streaming queries, without Spark: which failures a run reports, and which it does not."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from gantry_pipelines.analytics.streaming import _WindowWriter, wait_for_end
from gantry_pipelines.analytics.tables import Tables
from gantry_pipelines.errors import JobError
from gantry_pipelines.reporting import Reporter


class FakeQuery:
    """A query that ends in its third poll, with an error or without; its methods behave as PySpark's do."""

    def __init__(self, name: str, error: str = "") -> None:
        self.name = name
        self.polls = 0
        self.error = StreamingQueryException(error) if error else None

    @property
    def isActive(self) -> bool:
        return self.polls < 3

    def awaitTermination(self, timeout: int) -> bool:
        assert timeout > 0, "PySpark refuses 0"
        self.polls += 1
        if not self.isActive and self.error is not None:
            raise self.error
        return not self.isActive

    def exception(self) -> StreamingQueryException | None:
        return None if self.isActive else self.error


def queries(*fakes: FakeQuery) -> list[StreamingQuery]:
    return cast("list[StreamingQuery]", list(fakes))


def test_first_failed_query_is_named() -> None:
    """The error that PySpark raises while it waits becomes the job's error, with its first line."""
    failed = FakeQuery("analytics_latency", "no space left\n\tat org.apache.spark")

    with pytest.raises(JobError, match=r"^query analytics_latency failed: no space left$") as caught:
        wait_for_end(queries(FakeQuery("analytics_queues"), failed), Reporter("analytics"))

    assert caught.value.reason == "QueryFailed"


def test_queries_that_end_without_error_are_no_failure() -> None:
    """After `availableNow` every query ends by itself."""
    both = [FakeQuery("analytics_queues"), FakeQuery("analytics_latency")]

    wait_for_end(queries(*both), Reporter("analytics"))

    assert not any(one.isActive for one in both)


def test_query_that_fails_because_it_is_stopped_is_no_failure() -> None:
    """Stopping a query interrupts its batch, which fails then."""
    reporter = Reporter("analytics")
    reporter.stop.request()

    wait_for_end(queries(FakeQuery("analytics_queues", "interrupted")), reporter)


def test_window_that_was_not_written_is_remembered() -> None:
    """The writer keeps the error, with which the run fails even if a stop was requested meanwhile."""

    class FullTables:
        def progress(self) -> dict[str, Any]:
            return {}

        def write(self, *_: object) -> int:
            raise OSError(28, "No space left on device")

    class Frame:
        def persist(self) -> None: ...

        def unpersist(self) -> None: ...

        def toArrow(self) -> Any:
            from gantry_pipelines.analytics.tables import TABLES

            schema = TABLES["latency"].schema
            return schema.empty_table().from_pylist([dict.fromkeys(schema.names)], schema=schema)

    writer = _WindowWriter(cast("Tables", FullTables()), Reporter("analytics"))
    write = writer.batch_function("latency", {"latency": lambda frame: frame})

    with pytest.raises(OSError, match="No space left"):
        write(cast("DataFrame", Frame()), 1)
    assert isinstance(writer.failure, OSError)
