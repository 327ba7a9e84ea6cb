"""Plans of rounds: how long the load lasts, where the broker ends, what is removed, and how the restart is disturbed.

A plan follows from the cell and the seed of the job. One round in three ends at a random moment; the others use the
cell's crash points in turn, so that a run of some jobs reaches all of them. The points inside a recovery need a
kill under load first. If they need a write buffer that holds records, that kill comes right after an append.
"""

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

from crash.cells import WITH_REPLAY, Cell, CrashMoment

from gantry_broker.store import crash_points
from gantry_testing.crashing_broker import CrashAt

JOB_ROUNDS: Final = 10
"""The number of rounds of a whole job."""
LOAD_S: Final = (0.1, 0.6)
"""The shortest and the longest load before a kill at a random moment."""
POINT_ROUNDS_IN_THREE: Final = 2
"""Of three rounds, how many use a crash point; the other one is killed at a random moment."""
POINT_ROUNDS_PER_JOB: Final = sum(1 for number in range(JOB_ROUNDS) if number % (POINT_ROUNDS_IN_THREE + 1))
"""How many rounds of a whole job use a crash point."""
COUNTS: Final = {
    crash_points.AFTER_APPEND: 300,
    crash_points.MID_ROLL: 3,
    crash_points.AFTER_SYNC: 4,
    crash_points.MID_COMMIT: 5,
    crash_points.MID_RETURN: 2,
    crash_points.MID_POINT: 2,
    crash_points.MID_CHECKPOINT: 2,
}
"""The broker ends when it reaches the point for the n-th time, with n from 1 to this number."""
COUNTS_SYNC: Final = COUNTS | {crash_points.AFTER_SYNC: 40, crash_points.MID_COMMIT: 60}
"""Synchronous flushes come one after the other, each with a commit."""
CONSUMER_SHARE: Final = 0.5
"""The share of rounds in which a consumer reads under load."""
RECOVERY_KILL: Final = (0.0, 1.0)
"""When a recovering broker is killed at random, as parts of the time that its last recovery took."""


class DerivedFiles(Enum):
    """The files that a broker rebuilds from its log, and that may be removed between a kill and a restart."""

    NOTHING = ()
    QUEUES = ("consumequeue",)
    INDEX = ("index",)
    CHECKPOINT = ("checkpoint",)
    EVERYTHING = ("consumequeue", "index", "checkpoint")


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one round."""

    load_s: float
    """How long the producers send after their first replies until the broker is killed; not used with `load_crash`."""

    load_crash: CrashAt | None
    """The crash point at which the broker ends itself under load; None: it is killed after `load_s`."""

    start_crashes: tuple[CrashAt, ...]
    """The crash points at which the next restarts end themselves, one for each restart."""

    recovery_kills: tuple[float, ...]
    """When further restarts are killed, as parts of the last recovery's time."""

    removed: DerivedFiles
    """What is deleted between the kill and the restart."""
    has_consumer: bool
    """Whether a consumer reads while the producers send."""


def plan(cell: Cell, seed: int, number: int) -> Plan:
    """Return the plan of round `number` of the job with this seed."""
    rng = random.Random(f"{seed}/{cell}/round/{number}")
    load_s = rng.uniform(*LOAD_S)
    removed = rng.choice((DerivedFiles.NOTHING, DerivedFiles.NOTHING, *DerivedFiles))
    recovery_kills = tuple(rng.uniform(*RECOVERY_KILL) for _ in range(rng.choice((0, 0, 0, 1, 2))))
    has_consumer = rng.random() < CONSUMER_SHARE
    counts = COUNTS_SYNC if cell.is_sync else COUNTS
    moment = crash_moment(cell, seed, number)
    if moment is None:
        return Plan(load_s, None, (), recovery_kills, removed, has_consumer)
    if not moment.is_at_start:
        end = CrashAt(moment.point, rng.randint(1, counts[moment.point]))
        return Plan(load_s, end, (), recovery_kills, removed, has_consumer)
    # Sometimes the recovery after a crashed recovery crashes, too.
    start_crashes = (CrashAt(moment.point, 1),) * rng.choice((1, 1, 2))
    needs_tail = moment in WITH_REPLAY
    appends = counts[crash_points.AFTER_APPEND]
    first = CrashAt(crash_points.AFTER_APPEND, rng.randint(1, appends)) if needs_tail else None
    return Plan(load_s, first, start_crashes, () if needs_tail else recovery_kills, removed, has_consumer)


def crash_moment(cell: Cell, seed: int, number: int) -> CrashMoment | None:
    """Return the crash point that this round uses; None for a random moment.

    Jobs have consecutive seeds, and each continues in the list where the one before it ended, if it had ten rounds.
    """
    third, within = divmod(number, POINT_ROUNDS_IN_THREE + 1)
    if within == 0:
        return None
    moments = cell.crash_moments
    return moments[(seed * POINT_ROUNDS_PER_JOB + third * POINT_ROUNDS_IN_THREE + within - 1) % len(moments)]
