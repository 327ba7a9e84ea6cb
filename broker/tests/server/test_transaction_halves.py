"""Which transactions are open, as the two queues say."""

from __future__ import annotations

import pytest

from gantry_broker.server.transactions.halves import UNKNOWN, Half, OpenHalves


def half(offset: int, *, first_check_ms: int = 0, origin: int = -1, checks: int = 0) -> Half:
    return Half(offset, 1000 + offset, "producers", 0, first_check_ms, checks=checks, origin=origin)


def halves(*offsets: int) -> OpenHalves:
    one = OpenHalves()
    for offset in offsets:
        one.found(half(offset))
    return one


def test_what_has_ended_is_not_open() -> None:
    """And the rest is; a restart begins at the first that is open, and at the first op message about it or later."""
    one = halves(0, 1, 2, 3)
    one.done(0, [1])
    assert [one.find(offset) is not None for offset in range(5)] == [True, False, True, True, False]
    assert (one.half_low, one.op_low) == (0, 0)

    one.done(1, [0])
    assert (one.half_low, one.op_low) == (2, 2)
    one.done(2, [3])
    assert (one.half_low, one.op_low) == (2, 2)
    one.done(3, [2])
    assert (one.half_low, one.op_low, len(one)) == (4, 4, 0)


def test_one_that_was_stored_again_is_open_once() -> None:
    """Under its new place; who knows the old one finds it, too. So it is also if the op message was torn off."""
    one = halves(0, 1)
    one.found(half(2, origin=0, checks=1))

    assert len(one) == 2
    found = one.find(0)
    assert found is not None and found is one.find(2)
    assert found.aliases == {0: 1000}
    one.done(0, [0])
    assert one.find(0) is found, "that the old place is done with does not end it"
    one.found(half(3, origin=0, checks=2))
    assert one.find(0) is one.find(2) is one.find(3) is not None
    assert (one.half_low, one.op_low) == (1, 1)


def test_one_that_was_stored_again_is_known_by_its_first_place() -> None:
    """Also to who has not read that place."""
    one = OpenHalves(5, 5)
    one.found(half(7, origin=2, checks=3))

    found = one.find(2)
    assert found is not None and found.aliases == {2: UNKNOWN}
    one.ended(found, "committed")
    assert one.find(2) is None


def test_an_end_counts_before_it_is_read() -> None:
    """It is not found again, and a restart still begins before it until the op message was read."""
    one = halves(0, 1)
    found = one.find(0)
    assert found is not None
    one.ended(found, "committed")

    assert one.find(0) is None and one.outcome(0) == "committed"
    assert one.half_low == 0
    one.done(0, [0])
    assert one.half_low == 1


def test_who_is_due_comes_once() -> None:
    """In order of time, unless it has ended meanwhile; and again when that was asked for."""
    one = OpenHalves()
    for offset, at_ms in enumerate((30, 10, 20)):
        one.found(half(offset, first_check_ms=at_ms))
    one.done(0, [2])

    first = one.next_due(25)
    assert first is not None and first.queue_offset == 1
    assert one.next_due(25) is None
    one.ask_again(first, 40)
    assert [due.queue_offset for _ in range(2) if (due := one.next_due(50)) is not None] == [0, 1]
    assert one.next_due(99) is None


def test_an_op_message_may_be_about_what_is_gone() -> None:
    """Expired half messages, and those before the place where reading began, are of no interest."""
    one = OpenHalves(5, 3)
    one.passed(7)
    one.done(3, [1, 2])
    one.found(half(7))
    assert (one.half_low, one.op_low) == (7, 4)


def test_what_has_ended_before_it_was_read_is_never_open() -> None:
    """The two queues grow while they are read, one after the other."""
    one = halves(0)
    one.done(0, [1, 0])
    one.found(half(1))

    assert (len(one), one.find(1)) == (0, None)
    assert (one.half_low, one.op_low) == (2, 1)


def test_an_end_is_that_of_the_next_place_too() -> None:
    """It was stored again, and ended before that was read: the next place is not open when it comes."""
    one = halves(0)
    found = one.find(0)
    assert found is not None
    found.successor = 1
    one.ended(found, "committed")
    one.found(half(1, origin=0, checks=1))
    assert (len(one), one.find(0), one.find(1)) == (0, None, None)
    assert one.outcome(0) == one.outcome(1) == "committed"
    assert one.half_low == 0, "its op message was not read yet"
    one.done(0, [0])
    one.done(1, [0, 1])
    assert one.half_low == 2


def test_one_that_goes_on_is_open_until_its_next_place_is_read() -> None:
    """The op message about its old place may be read first."""
    one = halves(0)
    found = one.find(0)
    assert found is not None
    found.is_restored, found.successor = True, 1
    one.done(0, [0])
    assert one.find(0) is found
    one.found(half(1, origin=0, checks=1))
    later = one.find(0)
    assert later is not None and later is one.find(1) and later.is_restored
    assert later.places == {0: 1000, 1: 1001}


def test_only_the_last_ends_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones are in the index."""
    monkeypatch.setattr("gantry_broker.server.transactions.halves.OUTCOMES_MAX", 2)
    one = halves(0, 1, 2)
    for offset in range(3):
        found = one.find(offset)
        assert found is not None
        one.ended(found, "rolled-back")
    assert [one.outcome(offset) for offset in range(3)] == [None, "rolled-back", "rolled-back"]
