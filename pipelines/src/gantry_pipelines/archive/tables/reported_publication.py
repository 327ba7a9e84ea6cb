"""Publication as a part of another job: a table that is unavailable is reported, and does not stop the archive.

An archive that stopped because a catalog does not answer would lose messages when the brokers delete them. So the job
continues, reports that its tables are behind, tries again, and fails at its end if they still are.

Nor do many tables slow the archive down. Publications take a tenth of the time at most, so several batches may be
published together. What was left out is published by `publish_rest`, which the job calls while it waits.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from gantry_pipelines.archive.layout import TABLES
from gantry_pipelines.archive.manifest import ArchivedFile
from gantry_pipelines.archive.settings import TableParameters
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables.model import TableError
from gantry_pipelines.archive.tables.publication import TablePublisher
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.reporting import Reporter

TIME_SHARE_MAX: Final = 0.1
"""The greatest share of its time that a job spends with publications."""

PUBLICATION_S_MAX: Final = 60.0
"""After this time a publication begins no other table: a catalog that does not answer costs its timeout for each."""

LAST_PUBLICATION_S_MAX: Final = 600.0
"""The same for the publication at the end of a run that was not stopped."""


@final
class ReportedPublication:
    """The tables of an archive, published by a job that does other work; without tables it does nothing.

    Any thread may call its methods: the lock `_is_publishing` is held while the publisher is used.
    """

    def __init__(self, writer: ArchiveWriter, parameters: TableParameters, reporter: Reporter) -> None:
        self._writer: Final = writer
        self._publisher: Final = TablePublisher(writer, parameters) if parameters.formats else None
        self._reporter: Final = reporter
        self._is_publishing: Final = threading.Lock()
        self._snapshots = 0
        self._due_s = 0.0
        """When the next publication may begin, by the monotonic clock."""
        self._is_behind = False
        """Whether the manifest may have what the tables have not."""
        self._warned: str = ""
        self.failure = ""
        """Why the tables are behind; empty if they are not."""
        storage = writer.storage
        if self._publisher is None and isinstance(storage, Folder) and Path(storage.root, TABLES).exists():
            text = f"{TABLES} has tables that are no longer published: set tables.formats, or delete {TABLES}"
            reporter.warn("TablesNotPublished", text)

    def publish_batch(self) -> None:
        """Publish the manifest after a batch, or leave that to `publish_rest`."""
        self._is_behind = self._publisher is not None
        self.publish_rest()

    def publish_rest(self) -> None:
        """Publish what an earlier publication has left out or failed to publish, if it is time."""
        if self._is_behind and time.monotonic() >= self._due_s and self._is_publishing.acquire(blocking=False):
            try:
                self._publish(PUBLICATION_S_MAX)
            finally:
                self._is_publishing.release()

    def publish(self, seconds_max: float = PUBLICATION_S_MAX) -> None:
        """Publish the manifest now. A failure is reported, once for each text."""
        with self._is_publishing:
            self._publish(seconds_max)

    def delete_expired_files(self) -> None:
        """Publish, then delete the files of expired ranges, except those that a table may still name.

        These wait for a later publication, however long a catalog is unavailable. Only the writer's thread calls this.
        """
        with self._is_publishing:
            self._publish(PUBLICATION_S_MAX)
            may_name = self._publisher.may_name if self._publisher is not None else _no_table_names
            self._writer.delete_replaced(may_name)

    def sweep(self) -> None:
        """Publish, since links stay while a table is behind; then expire old snapshots, and delete their links."""
        if self._publisher is None:
            return
        with self._is_publishing:
            self._publish(PUBLICATION_S_MAX)
            try:
                self._publisher.sweep(int(time.time() * 1000))
            except TableError as error:
                self._warn("SnapshotsNotExpired", str(error))

    def summary(self) -> Iterator[str]:
        """Yield a line for people about what was published."""
        if self.failure:
            yield f"the tables are behind the archive: {self.failure}"
        elif self._publisher is not None:
            yield f"published {self._snapshots} snapshots of tables"

    def _publish(self, seconds_max: float) -> None:
        if self._publisher is None:
            return
        began_s = time.monotonic()
        self._is_behind = False  # before the manifest is read: a batch that comes later sets it again
        failure = ""
        try:
            for _ in self._publisher.publish(began_s + seconds_max):
                self._snapshots += 1
        except TableError as error:
            failure = str(error)
            self._warn("TablesBehind", failure)
        if not failure and not self._publisher.is_complete:
            failure = f"not all were published within {seconds_max:.0f} s"
        self._is_behind = self._is_behind or bool(failure)
        self.failure = failure
        ended_s = time.monotonic()
        self._due_s = ended_s + (ended_s - began_s) * (1 / TIME_SHARE_MAX - 1)

    def _warn(self, reason: str, text: str) -> None:
        if text != self._warned:
            self._reporter.warn(reason, text)
        self._warned = text


def _no_table_names(_file: ArchivedFile) -> bool:
    return False
