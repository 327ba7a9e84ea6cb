"""Decisions about healthy groups, about the first record of a shard, and about its members."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from spec_world.decisions import decided_actions, wait_reasons, with_disconnected_slaves, with_silent_member
from spec_world.observations import (
    ADDRESS,
    EPOCH,
    NOW_MS,
    healthy_shard,
    lease_record_of,
    member_of,
    observed_group,
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


# -- healthy groups ----------------------------------------------------------------------------------------------------


def test_a_healthy_group_is_left_alone() -> None:
    """No action is decided, and all conditions are good."""
    decision = decide(spec_with(), observed_group(healthy_shard()), NOW_MS)

    assert decision.actions == ()
    states = {one.type: one.is_true for one in decision.conditions}
    assert states == {
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


def test_the_same_observation_gives_the_same_decision() -> None:
    """No state is kept between two calls."""
    group = observed_group(with_disconnected_slaves(with_silent_member(healthy_shard(slaves=2), 1), 2, 3))
    spec = spec_with(slaves=2)

    assert decide(spec, group, NOW_MS) == decide(spec, group, NOW_MS)


def test_a_paused_group_is_not_touched() -> None:
    """No action is decided for a paused group, even if its members fail."""
    group = observed_group(with_disconnected_slaves(with_silent_member(healthy_shard(), 1), 2), is_paused=True)

    assert wait_reasons(group) == "the group is paused"
    assert decide(spec_with(), group, NOW_MS).condition("Paused").is_true


def test_a_role_does_not_move_while_the_lease_cannot_be_read() -> None:
    """An unavailable API server stops no master and moves no role."""
    shard = msgspec.structs.replace(healthy_shard(), lease=None)

    assert "the Lease cannot be read" in wait_reasons(shard)


# -- the first record --------------------------------------------------------------------------------------------------


def empty_member(number: int, **other: Any) -> Any:
    """Return a member with an empty store and without a role."""
    nothing: dict[str, Any] = {"epoch": 0, "promised_epoch": 0, "last_epoch": 0, "master": "", "heartbeat_age_ms": None}
    return member_of(number, report_of(number, wrote=0, role=Role.UNASSIGNED, **nothing), **other)


def test_the_first_member_of_a_new_group_is_its_master() -> None:
    """All stores are empty, and all other members are electable with their stores."""
    shard = with_record(ObservedShard(number=0, members=(empty_member(1), empty_member(2))), None)

    [record_action] = decided_actions(shard)

    assert isinstance(record_action, act.RecordMaster)
    assert record_action.expected is None
    [term] = record_action.record.terms
    assert (term.master, term.identity, term.numbers, term.acks_needed) == (1, "store-1", (2,), 1)
    assert [voter.identity for voter in term.electable] == ["store-2"]


def test_no_record_is_created_before_every_member_has_reported() -> None:
    """A disk that was not read may hold all messages."""
    shard = with_record(ObservedShard(number=0, members=(empty_member(1), member_of(2, None))), None)

    assert "members [2] have not reported yet" in wait_reasons(shard)


def test_an_existing_master_keeps_its_role() -> None:
    """A manually operated group is adopted without a change of its role."""
    shard = with_report(with_record(healthy_shard(), None), 1, electable=(2,))

    [record_action] = decided_actions(shard)

    assert isinstance(record_action, act.RecordMaster)
    assert (
        record_action.record.epoch,
        record_action.record.terms[0].master,
        record_action.record.terms[0].numbers,
    ) == (EPOCH, 1, (2,))


def test_a_group_is_restored_from_its_volumes_by_an_election() -> None:
    """The newest epoch on any disk is outvoted, and the new epoch is greater than all."""
    shard = with_record(healthy_shard(), None)
    for number in (1, 2):
        shard = with_report(shard, number, role=Role.UNASSIGNED, master_id=1, electable=(2,), acks_needed=1)
    shard = with_report(shard, 2, promised_epoch=8_002)

    [take] = decided_actions(shard)

    assert isinstance(take, act.TakeEpoch)
    assert take.record.epoch == 9_000
    assert (take.record.terms[0].master, take.record.terms[0].numbers) == (1, (2,))


def shard_with_lost_volumes(*empties: int, acks_needed: int = 1) -> ObservedShard:
    """Return a shard of three members without a Lease, some of whose volumes are empty."""
    shard = with_record(healthy_shard(slaves=2, acks_needed=acks_needed), None)
    for number in (1, 2, 3):
        known = {"master_id": 1, "electable": (2, 3), "acks_needed": acks_needed}
        nothing = {"wrote": 0, "epoch": 0, "last_epoch": 0, "promised_epoch": 0, "identity": f"new-{number}"}
        shard = with_report(shard, number, role=Role.UNASSIGNED, **(nothing if number in empties else known))
    return shard


@pytest.mark.parametrize(("empties", "is_proven"), [((), True), ((2, 3), True), ((1,), True), ((1, 2), False)])
def test_an_empty_volume_has_no_vote(empties: tuple[int, ...], is_proven: bool) -> None:
    """Proofs are the master's own volume, or as many slaves as overlap every acknowledgement."""
    shard = shard_with_lost_volumes(*empties)

    if is_proven:
        [taken] = decided_actions(shard, spec_with(slaves=2))
        assert isinstance(taken, act.TakeEpoch)
        assert taken.record.goal is not None and taken.record.goal.loss_accepted == 0
    else:
        assert "data may be missing" in wait_reasons(shard, spec_with(slaves=2))
        [taken] = decided_actions(msgspec.structs.replace(shard, restore="restore 0"), spec_with(slaves=2))
        assert isinstance(taken, act.TakeEpoch)
        assert taken.record.goal is not None and taken.record.goal.loss_accepted is None
        assert taken.record.terms[0].identity == "", "expected no identity for a master whose store is lost"


def test_without_acks_only_the_masters_volume_is_a_proof() -> None:
    """No slave was required to have what was acknowledged."""
    assert "its master 1 is absent" in wait_reasons(shard_with_lost_volumes(1, acks_needed=0), spec_with(slaves=2))
    assert [type(one) for one in decided_actions(shard_with_lost_volumes(2, acks_needed=0), spec_with(slaves=2))] == [
        act.TakeEpoch
    ]


@pytest.mark.parametrize(("recorded", "configured"), [(0, 1), (1, 0)])
def test_recorded_number_of_acks_counts_and_not_that_of_the_new_configuration(recorded: int, configured: int) -> None:
    """A group without a Lease may have been asynchronous before its manifest says that it waits for slaves."""
    shard = shard_with_lost_volumes(1, acks_needed=recorded)
    for number in (1, 2, 3):
        shard = with_member(shard, number, acks_needed=configured)

    if recorded:
        assert [type(one) for one in decided_actions(shard, spec_with(slaves=2))] == [act.TakeEpoch]
    else:
        assert "its master 1 is absent" in wait_reasons(shard, spec_with(slaves=2))


def test_only_a_person_gives_up_an_absent_broker() -> None:
    """It is never given up where all present volumes are empty."""
    shard = with_member(shard_with_lost_volumes(), 3, report=None)
    ordered = msgspec.structs.replace(shard, restore="restore 0")
    empty = msgspec.structs.replace(with_member(shard_with_lost_volumes(1, 2), 3, report=None), restore="restore 0")

    for observation in (shard, empty):
        assert "members [3] have not reported yet" in wait_reasons(observation, spec_with(slaves=2))
    assert [type(one) for one in decided_actions(ordered, spec_with(slaves=2))] == [act.TakeEpoch]


def test_a_restore_request_of_a_shard_with_a_lease_is_removed() -> None:
    """It moves no role, since the shard needs no restore."""
    shard = msgspec.structs.replace(healthy_shard(), restore="restore 0")

    assert decided_actions(shard) == [act.ClearRequest(shard=0, request="restore 0", why="the shard is restored")]


def test_the_recorded_master_is_promoted() -> None:
    """The order has the log end of the election, so that a power loss in between is noticed."""
    shard = with_record(ObservedShard(number=0, members=(empty_member(1), empty_member(2))), lease_record_of())

    assert act.Promote(shard=0, member=1, epoch=EPOCH, electable=(2,), last_epoch=0, end=0) in decided_actions(shard)


# -- slaves and voters -------------------------------------------------------------------------------------------------


def test_an_old_master_that_returns_follows() -> None:
    """It is ordered to follow although it reports the master role."""
    shard = with_record(healthy_shard(), lease_record_of(1, (2,)))
    shard = with_report(shard, 2, role=Role.MASTER, epoch=1_000, promised_epoch=1_000, master="")

    assert decided_actions(shard) == [act.Follow(shard=0, member=2, epoch=EPOCH, master=ADDRESS.format(1))]


def test_a_replaced_store_votes_when_it_has_everything() -> None:
    """It needs the master's log up to its arrival, which has everything that the old store acknowledged."""

    def acked(received: int) -> tuple[SlaveState, ...]:
        return (SlaveState(number=2, identity="store-new", received=received),)

    shard = with_report(healthy_shard(), 2, identity="store-new")
    [first] = decided_actions(with_report(shard, 1, slaves=acked(4_000), confirmed=4_000))
    assert isinstance(first, act.UpdateTerms)
    assert first.record.terms[0].electable == (Voter(2, "store-2", "store-new", 10_000),)

    noted = with_record(shard, msgspec.structs.replace(first.record, version="8"))
    assert decided_actions(with_report(noted, 1, slaves=acked(9_999))) == []
    [second] = decided_actions(with_report(noted, 1, wrote=20_000, slaves=acked(10_000)))
    assert isinstance(second, act.UpdateTerms)
    assert second.record.terms[0].electable == (Voter(2, "store-new"),)


def test_a_new_slave_is_electable_once_it_has_everything() -> None:
    """A new epoch of the same master begins, and both electable sets are outvoted until it is confirmed."""
    shard = with_record(healthy_shard(slaves=2), lease_record_of(1, (2,)))

    [electable] = decided_actions(shard, spec_with(slaves=2))

    assert isinstance(electable, act.SetElectable)
    new = electable.record.newest
    assert new is not None
    assert (new.master, new.epoch, new.numbers, new.continues) == (1, NEXT, (2, 3), EPOCH)
    assert len(electable.record.terms) == 2


def test_an_older_term_is_kept_until_the_newer_one_contains_its_messages() -> None:
    """It is dropped with the first ack in the new epoch, not with the promotion."""
    old = lease_record_of(2, (1,), epoch=1_000).terms
    shard = with_record(
        healthy_shard(), msgspec.structs.replace(lease_record_of(), terms=(*old, *lease_record_of().terms))
    )

    assert "does not contain yet" in wait_reasons(with_report(shard, 1, acked=None))
    [keep] = decided_actions(shard)
    assert isinstance(keep, act.UpdateTerms)
    assert keep.record.terms == lease_record_of().terms


# -- disks and members -------------------------------------------------------------------------------------------------


def test_a_lost_disk_is_awaited_until_it_is_given_up() -> None:
    """It is replaced after a person's request, or after `storage.replaceAfter`."""
    shard = with_member(
        with_silent_member(healthy_shard(), 2, process=Process.STOPPED),
        2,
        disk=Disk.LOST,
        disk_lost_since_ms=NOW_MS - 90_000,
    )

    assert "give it up with gantry.dev/replace-disk" in wait_reasons(shard)
    given_up = msgspec.structs.replace(shard, replace_disks=(2,))
    for observation, spec in ((given_up, spec_with()), (shard, spec_with(storage={"replaceAfter": "1m"}))):
        assert [type(one) for one in decided_actions(observation, spec)] == [act.ReplaceDisk]


def test_a_disk_with_the_only_copy_is_not_replaced() -> None:
    """Without a master it may be the only copy. Only a person can accept that."""
    shard = with_member(with_silent_member(healthy_shard(), 1, process=Process.STOPPED), 1, disk=Disk.LOST)
    shard = msgspec.structs.replace(with_silent_member(shard, 2), replace_disks=(1, 2))

    assert "is not replaced: no master with a recent report has everything" in wait_reasons(shard)

    accepted = msgspec.structs.replace(shard, request=PromotionRequest(id="w", loss_accepted=None))
    assert any(isinstance(one, act.ReplaceDisk) and one.is_accepted for one in decided_actions(accepted))


@pytest.mark.parametrize("is_fenced", [False, True], ids=["open", "fenced"])
def test_a_shard_that_is_scaled_in_is_repaired(is_fenced: bool) -> None:
    """It still delivers what is left, which needs acks. But a member that does not exist any more is not created."""
    stopped = with_silent_member(healthy_shard(number=1, slaves=3, is_withdrawn=True), 2, process=Process.STOPPED)
    stopped = with_member(msgspec.structs.replace(stopped, is_fenced=is_fenced), 4, process=Process.ABSENT)
    lost = with_member(stopped, 2, disk=Disk.LOST)
    given_up = msgspec.structs.replace(lost, replace_disks=(2,))
    spec = spec_with(slaves=3)

    def repairs(shard: ObservedShard) -> list[tuple[str, int]]:
        actions = decide(spec, observed_group(healthy_shard(slaves=3), shard), NOW_MS).actions
        return [(type(one).__name__, one.member) for one in actions if isinstance(one, act.ProcessAction)]

    assert repairs(stopped) == [("Start", 2)]
    assert repairs(lost) == []
    reasons = [one.why for one in decide(spec, observed_group(healthy_shard(slaves=3), lost), NOW_MS).waits]
    assert any("the disk of member 2 is lost: bring it back" in why for why in reasons)
    assert repairs(given_up) == [("ReplaceDisk", 2)]


def test_a_removed_member_loses_its_vote_before_it_stops() -> None:
    """The Lease is updated first, then the process is stopped."""
    spec = spec_with(slaves=1)

    actions = decided_actions(healthy_shard(slaves=2), spec)
    assert [type(one) for one in actions] == [act.SetElectable]

    gone = with_record(healthy_shard(slaves=2), lease_record_of(1, (2,)))
    assert decided_actions(gone, spec) == [
        act.Remove(shard=0, member=3, boot_id="boot-3", why="it is scaled in, and others have everything that it has")
    ]


def test_missing_members_are_started() -> None:
    """This includes stopped members and members that never existed."""
    stopped = with_member(healthy_shard(), 2, process=Process.STOPPED)

    assert decided_actions(stopped) == [act.Start(shard=0, member=2)]
    assert act.Start(shard=0, member=3) in decided_actions(healthy_shard(), spec_with(slaves=2))
