"""Create an archive of a toy log in this process, for tests that only need one."""

from __future__ import annotations

from pathlib import Path

from spark_kit.toy_log import ToyLog
from spark_kit.toy_run import GRID_ROWS

from gantry_pipelines.archive.file_writing import Packing, write_files
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.grid import split_on_grid
from gantry_pipelines.archive.manifest import ArchivedFile
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_pipelines.archive.writer import ArchiveWriter
from pyspark_rocketmq.model import QueueRange


def archive_log(log: ToyLog, root: Path) -> Storage:
    """Archive the whole log in one batch."""
    storage = Folder(str(root))
    with ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS)) as writer:
        archive_new_messages(log, writer)
    return storage


def archive_new_messages(log: ToyLog, writer: ArchiveWriter, batch: int = 0) -> list[ArchivedFile]:
    """Archive the new messages of the log in another batch, and return the new files."""
    ends = writer.manifest.ends()
    ranges = [QueueRange(queue, ends.get(queue, 0), end) for queue, end in log.ends.items()]
    cut = [piece for one in ranges for piece in split_on_grid(one, writer.format.grid_rows)]
    return writer.commit(
        "query", batch, list(write_files(log.batches(cut), cut, writer.storage, writer.format, Packing()))
    )
