"""Elections keep what was acknowledged. What a promotion may lose is an estimate only for what nobody saw."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_spec.ballot import UNSEEN_BYTES_PER_S, Ballot, count, loss_of, promises_needed
from gantry_spec.lease import LeaseRecord, Term, Voter
from gantry_spec.observed import LastWord, report_of

PEAK = 4 << 20
REIGN = Term(epoch=1_000, master=1, identity="store-1", electable=(Voter(2, "store-2"),))
WORD = LastWord(epoch=1_000, asked_ms=5_000, epoch_start=0, wrote=100, peak_bytes_per_s=PEAK)


def winner(end: int) -> Ballot:
    """Of a slave whose log ends there."""
    return Ballot(2, "store-2", epoch=1_000, last_epoch=1_000, end=end, is_whole=True, grant_over_ms=0)


def test_what_the_winner_has_proves_nothing_of_what_nobody_saw() -> None:
    """It has more than was heard of, and more than the peak explains: a load that has just begun may have gone on."""
    assert loss_of(REIGN, winner(150), [], WORD, silent_by_ms=5_900).at_most == PEAK
    assert loss_of(REIGN, winner(100), [], WORD, silent_by_ms=5_900).at_most == PEAK
    assert loss_of(REIGN, winner(90), [], WORD, silent_by_ms=6_100).at_most == 10 + 2 * PEAK


def test_a_master_that_was_idle_when_it_was_heard_is_not_taken_for_idle_since() -> None:
    """The slave's machine heard nobody for some seconds, and neither did whoever decides, while a load began."""
    idle = msgspec.structs.replace(WORD, peak_bytes_per_s=0)

    assert loss_of(REIGN, winner(100), [], idle, silent_by_ms=5_001).at_most == UNSEEN_BYTES_PER_S > 0
    assert loss_of(REIGN, winner(100), [], idle, silent_by_ms=15_000).at_most == 10 * UNSEEN_BYTES_PER_S
    assert loss_of(REIGN, winner(100), [], idle, silent_by_ms=5_000).at_most == 0, "it was heard to the end"


def test_what_was_heard_of_after_the_last_acknowledgement_is_exact() -> None:
    """Nothing was unseen: the difference is all."""
    assert loss_of(REIGN, winner(100), [], WORD, silent_by_ms=5_000).at_most == 0
    assert loss_of(REIGN, winner(70), [], WORD, silent_by_ms=4_000).at_most == 30


SYNC_REIGN = Term(
    epoch=1_000, master=1, identity="store-1", electable=(Voter(2, "store-2"), Voter(3, "store-3")), acks_needed=1
)


def voter(number: int, end: int, *, missing_bytes: int = 0, damaged_bytes: int = 0) -> Ballot:
    """Of a member whose log ends there."""
    return Ballot(
        number, f"store-{number}", epoch=1_000, last_epoch=1_000, end=end, is_whole=not missing_bytes,
        grant_over_ms=0, missing_bytes=missing_bytes, damaged_bytes=damaged_bytes,
    )  # fmt: skip


def test_newest_epoch_wins_and_within_it_longest_log() -> None:
    """A longer log of an older epoch lacks what the newer epoch has acknowledged."""
    record = LeaseRecord(epoch=1_001, terms=(SYNC_REIGN,))
    older = voter(1, 900)._replace(last_epoch=999)

    assert count(record, [older, voter(2, 400), voter(3, 500)]).winner == voter(3, 500)
    assert count(record, [older, voter(2, 950)._replace(last_epoch=998)]).winner == older


def test_who_lacks_log_data_is_not_elected() -> None:
    """However far its log is: a hole in it would become everybody's."""
    record = LeaseRecord(epoch=1_001, terms=(SYNC_REIGN,))
    ballots = [voter(1, 900, missing_bytes=100), voter(2, 500), voter(3, 400)]

    assert count(record, ballots).winner == ballots[1]
    assert count(record, [voter(1, 900), *ballots[1:]]).winner == voter(1, 900), "the twin: with nothing missing it is"
    assert count(record, [ballots[0]], is_forced=True).winner is None
    assert "missing" in count(record, [ballots[0]], is_forced=True).reason


def test_alone_it_is_named_all_the_same() -> None:
    """Its broker serves reads then, and refuses sends until the loss is accepted."""
    alone = voter(1, 900, missing_bytes=100)
    record = LeaseRecord(epoch=1_001, terms=(Term(epoch=1_000, master=1, identity="store-1", electable=()),))

    assert count(record, [alone]).winner == alone


def test_a_member_with_damaged_records_loses_among_equals_only() -> None:
    """Its vote counts, a longer log wins whatever is damaged in it, and so does whom a person wants."""
    record = LeaseRecord(epoch=1_001, terms=(SYNC_REIGN,))
    damaged, equal, shorter = voter(1, 900, damaged_bytes=50), voter(2, 900), voter(3, 400)

    assert count(record, [damaged, equal, shorter]).winner == equal
    assert count(record, [voter(1, 900), equal, shorter]).winner == voter(1, 900), "the twin: the last master is kept"
    assert count(record, [damaged, shorter]).winner == damaged
    assert count(record, [damaged, equal], wanted=1).winner == damaged
    assert count(record, [damaged, voter(2, 900, damaged_bytes=10)]).winner == damaged, "both are: the last master"
    assert count(record, [voter(2, 900, damaged_bytes=1), voter(3, 900, damaged_bytes=1)]).winner is not None


def test_a_report_says_how_much_is_damaged() -> None:
    """Brokers of before say nothing of it."""
    assert report_of({}, asked_ms=1, answered_ms=2).damaged_bytes == 0
    assert report_of({"damaged_bytes": 50}, asked_ms=1, answered_ms=2).damaged_bytes == 50


def test_a_report_says_how_much_is_missing() -> None:
    """From the ranges that a broker names; one that names none lacks nothing."""
    assert report_of({}, asked_ms=1, answered_ms=2).missing_bytes == 0
    ranges = [{"start": 10, "end": 30, "cause": "head"}, {"start": 50, "end": 55, "cause": "tail"}]
    assert report_of({"missing": ranges}, asked_ms=1, answered_ms=2).missing_bytes == 25
    with pytest.raises(ValueError, match="missing"):
        report_of({"missing": [{"start": 10}]}, asked_ms=1, answered_ms=2)


# -- who wins ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slaves", "acks", "needed"),
    [(1, 1, 1), (2, 1, 2), (2, 2, 1), (3, 1, 3), (3, 2, 2), (4, 2, 3), (1, 0, 1), (3, 0, 1)],
)
def test_promises_are_needed_from_so_many(slaves: int, acks: int, needed: int) -> None:
    """S - k + 1, so that any k slaves include one that has promised."""
    assert promises_needed(slaves, acks) == needed


def is_election_safe(seed: int, *, promises_less: int = 0) -> bool:
    """A master and some slaves that copy and acknowledge, then an election among those who can be reached.

    Whether the winner has every acknowledged message, also those of senders that the old master answers afterwards.
    """
    chance = random.Random(seed)
    slaves = range(2, chance.randrange(3, 8))
    acks_needed = chance.randrange(1, len(slaves) + 1)
    needed = max(1, promises_needed(len(slaves), acks_needed) - promises_less)
    ends = dict.fromkeys(slaves, 0)
    wrote = acknowledged = 0
    reachable = chance.sample(slaves, needed)
    rounds_before = chance.randrange(40)
    ballots: list[Ballot] = []
    for number in range(80):
        if number == rounds_before:
            # From here on they follow the old master no more; it does not know, and goes on with the others.
            ballots = [voter(one, ends[one]) for one in reachable]
        wrote += chance.randrange(3)
        slave = chance.choice(slaves)
        if number < rounds_before or slave not in reachable:
            ends[slave] = chance.randint(ends[slave], wrote)
        acknowledged = max(acknowledged, sorted(ends.values(), reverse=True)[acks_needed - 1])
    if promises_less:
        return max(ballot.end for ballot in ballots) >= acknowledged
    electable = tuple(Voter(one, f"store-{one}") for one in slaves)
    term = Term(epoch=1_000, master=1, identity="store-1", electable=electable, acks_needed=acks_needed)
    elected = count(LeaseRecord(epoch=2_000, terms=(term,)), ballots).winner
    assert elected is not None
    return elected.end >= acknowledged


@settings(max_examples=500)
@given(st.integers(0, 1 << 30))
def test_an_election_never_loses_what_was_acknowledged(seed: int) -> None:
    """With any number of slaves and of needed acks, whoever can be reached, and a master that does not know of it."""
    assert is_election_safe(seed)


def test_an_election_with_one_promise_too_few_is_found() -> None:
    """Or the test above would prove nothing."""
    assert not all(is_election_safe(seed, promises_less=1) for seed in range(200))


@pytest.mark.parametrize(
    ("ballots", "reason"),
    [
        ([voter(2, 10)], "2 of the slaves [2, 3] of epoch 1000 must vote, and [3] cannot"),
        ([voter(2, 10), voter(4, 10)], "[3] cannot"),
        ([voter(2, 10), voter(2, 10)], "[3] cannot"),
        ([voter(2, 10), voter(3, 10)._replace(identity="another")], "[3] cannot"),
        ([voter(2, 10), voter(3, 10)._replace(is_whole=False)], "[3] cannot"),
        ([], "[2, 3] cannot"),
    ],
    ids=["too-few", "stranger", "one-voice", "other-store", "not-whole", "nobody"],
)
def test_nobody_is_promoted_without_enough_promises(ballots: list[Ballot], reason: str) -> None:
    """And the reason names those that lack."""
    result = count(LeaseRecord(epoch=2_000, terms=(SYNC_REIGN,)), ballots)

    assert result.winner is None
    assert reason in result.reason
