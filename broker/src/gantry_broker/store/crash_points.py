"""Named places in the store's work at which a test may end the process.

A crash between two particular system calls is what recovery must survive, and chance rarely hits it. So the places
have names, and ``hit`` is called at each. It does nothing: a process under test replaces it with a function that counts
and kills. Called as ``crash_points.hit(...)``, never imported by name, or the replacement would not be seen.
"""

from __future__ import annotations

from typing import Final

AFTER_APPEND: Final = "after-append"
"""A pass is in the log or its buffer, and nobody was told."""

MID_ROLL: Final = "mid-roll"
"""The old file is closed by its blank record, the new one not yet in use."""

MID_COMMIT: Final = "mid-commit"
"""Some bytes of a buffer are in the file, and ``committed`` has not moved."""

MID_RETURN: Final = "mid-return"
"""A buffer is void, and not yet zero."""

AFTER_SYNC: Final = "after-sync"
"""``fdatasync`` has returned, and ``flushed`` has not moved."""

MID_POINT: Final = "mid-point"
"""Queues and index are on disk, the recovery point that says so is not."""

BEFORE_UNLINK: Final = "before-unlink"
"""The checkpoint says that the log begins later, and the older files still have their names."""

MID_UNLINK: Final = "mid-unlink"
"""Some of the older files have lost their names."""

MID_CHECKPOINT: Final = "mid-checkpoint"
"""The checkpoint was written, and not synced."""

MID_REPLAY: Final = "mid-replay"
"""Some bytes of a buffer were replayed into the log's file."""

AFTER_REPLAY: Final = "after-replay"
"""All were, and are synced; the buffers are not void yet."""

MID_TRUNCATION: Final = "mid-truncation"
"""The log's tail was zeroed, not synced, and later files are still there."""

MID_RECOVERY: Final = "mid-recovery"
"""The log is recovered; queues, index and recovery point are not on disk."""

ALL: Final = (
    AFTER_APPEND,
    MID_ROLL,
    MID_COMMIT,
    MID_RETURN,
    AFTER_SYNC,
    MID_POINT,
    BEFORE_UNLINK,
    MID_UNLINK,
    MID_CHECKPOINT,
    MID_REPLAY,
    AFTER_REPLAY,
    MID_TRUNCATION,
    MID_RECOVERY,
)


def hit(_name: str) -> None:
    """The work has come to a crash point."""
