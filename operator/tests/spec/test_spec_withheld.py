"""Shards that clients shall not send to: fenced, or about to sleep. And any history goes on when that is over."""

from __future__ import annotations

import os
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_world.decided import decided, silent, waits
from spec_world.history import CALM_ROUNDS_MAX, History
from spec_world.looks import NOW_MS, healthy, observed, record_of, spec_with, with_member, with_record, with_report
from spec_world.run_histories import SHAPES
from spec_world.world import World

from gantry_spec import actions as act
from gantry_spec.decide import decide, group
from gantry_spec.decide import sleeping as asleep
from gantry_spec.gate import ALLOWED
from gantry_spec.lease import Goal
from gantry_spec.observed import Observed, ObservedShard, Process, PromotionRequest, Role
from gantry_status.broker_state import SlaveState

EXAMPLES = int(os.environ.get("GANTRY_SIMULATION_SEEDS", "60"))
MOVES = (act.TakeLease, act.Crown, act.SetElectable, act.Promote, act.Resume, act.Restart, act.Drain)


def fenced(shard: ObservedShard) -> ObservedShard:
    return msgspec.structs.replace(shard, is_fenced=True)


def drained(shard: ObservedShard) -> ObservedShard:
    return with_report(shard, 1, is_draining=True)


# -- a fence -----------------------------------------------------------------------------------------------------------


def test_a_fenced_shard_is_withdrawn_and_stays_so() -> None:
    """Its master refuses sends, and nothing takes them again before the fence is lifted."""
    [withdraw] = decided(fenced(healthy()))
    assert isinstance(withdraw, act.Withdraw)
    assert (withdraw.member, withdraw.is_ordered) == (1, True)

    assert decided(fenced(drained(healthy()))) == []
    assert [type(one) for one in decided(drained(healthy()))] == [act.Resume]


def test_nobody_is_promoted_behind_a_fence() -> None:
    """Whatever has become of the master, and whatever somebody orders."""
    dead = silent(healthy(slaves=2), 1, process=Process.STOPPED)
    for shard in (dead, with_record(healthy(), msgspec.structs.replace(record_of(), epoch=9_000, goal=Goal(why="x")))):
        assert [type(one) for one in decided(fenced(shard)) if isinstance(one, MOVES)] == []
    wished = msgspec.structs.replace(drained(healthy()), request=PromotionRequest("0=2", 2))
    assert "it is fenced by its annotation: nobody is promoted" in waits(fenced(wished))


def test_a_fence_waits_for_nobody() -> None:
    """Several shards at once, and also while what is at risk is not known."""
    shards = [fenced(with_report(healthy(number=number), 1, wrote=None)) for number in (0, 1)]

    actions = decided(observed(*shards), spec_with(shards=2))

    assert [(type(one), one.shard) for one in actions] == [(act.Withdraw, 0), (act.Withdraw, 1)]


def test_slaves_of_a_fenced_shard_follow() -> None:
    """What the master has is copied on."""
    shard = fenced(drained(with_report(healthy(), 2, role=Role.UNASSIGNED)))

    assert [type(one) for one in decided(shard)] == [act.Follow]


def test_conditions_say_what_a_fence_does() -> None:
    """Not that it is fenced before nothing can be sent; and nobody can send to it then."""
    said = decide(spec_with(), observed(fenced(healthy())), NOW_MS)
    assert (said.condition("Fenced").is_so, said.condition("Fenced").reason) == (False, "StillOpen")

    said = decide(spec_with(), observed(fenced(drained(healthy()))), NOW_MS)
    assert (said.condition("Fenced").is_so, said.condition("Fenced").message) == (True, "shards [0]")
    assert (said.condition("Available").is_so, said.condition("Available").reason) == (False, "Fenced")
    cut_off = decide(spec_with(), observed(fenced(silent(healthy(), 1))), NOW_MS)
    assert not cut_off.condition("Fenced").is_so, "a master that nobody hears may still take sends"


# -- sleep -------------------------------------------------------------------------------------------------------------


def sleeping(*shards: ObservedShard) -> Observed:
    return observed(*shards, is_hibernated=True)


def test_a_group_goes_to_sleep_in_safe_order() -> None:
    """Sends are refused; everybody holds everything; an epoch is taken for the same master; then all stop."""
    assert [type(one) for one in decided(sleeping(healthy()))] == [act.Withdraw]

    behind = with_report(
        drained(healthy()),
        1,
        is_draining=True,
        slaves=(SlaveState(number=2, identity="store-2", received=9_000, flushed=9_000),),
    )
    assert "members [2] do not hold everything yet" in waits(sleeping(behind))
    unflushed = with_report(drained(healthy()), 1, is_draining=True, flushed=9_999)
    assert "member 1 has not everything on its disk yet" in waits(sleeping(unflushed))

    [taken] = decided(sleeping(drained(healthy())))
    assert isinstance(taken, act.TakeLease)
    assert taken.record.goal is not None and (taken.record.goal.to, taken.record.goal.may_move) == (1, False)

    after = with_record(drained(healthy()), taken.record)
    assert [type(one) for one in decided(sleeping(after))] == [act.Sleep]


def test_nothing_is_decided_about_what_sleeps() -> None:
    """And the conditions say just that, and call nothing ill."""
    shard = msgspec.structs.replace(healthy(), is_asleep=True)
    assert "members [1, 2] still run" in waits(sleeping(shard))
    for number in (1, 2):
        shard = silent(shard, number, process=Process.ABSENT)

    decision = decide(spec_with(), sleeping(shard), NOW_MS)

    assert decision.actions == ()
    so = {one.type: (one.is_so, one.reason) for one in decision.conditions}
    assert so["Hibernated"] == (True, "ByAnnotation")
    assert so["Degraded"] == so["Available"] == so["Ready"] == (False, "Hibernated")


def test_what_does_not_run_now_is_put_to_sleep_all_the_same() -> None:
    """Or it would start while the group is said to hibernate."""
    shard = healthy()
    for number in (1, 2):
        shard = silent(shard, number, process=Process.STOPPED)

    decision = decide(spec_with(), sleeping(shard), NOW_MS)

    assert [type(one) for one in decision.actions] == [act.Sleep]
    assert decision.condition("Hibernated").is_so is False


def test_a_master_of_which_nobody_knows_whether_it_runs_keeps_a_group_awake() -> None:
    """It may still take something, which would be stored nowhere else."""
    assert "nobody knows whether members [1] run" in waits(sleeping(silent(drained(healthy()), 1)))


def test_whoever_was_the_master_is_waited_for_when_all_awake() -> None:
    """The slave comes first and could be elected; it is not, as long as it has just come."""
    taken = msgspec.structs.replace(record_of(), epoch=4_000, goal=Goal(why="it slept", to=1))
    shard = with_record(healthy(), taken)
    shard = with_report(shard, 2, role=Role.UNASSIGNED, promised_epoch=4_000)
    shard = with_member(silent(shard, 1, process=Process.STOPPED), 2, started_by_ms=NOW_MS - 5_000)

    assert "member 1 is waited for" in waits(shard)
    late = with_member(shard, 2, started_by_ms=NOW_MS - 60_000)
    assert [type(one) for one in decided(late) if not isinstance(one, act.Start)] == [act.Crown]


# -- histories ---------------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_no_history_promotes_behind_a_fence_and_every_one_heals_when_it_is_lifted(seed: int) -> None:
    """Fences come and go among crashes, partitions and lost disks."""
    history, dice = History(SHAPES[seed % len(SHAPES)], seed), random.Random(seed)
    history.run(0)
    for _ in range(8):
        history.happen(30)
        history.world.is_fenced = dice.random() < 0.6
        for decider in history.world.deciders:
            decider.under_way.clear()
        for name in range(len(history.world.deciders)):
            look_at_all(history.world, name)
            actions = history.world.decide(name).actions
            assert not history.world.is_fenced or not [one for one in actions if isinstance(one, MOVES)]
    history.world.is_fenced = False
    history.heal()
    assert history.calm() < CALM_ROUNDS_MAX


def look_at_all(world: World, name: int) -> None:
    world.read_lease(name)
    for number in sorted({*world.brokers, *world.spec.members, *world.deciders[name].members}):
        member = world.look(name, number)
        if member is not None:
            world.hear(name, member)


def slept(seed: int) -> World:
    """A group to which anything has happened is healed, put to sleep, and all that it acknowledged is on every disk."""
    history = History(SHAPES[seed % len(SHAPES)], seed)
    history.run(150)
    history.heal()
    assert history.calm() < CALM_ROUNDS_MAX
    world = history.world
    assert world.lease is not None and world.lease.newest is not None
    master = world.lease.newest.master
    for number in world.brokers:
        world.disconnect(number)  # nobody has got anything for a while
    world.advance(2_000, 1.0)
    world.is_hibernated = True
    for _ in range(40):
        rounds(world)
        if not any(broker.is_up for broker in world.brokers.values()):
            break
        for number in sorted(world.brokers):
            world.copy(number, 3)
    assert not any(broker.is_up for broker in world.brokers.values()), world.deciders[0].decision.explanation
    logs = [broker.store.log for broker in world.brokers.values()]
    assert all(log == logs[0] for log in logs), "they stopped before all of them had everything"
    world.is_hibernated = False
    world.advance(3_600_000, 0.0)
    assert history.calm() < CALM_ROUNDS_MAX
    assert world.lease.newest.master == master
    assert world.judge.safe <= set(world.brokers[master].store.log)
    return world


def rounds(world: World) -> None:
    """Everybody who decides looks once, and what is decided is done."""
    for name in range(len(world.deciders)):
        look_at_all(world, name)
        world.decide(name)
        for _ in range(len(world.deciders[name].under_way)):
            world.deliver(name, 0)
    world.advance(500, 1.0)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_every_group_sleeps_with_everything_everywhere_and_wakes_with_the_same_master(seed: int) -> None:
    """Nothing that was acknowledged is lost, and the role is where it was, in a newer epoch."""
    slept(seed)


def test_a_group_that_stops_without_waiting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: nobody looks whether slaves hold everything, nor does the gate."""
    monkeypatch.setattr(asleep, "lacking", lambda view, master: "")
    monkeypatch.setattr(group, "may", lambda *_: ALLOWED)

    with pytest.raises(AssertionError, match="before all of them had everything"):
        for seed in range(8):
            slept(seed)
