"""Named places in the archive's work at which a test may end the process.

A kill between two particular steps is what the next start must survive, and chance rarely hits it. `reached` is
called at each place and does nothing; a process under test puts a function there that kills. Called as
`points.reached(...)`, never imported by name, or the replacement would not be seen."""

from typing import Final

MID_DATA: Final = "mid-data"
"""A worker has written some rows of a file."""

AFTER_DATA: Final = "after-data"
"""A worker's file is whole and durable, and nobody was told."""

BEFORE_RECORD: Final = "before-record"
"""All files of a batch are there, none is in the manifest."""

AFTER_RECORD: Final = "after-record"
"""One file is in the manifest, and readers do not see it yet."""

MID_BATCH: Final = "mid-batch"
"""One file is in the manifest and is seen; others of its batch are not."""

AFTER_BATCH: Final = "after-batch"
"""The whole batch is in the manifest and seen, and Spark does not know."""

MID_MERGE: Final = "mid-merge"
"""Some files of a day were merged beside it."""

AFTER_MERGE: Final = "after-merge"
"""A merged day is in the manifest, and the folders are not exchanged."""

AFTER_EXCHANGE: Final = "after-exchange"
"""The folders are exchanged, and the old one is still there."""

MID_EXPIRY: Final = "mid-expiry"
"""What is too old is out of the manifest, and its files are still there."""

ALL: Final = (
    MID_DATA,
    AFTER_DATA,
    BEFORE_RECORD,
    AFTER_RECORD,
    MID_BATCH,
    AFTER_BATCH,
    MID_MERGE,
    AFTER_MERGE,
    AFTER_EXCHANGE,
    MID_EXPIRY,
)


def reached(_name: str) -> None:
    """The work has come to a named place."""
