"""Crash points of the archive: named places for fault injection, at which a test may kill the process.

The next start must survive a kill between any two steps, and a random kill rarely hits a particular place. `hit` is
called at each crash point and does nothing; a process under test replaces it with a function that kills the process.
It is called as `crash_points.hit(...)`, never imported by name, because such an import would miss the replacement."""

from typing import Final

MID_DATA: Final = "mid-data"
"""A worker has written some rows of a file."""

AFTER_DATA: Final = "after-data"
"""A worker's file is complete and durable, and not yet reported to the driver."""

BEFORE_RECORD: Final = "before-record"
"""All files of a batch are written, none is in the manifest."""

AFTER_SCHEMAS: Final = "after-schemas"
"""New columns of a declared schema are recorded; no file, record or table has them yet."""

AFTER_RECORD: Final = "after-record"
"""One file is in the manifest, and not yet visible to readers."""

MID_BATCH: Final = "mid-batch"
"""One more file of a batch is in the manifest and visible; those after it are not."""

AFTER_BATCH: Final = "after-batch"
"""The whole batch is in the manifest and visible, and not yet committed by Spark."""

MID_MERGE: Final = "mid-merge"
"""Some files of a day have been merged into the staging folder."""

AFTER_MERGE: Final = "after-merge"
"""A merged day is in the manifest, and the folders are not yet exchanged."""

AFTER_EXCHANGE: Final = "after-exchange"
"""The folders are exchanged, and the old one is not yet deleted."""

MID_EXPIRY: Final = "mid-expiry"
"""An expired day is marked in the manifest, and its files are not yet deleted."""

MID_DELETION: Final = "mid-deletion"
"""The files of a replaced record are deleted, and the record is not."""

AFTER_TABLE_COLUMNS: Final = "after-table-columns"
"""A table has the new columns of a declared schema; its newest snapshot is the one before."""

BEFORE_TABLE: Final = "before-table"
"""The files of a table are linked, and the snapshot that names them is not committed."""

AFTER_TABLE: Final = "after-table"
"""A snapshot of one table is committed; those of the other tables are not."""

ALL: Final = (
    MID_DATA,
    AFTER_DATA,
    BEFORE_RECORD,
    AFTER_SCHEMAS,
    AFTER_RECORD,
    MID_BATCH,
    AFTER_BATCH,
    MID_MERGE,
    AFTER_MERGE,
    AFTER_EXCHANGE,
    MID_EXPIRY,
    MID_DELETION,
    AFTER_TABLE_COLUMNS,
    BEFORE_TABLE,
    AFTER_TABLE,
)


def hit(_name: str) -> None:
    """Mark a crash point; does nothing unless a test has replaced it."""
