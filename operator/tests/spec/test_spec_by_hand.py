"""A promotion that a person orders where no Lease remembers terms: what is refused, and what is done otherwise."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from spec_world.decided import deaf, decided, silent, waits
from spec_world.looks import ADDRESS, EPOCH, NOW_MS, healthy, with_member, with_record, with_report

from gantry_spec import actions as act
from gantry_spec.ballot import Ballot, count
from gantry_spec.lease import EPOCH_STRIDE, Goal, LeaseRecord, Term, Voter
from gantry_spec.observed import Observed, ObservedLease, ObservedShard, PromotionRequest, Role

NEXT = EPOCH + EPOCH_STRIDE


def by_hand(shard: ObservedShard, **order: Any) -> ObservedShard:
    """The shard as a person has it: without a Lease, with members that have recorded their last term."""
    numbers = tuple(member.number for member in shard.members)
    slaves = tuple(number for number in numbers if number != 1)
    for number in numbers:
        member = next(one for one in shard.members if one.number == number)
        shard = with_report(shard, number, electable=slaves, master_id=1, acks_needed=member.acks_needed, granted_ms=0)
    request = PromotionRequest(**({"id": "person", "loss_accepted": None, "members": numbers} | order))
    return msgspec.structs.replace(with_record(shard, None), request=request)


def reordered(shard: ObservedShard, **order: Any) -> ObservedShard:
    """The shard with another order of the person."""
    assert shard.request is not None, "the person has ordered something"
    return msgspec.structs.replace(shard, request=msgspec.structs.replace(shard.request, **order))


def unreached(shard: ObservedShard, *numbers: int) -> ObservedShard:
    """The shard with members that do not answer."""
    for number in numbers:
        shard = with_member(silent(shard, number), number, report=None)
    return shard


def observed(shard: ObservedShard) -> Observed:
    """No Lease is kept, and so none has to run out."""
    return Observed(shards=(shard,), template="t", lease_duration_ms=0)


def remembered(shard: ObservedShard) -> ObservedShard:
    """The shard once its last term is put together."""
    (crown,) = decided(observed(shard))
    assert isinstance(crown, act.Crown)
    record = msgspec.structs.replace(crown.record, version="1")
    return msgspec.structs.replace(shard, lease=ObservedLease(record=record, seen_ms=NOW_MS))


def ordered(shard: ObservedShard) -> list[act.Action]:
    """What is done with that."""
    return decided(observed(remembered(shard)))


def refused(shard: ObservedShard) -> act.Refuse:
    """Why nothing is done."""
    (refusal,) = ordered(shard)
    assert isinstance(refusal, act.Refuse)
    return refusal


def promised(shard: ObservedShard, epoch: int, *numbers: int, **goal: Any) -> ObservedShard:
    """The shard after an epoch was taken and these members have promised it."""
    record = remembered(shard).lease
    assert record is not None and record.record is not None
    taken = msgspec.structs.replace(
        record.record,
        epoch=epoch,
        goal=Goal(**({"why": "it was ordered", "request": "person", "loss_accepted": None, "may_move": True} | goal)),
    )
    for number in numbers:
        shard = with_report(shard, number, role=Role.UNASSIGNED, promised_epoch=epoch)
    return msgspec.structs.replace(shard, lease=ObservedLease(record=taken, seen_ms=NOW_MS - 10_000))


# -- the last term -----------------------------------------------------------------------------------------------------


def test_last_term_is_what_its_master_has_recorded() -> None:
    """With the stores that answer, since these are the ones that have acknowledged."""
    (crown,) = decided(observed(by_hand(healthy(slaves=2))))

    assert isinstance(crown, act.Crown)
    assert crown.record.newest == Term(
        epoch=EPOCH, master=1, identity="store-1", electable=(Voter(2, "store-2"), Voter(3, "store-3")), acks_needed=1
    )


def test_last_term_without_its_master_is_what_slaves_have_recorded() -> None:
    """Where they disagree, that is taken which asks for more promises: more slaves, and fewer acks."""
    shard = unreached(by_hand(healthy(slaves=3)), 1)
    shard = with_report(with_report(shard, 2, electable=(2, 3), acks_needed=2), 3, electable=(3, 4))

    (crown,) = decided(observed(shard))

    assert isinstance(crown, act.Crown) and crown.record.newest is not None
    assert (crown.record.newest.numbers, crown.record.newest.acks_needed) == ((2, 3, 4), 1)
    assert crown.record.newest.master == 1


def test_a_term_that_no_member_has_recorded_is_named_by_the_person() -> None:
    """Without the names nothing is done; the last master's number tells it from a slave that is missing."""
    shard = unreached(by_hand(healthy()), 1)
    shard = with_report(shard, 2, electable=(), master_id=None)
    (refusal,) = decided(observed(shard))
    named = reordered(shard, electable=(1, 2))
    known = reordered(named, old_master=1)

    assert isinstance(refusal, act.Refuse) and refusal.can_be_forced
    assert "2 of the slaves [1, 2]" in refused(named).why
    (take,) = ordered(known)
    assert isinstance(take, act.TakeLease)


# -- a master that does not answer -------------------------------------------------------------------------------------


def test_a_new_epoch_ends_in_the_number_of_its_master() -> None:
    """So two promotions that know nothing of each other never begin the same epoch with two masters."""
    shard = unreached(by_hand(healthy()), 1)
    (take,) = ordered(shard)
    (other,) = ordered(with_report(unreached(by_hand(healthy(slaves=2)), 1), 3, wrote=10_001))

    assert isinstance(take, act.TakeLease) and take.record.epoch == NEXT + 2
    assert isinstance(other, act.TakeLease) and other.record.epoch == NEXT + 3


def test_a_winner_that_was_not_expected_gets_an_epoch_of_its_own() -> None:
    """Member 3 turns out to be further than member 2, for which the epoch was taken."""
    shard = with_report(unreached(by_hand(healthy(slaves=2)), 1), 3, wrote=10_001)

    (take,) = decided(observed(promised(shard, NEXT + 2, 2, 3)))

    assert isinstance(take, act.TakeLease)
    assert take.record.epoch % EPOCH_STRIDE == 3


def test_a_dead_master_is_the_word_of_the_person() -> None:
    """Silence is not waited for, nor are slaves that still hear the master asked for their opinion."""
    shard = unreached(by_hand(healthy(slaves=2)), 1)
    hearing, not_hearing = ordered(shard), ordered(deaf(shard, 2, 3))

    assert [type(one) for one in hearing] == [type(one) for one in not_hearing] == [act.TakeLease]


def test_too_few_voters_are_refused_before_any_promise() -> None:
    """Forced, it is done, and the broker is told so."""
    shard = unreached(by_hand(healthy(slaves=2)), 1, 3)
    refusal = refused(shard)
    forced = reordered(shard, is_forced=True)

    assert refusal.why == f"2 of the slaves [2, 3] of epoch {EPOCH} must vote, and [3] cannot"
    assert refusal.can_be_forced
    assert [type(one) for one in ordered(forced)] == [act.TakeLease]
    (crown,) = decided(observed(promised(forced, NEXT + 2, 2)))
    assert isinstance(crown, act.Crown)
    named = msgspec.structs.replace(
        promised(forced, NEXT + 2, 2), lease=ObservedLease(record=crown.record, seen_ms=NOW_MS)
    )
    assert [getattr(one, "force", None) for one in decided(observed(named))] == [True]


def test_the_word_of_an_old_master_is_no_proof_without_a_lease() -> None:
    """It has everything of its own term, and may not know of a newer one; in a cluster the Lease would name that."""
    shard = with_report(unreached(by_hand(healthy(slaves=2)), 2, 3), 1, role=Role.UNASSIGNED)
    term = Term(
        epoch=EPOCH, master=1, identity="store-1", electable=(Voter(2, "store-2"), Voter(3, "store-3")), acks_needed=1
    )
    record = LeaseRecord(epoch=NEXT, terms=(term,))
    ballot = Ballot(1, "store-1", EPOCH, EPOCH, 10_000, is_whole=True, grant_over_ms=0)

    assert "2 of the slaves [2, 3]" in refused(shard).why
    assert count(record, [ballot]).winner == ballot, "the twin: with a Lease it is enough"
    assert count(record, [ballot], by_hand=shard.request).winner is None


def test_a_member_with_everything_acknowledged_wins_by_name() -> None:
    """Though the old master has more: that was never acknowledged. Without acks it is not known."""
    shard = with_report(by_hand(healthy(slaves=2), to=2), 1, role=Role.UNASSIGNED, wrote=10_500)
    ballots = (1, 2, 3)
    (crown,) = decided(observed(promised(shard, NEXT + 2, *ballots)))
    unnamed = reordered(shard, to=None)
    (take,) = decided(observed(promised(unnamed, NEXT + 2, *ballots)))
    asynchronous = with_report(by_hand(healthy(acks_needed=0), to=2), 1, role=Role.UNASSIGNED, wrote=10_500)

    assert isinstance(crown, act.Crown) and crown.record.newest is not None
    assert crown.record.newest.master == 2
    assert isinstance(take, act.TakeLease) and take.record.epoch % EPOCH_STRIDE == 1, "the twin: else the furthest wins"
    refusal = refused(asynchronous)
    assert refusal.remedy == "promote --to 1 first, then move on" and refusal.can_be_forced


def test_a_shorter_log_wins_by_name_only_if_forced() -> None:
    """It may lack what was acknowledged, and a person accepts that."""
    shard = with_report(unreached(by_hand(healthy(slaves=2), to=3), 1), 2, wrote=10_500)
    forced = reordered(shard, is_forced=True)

    assert "member 3 ends at 10000" in refused(shard).why
    (take,) = ordered(forced)
    assert isinstance(take, act.TakeLease) and take.record.epoch % EPOCH_STRIDE == 3
    (crown,) = decided(observed(promised(forced, NEXT + 3, 2, 3)))
    assert isinstance(crown, act.Crown) and crown.record.newest is not None and crown.record.newest.master == 3


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"to": 9, "members": (1, 2, 3, 9)}, "no member with number 9 answers"),
        ({"to": 3, "electable": (1, 2)}, "member 3 may not be the master"),
        ({"electable": (2,)}, "code 0 needs 1 ack(s), and only [] could give them to member 2"),
    ],
    ids=["unknown", "not-named", "no-acks"],
)
def test_an_order_that_cannot_be_carried_out_is_refused(order: dict[str, Any], reason: str) -> None:
    """Before any member is ordered anything."""
    assert refused(unreached(by_hand(healthy(slaves=2), **order), 1)).why == reason


# -- S of the new term -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acks_needed", "named", "away", "electable"),
    [
        (1, (), (1,), (1, 3)),
        (0, (), (1,), (3,)),
        (0, (1, 2, 3), (1,), (1, 3)),
        (0, (), (1, 3), (3,)),
        (0, (), (), (1, 3)),
        (1, (1, 2), (1,), (1,)),
    ],
    ids=["sync", "async", "async-named", "slave-away", "async-all-here", "sync-named"],
)
def test_electable_set_of_the_new_term(
    acks_needed: int, named: tuple[int, ...], away: tuple[int, ...], electable: tuple[int, ...]
) -> None:
    """A silent master of an asynchronous group is left out, or its successor would wait for its grant. No slave is."""
    shard = by_hand(healthy(slaves=2, acks_needed=acks_needed), electable=named)
    shard = unreached(with_report(shard, 1, role=Role.UNASSIGNED), *away)
    here = [number for number in (1, 2, 3) if number not in away]

    (crown,) = decided(observed(promised(shard, NEXT + 2, *here, to=2)))

    assert isinstance(crown, act.Crown) and crown.record.newest is not None
    assert (crown.record.newest.master, crown.record.newest.numbers) == (2, electable)


def test_more_slaves_of_the_same_master_only_where_that_makes_no_second_master() -> None:
    """Without acks the master asks them for grants, too. Where acks count, an election would not ask them."""
    shard = by_hand(healthy(slaves=1, acks_needed=0), to=1, electable=(1, 2))
    alone = with_report(shard, 1, electable=())
    synchronous = with_report(by_hand(healthy(slaves=1), to=1, electable=(1, 2, 3), members=(1, 2, 3)), 1)

    widening = next(one for one in ordered(alone) if isinstance(one, act.SetElectable))
    assert widening.record.newest is not None
    assert (widening.record.epoch, widening.record.newest.numbers) == (NEXT + 1, (2,))
    assert widening.record.newest.continues == EPOCH
    assert "[2, 3] only after an election" in refused(synchronous).why


# -- a master that answers ---------------------------------------------------------------------------------------------


def test_a_master_that_answers_is_drained_for_as_long_as_the_person_says() -> None:
    """Where no slave that may be promoted answers, it stays as it is."""
    shard = by_hand(healthy(slaves=2), drain_timeout_ms=700)

    assert ordered(shard) == [act.Drain(shard=0, member=1, timeout_ms=700, why="it was ordered")]
    assert refused(unreached(shard, 2, 3)).why == "no slave that may be promoted answers"


def test_after_a_hand_over_only_those_that_have_everything_vote() -> None:
    """One of them is enough, whoever else is away; the master is one, and gets the role back where no other answers."""
    shard = with_report(by_hand(healthy(slaves=2), to=3), 1, is_draining=True)
    (take,) = ordered(shard)
    assert isinstance(take, act.TakeLease)
    record = msgspec.structs.replace(take.record, version="2")
    lease = ObservedLease(record=record, seen_ms=NOW_MS - 10_000)

    def after(*numbers: int) -> ObservedShard:
        look = unreached(shard, *({1, 2, 3} - set(numbers)))
        for number in numbers:
            look = with_report(look, number, role=Role.UNASSIGNED, promised_epoch=record.epoch, is_draining=False)
        return msgspec.structs.replace(look, lease=lease)

    assert (record.epoch, record.newest and record.newest.numbers) == (NEXT + 3, (1, 2, 3))
    (crown,) = decided(observed(after(3)))
    assert isinstance(crown, act.Crown) and crown.record.newest is not None and crown.record.newest.master == 3
    assert crown.record.newest.acks_needed == 1, "the new term counts as the broker does"
    (again,) = decided(observed(after(1, 2)))
    assert isinstance(again, act.TakeLease) and again.record.epoch % EPOCH_STRIDE == 1
    assert "must vote, and [1, 2, 3] cannot" in waits(observed(after(2)))


def test_a_master_that_is_named_stays_and_takes_sends_again() -> None:
    """A drain that somebody began ends, and members that do not follow do."""
    shard = with_report(by_hand(healthy(slaves=2), to=1), 1, is_draining=True)
    shard = with_report(shard, 2, role=Role.UNASSIGNED)

    assert [type(one) for one in ordered(shard)] == [act.Follow, act.ClearRequest, act.Resume]
    assert ordered(shard)[0] == act.Follow(shard=0, member=2, epoch=EPOCH, master=ADDRESS.format(1))
