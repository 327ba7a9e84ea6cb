"""Publication as a part of another job: an unavailable table is reported, and does not stop the archive.

An archive that stopped for want of a catalog would lose messages when the brokers delete them. So the job continues,
says that its tables are behind, tries again with a later batch, and fails at its end if they still are.

Nor do many tables slow the archive down: batches are published together while publications would take more than a tenth
of the time.
"""

import time
from collections.abc import Iterator
from typing import Final, final

from gantry_pipelines.archive.settings import TableParameters
from gantry_pipelines.archive.tables.model import TableError
from gantry_pipelines.archive.tables.publication import TablePublisher
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.reporting import Reporter

TIME_SHARE_MAX: Final = 0.1
"""The greatest share of its time that a job spends with publications after batches."""


@final
class ReportedPublication:
    """The tables of an archive, published by a job that does other work; without tables it does nothing."""

    def __init__(self, writer: ArchiveWriter, parameters: TableParameters, reporter: Reporter) -> None:
        self._publisher: Final = TablePublisher(writer, parameters) if parameters.formats else None
        self._reporter: Final = reporter
        self._snapshots = 0
        self._due_s = 0.0
        """When a batch is published again, by the monotonic clock."""
        self.failure: TableError | None = None
        """Why the newest publication is incomplete."""

    def publish_batch(self) -> None:
        """Publish the manifest after a batch, or leave it to a later batch."""
        if time.monotonic() >= self._due_s:
            self.publish()

    def publish(self) -> None:
        """Publish the manifest; a failure is reported once, until a publication succeeds."""
        if self._publisher is None:
            return
        began_s = time.monotonic()
        try:
            for _ in self._publisher.publish():
                self._snapshots += 1
        except TableError as error:
            self._report(error)
        else:
            self.failure = None
        ended_s = time.monotonic()
        self._due_s = ended_s + (ended_s - began_s) * (1 / TIME_SHARE_MAX - 1)

    def sweep(self, now_ms: int) -> None:
        """Expire old snapshots, and delete the links that only they had."""
        if self._publisher is None or self.failure is not None:
            return
        try:
            self._publisher.sweep(now_ms)
        except TableError as error:
            self._reporter.warn("TablesNotSwept", str(error))

    def summary(self) -> Iterator[str]:
        """Yield a line for people about what was published."""
        if self.failure is not None:
            yield f"the tables are behind the archive: {self.failure}"
        elif self._publisher is not None:
            yield f"published {self._snapshots} snapshots of tables"

    def _report(self, error: TableError) -> None:
        if self.failure is None:
            self._reporter.warn("TablesBehind", str(error))
        self.failure = error
