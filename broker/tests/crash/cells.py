"""A cell of the matrix: a flush mode and a medium of the write buffer, with what they promise about `kill -9`.

                     hugetlbfs     tmpfs         anonymous                none
    ASYNC_FLUSH      all, replay   all, replay   a tail of the log goes   all
    SYNC_FLUSH       all           all           all                      all

With asynchronous flushes messages are acknowledged that are in the buffer only. So right after the kill the log's files
may lack an acknowledged tail: buffer files have it, and the restart must replay it; in anonymous memory it is lost.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from crash.media import BUFFERS, SEGMENT_BYTES, Medium

from gantry_broker.store import crash_points

COMMIT_INTERVAL_MS: Final = 200
COMMIT_PAGES: Final = (4, 512, 64)
"""Values of commitCommitLogLeastPages, one for each seed in turn: the default, one so large that commits come only by
the interval, and one between."""
COMMIT_WINDOW_S: Final = 2 * COMMIT_INTERVAL_MS / 1000 + 1.0
"""The longest time between the acknowledgements of the first and the last message that one kill may destroy in
anonymous memory: two rounds of the commit thread, and a second for a busy machine."""


class CrashMoment(NamedTuple):
    """A crash point, and the part of a broker's run in which it ends there."""

    point: str
    """The name of the crash point, from `gantry_broker.store.crash_points`."""
    is_at_start: bool
    """Whether it ends there while it opens its store, and not under load."""

    def __str__(self) -> str:
        return f"{self.point} at the start" if self.is_at_start else self.point


IN_EVERY_CELL: Final = (
    CrashMoment(crash_points.AFTER_APPEND, False),
    CrashMoment(crash_points.MID_ROLL, False),
    CrashMoment(crash_points.AFTER_SYNC, False),
    CrashMoment(crash_points.MID_POINT, False),
    CrashMoment(crash_points.MID_CHECKPOINT, False),
    CrashMoment(crash_points.MID_TRUNCATION, True),
    CrashMoment(crash_points.MID_RECOVERY, True),
    CrashMoment(crash_points.MID_POINT, True),
    CrashMoment(crash_points.MID_CHECKPOINT, True),
)
"""Crash points that a broker reaches with any flush mode and medium."""
WITH_BUFFER: Final = (CrashMoment(crash_points.MID_COMMIT, False), CrashMoment(crash_points.MID_RETURN, False))
"""Crash points that only a broker with a write buffer reaches."""
WITH_REPLAY: Final = (CrashMoment(crash_points.MID_REPLAY, True), CrashMoment(crash_points.AFTER_REPLAY, True))
"""Crash points that only a broker reaches whose write buffer survives its process."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One of the eight combinations of flush mode and medium."""

    is_sync: bool
    """Whether the broker has SYNC_FLUSH, and not ASYNC_FLUSH."""

    medium: Medium
    """The memory of the write buffer."""

    def __str__(self) -> str:
        return f"{'sync' if self.is_sync else 'async'}-{self.medium.value}"

    @property
    def is_buffered(self) -> bool:
        return self.medium is not Medium.NONE

    @property
    def is_replayed(self) -> bool:
        """Whether the buffer survives its process."""
        return self.medium in (Medium.HUGETLBFS, Medium.TMPFS)

    @property
    def may_lack_tail(self) -> bool:
        """Whether the log's files may lack acknowledged messages right after a kill."""
        return self.is_buffered and not self.is_sync

    @property
    def may_lose_tail(self) -> bool:
        """Whether acknowledged messages may be missing after the restart, too."""
        return self.may_lack_tail and not self.is_replayed

    @property
    def shows_acknowledged(self) -> bool:
        """Whether consumers see a message as soon as it is acknowledged, and not only when it is committed."""
        return not self.may_lose_tail

    @property
    def must_replay(self) -> bool:
        """Whether acknowledged messages may be in the buffer only: a run that replays none of them proves nothing."""
        return self.may_lack_tail and self.is_replayed

    @property
    def crash_moments(self) -> tuple[CrashMoment, ...]:
        """Every crash point that a broker of this cell reaches."""
        return IN_EVERY_CELL + WITH_BUFFER * self.is_buffered + WITH_REPLAY * self.is_replayed

    def settings(self, pool_path: Path | None, seed: int) -> dict[str, str]:
        """Return the keys of broker.conf for this cell; `pool_path` is the folder of buffers that survive."""
        flush = {"flushDiskType": "SYNC_FLUSH" if self.is_sync else "ASYNC_FLUSH", "flushIntervalCommitLog": "100"}
        if not self.is_buffered:
            return flush
        return flush | {
            "transientStorePoolEnable": "true",
            "transientStorePoolSize": str(BUFFERS),
            "transientStorePoolPath": "" if pool_path is None else str(pool_path),
            "commitIntervalCommitLog": str(COMMIT_INTERVAL_MS),
            "commitCommitLogThoroughInterval": str(COMMIT_INTERVAL_MS),
            "commitCommitLogLeastPages": str(COMMIT_PAGES[seed % len(COMMIT_PAGES)]),
        }


CELLS: Final = {str(cell): cell for cell in (Cell(is_sync, medium) for is_sync in (False, True) for medium in Medium)}
assert max(COMMIT_PAGES) * 4096 > SEGMENT_BYTES
