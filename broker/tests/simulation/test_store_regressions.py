"""Histories that have failed once, as they were printed, each named for the fault that it found."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from simulation.explore import live
from simulation.life import Life
from simulation.modes import Fault, Medium, Mode

EQUAL = [300]
History = Callable[[Life], None]


def full_disk_between_the_identity_and_its_copy(life: Life) -> None:
    """Buffers are stamped with the start that ``store.json`` names, even if its copy could not be written."""
    life.append(EQUAL)
    life.reopen(Mode(Medium.CRASH_SAFE))
    life.stop()
    life.fail("write", 2, errno.ENOSPC)
    for _ in range(9):
        life.append(EQUAL)
    life.crash(Fault.KILL)


def sync_failed_in_a_recovery_that_read_everything(life: Life) -> None:
    """Data that a failed recovery could not sync is rewritten by the next one, which does not trust the page cache."""
    for _ in range(10):
        life.append(EQUAL, queue=2)
    life.fail("sync", 2, errno.ENOSPC)
    life.reopen(Mode(is_sync=True), before=["point", "checkpoint"])


def numbers_of_removed_messages_outlive_a_power_loss(life: Life) -> None:
    """A queue whose messages are deleted before a recovery point lists them still continues after them."""
    life.append(EQUAL)
    life.append(EQUAL)
    life.crash(Fault.KILL)
    life.append([1500, 100, 100, 700, -3], queue=1)
    life.flush()
    life.remove_head(3)
    life.crash(Fault.POWER)


def queue_built_by_a_recovery_that_was_cut_off(life: Life) -> None:
    """Units that a recovery has written and not synced are synced by the next one, which finds them in the cache."""
    for _ in range(9):
        life.append(EQUAL)
    life.flush()
    life.remove_head(2)
    for queue in (2, 2, 2, 0, 0, 0):
        life.append(EQUAL, queue=queue)
    life.die("mid-recovery", 1, Fault.KILL, 3980)
    life.stop()
    life.reopen(Mode(), before=["queues"])
    life.append(EQUAL, queue=1)
    life.append(EQUAL, queue=1)
    life.crash(Fault.POWER_TORN, 651)


def head_deleted_beyond_the_point_that_knew_a_number(life: Life) -> None:
    """A recovery point from before the log's begin still has the ends of empty queues."""
    for queue in (2, 2, 0, 0, 0, 0, 0, 0, 0):
        life.append(EQUAL, queue=queue)
    life.flush()
    life.remove_head(2)
    life.crash(Fault.KILL)
    life.reopen(Mode())
    life.reopen(Mode(Medium.CRASH_SAFE, is_sync=True), before=["queues"])
    for _ in range(8):
        life.append(EQUAL)
    life.flush()
    life.remove_head(2)


def removal_cut_off_between_the_files_of_a_queue(life: Life) -> None:
    """A queue that was emptied, and has an older file that was never synced, keeps its next offset."""
    for queue in (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0):
        life.append(EQUAL, queue=queue)
    life.flush()
    life.die("remove", 3, Fault.POWER)
    life.remove_head(2)


def emptied_queue_that_could_not_be_synced(life: Life) -> None:
    """After a failed sync of a queue its pages are not trusted: the head of the log stays until the next start."""
    for queue in (0, 0, 1, 1, 1, 1, 1, 1, 1):
        life.append(EQUAL, queue=queue)
    life.flush()
    life.fail("sync", 1, errno.EIO)
    life.remove_head(1)
    life.remove_head(1)
    life.crash(Fault.POWER)


def names_of_the_head_come_back_after_a_start_has_cut_the_queues(life: Life) -> None:
    """A start makes the deletion of the log's head durable before it lets queues begin after it."""
    life.append(EQUAL)
    life.append(EQUAL)
    pooled = Mode(Medium.CRASH_SAFE, is_ahead=True, buffers=2)
    life.reopen(pooled, before=["index", "identity"], is_twice=True)
    for _ in range(10):
        life.append(EQUAL)
    life.flush()
    life.die("sync_directory", 1, Fault.KILL, 46080)
    life.remove_head(2)
    for _ in range(5):
        life.append(EQUAL)
    life.flush()
    life.die("sync_directory", 1, Fault.KILL_COPYING, 65535)
    life.remove_head(2)
    life.die("after-replay", 1, Fault.POWER, 1423)
    life.reopen(Mode(), is_twice=True)


def queue_half_built_that_begins_with_nothing(life: Life) -> None:
    """A queue has the length of the recovery point, but lost its head in a power loss while it was rebuilt."""
    for _ in range(29):
        life.append(EQUAL)
    life.die("mid-truncation", 2, Fault.POWER_TORN, 1922)
    life.reopen(Mode(Medium.MOVED, is_sync=True, is_ahead=True))
    life.reopen(Mode(Medium.CRASH_SAFE, is_sync=True), before=["queues"], is_twice=True)


def queue_half_built_with_a_hole_in_its_middle(life: Life) -> None:
    """The recovery point lists no queue that is being rebuilt: its ends may be right, and its middle missing."""
    for _ in range(39):
        life.append(EQUAL)
    life.flush()
    life.reopen(Mode())
    life.die("mid-truncation", 1, Fault.POWER_TORN, 55)
    life.reopen(Mode(), before=["queues"])


def head_deleted_on_a_disk_too_full_to_record_the_begin(life: Life) -> None:
    """Deleting frees the space that recording the begin of the log needs."""
    life.reopen(Mode(Medium.ANONYMOUS, is_ahead=True, buffers=2))
    life.fail("write", 5, errno.ENOSPC)
    life.append([-2, 100, -3, 100, 4096], queue=2)
    life.append(EQUAL, queue=2)
    for _ in range(9):
        life.append(EQUAL)
    life.flush()
    life.remove_head(2)


def name_of_a_file_lost_beyond_the_end_of_the_log(life: Life) -> None:
    """A power loss removes one of several files without durable data: the log ends before it, and lacks nothing."""
    life.reopen(Mode(Medium.ANONYMOUS, is_ahead=True, buffers=3))
    for _ in range(13):
        life.append(EQUAL)
    life.die("sync_directory", 3, Fault.POWER_TORN, 718)
    pooled = Mode(Medium.MOVED, is_sync=True, buffers=3, is_waiting=True)
    life.reopen(pooled, before=["checkpoint", "power", "identity"])


def number_of_a_queue_that_nothing_is_left_of(life: Life) -> None:
    """A queue that lost its messages, its files and the recovery point begins at 0, and so does its consumer."""
    for queue in (0, 0, 0, 0, 2, 2, 2, 2, 2):
        life.append(EQUAL, queue=queue)
    life.crash(Fault.KILL_COPYING, 1809)
    life.remove_head(2)
    life.append(EQUAL)
    life.reopen(Mode(Medium.MOVED, buffers=2), before=["power", "queues", "point"])
    life.refill(8, is_at_once=True)
    life.rounds(1, is_commit=True, is_flush=True)


def number_of_an_expired_queue_after_a_start_that_hid_a_tail_after_a_half_message(life: Life) -> None:
    """The next start proves the recovery point of that start, although no queue has the record before the tail."""
    life.append([300, 300, 300])
    life.crash(Fault.KILL_COLD, 791)
    for _ in range(6):
        life.append(EQUAL)
    life.flush()
    life.remove_head(2)
    life.reopen(Mode(Medium.CRASH_SAFE, is_ahead=True, buffers=2), before=["queues", "checkpoint"])
    life.reopen(Mode(is_ahead=True, buffers=3, is_waiting=True), is_twice=True)
    life.acks(1000)
    life.append([-3], queue=2, is_contiguous=True, flags=4)
    life.acks(2)
    life.rounds(10000)
    life.append([300, 300])


@pytest.mark.parametrize(
    "history",
    [
        number_of_an_expired_queue_after_a_start_that_hid_a_tail_after_a_half_message,
        number_of_a_queue_that_nothing_is_left_of,
        name_of_a_file_lost_beyond_the_end_of_the_log,
        head_deleted_on_a_disk_too_full_to_record_the_begin,
        full_disk_between_the_identity_and_its_copy,
        sync_failed_in_a_recovery_that_read_everything,
        numbers_of_removed_messages_outlive_a_power_loss,
        queue_built_by_a_recovery_that_was_cut_off,
        head_deleted_beyond_the_point_that_knew_a_number,
        removal_cut_off_between_the_files_of_a_queue,
        emptied_queue_that_could_not_be_synced,
        names_of_the_head_come_back_after_a_start_has_cut_the_queues,
        queue_half_built_that_begins_with_nothing,
        queue_half_built_with_a_hole_in_its_middle,
    ],
    ids=lambda history: history.__name__,
)
def test_regression_history_holds(history: History) -> None:
    """A history that has failed once holds now."""
    assert live(history) is None
