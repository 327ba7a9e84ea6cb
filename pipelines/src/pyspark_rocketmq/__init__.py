"""RocketMQ topics as a Spark data source: `spark.read.format("rocketmq")`.

PySpark is imported only when `DefaultSource` is requested, which Spark does by itself. Tools that only need the columns
need neither Spark nor Java.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_rocketmq.source import DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_rocketmq.source import DefaultSource

        return DefaultSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
