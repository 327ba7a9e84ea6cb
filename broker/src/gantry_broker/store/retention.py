"""Planning of retention: which files of the log are deleted now, and whether sends are refused for lack of space.

    [file][file][file][file][file][current file][next file, preallocated]
     `- expired -'     |     `- bytes not flushed, or still in a write buffer: never deleted
                       `- oldest message that a group has not consumed: forced deletion stops here

Pure functions: what they need to know is passed in as ``RetentionFacts``, and ``removal`` carries out the plan. The
rules, in order:

1. A file is expired when its newest message is older than ``fileReservedTime``. Expired files are deleted at the delete
   hour, at any hour above ``diskMaxUsedSpaceRatio``, and at the request of an administrator; consumed or not, since
   that is the meaning of the reserved time.
2. Above ``diskSpaceCleanForciblyRatio`` the oldest files are deleted although they are not expired, as many as needed
   to get down to it: but only those wholly below the oldest unconsumed message, unless ``deleteUnconsumed`` is set.
3. Above ``diskSpaceWarningLevelRatio``, when less than the reserve is free, or when the next file is needed and there
   is no space for it, sends are refused until there is space again. Reads continue.
4. No file is deleted that holds a pending timer message, or one that is to be archived and is not yet. Timer messages
   are stored again long before their file expires.
5. The current file, files after it and files that are not flushed are never deleted; at most ten files a round, oldest
   first.

The planning uses no clock, disk or consumer group itself. Its time comes from ``retention_clock``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Final, NamedTuple

from gantry_broker.ports.disk import DiskSpace
from gantry_broker.store.settings import RetentionSettings

FILES_PER_ROUND_MAX: Final = 10
"""Limit of the files that one round deletes."""
HOUR_MS: Final = 3_600_000
NOTHING_UNCONSUMED: Final = 1 << 62
"""An offset beyond any log: every message was consumed."""
RESERVE_BYTES_MAX: Final = 64 << 20
"""Limit of the space that is kept free of log files."""
RESERVE_SHARE: Final = 64
"""1/64 of the file system is kept free of log files, at most ``RESERVE_BYTES_MAX``."""


class Reason(Enum):
    """Why files are deleted, or why none is, as a text for the log."""

    NOTHING_DUE = "nothing is due"
    EXPIRED = "expired, and it is the delete hour"
    EXPIRED_SPACE = "expired, and the disk is above diskMaxUsedSpaceRatio"
    EXPIRED_MANUAL = "expired, and an administrator requested the deletion"
    FORCED = "consumed by every group, and the disk is above diskSpaceCleanForciblyRatio"
    FORCED_UNCONSUMED = "the disk is above diskSpaceCleanForciblyRatio, and deleteUnconsumed is set"
    BLOCKED_UNCONSUMED = "the oldest file that is left holds a message that was not consumed"
    BLOCKED_TIMERS = "the oldest file that is left holds a timer message that has to be stored again first"
    BLOCKED_UNARCHIVED = "the oldest file that is left holds a message that is to be archived and is not yet"
    BLOCKED_CURRENT = "every file that is left is in use: the current one, or not flushed yet"


class LogFileFacts(NamedTuple):
    """The age of one file of the log, and whether it may be deleted."""

    base_offset: int
    end_offset: int
    newest_ms: int
    """When the newest message was stored: its store time, or in ``RetentionFacts`` the time of ``RetentionClock``."""

    is_removable: bool
    """Whether the file lies before the current one, is flushed, in queues and index, and has no write buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomFacts:
    """The facts that decide whether sends are refused."""

    space: DiskSpace
    file_size: int
    """The size of a log file in bytes."""

    is_next_file_wanted: bool = False
    """Whether the current file is half full and the one after it does not exist."""

    was_refusing: bool = False
    """Whether the last round has refused sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFacts:
    """All facts that a retention plan depends on."""

    files: Sequence[LogFileFacts]
    """The oldest files of the log, as many as a round may delete."""

    room: RoomFacts
    """The free space, and what it is needed for."""

    now_ms: int
    """The present time of the store's own clock (``retention_clock``)."""

    hour: int
    """The hour of the local day."""

    unconsumed_from: int
    """The physical offset of the oldest unconsumed message, or ``NOTHING_UNCONSUMED``."""

    needed_from: int = NOTHING_UNCONSUMED
    """The physical offset of the oldest pending timer message that was not stored again; no rule deletes it."""

    unarchived_from: int = NOTHING_UNCONSUMED
    """The physical offset of the oldest message that is to be archived and is not yet; no rule deletes it."""

    is_manual: bool = False
    """Whether an administrator requested the deletion of expired files."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The files to delete, and whether sends are refused."""

    delete_before: int
    """Files that end at or before this offset are deleted; the beginning of the log if there is nothing to delete."""

    reason: Reason
    is_refusing: bool
    blocked_reason: Reason | None = None
    """Why the rules forbid deletions that the disk needs; None if they do not."""


def reserve_bytes(space: DiskSpace) -> int:
    """Return the space that the log leaves to queues, index and tables: a new log file must leave so much free."""
    return min(space.total // RESERVE_SHARE, RESERVE_BYTES_MAX)


def has_room_for(space: DiskSpace, size: int) -> bool:
    """Return whether a file of ``size`` bytes can be created without using the reserve."""
    return space.free >= size + reserve_bytes(space)


def is_above(space: DiskSpace, percent: int) -> bool:
    """Return whether more than ``percent`` of the file system is used."""
    return space.used * 100 > space.total * percent


def needs_unconsumed(space: DiskSpace, settings: RetentionSettings) -> bool:
    """Return whether a plan will need ``unconsumed_from``, which is expensive to determine."""
    return is_above(space, settings.forced_percent) and not settings.is_unconsumed_deleted


def is_refusing(room: RoomFacts, settings: RetentionSettings) -> bool:
    """Return whether sends are refused.

    A refusal because of ``diskSpaceWarningLevelRatio`` ends one percent below that level, to avoid flapping.
    """
    space = room.space
    percent = settings.full_percent - (1 if room.was_refusing else 0)
    if is_above(space, percent) or space.free < reserve_bytes(space):
        return space.total > 0
    return room.is_next_file_wanted and not has_room_for(space, room.file_size)


def plan_retention(facts: RetentionFacts, settings: RetentionSettings) -> RetentionPlan:
    """Plan one round of retention by the rules of this module."""
    free = tuple(takewhile(lambda file: file.is_removable, facts.files))
    needed_from = min(facts.needed_from, facts.unarchived_from)
    removable = tuple(takewhile(lambda file: file.end_offset <= needed_from, free))
    count, reason = _count_expired(removable, facts, settings)
    excess_count = min(_count_excess_files(facts, settings), FILES_PER_ROUND_MAX)
    blocked_reason: Reason | None = None
    if excess_count > count:
        allowed, forced = _count_forced(removable, facts, settings)
        if min(excess_count, allowed) > count:
            count, reason = min(excess_count, allowed), forced
        if excess_count > count:
            needed = Reason.BLOCKED_UNARCHIVED if facts.unarchived_from < facts.needed_from else Reason.BLOCKED_TIMERS
            at_end = needed if len(removable) < len(free) else Reason.BLOCKED_CURRENT
            blocked_reason = Reason.BLOCKED_UNCONSUMED if allowed < len(removable) else at_end
    count = min(count, FILES_PER_ROUND_MAX)
    begin = facts.files[0].base_offset if facts.files else 0
    return RetentionPlan(
        delete_before=removable[count - 1].end_offset if count else begin,
        reason=reason if count else Reason.NOTHING_DUE,
        is_refusing=is_refusing(facts.room, settings),
        blocked_reason=blocked_reason,
    )


def _count_expired(
    removable: Sequence[LogFileFacts], facts: RetentionFacts, settings: RetentionSettings
) -> tuple[int, Reason]:
    """Return how many expired files are deleted now, and the reason."""
    if facts.hour in settings.delete_hours:
        reason = Reason.EXPIRED
    elif is_above(facts.room.space, settings.used_percent_max):
        reason = Reason.EXPIRED_SPACE
    elif facts.is_manual:
        reason = Reason.EXPIRED_MANUAL
    else:
        return 0, Reason.NOTHING_DUE
    oldest_kept_ms = facts.now_ms - settings.reserved_hours * HOUR_MS
    return sum(1 for _ in takewhile(lambda file: file.newest_ms < oldest_kept_ms, removable)), reason


def _count_excess_files(facts: RetentionFacts, settings: RetentionSettings) -> int:
    """Return how many files must be deleted until the disk is at the forced level."""
    space = facts.room.space
    excess = space.used - space.total * settings.forced_percent // 100
    return -(-excess // facts.room.file_size) if is_above(space, settings.forced_percent) else 0


def _count_forced(
    removable: Sequence[LogFileFacts], facts: RetentionFacts, settings: RetentionSettings
) -> tuple[int, Reason]:
    """Return how many files may be deleted although they are not expired, and the reason."""
    if settings.is_unconsumed_deleted:
        return len(removable), Reason.FORCED_UNCONSUMED
    end = facts.unconsumed_from
    return sum(1 for _ in takewhile(lambda file: file.end_offset <= end, removable)), Reason.FORCED
