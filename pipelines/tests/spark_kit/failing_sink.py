"""The sink in a session that all tests share, with a driver that fails where a test says so.

Spark commits in a Python process that no test can reach, so the writer itself takes the failure along: once, at a named
point of its work, counted in a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.sink import points
from pyspark_rocketmq.sink.options import parse
from pyspark_rocketmq.sink.writers import StreamWriter

POINT_OPTION = "failsAt"
FILE_OPTION = "failsIn"


class Failed(RocketMQSourceError):
    """As the test has ordered."""


@final
class FailingWriter(StreamWriter):
    """Fails once in its commit, at the n-th time that it comes to a point: `one-ended:7`."""

    point = ""
    file = ""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver."""
        name, _, count = self.point.partition(":")
        left = int(count or 1)

        def reach(point: str) -> None:
            nonlocal left
            left -= point == name
            if not left and not Path(self.file).exists():
                Path(self.file).touch()
                raise Failed(f"at {self.point}")

        before, points.reach = points.reach, reach
        try:
            super().commit(messages, batchId)
        finally:
            points.reach = before


@final
class FailingSink(DataSource):
    """`format("failing-sink")`."""

    @classmethod
    def name(cls) -> str:
        return "failing-sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from pyspark_rocketmq.sink import prepared

        options = {name: value for name, value in self.options.items() if name.lower() not in (POINT, FILE)}
        assert parse(options).is_transactional, "nothing fails in a commit that does nothing"
        writer = FailingWriter(*prepared(options, schema))
        writer.point, writer.file = self.options[POINT_OPTION], self.options[FILE_OPTION]
        return writer


POINT, FILE = POINT_OPTION.lower(), FILE_OPTION.lower()
