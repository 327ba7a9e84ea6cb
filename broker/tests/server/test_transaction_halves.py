"""Open transactions, as they follow from the half queue and the op queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gantry_broker.server.transactions.halves import UNKNOWN, Half, OpenHalves


def make_half(offset: int, *, first_check_ms: int = 0, origin: int = -1, checks: int = 0) -> Half:
    return Half(offset, 1000 + offset, "producers", 0, first_check_ms, checks=checks, origin=origin)


def open_halves(*offsets: int) -> OpenHalves:
    one = OpenHalves()
    for offset in offsets:
        one.add(make_half(offset))
    return one


def test_ended_transaction_is_not_open() -> None:
    """All others are open; a restart reads from the first open one, and from the first op message for it on."""
    one = open_halves(0, 1, 2, 3)
    one.add_op(0, [1])
    assert [one.find(offset) is not None for offset in range(5)] == [True, False, True, True, False]
    assert (one.half_restart_offset, one.op_restart_offset) == (0, 0)

    one.add_op(1, [0])
    assert (one.half_restart_offset, one.op_restart_offset) == (2, 2)
    one.add_op(2, [3])
    assert (one.half_restart_offset, one.op_restart_offset) == (2, 2)
    one.add_op(3, [2])
    assert (one.half_restart_offset, one.op_restart_offset, len(one)) == (4, 4, 0)


def test_half_message_stored_again_is_open_once() -> None:
    """It is found under its new and its old offset, also if the op message was torn off."""
    one = open_halves(0, 1)
    one.add(make_half(2, origin=0, checks=1))

    assert len(one) == 2
    found = one.find(0)
    assert found is not None and found is one.find(2)
    assert found.aliases == {0: 1000}
    one.add_op(0, [0])
    assert one.find(0) is found, "the op message about its old copy has ended it"
    one.add(make_half(3, origin=0, checks=2))
    assert one.find(0) is one.find(2) is one.find(3) is not None
    assert (one.half_restart_offset, one.op_restart_offset) == (1, 1)


def test_half_message_stored_again_is_known_by_its_first_offset() -> None:
    """It is found by its first offset even if that copy was not read."""
    one = OpenHalves(5, 5)
    one.add(make_half(7, origin=2, checks=3))

    found = one.find(2)
    assert found is not None and found.aliases == {2: UNKNOWN}
    one.mark_ended(found, "committed")
    assert one.find(2) is None


def test_half_message_that_names_another_message_is_no_copy() -> None:
    """It is open under its own offset alone, and the other message stays open with its own producer."""
    one = open_halves(0, 1)
    one.add(replace(make_half(2, origin=0, checks=1), identity=b"other"))

    assert len(one) == 3
    assert [half.queue_offset for half in map(one.find, range(3)) if half is not None] == [0, 1, 2]
    foreign = one.find(2)
    assert foreign is not None and foreign.copies == {2: 1002}
    one.mark_ended(foreign, "committed")
    assert one.find(0) is not None and one.outcome(0) is None


def test_end_counts_before_its_op_message_is_read() -> None:
    """It is not found again, and a restart still begins before it until the op message was read."""
    one = open_halves(0, 1)
    found = one.find(0)
    assert found is not None
    one.mark_ended(found, "committed")

    assert one.find(0) is None and one.outcome(0) == "committed"
    assert one.half_restart_offset == 0
    one.add_op(0, [0])
    assert one.half_restart_offset == 1


def test_due_transaction_is_returned_once() -> None:
    """In order of time, unless it has ended meanwhile; and again when that was asked for."""
    one = OpenHalves()
    for offset, at_ms in enumerate((30, 10, 20)):
        one.add(make_half(offset, first_check_ms=at_ms))
    one.add_op(0, [2])

    first = one.next_due(25)
    assert first is not None and first.queue_offset == 1
    assert one.next_due(25) is None
    one.check_later(first, 40)
    assert [due.queue_offset for _ in range(2) if (due := one.next_due(50)) is not None] == [0, 1]
    assert one.next_due(99) is None


def test_op_message_may_name_a_removed_half_message() -> None:
    """Expired half messages, and those before the place where reading began, are of no interest."""
    one = OpenHalves(5, 3)
    one.skip_to(7)
    one.add_op(3, [1, 2])
    one.add(make_half(7))
    assert (one.half_restart_offset, one.op_restart_offset) == (7, 4)


def test_half_message_ended_before_it_was_read_is_never_open() -> None:
    """The two queues grow while they are read, one after the other."""
    one = open_halves(0)
    one.add_op(0, [1, 0])
    one.add(make_half(1))

    assert (len(one), one.find(1)) == (0, None)
    assert (one.half_restart_offset, one.op_restart_offset) == (2, 1)


def test_end_applies_to_the_next_copy() -> None:
    """It was stored again, and ended before that was read: the next place is not open when it comes."""
    one = open_halves(0)
    found = one.find(0)
    assert found is not None
    found.successor = 1
    one.mark_ended(found, "committed")
    one.add(make_half(1, origin=0, checks=1))
    assert (len(one), one.find(0), one.find(1)) == (0, None, None)
    assert one.outcome(0) == one.outcome(1) == "committed"
    assert one.half_restart_offset == 0, "expected the restart offset at the half message whose op message is not read"
    one.add_op(0, [0])
    one.add_op(1, [0, 1])
    assert one.half_restart_offset == 2


def test_half_message_is_open_until_its_next_copy_is_read() -> None:
    """The op message about its old place may be read first."""
    one = open_halves(0)
    found = one.find(0)
    assert found is not None
    found.is_restored, found.successor = True, 1
    one.add_op(0, [0])
    assert one.find(0) is found
    one.add(make_half(1, origin=0, checks=1))
    later = one.find(0)
    assert later is not None and later is one.find(1) and later.is_restored
    assert later.copies == {0: 1000, 1: 1001}


def test_only_the_last_outcomes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones are in the index."""
    monkeypatch.setattr("gantry_broker.server.transactions.halves.OUTCOMES_MAX", 2)
    one = open_halves(0, 1, 2)
    for offset in range(3):
        found = one.find(offset)
        assert found is not None
        one.mark_ended(found, "rolled-back")
    assert [one.outcome(offset) for offset in range(3)] == [None, "rolled-back", "rolled-back"]
