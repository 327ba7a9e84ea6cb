"""Retention, the deciding half: which files of the log may go now, and whether sends must wait for room.

    [file][file][file][file][file][current file][next file, made ahead]
     `- expired -'     |     `- bytes not flushed, or still in a write buffer: never
                       `- oldest message that somebody has not consumed: forced deletion stops here

Pure functions of facts; ``removal`` does what they say. The rules, in order:

1. A file is expired when its newest message is older than ``fileReservedTime``. Expired files go at the delete hour, at
   any hour above ``diskMaxUsedSpaceRatio``, and when an administrator asks; consumed or not, since that is what a
   reserved time means.
2. Above ``diskSpaceCleanForciblyRatio`` the oldest files go although they are not expired, as many as it takes to come
   down to it: but only those wholly below the oldest unconsumed message, unless ``deleteUnconsumed`` is set.
3. Above ``diskSpaceWarningLevelRatio``, or when the next file is due and there is no room for it, sends are refused
   until there is room again. Reads go on.
4. Never the current file, nor one behind it, nor one that is not flushed; at most ten files a round, oldest first.

What it refuses to know: clocks, disks, groups. The time it is told comes from ``retention_clock``.
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
HOUR_MS: Final = 3_600_000
NOTHING_UNCONSUMED: Final = 1 << 62
RESERVE_BYTES_MAX: Final = 64 << 20
RESERVE_SHARE: Final = 64
"""One part in so many of a file system stays free of log files, at most ``RESERVE_BYTES_MAX``."""


class Reason(Enum):
    """Why files go, or why none does, as a text for the log."""

    NOTHING_DUE = "nothing is due"
    EXPIRED = "expired, and it is the delete hour"
    EXPIRED_SPACE = "expired, and the disk is above diskMaxUsedSpaceRatio"
    EXPIRED_MANUAL = "expired, and an administrator asked"
    FORCED = "consumed by every group, and the disk is above diskSpaceCleanForciblyRatio"
    FORCED_UNCONSUMED = "the disk is above diskSpaceCleanForciblyRatio, and deleteUnconsumed is set"
    HELD_UNCONSUMED = "the oldest file holds a message that was not consumed"
    HELD_CURRENT = "every file is in use: the current one, or not flushed yet"


class FileFacts(NamedTuple):
    """One file of the log, oldest first."""

    base_offset: int
    end_offset: int
    newest_ms: int
    """When its newest message was stored; for a plan by the store's own time."""

    is_removable: bool
    """Behind the current file, flushed, and without a write buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomFacts:
    """What decides whether sends must wait."""

    space: DiskSpace
    file_size: int
    """Of a file of the log."""

    is_next_file_wanted: bool = False
    """Whether the current file is half full and the one after it does not exist."""

    was_refusing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFacts:
    """Everything a plan depends on."""

    files: Sequence[FileFacts]
    """The oldest files of the log, as many as a round may take."""

    room: RoomFacts
    now_ms: int
    """The store's own time (``retention_clock``)."""

    hour: int
    """Of the local day."""

    unconsumed_from: int
    """The physical offset of the oldest unconsumed message, or ``NOTHING_UNCONSUMED``."""

    is_manual: bool = False
    """Whether an administrator asked for the deletion of what is expired."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What to do."""

    delete_before: int
    """Delete the files that end at or before this offset; where the log begins when there is nothing to delete."""

    reason: Reason
    is_refusing: bool
    held_because: Reason | None = None
    """Set when the disk asks for more deleting than the rules allow, and why they do not."""


def reserve_bytes(space: DiskSpace) -> int:
    """What the log leaves to queues, index and tables: a new log file is made only if so much stays free beside it."""
    return min(space.total // RESERVE_SHARE, RESERVE_BYTES_MAX)


def has_room_for(space: DiskSpace, size: int) -> bool:
    """Whether a file of ``size`` bytes can be made without taking the reserve."""
    return space.free >= size + reserve_bytes(space)


def is_above(space: DiskSpace, percent: int) -> bool:
    """Whether more than ``percent`` of the file system is used."""
    return space.used * 100 > space.total * percent


def needs_unconsumed(space: DiskSpace, settings: RetentionSettings) -> bool:
    """Whether a plan will ask for ``unconsumed_from``, which is costly to find."""
    return is_above(space, settings.forced_percent) and not settings.is_unconsumed_deleted


def is_refusing(room: RoomFacts, settings: RetentionSettings) -> bool:
    """Whether sends must wait for room. What began above a level ends one percent below it, or it would flutter."""
    space = room.space
    percent = settings.full_percent - (1 if room.was_refusing else 0)
    if is_above(space, percent) or space.free < reserve_bytes(space):
        return space.total > 0
    return room.is_next_file_wanted and not has_room_for(space, room.file_size)


def plan_retention(facts: RetentionFacts, settings: RetentionSettings) -> RetentionPlan:
    """The whole policy; see the module."""
    removable = tuple(takewhile(lambda file: file.is_removable, facts.files))
    count, reason = _expired(removable, facts, settings)
    wanted = min(_files_too_many(facts, settings), FILES_PER_ROUND_MAX)
    held_because: Reason | None = None
    if wanted > count:
        allowed, forced = _forced(removable, facts, settings)
        if min(wanted, allowed) > count:
            count, reason = min(wanted, allowed), forced
        if wanted > count:
            held_because = Reason.HELD_UNCONSUMED if allowed < len(removable) else Reason.HELD_CURRENT
    count = min(count, FILES_PER_ROUND_MAX)
    begin = facts.files[0].base_offset if facts.files else 0
    return RetentionPlan(
        delete_before=removable[count - 1].end_offset if count else begin,
        reason=reason if count else Reason.NOTHING_DUE,
        is_refusing=is_refusing(facts.room, settings),
        held_because=held_because,
    )


def _expired(removable: Sequence[FileFacts], facts: RetentionFacts, settings: RetentionSettings) -> tuple[int, Reason]:
    """How many expired files may go now, and why now."""
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


def _files_too_many(facts: RetentionFacts, settings: RetentionSettings) -> int:
    """How many files must go until the disk is at the forced level."""
    space = facts.room.space
    excess = space.used - space.total * settings.forced_percent // 100
    return -(-excess // facts.room.file_size) if is_above(space, settings.forced_percent) else 0


def _forced(removable: Sequence[FileFacts], facts: RetentionFacts, settings: RetentionSettings) -> tuple[int, Reason]:
    """How many files may go although they are not expired."""
    if settings.is_unconsumed_deleted:
        return len(removable), Reason.FORCED_UNCONSUMED
    end = facts.unconsumed_from
    return sum(1 for _ in takewhile(lambda file: file.end_offset <= end, removable)), Reason.FORCED
