"""Manual promotions, where no Lease records the terms: which are refused, and which actions the others have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from spec_world.decisions import decided_actions, wait_reasons, with_disconnected_slaves, with_silent_member
from spec_world.observations import ADDRESS, EPOCH, NOW_MS, healthy_shard, with_member, with_record, with_report

from gantry_spec import actions as act
from gantry_spec.ballot import Ballot, count_ballots
from gantry_spec.lease import EPOCH_STRIDE, Goal, LeaseRecord, Term, Voter
from gantry_spec.observed import ObservedGroup, ObservedLease, ObservedShard, PromotionRequest, Role

NEXT = EPOCH + EPOCH_STRIDE


def with_manual_request(shard: ObservedShard, **order: Any) -> ObservedShard:
    """Return the shard without a Lease, with a request, and with members that have recorded their last term."""
    numbers = tuple(member.number for member in shard.members)
    slaves = tuple(number for number in numbers if number != 1)
    for number in numbers:
        member = next(one for one in shard.members if one.number == number)
        shard = with_report(shard, number, electable=slaves, master_id=1, acks_needed=member.acks_needed, granted_ms=0)
    request = PromotionRequest(**({"id": "person", "loss_accepted": None, "members": numbers} | order))
    return msgspec.structs.replace(with_record(shard, None), request=request)


def with_request_fields(shard: ObservedShard, **order: Any) -> ObservedShard:
    """Return the shard with changed fields of its request."""
    assert shard.request is not None, "the shard has no request"
    return msgspec.structs.replace(shard, request=msgspec.structs.replace(shard.request, **order))


def with_unreachable(shard: ObservedShard, *numbers: int) -> ObservedShard:
    """Return the shard with members that do not answer."""
    for number in numbers:
        shard = with_member(with_silent_member(shard, number), number, report=None)
    return shard


def group_without_lease(shard: ObservedShard) -> ObservedGroup:
    """Return the group without a Lease duration, since no Lease has to expire."""
    return ObservedGroup(shards=(shard,), template="t", lease_duration_ms=0)


def with_reconstructed_record(shard: ObservedShard) -> ObservedShard:
    """Return the shard after the record of its last term was reconstructed."""
    (record_action,) = decided_actions(group_without_lease(shard))
    assert isinstance(record_action, act.RecordMaster)
    record = msgspec.structs.replace(record_action.record, version="1")
    return msgspec.structs.replace(shard, lease=ObservedLease(record=record, seen_ms=NOW_MS))


def actions_after_reconstruction(shard: ObservedShard) -> list[act.Action]:
    """Return the actions after the record was reconstructed."""
    return decided_actions(group_without_lease(with_reconstructed_record(shard)))


def refusal_of(shard: ObservedShard) -> act.Refuse:
    """Return the refusal of the request."""
    (refusal,) = actions_after_reconstruction(shard)
    assert isinstance(refusal, act.Refuse)
    return refusal


def with_promises(shard: ObservedShard, epoch: int, *numbers: int, **goal: Any) -> ObservedShard:
    """Return the shard after an epoch was taken and these members have promised it."""
    record = with_reconstructed_record(shard).lease
    assert record is not None and record.record is not None
    taken = msgspec.structs.replace(
        record.record,
        epoch=epoch,
        goal=Goal(
            **(
                {
                    "why": "a promotion was requested",
                    "promotion_request": "person",
                    "loss_accepted": None,
                    "may_move": True,
                }
                | goal
            )
        ),
    )
    for number in numbers:
        shard = with_report(shard, number, role=Role.UNASSIGNED, promised_epoch=epoch)
    return msgspec.structs.replace(shard, lease=ObservedLease(record=taken, seen_ms=NOW_MS - 10_000))


# -- the last term -----------------------------------------------------------------------------------------------------


def test_last_term_is_what_its_master_has_recorded() -> None:
    """Its voters are the stores that answer, since these have acknowledged."""
    (record_action,) = decided_actions(group_without_lease(with_manual_request(healthy_shard(slaves=2))))

    assert isinstance(record_action, act.RecordMaster)
    assert record_action.record.newest == Term(
        epoch=EPOCH, master=1, identity="store-1", electable=(Voter(2, "store-2"), Voter(3, "store-3")), acks_needed=1
    )


def test_last_term_without_its_master_is_what_slaves_have_recorded() -> None:
    """If they disagree, the value that requires more promises is used: more slaves, and fewer acks."""
    shard = with_unreachable(with_manual_request(healthy_shard(slaves=3)), 1)
    shard = with_report(with_report(shard, 2, electable=(2, 3), acks_needed=2), 3, electable=(3, 4))

    (record_action,) = decided_actions(group_without_lease(shard))

    assert isinstance(record_action, act.RecordMaster) and record_action.record.newest is not None
    assert (record_action.record.newest.numbers, record_action.record.newest.acks_needed) == ((2, 3, 4), 1)
    assert record_action.record.newest.master == 1


def test_a_term_that_no_member_has_recorded_must_be_given_by_the_person() -> None:
    """Without names it is refused; the number of the last master distinguishes it from an absent slave."""
    shard = with_unreachable(with_manual_request(healthy_shard()), 1)
    shard = with_report(shard, 2, electable=(), master_id=None)
    (refusal,) = decided_actions(group_without_lease(shard))
    named = with_request_fields(shard, electable=(1, 2))
    known = with_request_fields(named, old_master=1)

    assert isinstance(refusal, act.Refuse) and refusal.can_be_forced
    assert "2 of the slaves [1, 2]" in refusal_of(named).why
    (take,) = actions_after_reconstruction(known)
    assert isinstance(take, act.TakeEpoch)


# -- a master that does not answer -------------------------------------------------------------------------------------


def test_a_new_epoch_ends_in_the_number_of_its_master() -> None:
    """So two independent promotions never begin the same epoch with two masters."""
    shard = with_unreachable(with_manual_request(healthy_shard()), 1)
    (take,) = actions_after_reconstruction(shard)
    (other,) = actions_after_reconstruction(
        with_report(with_unreachable(with_manual_request(healthy_shard(slaves=2)), 1), 3, wrote=10_001)
    )

    assert isinstance(take, act.TakeEpoch) and take.record.epoch == NEXT + 2
    assert isinstance(other, act.TakeEpoch) and other.record.epoch == NEXT + 3


def test_an_unexpected_winner_gets_an_epoch_with_its_own_number() -> None:
    """Member 3 has a longer log than member 2, for which the epoch was taken."""
    shard = with_report(with_unreachable(with_manual_request(healthy_shard(slaves=2)), 1), 3, wrote=10_001)

    (take,) = decided_actions(group_without_lease(with_promises(shard, NEXT + 2, 2, 3)))

    assert isinstance(take, act.TakeEpoch)
    assert take.record.epoch % EPOCH_STRIDE == 3


def test_a_manual_promotion_awaits_no_timeout_of_the_master() -> None:
    """Neither its silence nor its contact with slaves delays the promotion."""
    shard = with_unreachable(with_manual_request(healthy_shard(slaves=2)), 1)
    connected, disconnected = (
        actions_after_reconstruction(shard),
        actions_after_reconstruction(with_disconnected_slaves(shard, 2, 3)),
    )

    assert [type(one) for one in connected] == [type(one) for one in disconnected] == [act.TakeEpoch]


def test_too_few_voters_are_refused_before_any_promise() -> None:
    """With force the promotion is done, and the order to the broker contains force."""
    shard = with_unreachable(with_manual_request(healthy_shard(slaves=2)), 1, 3)
    refusal = refusal_of(shard)
    forced = with_request_fields(shard, is_forced=True)

    assert refusal.why == f"2 of the slaves [2, 3] of epoch {EPOCH} must vote, and [3] cannot"
    assert refusal.can_be_forced
    assert [type(one) for one in actions_after_reconstruction(forced)] == [act.TakeEpoch]
    (record_action,) = decided_actions(group_without_lease(with_promises(forced, NEXT + 2, 2)))
    assert isinstance(record_action, act.RecordMaster)
    named = msgspec.structs.replace(
        with_promises(forced, NEXT + 2, 2), lease=ObservedLease(record=record_action.record, seen_ms=NOW_MS)
    )
    assert [getattr(one, "force", None) for one in decided_actions(group_without_lease(named))] == [True]


def test_the_report_of_an_old_master_is_no_proof_without_a_lease() -> None:
    """It has everything of its own term, but may not know of a newer one, which a Lease would name."""
    shard = with_report(with_unreachable(with_manual_request(healthy_shard(slaves=2)), 2, 3), 1, role=Role.UNASSIGNED)
    term = Term(
        epoch=EPOCH, master=1, identity="store-1", electable=(Voter(2, "store-2"), Voter(3, "store-3")), acks_needed=1
    )
    record = LeaseRecord(epoch=NEXT, terms=(term,))
    ballot = Ballot(1, "store-1", EPOCH, EPOCH, 10_000, is_complete=True, grant_expires_ms=0)

    assert "2 of the slaves [2, 3]" in refusal_of(shard).why
    assert count_ballots(record, [ballot]).winner == ballot, "expected the report to suffice with a Lease"
    assert count_ballots(record, [ballot], manual_request=shard.request).winner is None


def test_a_term_with_fewer_slaves_than_needed_acks_is_not_outvoted_by_none() -> None:
    """No vote of one of its slaves counts, so the requested member is not known to have everything."""
    term = Term(epoch=EPOCH, master=1, identity="store-1", electable=(Voter(2, "store-2"),), acks_needed=2)
    record = LeaseRecord(epoch=NEXT, terms=(term,))
    master = Ballot(1, "store-1", EPOCH, EPOCH, 10_000, is_complete=False, grant_expires_ms=0)
    emptied = Ballot(2, "store-9", EPOCH, EPOCH, 10_500, is_complete=True, grant_expires_ms=0)
    request = PromotionRequest(id="person", to=1, members=(1, 2))

    result = count_ballots(record, [master, emptied], manual_request=request)

    assert result.winner == emptied, "expected the longest log, without precedence of the requested member"


def test_a_requested_member_with_everything_acknowledged_wins() -> None:
    """The old master has more, but that was never acknowledged. Without acks this is unknown."""
    shard = with_report(with_manual_request(healthy_shard(slaves=2), to=2), 1, role=Role.UNASSIGNED, wrote=10_500)
    ballots = (1, 2, 3)
    (record_action,) = decided_actions(group_without_lease(with_promises(shard, NEXT + 2, *ballots)))
    unnamed = with_request_fields(shard, to=None)
    (take,) = decided_actions(group_without_lease(with_promises(unnamed, NEXT + 2, *ballots)))
    asynchronous = with_report(
        with_manual_request(healthy_shard(acks_needed=0), to=2), 1, role=Role.UNASSIGNED, wrote=10_500
    )

    assert isinstance(record_action, act.RecordMaster) and record_action.record.newest is not None
    assert record_action.record.newest.master == 2
    assert isinstance(take, act.TakeEpoch) and take.record.epoch % EPOCH_STRIDE == 1, (
        "expected the longest log to win without a requested member"
    )
    refusal = refusal_of(asynchronous)
    assert refusal.remedy == "promote --to 1 first, then --to 2" and refusal.can_be_forced


def test_a_requested_member_with_a_shorter_log_wins_only_if_forced() -> None:
    """It may lack acknowledged messages, and the person accepts that."""
    shard = with_report(with_unreachable(with_manual_request(healthy_shard(slaves=2), to=3), 1), 2, wrote=10_500)
    forced = with_request_fields(shard, is_forced=True)

    assert "member 3 ends at 10000" in refusal_of(shard).why
    (take,) = actions_after_reconstruction(forced)
    assert isinstance(take, act.TakeEpoch) and take.record.epoch % EPOCH_STRIDE == 3
    (record_action,) = decided_actions(group_without_lease(with_promises(forced, NEXT + 3, 2, 3)))
    assert (
        isinstance(record_action, act.RecordMaster)
        and record_action.record.newest is not None
        and record_action.record.newest.master == 3
    )


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"to": 9, "members": (1, 2, 3, 9)}, "no member with number 9 answers"),
        ({"to": 3, "electable": (1, 2)}, "member 3 may not be the master"),
        ({"electable": (2,)}, "code 0 needs 1 ack(s), but only [] could give them to member 2"),
    ],
    ids=["unknown", "not-named", "no-acks"],
)
def test_an_impossible_manual_promotion_is_refused(order: dict[str, Any], reason: str) -> None:
    """It is refused before any order is given to a member."""
    assert refusal_of(with_unreachable(with_manual_request(healthy_shard(slaves=2), **order), 1)).why == reason


# -- the electable set of the new term ---------------------------------------------------------------------------------


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
    shard = with_manual_request(healthy_shard(slaves=2, acks_needed=acks_needed), electable=named)
    shard = with_unreachable(with_report(shard, 1, role=Role.UNASSIGNED), *away)
    here = [number for number in (1, 2, 3) if number not in away]

    (record_action,) = decided_actions(group_without_lease(with_promises(shard, NEXT + 2, *here, to=2)))

    assert isinstance(record_action, act.RecordMaster) and record_action.record.newest is not None
    assert (record_action.record.newest.master, record_action.record.newest.numbers) == (2, electable)


def test_electable_slaves_are_added_only_where_no_second_master_is_possible() -> None:
    """Without acks the master needs grants of the added slaves, too. With acks an election would not ask them."""
    shard = with_manual_request(healthy_shard(slaves=1, acks_needed=0), to=1, electable=(1, 2))
    alone = with_report(shard, 1, electable=())
    synchronous = with_report(
        with_manual_request(healthy_shard(slaves=1), to=1, electable=(1, 2, 3), members=(1, 2, 3)), 1
    )

    widening = next(one for one in actions_after_reconstruction(alone) if isinstance(one, act.SetElectable))
    assert widening.record.newest is not None
    assert (widening.record.epoch, widening.record.newest.numbers) == (NEXT + 1, (2,))
    assert widening.record.newest.continues == EPOCH
    assert "[2, 3] only after an election" in refusal_of(synchronous).why


# -- a master that answers ---------------------------------------------------------------------------------------------


def test_a_master_is_drained_with_the_requested_timeout() -> None:
    """If no electable slave answers, the master stays as it is."""
    shard = with_manual_request(healthy_shard(slaves=2), drain_timeout_ms=700)

    assert actions_after_reconstruction(shard) == [
        act.Drain(shard=0, member=1, timeout_ms=700, why="a promotion was requested")
    ]
    assert refusal_of(with_unreachable(shard, 2, 3)).why == "no slave that may be promoted answers"


def test_after_a_drain_only_the_master_and_the_requested_member_vote() -> None:
    """One vote is enough: the master regains the role if the requested member does not answer."""
    shard = with_report(with_manual_request(healthy_shard(slaves=2), to=3), 1, is_draining=True)
    (take,) = actions_after_reconstruction(shard)
    assert isinstance(take, act.TakeEpoch)
    record = msgspec.structs.replace(take.record, version="2")
    lease = ObservedLease(record=record, seen_ms=NOW_MS - 10_000)

    def after(*numbers: int) -> ObservedShard:
        shard_after = with_unreachable(shard, *({1, 2, 3} - set(numbers)))
        for number in numbers:
            shard_after = with_report(
                shard_after, number, role=Role.UNASSIGNED, promised_epoch=record.epoch, is_draining=False
            )
        return msgspec.structs.replace(shard_after, lease=lease)

    assert (record.epoch, record.newest and record.newest.numbers) == (NEXT + 3, (1, 2, 3))
    (record_action,) = decided_actions(group_without_lease(after(3)))
    assert (
        isinstance(record_action, act.RecordMaster)
        and record_action.record.newest is not None
        and record_action.record.newest.master == 3
    )
    assert record_action.record.newest.acks_needed == 1, "expected the acks that the broker needs"
    (again,) = decided_actions(group_without_lease(after(1, 2)))
    assert isinstance(again, act.TakeEpoch) and again.record.epoch % EPOCH_STRIDE == 1
    assert "must vote, and [1, 2, 3] cannot" in wait_reasons(group_without_lease(after(2)))


def test_a_promotion_of_the_present_master_lets_it_take_sends_again() -> None:
    """An earlier drain ends, and members that do not follow are ordered to follow."""
    shard = with_report(with_manual_request(healthy_shard(slaves=2), to=1), 1, is_draining=True)
    shard = with_report(shard, 2, role=Role.UNASSIGNED)

    assert [type(one) for one in actions_after_reconstruction(shard)] == [act.Follow, act.ClearRequest, act.Resume]
    assert actions_after_reconstruction(shard)[0] == act.Follow(
        shard=0, member=2, epoch=EPOCH, master=ADDRESS.format(1)
    )
