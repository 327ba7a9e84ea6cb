"""Elections keep acknowledged messages. The loss of a promotion is estimated only for unobserved periods.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_spec.ballot import (
    UNOBSERVED_BYTES_PER_S,
    Ballot,
    Loss,
    count_ballots,
    loss_of,
    necessary_terms,
    never_began,
    promises_needed,
)
from gantry_spec.lease import TERMS_MAX, LeaseRecord, Term, Voter
from gantry_spec.observed import LastReport, report_of

PEAK = 4 << 20
TERM = Term(epoch=1_000, master=1, identity="store-1", electable=(Voter(2, "store-2"),))
LAST_REPORT = LastReport(epoch=1_000, asked_ms=5_000, epoch_start=0, wrote=100, peak_bytes_per_s=PEAK)


def winner(end: int) -> Ballot:
    """Return the ballot of a slave whose log ends at ``end``."""
    return Ballot(2, "store-2", epoch=1_000, last_epoch=1_000, end=end, is_complete=True, grant_expires_ms=0)


def test_a_longer_log_of_the_winner_does_not_exclude_an_unobserved_loss() -> None:
    """The load of a master may have risen after its last report, so its reported peak is no upper bound."""
    assert loss_of(TERM, winner(150), [], LAST_REPORT, silent_by_ms=5_900).at_most == PEAK
    assert loss_of(TERM, winner(100), [], LAST_REPORT, silent_by_ms=5_900).at_most == PEAK
    assert loss_of(TERM, winner(90), [], LAST_REPORT, silent_by_ms=6_100).at_most == 10 + 2 * PEAK


def test_an_idle_master_is_not_assumed_to_stay_idle() -> None:
    """While neither its slave nor the operator was in contact with it, its load may have started."""
    idle = msgspec.structs.replace(LAST_REPORT, peak_bytes_per_s=0)

    assert loss_of(TERM, winner(100), [], idle, silent_by_ms=5_001).at_most == UNOBSERVED_BYTES_PER_S > 0
    assert loss_of(TERM, winner(100), [], idle, silent_by_ms=15_000).at_most == 10 * UNOBSERVED_BYTES_PER_S
    assert loss_of(TERM, winner(100), [], idle, silent_by_ms=5_000).at_most == 0, (
        "expected no loss if the master ended with its last report"
    )


def test_the_loss_is_exact_if_the_last_report_is_newer_than_the_last_acknowledgement() -> None:
    """The loss is the difference of the logs, without an estimate."""
    assert loss_of(TERM, winner(100), [], LAST_REPORT, silent_by_ms=5_000).at_most == 0
    assert loss_of(TERM, winner(70), [], LAST_REPORT, silent_by_ms=4_000).at_most == 30


SYNC_TERM = Term(
    epoch=1_000, master=1, identity="store-1", electable=(Voter(2, "store-2"), Voter(3, "store-3")), acks_needed=1
)


def voter(number: int, end: int, *, missing_bytes: int = 0, damaged_bytes: int = 0) -> Ballot:
    """Return the ballot of a member whose log ends at ``end``."""
    return Ballot(
        number, f"store-{number}", epoch=1_000, last_epoch=1_000, end=end, is_complete=not missing_bytes,
        grant_expires_ms=0, missing_bytes=missing_bytes, damaged_bytes=damaged_bytes,
    )  # fmt: skip


def test_newest_epoch_wins_and_within_it_longest_log() -> None:
    """A longer log of an older epoch lacks what the newer epoch has acknowledged."""
    record = LeaseRecord(epoch=1_001, terms=(SYNC_TERM,))
    older = voter(1, 900)._replace(last_epoch=999)

    assert count_ballots(record, [older, voter(2, 400), voter(3, 500)]).winner == voter(3, 500)
    assert count_ballots(record, [older, voter(2, 950)._replace(last_epoch=998)]).winner == older


def test_a_member_that_lacks_log_data_is_not_elected() -> None:
    """However long its log is, all members would copy the gap."""
    record = LeaseRecord(epoch=1_001, terms=(SYNC_TERM,))
    ballots = [voter(1, 900, missing_bytes=100), voter(2, 500), voter(3, 400)]

    assert count_ballots(record, ballots).winner == ballots[1]
    assert count_ballots(record, [voter(1, 900), *ballots[1:]]).winner == voter(1, 900), (
        "expected the member to win with nothing missing"
    )
    assert count_ballots(record, [ballots[0]], is_forced=True).winner is None
    assert "missing" in count_ballots(record, [ballots[0]], is_forced=True).reason


def test_a_single_member_that_lacks_log_data_is_elected() -> None:
    """Its broker serves reads, and refuses sends until the loss is accepted."""
    alone = voter(1, 900, missing_bytes=100)
    record = LeaseRecord(epoch=1_001, terms=(Term(epoch=1_000, master=1, identity="store-1", electable=()),))

    assert count_ballots(record, [alone]).winner == alone


def test_a_member_with_damaged_records_loses_only_among_equal_logs() -> None:
    """Its vote counts, and it wins with a longer log or as the preferred member."""
    record = LeaseRecord(epoch=1_001, terms=(SYNC_TERM,))
    damaged, equal, shorter = voter(1, 900, damaged_bytes=50), voter(2, 900), voter(3, 400)

    assert count_ballots(record, [damaged, equal, shorter]).winner == equal
    assert count_ballots(record, [voter(1, 900), equal, shorter]).winner == voter(1, 900), (
        "expected the last master to win without damage"
    )
    assert count_ballots(record, [damaged, shorter]).winner == damaged
    assert count_ballots(record, [damaged, equal], preferred=1).winner == damaged
    assert count_ballots(record, [damaged, voter(2, 900, damaged_bytes=10)]).winner == damaged, (
        "expected the last master among two damaged ones"
    )
    assert count_ballots(record, [voter(2, 900, damaged_bytes=1), voter(3, 900, damaged_bytes=1)]).winner is not None


def test_a_report_contains_the_damaged_bytes() -> None:
    """Older brokers do not report them, which counts as none."""
    assert report_of({}, asked_ms=1, answered_ms=2).damaged_bytes == 0
    assert report_of({"damaged_bytes": 50}, asked_ms=1, answered_ms=2).damaged_bytes == 50


def test_a_report_contains_the_missing_bytes() -> None:
    """They are the sum of the missing ranges; without ranges nothing is missing."""
    assert report_of({}, asked_ms=1, answered_ms=2).missing_bytes == 0
    ranges = [{"start": 10, "end": 30, "cause": "head"}, {"start": 50, "end": 55, "cause": "tail"}]
    assert report_of({"missing": ranges}, asked_ms=1, answered_ms=2).missing_bytes == 25
    with pytest.raises(ValueError, match="missing"):
        report_of({"missing": [{"start": 10}]}, asked_ms=1, answered_ms=2)


# -- needed promises ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slaves", "acks", "needed"),
    [(1, 1, 1), (2, 1, 2), (2, 2, 1), (3, 1, 3), (3, 2, 2), (4, 2, 3), (1, 0, 1), (3, 0, 1)],
)
def test_the_number_of_needed_promises_overlaps_every_acknowledgement(slaves: int, acks: int, needed: int) -> None:
    """With k needed acks of S slaves it is S - k + 1, so any k slaves include one that has promised; without acks 1."""
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
            # From here on they no longer follow the old master, which does not know it and continues with the others.
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
    elected = count_ballots(LeaseRecord(epoch=2_000, terms=(term,)), ballots).winner
    assert elected is not None
    return elected.end >= acknowledged


@settings(max_examples=500)
@given(st.integers(0, 1 << 30))
def test_an_election_never_loses_acknowledged_messages(seed: int) -> None:
    """This holds for any number of slaves and acks, and a master that does not know of the election."""
    assert is_election_safe(seed)


def test_an_election_with_one_promise_too_few_loses_messages() -> None:
    """The twin, without enough promises, shows that the test above can fail."""
    assert not all(is_election_safe(seed, promises_less=1) for seed in range(200))


@pytest.mark.parametrize(
    ("ballots", "reason"),
    [
        ([voter(2, 10)], "2 of the slaves [2, 3] of epoch 1000 must vote, and [3] cannot"),
        ([voter(2, 10), voter(4, 10)], "[3] cannot"),
        ([voter(2, 10), voter(2, 10)], "[3] cannot"),
        ([voter(2, 10), voter(3, 10)._replace(identity="another")], "[3] cannot"),
        ([voter(2, 10), voter(3, 10)._replace(is_complete=False)], "[3] cannot"),
        ([voter(2, 10), voter(3, 10)._replace(is_complete=None)], "[3] cannot"),
        ([], "[2, 3] cannot"),
    ],
    ids=["too-few", "stranger", "one-vote", "other-store", "not-whole", "unknown", "no-ballot"],
)
def test_no_member_is_promoted_without_enough_promises(ballots: list[Ballot], reason: str) -> None:
    """The reason names the members whose votes are missing."""
    result = count_ballots(LeaseRecord(epoch=2_000, terms=(SYNC_TERM,)), ballots)

    assert result.winner is None
    assert reason in result.reason


@pytest.mark.parametrize("is_complete", [False, None], ids=["incomplete", "unknown"])
def test_a_store_that_may_have_lost_data_proves_nothing(is_complete: bool | None) -> None:
    """A store whose record of completeness is damaged counts like one that has lost data: it may be one."""
    unsure = voter(1, 10)._replace(is_complete=is_complete, epoch=999, last_epoch=999)
    record = LeaseRecord(epoch=2_000, terms=(SYNC_TERM,))

    assert not never_began(SYNC_TERM, unsure)
    assert never_began(SYNC_TERM, unsure._replace(is_complete=True))
    assert count_ballots(record, [unsure, voter(2, 10)]).winner is None
    assert count_ballots(record, [unsure, voter(2, 10), voter(3, 10)]).winner == voter(2, 10)


def test_all_members_of_unknown_completeness_elect_a_master() -> None:
    """No other store can have more: stores of RocketMQ, whose completeness is never recorded, begin a group so."""
    ballots = [voter(number, 10 * number)._replace(is_complete=None) for number in (1, 2, 3)]

    assert count_ballots(LeaseRecord(epoch=2_000, terms=(SYNC_TERM,)), ballots).winner == ballots[2]
    assert count_ballots(LeaseRecord(epoch=2_000, terms=(SYNC_TERM,)), ballots[1:]).winner is None


@pytest.mark.parametrize(
    ("complete", "is_unproven"),
    [((), True), ((2,), True), ((2, 3), False), ((1,), False), ((1, 2, 3), False)],
    ids=["none", "one-of-two-voters", "quorum", "its-master", "all"],
)
def test_a_loss_that_no_store_can_exclude_is_unknown(complete: tuple[int, ...], is_unproven: bool) -> None:
    """After a power cut of all machines all members elect a master, though each may have lost what it acknowledged.

    That is not a loss of zero bytes. It blocks nothing: no other member could have more.
    """
    ballots = [voter(number, 10 * number)._replace(is_complete=number in complete) for number in (1, 2, 3)]
    winner = count_ballots(LeaseRecord(epoch=2_000, terms=(SYNC_TERM,)), ballots).winner
    assert winner == ballots[2]

    assert loss_of(SYNC_TERM, winner, ballots, None, 0) == Loss(0, 0, is_unproven)


# -- full records ------------------------------------------------------------------------------------------------------


def many_terms(chance: random.Random, count: int) -> tuple[Term, ...]:
    """Return terms of three members, of which some had their disks replaced and some needed no acks."""
    terms = []
    for epoch in range(1_000, 1_000 * (count + 1), 1_000):
        master = chance.randrange(1, 4)
        stores = {number: f"store-{number}-{chance.randrange(10) // 9}" for number in (1, 2, 3)}
        electable = tuple(Voter(number, stores[number]) for number in stores if number != master)
        acks_needed = chance.choice([0, 1, 2, 2, 2, 2, 2, 2])
        identity = stores[master]
        terms.append(Term(epoch=epoch, master=master, identity=identity, electable=electable, acks_needed=acks_needed))
    return tuple(terms)


def any_ballots(chance: random.Random, epoch_end: int) -> list[Ballot]:
    """Return the ballots of some members, with any store and any state."""
    return [
        voter(number, chance.randrange(3))._replace(
            identity=f"store-{number}-{chance.randrange(10) // 9}",
            is_complete=chance.choice([True, True, False, None]),
            epoch=(epoch := chance.randrange(0, epoch_end, 1_000)),
            last_epoch=chance.randrange(0, epoch + 1, 1_000),
        )
        for number in (1, 2, 3)
        if chance.random() < 0.7
    ]


@settings(max_examples=500)
@given(st.integers(0, 1 << 30))
def test_an_election_with_a_reduced_record_has_the_same_result(seed: int) -> None:
    """Terms that are left out of a full record change neither the winner nor the members nor the reported loss."""
    chance = random.Random(seed)
    *terms, newest = many_terms(chance, TERMS_MAX + 1)
    record, reduced = (LeaseRecord(epoch=99_000, terms=(*kept, newest)) for kept in (terms, necessary_terms(terms)))
    ballots = any_ballots(chance, 1_000 * (TERMS_MAX + 2))

    results = [count_ballots(one, ballots) for one in (record, reduced)]

    assert reduced.members == record.members
    assert results[0].winner == results[1].winner
    for one in ballots:
        losses = [{loss_of(term, one, ballots, None, 0) for term in terms} for terms in (record.terms, reduced.terms)]
        assert losses[0] == losses[1]


def test_a_record_is_reduced_only_where_it_is_full() -> None:
    """The oldest term of each master and its voters stays, and so does every term that needed no acks."""
    sync = [msgspec.structs.replace(SYNC_TERM, epoch=1_000 * count) for count in range(1, TERMS_MAX + 1)]
    other = msgspec.structs.replace(SYNC_TERM, epoch=50_000, electable=(Voter(2, "store-2"), Voter(3, "new")))
    alone = [msgspec.structs.replace(TERM, epoch=60_000 + count) for count in range(2)]

    assert necessary_terms(sync[:-1]) == tuple(sync[:-1])
    assert necessary_terms([*sync, other, *alone]) == (sync[0], other, *alone)
