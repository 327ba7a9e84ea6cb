"""Which acks prove that a message survives its master: those that an election is sure to count."""

from __future__ import annotations

import pytest

from gantry_broker.ha.acknowledgement import AckSet


def acks_of(levels: dict[int, int], *, acks_needed: int = 1, is_flushed_wanted: bool = False) -> AckSet:
    """Return a set of slaves by broker id, each with the end of its log."""
    acks = AckSet(acks_needed=acks_needed, is_flushed_wanted=is_flushed_wanted)
    for number, level in levels.items():
        slave = acks.join(f"store-{number}", number, 0.0)
        assert slave is not None, "expected each broker id once"
        slave.received = level
    return acks


@pytest.mark.parametrize(("needed", "end"), [(1, 900), (2, 500), (3, 100), (4, -1)])
def test_acked_is_the_position_of_the_last_needed_slave(needed: int, end: int) -> None:
    """The position is that of the last needed slave; with too few slaves there is none."""
    assert acks_of({1: 500, 2: 900, 3: 100}, acks_needed=needed).acked_offset() == end


def test_ack_of_slave_without_a_vote_does_not_count() -> None:
    """A master that died right after such an ack would be followed by one that never had the message."""
    acks = acks_of({1: 500, 7: 900})
    assert acks.acked_offset() == 900

    acks.begin_epoch(0, [1, 2])

    assert acks.acked_offset() == 500
    assert not acks.has_enough(900, 300)
    assert acks.has_enough(900, 400)


def test_slave_without_an_ack_is_not_in_sync() -> None:
    """A slave that has not acknowledged may have nothing, however short the log is."""
    acks = acks_of({1: -1, 2: 0}, acks_needed=2)

    assert [slave.is_in_sync(0, 300) for slave in acks] == [False, True]
    assert not acks.has_enough(0, 300)


def test_slave_that_reports_no_flushed_position_is_not_waited_for() -> None:
    """Where flushed acks are wanted, it does not count, however much it has received; one that flushes later does."""
    acks = acks_of({-2: 900, 1: 900}, is_flushed_wanted=True)
    ours = next(slave for slave in acks if slave.broker_id == 1)
    assert (acks.has_enough(900, 300), acks.acked_offset()) == (False, -1)

    ours.flushed = 0

    assert (acks.has_enough(900, 300), acks.acked_offset()) == (True, 0)
    received_wanted = acks_of({-2: 900})
    assert (received_wanted.has_enough(900, 300), received_wanted.acked_offset()) == (True, 900)


def test_acks_before_the_epoch_do_not_count() -> None:
    """Before it, a slave's log ends in an older epoch, and loses to that of an epoch in between."""
    acks = acks_of({1: 500, 2: 400})
    acks.begin_epoch(600, [1, 2])
    assert acks.acked_offset() == -1

    for slave in acks:
        slave.received = 600

    assert acks.acked_offset() == 600


def test_all_acks_count_without_elections() -> None:
    """In a group whose role never moves, every slave's ack counts."""
    acks = acks_of({1: 500, 7: 900}, acks_needed=2)
    acks.begin_epoch(0, [])

    assert acks.acked_offset() == 500
