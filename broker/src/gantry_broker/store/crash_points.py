"""Named crash points, at which a test may end the process.

Recovery must survive a crash between any two system calls, and random kills rarely hit a particular pair. So the places
have names, and ``hit`` is called at each. It does nothing: a process under test replaces it with a function that counts
and kills. Call it as ``crash_points.hit(...)`` and never import it by name, or the replacement has no effect.
"""

from __future__ import annotations

from typing import Final

AFTER_APPEND: Final = "after-append"
"""A batch is in the log or its buffer, and no reader was notified."""

MID_ROLL: Final = "mid-roll"
"""The old file is closed by its blank record, and the new one is not in use yet."""

MID_COMMIT: Final = "mid-commit"
"""Some bytes of a buffer are in the file, and ``committed`` has not moved."""

MID_RETURN: Final = "mid-return"
"""A buffer is marked void and not zeroed yet."""

AFTER_SYNC: Final = "after-sync"
"""``fdatasync`` has returned, and ``flushed`` has not moved."""

MID_POINT: Final = "mid-point"
"""Queues and index are on disk, and the recovery point that records that is not."""

BEFORE_UNLINK: Final = "before-unlink"
"""The checkpoint records a later start of the log, unless the disk was full, and the older files still exist."""

MID_UNLINK: Final = "mid-unlink"
"""Some of the older files are unlinked."""

MID_CHECKPOINT: Final = "mid-checkpoint"
"""The checkpoint was written and not synced."""

MID_REPLAY: Final = "mid-replay"
"""Some bytes of a buffer were replayed into the log's file."""

AFTER_REPLAY: Final = "after-replay"
"""What the buffers hold was replayed or set aside, and synced, and the buffers are not void yet."""

MID_TRUNCATION: Final = "mid-truncation"
"""The log's tail was zeroed and not synced, and later files still exist."""

MID_RECOVERY: Final = "mid-recovery"
"""The log is recovered, and queues, index and recovery point are not on disk."""

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
    """Mark that execution reached a crash point. Does nothing in production."""
