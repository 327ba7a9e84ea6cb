"""Which acks prove that a message outlives its master: those that an election is sure to see."""

from __future__ import annotations

import pytest

from gantry_broker.ha.acknowledgement import AckSet


def acks_of(levels: dict[int, int], *, acks_needed: int = 1) -> AckSet:
    """Slaves by their numbers, and how far each has the log."""
    acks = AckSet(acks_needed=acks_needed, is_flushed_wanted=False)
    for number, level in levels.items():
        slave = acks.join(f"store-{number}", number, 0.0)
        assert slave is not None, "each number once"
        slave.received = level
    return acks


@pytest.mark.parametrize(("needed", "end"), [(1, 900), (2, 500), (3, 100), (4, -1)])
def test_so_many_slaves_have_the_log_up_to_there(needed: int, end: int) -> None:
    """The level of the last one that is needed; with too few of them there is none."""
    assert acks_of({1: 500, 2: 900, 3: 100}, acks_needed=needed).acked() == end


def test_a_slave_that_no_election_asks_does_not_count() -> None:
    """A master that died right after it would be followed by one that never had the message."""
    acks = acks_of({1: 500, 7: 900})
    assert acks.acked() == 900

    acks.begin_epoch(0, [1, 2])

    assert acks.acked() == 500
    assert not acks.has_enough(900, 300)
    assert acks.has_enough(900, 400)


def test_slave_without_an_ack_is_not_in_sync() -> None:
    """It may have nothing, however short the log is."""
    acks = acks_of({1: -1, 2: 0}, acks_needed=2)

    assert [slave.is_near(0, 300) for slave in acks] == [False, True]
    assert not acks.has_enough(0, 300)


def test_acks_count_from_where_the_epoch_begins() -> None:
    """Before it, a slave's log ends in an older epoch, and loses to that of an epoch in between."""
    acks = acks_of({1: 500, 2: 400})
    acks.begin_epoch(600, [1, 2])
    assert acks.acked() == -1

    for slave in acks:
        slave.received = 600

    assert acks.acked() == 600


def test_without_an_election_everybody_counts() -> None:
    """A group whose role never moves asks nobody."""
    acks = acks_of({1: 500, 7: 900}, acks_needed=2)
    acks.begin_epoch(0, [])

    assert acks.acked() == 500
