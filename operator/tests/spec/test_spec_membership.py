"""What is decided about a group at rest, at its beginning, and about who belongs to it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from spec_world.decided import deaf, decided, silent, waits
from spec_world.looks import (
    ADDRESS,
    EPOCH,
    NOW_MS,
    healthy,
    member_of,
    observed,
    record_of,
    report_of,
    spec_with,
    with_member,
    with_record,
    with_report,
)

from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.lease import EPOCH_STRIDE, Voter
from gantry_spec.observed import Disk, ObservedShard, Process, PromotionRequest, Role
from gantry_status.broker_state import SlaveState

NEXT = EPOCH + EPOCH_STRIDE
ASYNC: dict[str, Any] = {"replication": {"mode": "Async"}}


# -- at rest -----------------------------------------------------------------------------------------------------------


def test_a_healthy_group_is_left_alone() -> None:
    """And everything good is said of it."""
    decision = decide(spec_with(), observed(healthy()), NOW_MS)

    assert decision.actions == ()
    said = {one.type: one.is_so for one in decision.conditions}
    assert said == {
        "Ready": True,
        "Available": True,
        "Replicating": True,
        "DurabilityMet": True,
        "Progressing": False,
        "Degraded": False,
        "Fenced": False,
        "Hibernated": False,
        "ScalingIn": False,
        "Paused": False,
    }


def test_the_same_look_gives_the_same_decision() -> None:
    """Nothing is remembered between two calls."""
    look = observed(deaf(silent(healthy(slaves=2), 1), 2, 3))
    spec = spec_with(slaves=2)

    assert decide(spec, look, NOW_MS) == decide(spec, look, NOW_MS)


def test_a_paused_group_is_not_touched() -> None:
    """Whatever happens to it."""
    look = observed(deaf(silent(healthy(), 1), 2), is_paused=True)

    assert waits(look) == "the group is paused"
    assert decide(spec_with(), look, NOW_MS).condition("Paused").is_so


def test_a_role_stays_where_it_is_while_the_lease_cannot_be_read() -> None:
    """An API server that is away stops nobody, and moves nobody."""
    shard = msgspec.structs.replace(healthy(), lease=None)

    assert "its Lease cannot be read" in waits(shard)


# -- the beginning -----------------------------------------------------------------------------------------------------


def empty(number: int, **other: Any) -> Any:
    """A member that has nothing, and no role."""
    nothing: dict[str, Any] = {"epoch": 0, "promised_epoch": 0, "last_epoch": 0, "master": "", "heard_ms": None}
    return member_of(number, report_of(number, wrote=0, role=Role.UNASSIGNED, **nothing), **other)


def test_the_first_member_of_a_new_group_is_its_master() -> None:
    """All are empty, and all others may be elected after it, by the stores that they have."""
    shard = with_record(ObservedShard(number=0, members=(empty(1), empty(2))), None)

    [crown] = decided(shard)

    assert isinstance(crown, act.Crown)
    assert crown.expected is None
    [term] = crown.record.terms
    assert (term.master, term.identity, term.numbers, term.acks_needed) == (1, "store-1", (2,), 1)
    assert [voter.identity for voter in term.electable] == ["store-2"]


def test_nothing_begins_before_every_disk_was_looked_at() -> None:
    """One that was not may hold all the messages."""
    shard = with_record(ObservedShard(number=0, members=(empty(1), member_of(2, None))), None)

    assert "members [2] have not been heard yet" in waits(shard)


def test_a_master_that_is_there_already_stays_it() -> None:
    """A group that was run by hand is taken over without touching its role."""
    shard = with_report(with_record(healthy(), None), 1, electable=(2,))

    [crown] = decided(shard)

    assert isinstance(crown, act.Crown)
    assert (crown.record.epoch, crown.record.terms[0].master, crown.record.terms[0].numbers) == (EPOCH, 1, (2,))


def test_a_group_comes_back_from_its_volumes_by_an_election() -> None:
    """The newest epoch on any disk is outvoted, and a new one is above all of them."""
    shard = with_record(healthy(), None)
    for number in (1, 2):
        shard = with_report(shard, number, role=Role.UNASSIGNED, master_id=1, electable=(2,), acks_needed=1)
    shard = with_report(shard, 2, promised_epoch=8_002)

    [take] = decided(shard)

    assert isinstance(take, act.TakeLease)
    assert take.record.epoch == 9_000
    assert (take.record.terms[0].master, take.record.terms[0].numbers) == (1, (2,))


def lost_volumes(*empties: int, acks_needed: int = 1) -> ObservedShard:
    """A shard of three without a Lease, some of whose volumes are empty."""
    shard = with_record(healthy(slaves=2, acks_needed=acks_needed), None)
    for number in (1, 2, 3):
        known = {"master_id": 1, "electable": (2, 3), "acks_needed": acks_needed}
        nothing = {"wrote": 0, "epoch": 0, "last_epoch": 0, "promised_epoch": 0, "identity": f"new-{number}"}
        shard = with_report(shard, number, role=Role.UNASSIGNED, **(nothing if number in empties else known))
    return shard


@pytest.mark.parametrize(("empties", "is_proven"), [((), True), ((2, 3), True), ((1,), True), ((1, 2), False)])
def test_an_empty_volume_has_no_voice(empties: tuple[int, ...], is_proven: bool) -> None:
    """Its number proves nothing. The master's own does, and so do as many slaves as any acknowledgement has met."""
    shard = lost_volumes(*empties)

    if is_proven:
        [taken] = decided(shard, spec_with(slaves=2))
        assert isinstance(taken, act.TakeLease)
        assert taken.record.goal is not None and taken.record.goal.loss_accepted == 0
    else:
        assert "something may lack" in waits(shard, spec_with(slaves=2))
        [taken] = decided(msgspec.structs.replace(shard, restore="restore 0"), spec_with(slaves=2))
        assert isinstance(taken, act.TakeLease)
        assert taken.record.goal is not None and taken.record.goal.loss_accepted is None
        assert taken.record.terms[0].identity == "", "the store that was the master is not here"


def test_without_acks_only_the_masters_own_volume_proves_anything() -> None:
    """A slave never had to have what was acknowledged."""
    assert "its master 1 lacks" in waits(lost_volumes(1, acks_needed=0), spec_with(slaves=2))
    assert [type(one) for one in decided(lost_volumes(2, acks_needed=0), spec_with(slaves=2))] == [act.TakeLease]


def test_a_broker_that_does_not_come_is_given_up_by_a_person_only() -> None:
    """And never where those who are here have nothing."""
    shard = with_member(lost_volumes(), 3, report=None)
    ordered = msgspec.structs.replace(shard, restore="restore 0")
    empty = msgspec.structs.replace(with_member(lost_volumes(1, 2), 3, report=None), restore="restore 0")

    for look in (shard, empty):
        assert "members [3] have not been heard yet" in waits(look, spec_with(slaves=2))
    assert [type(one) for one in decided(ordered, spec_with(slaves=2))] == [act.TakeLease]


def test_an_order_to_restore_moves_nobody_and_is_taken_off() -> None:
    """Of a shard that has its Lease, it is done."""
    shard = msgspec.structs.replace(healthy(), restore="restore 0")

    assert decided(shard) == [act.ClearRequest(shard=0, request="restore 0", why="the shard has begun")]


def test_the_one_who_was_named_is_promoted() -> None:
    """With the log that it was named for, so that a power cut in between is noticed by whoever delivers it."""
    shard = with_record(ObservedShard(number=0, members=(empty(1), empty(2))), record_of())

    assert act.Promote(shard=0, member=1, epoch=EPOCH, electable=(2,), last_epoch=0, end=0) in decided(shard)


# -- gathering and the Lease -------------------------------------------------------------------------------------------


def test_an_old_master_that_returns_follows() -> None:
    """Whatever it believes."""
    shard = with_record(healthy(), record_of(1, (2,)))
    shard = with_report(shard, 2, role=Role.MASTER, epoch=1_000, promised_epoch=1_000, master="")

    assert decided(shard) == [act.Follow(shard=0, member=2, epoch=EPOCH, master=ADDRESS.format(1))]


def test_a_replaced_store_has_a_voice_when_it_has_everything() -> None:
    """All that the master had when the new store came: below that is whatever the old one has acknowledged."""

    def acked(received: int) -> tuple[SlaveState, ...]:
        return (SlaveState(number=2, identity="store-new", received=received),)

    shard = with_report(healthy(), 2, identity="store-new")
    [first] = decided(with_report(shard, 1, slaves=acked(4_000), confirmed=4_000))
    assert isinstance(first, act.KeepLease)
    assert first.record.terms[0].electable == (Voter(2, "store-2", "store-new", 10_000),)

    noted = with_record(shard, msgspec.structs.replace(first.record, version="8"))
    assert decided(with_report(noted, 1, slaves=acked(9_999))) == []
    [second] = decided(with_report(noted, 1, wrote=20_000, slaves=acked(10_000)))
    assert isinstance(second, act.KeepLease)
    assert second.record.terms[0].electable == (Voter(2, "store-new"),)


def test_a_new_slave_may_be_elected_once_it_has_everything() -> None:
    """In a new epoch of the same master, so that both answers to who may be elected are outvoted until it holds."""
    shard = with_record(healthy(slaves=2), record_of(1, (2,)))

    [electable] = decided(shard, spec_with(slaves=2))

    assert isinstance(electable, act.SetElectable)
    new = electable.record.newest
    assert new is not None
    assert (new.master, new.epoch, new.numbers, new.continues) == (1, NEXT, (2, 3), EPOCH)
    assert len(electable.record.terms) == 2


def test_an_older_reign_is_remembered_until_its_messages_are_held() -> None:
    """With the first ack in the new epoch, and not with the promotion."""
    old = record_of(2, (1,), epoch=1_000).terms
    shard = with_record(healthy(), msgspec.structs.replace(record_of(), terms=(*old, *record_of().terms)))

    assert "does not hold yet" in waits(with_report(shard, 1, acked=None))
    [keep] = decided(shard)
    assert isinstance(keep, act.KeepLease)
    assert keep.record.terms == record_of().terms


# -- disks and numbers -------------------------------------------------------------------------------------------------


def test_a_lost_disk_is_waited_for_until_somebody_gives_it_up() -> None:
    """Or until `storage.replaceAfter` is over."""
    shard = with_member(
        silent(healthy(), 2, process=Process.STOPPED), 2, disk=Disk.LOST, disk_lost_since_ms=NOW_MS - 90_000
    )

    assert "say that it is given up" in waits(shard)
    given_up = msgspec.structs.replace(shard, replace_disks=(2,))
    for look, spec in ((given_up, spec_with()), (shard, spec_with(storage={"replaceAfter": "1m"}))):
        assert [type(one) for one in decided(look, spec)] == [act.ReplaceDisk]


def test_a_disk_that_may_be_the_only_copy_is_never_replaced() -> None:
    """While nobody is the master, it may be. Only a person can accept that."""
    shard = with_member(silent(healthy(), 1, process=Process.STOPPED), 1, disk=Disk.LOST)
    shard = msgspec.structs.replace(silent(shard, 2), replace_disks=(1, 2))

    assert "is not replaced: no fresh master holds all" in waits(shard)

    accepted = msgspec.structs.replace(shard, request=PromotionRequest(id="w", loss_accepted=None))
    assert any(isinstance(one, act.ReplaceDisk) and one.is_accepted for one in decided(accepted))


def test_a_member_that_is_scaled_away_loses_its_voice_before_it_goes() -> None:
    """First the Lease, then the process."""
    spec = spec_with(slaves=1)

    actions = decided(healthy(slaves=2), spec)
    assert [type(one) for one in actions] == [act.SetElectable]

    gone = with_record(healthy(slaves=2), record_of(1, (2,)))
    assert decided(gone, spec) == [
        act.Remove(shard=0, member=3, boot_id="boot-3", why="it is scaled away, and others have all that it has")
    ]


def test_members_that_are_missing_are_started() -> None:
    """Whether they have ended or never were."""
    stopped = with_member(healthy(), 2, process=Process.STOPPED)

    assert decided(stopped) == [act.Start(shard=0, member=2)]
    assert act.Start(shard=0, member=3) in decided(healthy(), spec_with(slaves=2))
