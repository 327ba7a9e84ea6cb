"""Jobs on Spark: archive, audit, analytics, migration check. Importing it neither imports nor starts Spark."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gantry_pipelines.archive.archived_topics import read_archived_topics
    from gantry_pipelines.session import spark_session

__all__ = ["read_archived_topics", "spark_session"]


def __getattr__(name: str) -> Any:
    if name == "spark_session":
        from gantry_pipelines.session import spark_session

        return spark_session
    if name == "read_archived_topics":
        from gantry_pipelines.archive.archived_topics import read_archived_topics

        return read_archived_topics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
