"""Shards that are closed to clients: fenced or hibernated. Any history continues when they are opened again.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import os
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_world.decisions import decided_actions, wait_reasons, with_silent_member
from spec_world.history import RECOVERY_ROUNDS_MAX, History
from spec_world.observations import (
    NOW_MS,
    healthy_shard,
    lease_record_of,
    observed_group,
    spec_with,
    with_member,
    with_record,
    with_report,
)
from spec_world.run_histories import SHAPES
from spec_world.world import World

from gantry_spec import actions as act
from gantry_spec.decide import Fences, decide, group
from gantry_spec.decide import hibernation as hibernation_module
from gantry_spec.gate import ALLOWED
from gantry_spec.lease import Goal
from gantry_spec.observed import ObservedGroup, ObservedShard, Process, PromotionRequest, Role
from gantry_status.broker_state import SlaveState

EXAMPLES = int(os.environ.get("GANTRY_SIMULATION_SEEDS", "60"))
MOVES = (act.TakeEpoch, act.RecordMaster, act.SetElectable, act.Promote, act.Resume, act.Restart, act.Drain)
"""The actions that a fenced shard must not have: they move the master's role, or stop a broker."""


def with_fence(shard: ObservedShard) -> ObservedShard:
    """Return the shard with a fence: sends to it are to be refused, and no member becomes master."""
    return msgspec.structs.replace(shard, is_fenced=True)


def with_drained_master(shard: ObservedShard) -> ObservedShard:
    """Return the shard whose master, member 1, refuses sends."""
    return with_report(shard, 1, is_draining=True)


# -- a fence -----------------------------------------------------------------------------------------------------------


def test_a_fenced_shard_is_withdrawn_and_stays_so() -> None:
    """Its master refuses sends until the fence is lifted."""
    [withdraw] = decided_actions(with_fence(healthy_shard()))
    assert isinstance(withdraw, act.Withdraw)
    assert (withdraw.member, withdraw.is_ordered) == (1, True)

    assert decided_actions(with_fence(with_drained_master(healthy_shard()))) == []
    assert [type(one) for one in decided_actions(with_drained_master(healthy_shard()))] == [act.Resume]


def test_no_member_of_a_fenced_shard_is_promoted() -> None:
    """This holds even if the master is dead, and even if a person requests a promotion."""
    dead = with_silent_member(healthy_shard(slaves=2), 1, process=Process.STOPPED)
    for shard in (
        dead,
        with_record(healthy_shard(), msgspec.structs.replace(lease_record_of(), epoch=9_000, goal=Goal(why="x"))),
    ):
        assert [type(one) for one in decided_actions(with_fence(shard)) if isinstance(one, MOVES)] == []
    requested = msgspec.structs.replace(with_drained_master(healthy_shard()), request=PromotionRequest("0=2", 2))
    assert "the shard is fenced: no member is promoted" in wait_reasons(with_fence(requested))


def test_a_fence_waits_for_no_other_shard() -> None:
    """Several shards are fenced at once, also while the risk is unknown."""
    shards = [with_fence(with_report(healthy_shard(number=number), 1, wrote=None)) for number in (0, 1)]

    actions = decided_actions(observed_group(*shards), spec_with(shards=2))

    assert [(type(one), one.shard) for one in actions] == [(act.Withdraw, 0), (act.Withdraw, 1)]


def test_slaves_of_a_fenced_shard_follow() -> None:
    """They continue to copy the master's log."""
    shard = with_fence(with_drained_master(with_report(healthy_shard(), 2, role=Role.UNASSIGNED)))

    assert [type(one) for one in decided_actions(shard)] == [act.Follow]


def test_conditions_show_a_fence_only_when_it_is_effective() -> None:
    """The condition is false until no member can take sends."""
    result = decide(spec_with(), observed_group(with_fence(healthy_shard())), NOW_MS)
    assert (result.condition("Fenced").is_true, result.condition("Fenced").reason) == (False, "SendsNotRefused")

    result = decide(spec_with(), observed_group(with_fence(with_drained_master(healthy_shard()))), NOW_MS)
    assert (result.condition("Fenced").is_true, result.condition("Fenced").message) == (True, "shards [0]")
    assert (result.condition("Available").is_true, result.condition("Available").reason) == (False, "Fenced")
    partitioned = decide(spec_with(), observed_group(with_fence(with_silent_member(healthy_shard(), 1))), NOW_MS)
    assert not partitioned.condition("Fenced").is_true, "a shard with an unreachable master counts as fenced"


def test_shards_are_fenced_independently() -> None:
    """A fence is effective although another shard, which is to be fenced too, may still take sends."""
    closed, still_open = with_fence(with_drained_master(healthy_shard())), with_fence(healthy_shard(number=1))

    result = decide(spec_with(shards=2), observed_group(closed, still_open), NOW_MS)

    assert result.fences == Fences(closed=(0,), still_open=(1,))
    assert (result.condition("Fenced").is_true, result.condition("Fenced").message) == (False, "shards [1]")


# -- hibernation -------------------------------------------------------------------------------------------------------


def hibernated_group(*shards: ObservedShard) -> ObservedGroup:
    """Return a group of these shards whose manifest orders hibernation."""
    return observed_group(*shards, is_hibernated=True)


def test_a_group_hibernates_in_safe_order() -> None:
    """Sends are refused, all logs are equal, an epoch is taken for the same master, and then all processes stop."""
    assert [type(one) for one in decided_actions(hibernated_group(healthy_shard()))] == [act.Withdraw]

    behind = with_report(
        with_drained_master(healthy_shard()),
        1,
        is_draining=True,
        slaves=(SlaveState(number=2, identity="store-2", received=9_000, flushed=9_000),),
    )
    assert "members [2] have not received the whole log yet" in wait_reasons(hibernated_group(behind))
    unflushed = with_report(with_drained_master(healthy_shard()), 1, is_draining=True, flushed=9_999)
    assert "member 1 has not flushed its log yet" in wait_reasons(hibernated_group(unflushed))

    [taken] = decided_actions(hibernated_group(with_drained_master(healthy_shard())))
    assert isinstance(taken, act.TakeEpoch)
    assert taken.record.goal is not None and (taken.record.goal.to, taken.record.goal.may_move) == (1, False)

    after = with_record(with_drained_master(healthy_shard()), taken.record)
    assert [type(one) for one in decided_actions(hibernated_group(after))] == [act.Hibernate]


def test_nothing_is_decided_about_a_hibernated_group() -> None:
    """The conditions show the hibernation and no degradation."""
    shard = msgspec.structs.replace(healthy_shard(), is_scaled_to_zero=True)
    assert "members [1, 2] are still running" in wait_reasons(hibernated_group(shard))
    for number in (1, 2):
        shard = with_silent_member(shard, number, process=Process.ABSENT)

    decision = decide(spec_with(), hibernated_group(shard), NOW_MS)

    assert decision.actions == ()
    so = {one.type: (one.is_true, one.reason) for one in decision.conditions}
    assert so["Hibernated"] == (True, "ByAnnotation")
    assert so["Degraded"] == so["Available"] == so["Ready"] == (False, "Hibernated")


def test_a_hibernated_group_has_all_messages_on_disks_only_if_its_masters_were_stopped_in_order() -> None:
    """A shard that was stopped without a master may have lost what was not flushed, or only the master has it."""
    [taken] = decided_actions(hibernated_group(with_drained_master(healthy_shard())))
    assert isinstance(taken, act.TakeEpoch)
    stopped = msgspec.structs.replace(healthy_shard(), is_scaled_to_zero=True)
    for number in (1, 2):
        stopped = with_silent_member(stopped, number, process=Process.ABSENT)
    in_order = with_record(stopped, taken.record)
    electing = with_record(stopped, msgspec.structs.replace(taken.record, goal=Goal(why="master 1 has failed")))

    found = {}
    for name, shard in (("in order", in_order), ("no master", stopped), ("electing", electing)):
        found[name] = decide(spec_with(), hibernated_group(shard), NOW_MS).condition("DurabilityMet")

    assert {name: one.is_true for name, one in found.items()} == {"in order": True, "no master": None, "electing": None}
    assert "shards [0] had no master when they stopped" in found["electing"].message


def test_a_stopped_shard_is_hibernated_as_well() -> None:
    """Otherwise it could start while the group is hibernated."""
    shard = healthy_shard()
    for number in (1, 2):
        shard = with_silent_member(shard, number, process=Process.STOPPED)

    decision = decide(spec_with(), hibernated_group(shard), NOW_MS)

    assert [type(one) for one in decision.actions] == [act.Hibernate]
    assert decision.condition("Hibernated").is_true is False


def test_a_master_in_unknown_state_prevents_hibernation() -> None:
    """It may still take messages, which no other member would have."""
    assert "it is unknown whether the past masters [1] are running" in wait_reasons(
        hibernated_group(with_silent_member(with_drained_master(healthy_shard()), 1))
    )


def test_the_previous_master_is_awaited_after_hibernation() -> None:
    """A slave that starts first could be elected, but is not while the others may still come."""
    taken = msgspec.structs.replace(lease_record_of(), epoch=4_000, goal=Goal(why="it slept", to=1))
    shard = with_record(healthy_shard(), taken)
    shard = with_report(shard, 2, role=Role.UNASSIGNED, promised_epoch=4_000)
    shard = with_member(with_silent_member(shard, 1, process=Process.STOPPED), 2, started_by_ms=NOW_MS - 5_000)

    assert "waiting for member 1" in wait_reasons(shard)
    late = with_member(shard, 2, started_by_ms=NOW_MS - 60_000)
    assert [type(one) for one in decided_actions(late) if not isinstance(one, act.Start)] == [act.RecordMaster]


# -- histories ---------------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_no_history_promotes_in_a_fenced_shard_and_every_one_recovers(seed: int) -> None:
    """Fences come and go among crashes, partitions and lost disks."""
    history, dice = History(SHAPES[seed % len(SHAPES)], seed), random.Random(seed)
    history.run(0)
    for _ in range(8):
        history.apply_random_events(30)
        history.world.is_fenced = dice.random() < 0.6
        for decider in history.world.deciders:
            decider.pending_actions.clear()
        for decider_number in range(len(history.world.deciders)):
            observe_all(history.world, decider_number)
            actions = history.world.decide(decider_number).actions
            assert not history.world.is_fenced or not [one for one in actions if isinstance(one, MOVES)]
    history.world.is_fenced = False
    history.end_faults()
    assert history.run_until_healthy() < RECOVERY_ROUNDS_MAX


def observe_all(world: World, decider_number: int) -> None:
    world.read_lease(decider_number)
    for number in sorted({*world.brokers, *world.spec.members, *world.deciders[decider_number].members}):
        member = world.observe_member(decider_number, number)
        if member is not None:
            world.receive(decider_number, member)


def hibernated_world(seed: int) -> World:
    """Return a world that was hibernated after a random history, and resumed; check its logs and its master."""
    history = History(SHAPES[seed % len(SHAPES)], seed)
    history.run(150)
    history.end_faults()
    assert history.run_until_healthy() < RECOVERY_ROUNDS_MAX
    world = history.world
    assert world.lease is not None and world.lease.newest is not None
    master = world.lease.newest.master
    for number in world.brokers:
        world.disconnect(number)  # the slave has received nothing for a while
    world.advance(2_000, 1.0)
    world.is_hibernated = True
    for _ in range(40):
        run_round(world)
        if not any(broker.is_up for broker in world.brokers.values()):
            break
        for number in sorted(world.brokers):
            world.replicate(number, 3)
    assert not any(broker.is_up for broker in world.brokers.values()), world.deciders[0].decision.explanation
    logs = [broker.store.log for broker in world.brokers.values()]
    assert all(log == logs[0] for log in logs), "they stopped before all of them had everything"
    world.is_hibernated = False
    world.advance(3_600_000, 0.0)
    assert history.run_until_healthy() < RECOVERY_ROUNDS_MAX
    assert world.lease.newest.master == master
    assert world.checker.acknowledged <= set(world.brokers[master].store.log)
    return world


def run_round(world: World) -> None:
    """Let every deciding process observe once, decide, and execute its actions."""
    for decider_number in range(len(world.deciders)):
        observe_all(world, decider_number)
        world.decide(decider_number)
        for _ in range(len(world.deciders[decider_number].pending_actions)):
            world.execute_pending(decider_number, 0)
    world.advance(500, 1.0)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_every_group_hibernates_with_equal_logs_and_starts_with_the_same_master(seed: int) -> None:
    """No acknowledged message is lost, and the master is the same in a newer epoch."""
    hibernated_world(seed)


def test_hibernation_without_waiting_for_slaves_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: neither the decision nor the gate checks the logs of the slaves."""
    monkeypatch.setattr(hibernation_module, "unreplicated_data", lambda view, master: "")
    monkeypatch.setattr(group, "check_action", lambda *_: ALLOWED)

    with pytest.raises(AssertionError, match="before all of them had everything"):
        for seed in range(8):
            hibernated_world(seed)
