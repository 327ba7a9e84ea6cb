"""Histories that have failed once, as they were printed, each named for the fault that it found."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from simulation.modes import Fault, Medium, Mode
from simulation.simulated_store import SimulatedStore

EQUAL = [300]
History = Callable[[SimulatedStore], None]


def full_disk_between_the_identity_and_its_copy(simulated: SimulatedStore) -> None:
    """Buffers are stamped with the start that ``store.json`` names, even if its copy could not be written."""
    simulated.append(EQUAL)
    simulated.reopen(Mode(Medium.CRASH_SAFE))
    simulated.stop()
    simulated.fail_at("write", 2, errno.ENOSPC)
    for _ in range(9):
        simulated.append(EQUAL)
    simulated.crash(Fault.KILL)


def sync_failed_in_a_recovery_that_read_everything(simulated: SimulatedStore) -> None:
    """Data that a failed recovery could not sync is rewritten by the next one, which does not trust the page cache."""
    for _ in range(10):
        simulated.append(EQUAL, queue=2)
    simulated.fail_at("sync", 2, errno.ENOSPC)
    simulated.reopen(Mode(is_sync=True), before=["point", "checkpoint"])


def numbers_of_removed_messages_outlive_a_power_loss(simulated: SimulatedStore) -> None:
    """A queue whose messages are deleted before a recovery point lists them still continues after them."""
    simulated.append(EQUAL)
    simulated.append(EQUAL)
    simulated.crash(Fault.KILL)
    simulated.append([1500, 100, 100, 700, -3], queue=1)
    simulated.flush()
    simulated.remove_head(3)
    simulated.crash(Fault.POWER)


def numbers_of_removed_messages_outlive_a_power_loss_of_later_ones(simulated: SimulatedStore) -> None:
    """A queue continues after its deleted messages if a power loss takes all later ones, which were not flushed."""
    simulated.append([-3], queue=2, is_contiguous=True, flags=0)
    simulated.reopen(Mode(Medium.CRASH_SAFE, buffers=2, is_waiting=True))
    for _ in range(4):
        simulated.append(EQUAL)
    for _ in range(5):
        simulated.append(EQUAL, queue=1)
    simulated.crash(Fault.POWER_TORN, 584)
    simulated.refill(4, is_at_once=False)
    for _ in range(4):
        simulated.append(EQUAL, queue=2)
    simulated.crash_at("mid-commit", 2, Fault.POWER, 50892)
    simulated.clear_acked()
    simulated.remove_head(2)
    simulated.flush()


def queue_built_by_a_recovery_that_was_cut_off(simulated: SimulatedStore) -> None:
    """Units that a recovery has written and not synced are synced by the next one, which finds them in the cache."""
    for _ in range(9):
        simulated.append(EQUAL)
    simulated.flush()
    simulated.remove_head(2)
    for queue in (2, 2, 2, 0, 0, 0):
        simulated.append(EQUAL, queue=queue)
    simulated.crash_at("mid-recovery", 1, Fault.KILL, 3980)
    simulated.stop()
    simulated.reopen(Mode(), before=["queues"])
    simulated.append(EQUAL, queue=1)
    simulated.append(EQUAL, queue=1)
    simulated.crash(Fault.POWER_TORN, 651)


def head_deleted_beyond_the_point_that_knew_a_number(simulated: SimulatedStore) -> None:
    """A recovery point from before the log's begin still has the ends of empty queues."""
    for queue in (2, 2, 0, 0, 0, 0, 0, 0, 0):
        simulated.append(EQUAL, queue=queue)
    simulated.flush()
    simulated.remove_head(2)
    simulated.crash(Fault.KILL)
    simulated.reopen(Mode())
    simulated.reopen(Mode(Medium.CRASH_SAFE, is_sync=True), before=["queues"])
    for _ in range(8):
        simulated.append(EQUAL)
    simulated.flush()
    simulated.remove_head(2)


def removal_cut_off_between_the_files_of_a_queue(simulated: SimulatedStore) -> None:
    """A queue that was emptied, and has an older file that was never synced, keeps its next offset."""
    for queue in (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0):
        simulated.append(EQUAL, queue=queue)
    simulated.flush()
    simulated.crash_at("remove", 3, Fault.POWER)
    simulated.remove_head(2)


def emptied_queue_that_could_not_be_synced(simulated: SimulatedStore) -> None:
    """After a failed sync of a queue its pages are not trusted: the head of the log stays until the next start."""
    for queue in (0, 0, 1, 1, 1, 1, 1, 1, 1):
        simulated.append(EQUAL, queue=queue)
    simulated.flush()
    simulated.fail_at("sync", 1, errno.EIO)
    simulated.remove_head(1)
    simulated.remove_head(1)
    simulated.crash(Fault.POWER)


def names_of_the_head_come_back_after_a_start_has_cut_the_queues(simulated: SimulatedStore) -> None:
    """A start makes the deletion of the log's head durable before it lets queues begin after it."""
    simulated.append(EQUAL)
    simulated.append(EQUAL)
    pooled = Mode(Medium.CRASH_SAFE, is_ahead=True, buffers=2)
    simulated.reopen(pooled, before=["index", "identity"], is_twice=True)
    for _ in range(10):
        simulated.append(EQUAL)
    simulated.flush()
    simulated.crash_at("sync_directory", 1, Fault.KILL, 46080)
    simulated.remove_head(2)
    for _ in range(5):
        simulated.append(EQUAL)
    simulated.flush()
    simulated.crash_at("sync_directory", 1, Fault.KILL_COPYING, 65535)
    simulated.remove_head(2)
    simulated.crash_at("after-replay", 1, Fault.POWER, 1423)
    simulated.reopen(Mode(), is_twice=True)


def queue_half_built_that_begins_with_nothing(simulated: SimulatedStore) -> None:
    """A queue has the length of the recovery point, but lost its head in a power loss while it was rebuilt."""
    for _ in range(29):
        simulated.append(EQUAL)
    simulated.crash_at("mid-truncation", 2, Fault.POWER_TORN, 1922)
    simulated.reopen(Mode(Medium.MOVED, is_sync=True, is_ahead=True))
    simulated.reopen(Mode(Medium.CRASH_SAFE, is_sync=True), before=["queues"], is_twice=True)


def queue_half_built_with_a_hole_in_its_middle(simulated: SimulatedStore) -> None:
    """The recovery point lists no queue that is being rebuilt: its ends may be right, and its middle missing."""
    for _ in range(39):
        simulated.append(EQUAL)
    simulated.flush()
    simulated.reopen(Mode())
    simulated.crash_at("mid-truncation", 1, Fault.POWER_TORN, 55)
    simulated.reopen(Mode(), before=["queues"])


def head_deleted_on_a_disk_too_full_to_record_the_begin(simulated: SimulatedStore) -> None:
    """Deleting frees the space that recording the begin of the log needs."""
    simulated.reopen(Mode(Medium.ANONYMOUS, is_ahead=True, buffers=2))
    simulated.fail_at("write", 5, errno.ENOSPC)
    simulated.append([-2, 100, -3, 100, 4096], queue=2)
    simulated.append(EQUAL, queue=2)
    for _ in range(9):
        simulated.append(EQUAL)
    simulated.flush()
    simulated.remove_head(2)


def name_of_a_file_lost_beyond_the_end_of_the_log(simulated: SimulatedStore) -> None:
    """A power loss removes one of several files without durable data: the log ends before it, and lacks nothing."""
    simulated.reopen(Mode(Medium.ANONYMOUS, is_ahead=True, buffers=3))
    for _ in range(13):
        simulated.append(EQUAL)
    simulated.crash_at("sync_directory", 3, Fault.POWER_TORN, 718)
    pooled = Mode(Medium.MOVED, is_sync=True, buffers=3, is_waiting=True)
    simulated.reopen(pooled, before=["checkpoint", "power", "identity"])


def number_of_a_queue_that_nothing_is_left_of(simulated: SimulatedStore) -> None:
    """A queue that lost its messages, its files and the recovery point begins at 0, and so does its consumer."""
    for queue in (0, 0, 0, 0, 2, 2, 2, 2, 2):
        simulated.append(EQUAL, queue=queue)
    simulated.crash(Fault.KILL_COPYING, 1809)
    simulated.remove_head(2)
    simulated.append(EQUAL)
    simulated.reopen(Mode(Medium.MOVED, buffers=2), before=["power", "queues", "point"])
    simulated.refill(8, is_at_once=True)
    simulated.rounds(1, is_commit=True, is_flush=True)


def number_of_an_expired_queue_after_a_start_that_hid_a_tail_after_a_half_message(simulated: SimulatedStore) -> None:
    """The next start proves the recovery point of that start, although no queue has the record before the tail."""
    simulated.append([300, 300, 300])
    simulated.crash(Fault.KILL_COLD, 791)
    for _ in range(6):
        simulated.append(EQUAL)
    simulated.flush()
    simulated.remove_head(2)
    simulated.reopen(Mode(Medium.CRASH_SAFE, is_ahead=True, buffers=2), before=["queues", "checkpoint"])
    simulated.reopen(Mode(is_ahead=True, buffers=3, is_waiting=True), is_twice=True)
    simulated.acks(1000)
    simulated.append([-3], queue=2, is_contiguous=True, flags=4)
    simulated.acks(2)
    simulated.rounds(10000)
    simulated.append([300, 300])


def roll_in_an_append_that_was_cut_off(simulated: SimulatedStore) -> None:
    """An append that is killed while it copies into two buffers leaves no part in the second without all of the first.

    The simulated kill once tore the first one only; a start rightly set the second one aside.
    """
    simulated.append([100, 1, 300], queue=2, is_contiguous=False, flags=0)
    simulated.append([1, -1], queue=2, is_contiguous=False, flags=0)
    simulated.reopen(Mode(Medium.CRASH_SAFE, is_sync=True, is_ahead=True, buffers=2))
    simulated.crash_at("after-append", 3, Fault.KILL_COPYING, 42260)
    for _ in range(3):
        simulated.append(EQUAL)


def start_after_expired_messages_and_a_filler(simulated: SimulatedStore) -> None:
    """A queue whose last message has expired gets a filler for a lost one; the next start begins it after the filler.

    The search took the filler, which is at physical offset 0 after the messages, for a damaged unit.
    """
    for _ in range(6):
        simulated.append(EQUAL)
    simulated.reopen(Mode(Medium.CRASH_SAFE, is_sync=True, is_ahead=True, buffers=2, is_waiting=True))
    simulated.acks(8)
    simulated.append([-1, 1], queue=2, is_contiguous=True, flags=0)
    simulated.reopen(Mode(Medium.CRASH_SAFE, buffers=3, is_waiting=True))
    for _ in range(6):
        simulated.append(EQUAL)
    simulated.acks(7)
    simulated.rounds(10000)
    simulated.acks(7)
    simulated.remove_head(2)
    simulated.crash(Fault.POWER, 400)


def start_after_a_power_loss_that_reads_all_that_is_left(simulated: SimulatedStore) -> None:
    """A queue begins with its first message in the log, although a torn page hides which of its units have expired."""
    simulated.append([300], queue=2)
    for _ in range(6):
        simulated.append([300], queue=0)
    simulated.stop()
    for _ in range(10):
        simulated.append([300])
    simulated.flush()
    simulated.crash_at("sync_directory", 3, Fault.POWER_HOLE, 266)
    simulated.remove_head(2)
    simulated.reopen(Mode(medium=Medium.ANONYMOUS, is_sync=False, is_ahead=False, buffers=3, is_waiting=True))


REGRESSIONS: Final[tuple[History, ...]] = (
    start_after_a_power_loss_that_reads_all_that_is_left,
    start_after_expired_messages_and_a_filler,
    roll_in_an_append_that_was_cut_off,
    number_of_an_expired_queue_after_a_start_that_hid_a_tail_after_a_half_message,
    number_of_a_queue_that_nothing_is_left_of,
    name_of_a_file_lost_beyond_the_end_of_the_log,
    head_deleted_on_a_disk_too_full_to_record_the_begin,
    full_disk_between_the_identity_and_its_copy,
    sync_failed_in_a_recovery_that_read_everything,
    numbers_of_removed_messages_outlive_a_power_loss,
    numbers_of_removed_messages_outlive_a_power_loss_of_later_ones,
    queue_built_by_a_recovery_that_was_cut_off,
    head_deleted_beyond_the_point_that_knew_a_number,
    removal_cut_off_between_the_files_of_a_queue,
    emptied_queue_that_could_not_be_synced,
    names_of_the_head_come_back_after_a_start_has_cut_the_queues,
    queue_half_built_that_begins_with_nothing,
    queue_half_built_with_a_hole_in_its_middle,
)
