"""The sink in a session that all tests share, with a driver that fails where a test requests it.

Spark commits in a Python process that no test can reach, so the writer itself carries the failure: once, at a crash
point. A file records that it has failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.sink import crash_points
from pyspark_rocketmq.sink.options import parse
from pyspark_rocketmq.sink.writers import StreamWriter

POINT_OPTION = "failsAt"
FILE_OPTION = "failsIn"


class Failed(RocketMQSourceError):
    """The failure that the test has requested."""


@final
class FailingWriter(StreamWriter):
    """A writer whose commit fails once, at the n-th hit of a crash point: `one-ended:7`."""

    point = ""
    file = ""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit in the driver, and fail at the crash point."""
        name, _, count = self.point.partition(":")
        left = int(count or 1)

        def hit(point: str) -> None:
            nonlocal left
            left -= point == name
            if not left and not Path(self.file).exists():
                Path(self.file).touch()
                raise Failed(f"at {self.point}")

        before, crash_points.hit = crash_points.hit, hit
        try:
            super().commit(messages, batchId)
        finally:
            crash_points.hit = before


@final
class FailingSink(DataSource):
    """The data source for `format("failing-sink")`."""

    @classmethod
    def name(cls) -> str:
        return "failing-sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from pyspark_rocketmq.sink import parse_write

        options = {name: value for name, value in self.options.items() if name.lower() not in (POINT, FILE)}
        assert parse(options).is_transactional, "expected a transactional sink, whose commit has crash points"
        writer = FailingWriter(*parse_write(options, schema))
        writer.point, writer.file = self.options[POINT_OPTION], self.options[FILE_OPTION]
        return writer


POINT, FILE = POINT_OPTION.lower(), FILE_OPTION.lower()
