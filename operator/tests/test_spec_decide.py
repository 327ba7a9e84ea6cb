"""What is decided in the situations that have a name. What may never happen in any is in ``test_spec_worlds``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
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
from gantry_spec.lease import EPOCH_STRIDE, Goal, Voice
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Disk, LastWord, Observed, ObservedShard, Process, Role, SlaveAck, Wish

NEXT = EPOCH + EPOCH_STRIDE
ASYNC: dict[str, Any] = {"replication": {"mode": "Async"}}


def decided(shard: ObservedShard | Observed, spec: Spec | None = None) -> list[act.Action]:
    """The actions for one shard, waits left out."""
    look = shard if isinstance(shard, Observed) else observed(shard)
    return [one for one in decide(spec or spec_with(), look, NOW_MS).actions if not isinstance(one, act.Wait)]


def waits(shard: ObservedShard | Observed, spec: Spec | None = None) -> str:
    """Why nothing is done; nothing but waits, and starts of who has ended, may have been decided."""
    look = shard if isinstance(shard, Observed) else observed(shard)
    decision = decide(spec or spec_with(), look, NOW_MS)
    assert [one for one in decision.actions if not isinstance(one, act.Wait | act.Start)] == []
    return "; ".join(one.why for one in decision.waits)


def silent(shard: ObservedShard, number: int, for_ms: int = 20_000, **changes: Any) -> ObservedShard:
    """A member that was heard last long ago."""
    shard = with_report(shard, number, asked_ms=NOW_MS - for_ms, answered_ms=NOW_MS - for_ms)
    return with_member(shard, number, **({"process": Process.UNKNOWN} | changes))


def deaf(shard: ObservedShard, *numbers: int) -> ObservedShard:
    """Slaves that hear no master."""
    for number in numbers:
        shard = with_report(shard, number, heard_ms=20_000)
    return shard


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
    nothing: dict[str, Any] = {"epoch": 0, "promised_epoch": 0, "last_epoch": 0, "master_address": "", "heard_ms": None}
    return member_of(number, report_of(number, wrote=0, role=Role.UNASSIGNED, **nothing), **other)


def test_the_first_member_of_a_new_group_is_its_master() -> None:
    """All are empty, and all others may be elected after it, by the stores that they have."""
    shard = with_record(ObservedShard(number=0, members=(empty(1), empty(2))), None)

    [crown] = decided(shard)

    assert isinstance(crown, act.Crown)
    assert crown.expected is None
    [reign] = crown.record.reigns
    assert (reign.master, reign.identity, reign.numbers, reign.acks_needed) == (1, "store-1", (2,), 1)
    assert [voice.identity for voice in reign.electable] == ["store-2"]


def test_nothing_begins_before_every_disk_was_looked_at() -> None:
    """One that was not may hold all the messages."""
    shard = with_record(ObservedShard(number=0, members=(empty(1), member_of(2, None))), None)

    assert "members [2] have not been heard yet" in waits(shard)


def test_a_master_that_is_there_already_stays_it() -> None:
    """A group that was run by hand is taken over without touching its role."""
    shard = with_report(with_record(healthy(), None), 1, electable=(2,))

    [crown] = decided(shard)

    assert isinstance(crown, act.Crown)
    assert (crown.record.epoch, crown.record.reigns[0].master, crown.record.reigns[0].numbers) == (EPOCH, 1, (2,))


def test_a_group_comes_back_from_its_volumes_by_an_election() -> None:
    """The newest epoch on any disk is outvoted, and a new one is above all of them."""
    shard = with_record(healthy(), None)
    for number in (1, 2):
        shard = with_report(shard, number, role=Role.UNASSIGNED, master_id=1, electable=(2,), acks_recorded=1)
    shard = with_report(shard, 2, promised_epoch=8_002)

    [take] = decided(shard)

    assert isinstance(take, act.TakeLease)
    assert take.record.epoch == 9_000
    assert (take.record.reigns[0].master, take.record.reigns[0].numbers) == (1, (2,))


def test_the_one_who_was_named_is_promoted() -> None:
    """With the log that it was named for, so that a power cut in between is noticed by whoever delivers it."""
    shard = with_record(ObservedShard(number=0, members=(empty(1), empty(2))), record_of())

    assert act.Promote(shard=0, member=1, epoch=EPOCH, electable=(2,), last_epoch=0, end=0) in decided(shard)


# -- failover ----------------------------------------------------------------------------------------------------------


def test_a_silent_master_loses_the_lease_first() -> None:
    """Nobody is asked for a promise, nor promoted, before the new epoch is written down."""
    [take] = decided(deaf(silent(healthy(), 1), 2))

    assert isinstance(take, act.TakeLease)
    assert (take.expected, take.record.epoch, take.record.is_settled) == ("7", NEXT, False)
    assert take.record.reigns == record_of().reigns


def test_a_master_is_not_given_up_at_once() -> None:
    """Its process may be back in a moment, with all that it had."""
    shard = silent(healthy(), 1, for_ms=2_000, process=Process.STOPPED)

    assert "master 1 is silent" in waits(deaf(shard, 2))


def test_a_master_whom_its_slaves_hear_is_not_dead() -> None:
    """Then it is we who are cut off, or its sidecar is gone."""
    assert "members [2] hear it" in waits(silent(healthy(), 1))


def test_nobody_is_disturbed_by_an_election_that_cannot_succeed() -> None:
    """Slaves that have promised follow the old master no more: so it is looked first whether enough could promise."""
    shard = deaf(silent(silent(healthy(slaves=2), 1), 3), 2)

    assert "1 of the slaves [2, 3] of epoch 3000 have a voice, and 2 must" in waits(shard, spec_with(slaves=2))


def electing(shard: ObservedShard, **goal: Any) -> ObservedShard:
    """The same shard after the Lease was taken for a new epoch."""
    assert shard.lease is not None
    assert shard.lease.record is not None
    values: dict[str, Any] = {"why": "it is gone", "may_move": True} | goal
    goal_value = Goal(**values)
    return with_record(shard, msgspec.structs.replace(shard.lease.record, epoch=NEXT, goal=goal_value))


def promised(shard: ObservedShard, *numbers: int, **changes: Any) -> ObservedShard:
    """These have promised the new epoch."""
    for number in numbers:
        said = {"promised_epoch": NEXT, "role": Role.UNASSIGNED, "granted_ms": 0} | changes
        shard = with_report(shard, number, **said)
    return shard


def test_everybody_who_may_answer_is_asked_for_a_promise() -> None:
    """The old master, too: if it lives, it is fenced by that."""
    assert decided(electing(silent(healthy(), 1))) == [
        act.Promise(shard=0, member=1, epoch=NEXT),
        act.Promise(shard=0, member=2, epoch=NEXT),
    ]


def test_the_furthest_of_enough_is_named() -> None:
    """And the next election asks the others, the old master among them."""
    shard = promised(electing(silent(healthy(slaves=2), 1)), 2, 3)
    shard = with_report(shard, 2, wrote=9_000)

    crown = decided(shard, spec_with(slaves=2))[0]

    assert isinstance(crown, act.Crown)
    reign = crown.record.newest
    assert reign is not None
    assert (reign.master, reign.epoch, reign.numbers, reign.end, reign.loss) == (3, NEXT, (1, 2), 10_000, 0)
    assert crown.record.reigns[0] == record_of(1, (2, 3)).reigns[0]


def test_one_promise_too_few_names_nobody() -> None:
    """With two slaves and one ack needed, both must promise."""
    shard = promised(electing(silent(healthy(slaves=2), 1)), 2)
    decision = decide(spec_with(slaves=2), observed(shard), NOW_MS)

    assert not any(isinstance(one, act.Crown) for one in decision.actions)
    assert "1 of the slaves [2, 3] of epoch 3000 have a voice, and 2 must" in decision.waits[0].why


def test_a_master_that_comes_back_whole_goes_on() -> None:
    """It has all that it ever acknowledged, so it needs nobody's voice, in every mode."""
    shard = promised(electing(silent(healthy(), 2), may_move=False), 1)

    for mode in ("Automatic", "Manual", "Disabled"):
        crown = decided(shard, spec_with(failover={"mode": mode}))[0]
        assert isinstance(crown, act.Crown)
        assert crown.record.newest is not None
        assert crown.record.newest.master == 1


def test_a_master_that_may_have_lost_its_tail_waits_for_its_slaves() -> None:
    """What it has forgotten, one of them has."""
    shard = promised(electing(silent(healthy(), 2)), 1, is_whole=False)
    decision = decide(spec_with(), observed(shard), NOW_MS)

    assert not any(isinstance(one, act.Crown) for one in decision.actions)


def test_a_newer_promise_somewhere_takes_a_newer_epoch() -> None:
    """Somebody else is at it, or was: his epochs are passed, never repeated."""
    shard = with_report(electing(healthy()), 2, promised_epoch=NEXT + 7)

    [take] = decided(shard)

    assert isinstance(take, act.TakeLease)
    assert take.record.epoch == NEXT + EPOCH_STRIDE


@pytest.mark.parametrize("mode", ["Manual", "Disabled"])
def test_the_role_moves_on_order_only(mode: str) -> None:
    """In Manual mode an order moves it, in Disabled mode nothing does."""
    shard, spec = deaf(silent(healthy(), 1), 2), spec_with(failover={"mode": mode})

    assert f"failover.mode is {mode}" in waits(shard, spec)

    ordered = msgspec.structs.replace(shard, wish=Wish(id="w", to=2))
    kinds = [type(one) for one in decided(ordered, spec)]
    assert kinds == ([act.TakeLease] if mode == "Manual" else [])


# -- where nobody waits for slaves -------------------------------------------------------------------------------------


def dead_async(*, gap: int, stopped_ms: int = 3_000) -> ObservedShard:
    """An asynchronous group whose master's process has ended; the slave lacks something."""
    shard = deaf(
        silent(healthy(acks_needed=0), 1, process=Process.STOPPED, stopped_by_ms=NOW_MS - 20_000 + stopped_ms), 2
    )
    return with_report(shard, 2, wrote=10_000 - gap)


def test_a_lossy_failover_is_announced_and_not_done() -> None:
    """What the slave lacks, and what the master may have taken since it was heard last, is more than is allowed."""
    assert "5000 bytes could be lost, and spec.failover.maxDataLossBytes allows 0 bytes" in waits(
        dead_async(gap=2_000), spec_with(**ASYNC)
    )


def test_a_loss_within_the_bound_is_accepted() -> None:
    """It is written down with the new reign."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": 5_000})
    shard = dead_async(gap=2_000)

    assert [type(one) for one in decided(shard, spec)] == [act.Start, act.TakeLease]

    word = LastWord(epoch=EPOCH, asked_ms=NOW_MS - 20_000, epoch_start=0, wrote=10_000, peak_bytes_per_s=1_000)
    shard = msgspec.structs.replace(promised(electing(shard), 2), last_word=word)
    shard = with_member(shard, 1, process_asked_ms=NOW_MS, acks_needed=0)
    crown = decided(shard, spec)[1]
    assert isinstance(crown, act.Crown)
    assert crown.record.newest is not None
    assert (crown.record.newest.master, crown.record.newest.loss) == (2, 5_000)


def test_a_loss_that_nobody_knows_is_never_within_a_bound() -> None:
    """Unknown is not zero: without a last word of the master, only a person can say yes."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": "1Gi"})
    shard = with_report(dead_async(gap=0), 1, peak_bytes_per_s=None)

    assert "nobody knows how much would be lost" in waits(shard, spec)

    accepted = msgspec.structs.replace(shard, wish=Wish(id="w", loss_accepted=None))
    assert isinstance(decided(accepted, spec)[1], act.TakeLease)


def test_a_new_master_waits_until_the_old_one_has_lost_both_keys() -> None:
    """The Lease has to run out, and a slave's grant."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": "1Gi"})
    shard = promised(electing(silent(healthy(acks_needed=0), 1)), 2)
    assert shard.lease is not None
    early = with_record(shard, shard.lease.record, age_ms=10_000)
    granting = with_report(shard, 2, granted_ms=3_000)

    for look in (early, granting):
        decision = decide(spec, observed(look), NOW_MS)
        assert not any(isinstance(one, act.Crown) for one in decision.actions)
        assert "may still acknowledge" in decision.waits[0].why
    assert isinstance(decided(shard, spec)[0], act.Crown)


# -- gathering and the Lease -------------------------------------------------------------------------------------------


def test_an_old_master_that_returns_follows() -> None:
    """Whatever it believes."""
    shard = with_record(healthy(), record_of(1, (2,)))
    shard = with_report(shard, 2, role=Role.MASTER, epoch=1_000, promised_epoch=1_000, master_address="")

    assert decided(shard) == [act.Follow(shard=0, member=2, epoch=EPOCH, master=ADDRESS.format(1))]


def test_a_replaced_store_has_a_voice_when_it_has_everything() -> None:
    """All that the master had when the new store came: below that is whatever the old one has acknowledged."""

    def acked(received: int) -> tuple[SlaveAck, ...]:
        return (SlaveAck(number=2, identity="store-new", received=received),)

    shard = with_report(healthy(), 2, identity="store-new")
    [first] = decided(with_report(shard, 1, slaves=acked(4_000), confirmed=4_000))
    assert isinstance(first, act.KeepLease)
    assert first.record.reigns[0].electable == (Voice(2, "store-2", "store-new", 10_000),)

    noted = with_record(shard, msgspec.structs.replace(first.record, version="8"))
    assert decided(with_report(noted, 1, slaves=acked(9_999))) == []
    [second] = decided(with_report(noted, 1, wrote=20_000, slaves=acked(10_000)))
    assert isinstance(second, act.KeepLease)
    assert second.record.reigns[0].electable == (Voice(2, "store-new"),)


def test_a_new_slave_may_be_elected_once_it_has_everything() -> None:
    """In a new epoch of the same master, so that both answers to who may be elected are outvoted until it holds."""
    shard = with_record(healthy(slaves=2), record_of(1, (2,)))

    [electable] = decided(shard, spec_with(slaves=2))

    assert isinstance(electable, act.SetElectable)
    new = electable.record.newest
    assert new is not None
    assert (new.master, new.epoch, new.numbers, new.continues) == (1, NEXT, (2, 3), EPOCH)
    assert len(electable.record.reigns) == 2


def test_an_older_reign_is_remembered_until_its_messages_are_held() -> None:
    """With the first ack in the new epoch, and not with the promotion."""
    old = record_of(2, (1,), epoch=1_000).reigns
    shard = with_record(healthy(), msgspec.structs.replace(record_of(), reigns=(*old, *record_of().reigns)))

    assert "does not hold yet" in waits(with_report(shard, 1, acked=None))
    [keep] = decided(shard)
    assert isinstance(keep, act.KeepLease)
    assert keep.record.reigns == record_of().reigns


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
    """While nobody is the master, it may be."""
    shard = with_member(silent(healthy(), 1, process=Process.STOPPED), 1, disk=Disk.LOST)
    shard = msgspec.structs.replace(silent(shard, 2), replace_disks=(1, 2))

    assert "is not replaced: no fresh master holds all" in waits(shard)


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
