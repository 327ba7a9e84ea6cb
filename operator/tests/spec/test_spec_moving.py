"""Planned changes of a healthy group: they interrupt clients only briefly, and lose nothing."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec
import pytest
from spec_world.history import History
from spec_world.observations import (
    EPOCH,
    NOW_MS,
    healthy_shard,
    lease_record_of,
    observed_group,
    spec_with,
    with_member,
    with_record,
    with_report,
)
from spec_world.shapes import Shape
from spec_world.world import World

from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.lease import Goal
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Member, ObservedShard, PromotionRequest
from gantry_status.broker_state import SlaveState

TWO = {"slaves": 2}
SWITCHBACK = spec_with(failover={"switchback": True})
SWAPPED = {1: 2, 2: 1}


def decided_actions(*shards: ObservedShard, spec: Spec | None = None, template: str = "t") -> list[act.Action]:
    """Return the decided actions without waits."""
    group = observed_group(*shards, template=template)
    return [one for one in decide(spec or spec_with(), group, NOW_MS).actions if not isinstance(one, act.Wait)]


def wait_reasons(*shards: ObservedShard, spec: Spec | None = None, template: str = "t") -> str:
    """Return the reasons of all waits."""
    decision = decide(spec or spec_with(), observed_group(*shards, template=template), NOW_MS)
    return "; ".join(one.why for one in decision.waits)


def with_request(shard: ObservedShard, to: int = 2) -> ObservedShard:
    """Return the shard with a promotion request."""
    return msgspec.structs.replace(shard, request=PromotionRequest(id="w", to=to))


# -- the role ----------------------------------------------------------------------------------------------------------


def test_a_master_is_drained_before_its_role_moves() -> None:
    """It refuses sends from then on, so a slave can reach the end of its log."""
    assert decided_actions(with_request(healthy_shard())) == [
        act.Drain(shard=0, member=1, timeout_ms=10_000, why="a promotion was requested")
    ]


def test_the_role_moves_only_when_a_slave_has_the_whole_log() -> None:
    """It does not move while a single byte is missing."""
    acks = (SlaveState(number=2, identity="store-2", received=9_000),)
    behind = with_report(with_request(healthy_shard()), 1, is_draining=True, slaves=acks)
    complete = with_report(with_request(healthy_shard()), 1, is_draining=True)

    assert decided_actions(behind) == []
    assert "member 2 is catching up" in wait_reasons(behind)
    [take] = decided_actions(complete)
    assert isinstance(take, act.TakeEpoch)
    assert take.record.goal == Goal(why="a promotion was requested", promotion_request="w", to=2, may_move=True)


def test_the_requested_member_wins_among_equal_logs() -> None:
    """The old master has promised and has everything, but is not elected again."""
    shard = healthy_shard(slaves=2)
    assert shard.lease is not None
    assert shard.lease.record is not None
    goal = Goal(why="a promotion was requested", promotion_request="w", to=3, may_move=True)
    shard = with_record(with_request(shard, 3), msgspec.structs.replace(shard.lease.record, epoch=4_000, goal=goal))
    for number in (1, 2, 3):
        shard = with_report(shard, number, promised_epoch=4_000)

    record_action = decided_actions(shard, spec=spec_with(**TWO))[0]

    assert isinstance(record_action, act.RecordMaster)
    assert record_action.record.newest is not None
    assert (record_action.record.newest.master, record_action.record.newest.loss) == (3, 0)


def test_a_switchover_waits_until_the_slave_is_near() -> None:
    """The slave catches up first, and only then the master is drained."""
    acks = (SlaveState(number=2, identity="store-2", received=0),)
    shard = with_report(with_request(healthy_shard(wrote=100 << 20)), 1, slaves=acks)

    assert decided_actions(shard) == []
    rule = "it must follow the master, be electable and lag at most 16.0 MiB"
    assert f"member 2 is not eligible for a switchover: {rule}" in wait_reasons(shard)


def test_a_drain_without_a_reason_ends() -> None:
    """The request was withdrawn, or its process failed."""
    shard = with_report(healthy_shard(), 1, is_draining=True)

    assert decided_actions(shard) == [act.Resume(shard=0, member=1, epoch=EPOCH, electable=(2,))]


def test_a_finished_promotion_request_is_removed() -> None:
    """Otherwise it would be carried out again at the next failover."""
    came_out_otherwise = msgspec.structs.replace(
        lease_record_of(), goal=Goal(why="a promotion was requested", promotion_request="w")
    )

    for shard in (with_request(healthy_shard(), 1), with_request(with_record(healthy_shard(), came_out_otherwise))):
        assert decided_actions(shard)[0] == act.ClearRequest(
            shard=0, request="w", why="member 1 is the master of epoch 3000"
        )


def test_an_impossible_promotion_request_is_dropped_with_its_reason() -> None:
    """The reason names the setting or the member, not the present master."""
    disabled = decided_actions(with_request(healthy_shard()), spec=spec_with(failover={"mode": "Disabled"}))[0]
    unknown = decided_actions(with_request(healthy_shard(), 7))[0]

    why = "request dropped: failover.mode is Disabled"
    assert disabled == act.ClearRequest(shard=0, request="w", why=why, is_dropped=True)
    assert unknown == act.ClearRequest(
        shard=0, request="w", why="request dropped: member 7 does not exist", is_dropped=True
    )


def test_the_role_leaves_a_drained_machine() -> None:
    """If the other member's machine is drained, too, nothing is done."""
    assert [type(one) for one in decided_actions(with_member(healthy_shard(), 1, is_leaving=True))] == [act.Drain]
    both = with_member(with_member(healthy_shard(), 1, is_leaving=True), 2, is_leaving=True)
    assert decided_actions(both) == []


def test_the_role_returns_only_with_switchback() -> None:
    """It returns only when the first member has everything again."""
    assert decided_actions(shard_with_master_2()) == []
    assert [type(one) for one in decided_actions(shard_with_master_2(), spec=SWITCHBACK)] == [act.Drain]


def test_the_role_returns_only_to_a_member_that_may_keep_it() -> None:
    """Otherwise it would leave again at once. A rolling update comes first, also if another slave is outdated."""
    leaving = with_member(shard_with_master_2(), 1, is_leaving=True)
    another = with_outdated_members(shard_with_master_2(slaves=2), 3)

    assert decided_actions(leaving, spec=SWITCHBACK) == []
    assert [type(one) for one in decided_actions(with_outdated_members(shard_with_master_2(), 1), spec=SWITCHBACK)] == [
        act.Withdraw
    ]
    [restart] = decided_actions(another, spec=spec_with(**TWO, failover={"switchback": True}))
    assert isinstance(restart, act.Restart) and restart.member == 3


@pytest.mark.parametrize("shape", [Shape(1, 1), Shape(2, 1), Shape(2, 0, 1_000 << 20)], ids=str)
def test_the_role_of_an_outdated_or_leaving_member_1_returns_once(shape: Shape) -> None:
    """It moves away, returns only when member 1 is restarted or its machine stays, and remains there."""
    failover = msgspec.structs.replace(shape.spec.failover, switchback=True)
    world = World(msgspec.structs.replace(shape.spec, failover=failover), acks_needed=shape.acks_needed)
    history = History(shape, 1, world)

    def masters() -> list[int]:
        """Return the masters of all terms after some rounds; one that stays over several terms is listed once."""
        for _ in range(4):
            assert history.run_until_healthy(40) < 20, "the shard recovers only by a request of a person"
            history.advance_second()
        assert history.is_healthy()
        return [number for number, _ in groupby(world.checker.masters.values())]

    assert masters() == [1]
    world.template = "t1"
    assert masters() == [1, 2, 1]
    world.leaving_members = {1}
    assert masters() == [1, 2, 1, 2]
    world.leaving_members = set()
    assert masters() == [1, 2, 1, 2, 1]


def shard_with_master_2(slaves: int = 1) -> ObservedShard:
    """Return a healthy shard whose master is member 2."""
    shard = healthy_shard(slaves=slaves)
    members = tuple(_with_swapped_number(one) for one in shard.members)
    return with_record(msgspec.structs.replace(shard, members=members), lease_record_of(2, (1, 3)[:slaves]))


def _with_swapped_number(member: Member) -> Member:
    """Return a member after members 1 and 2 were exchanged."""
    number, report = SWAPPED.get(member.number, member.number), member.report
    assert report is not None, f"member {member.number} has no report"
    followers = [SWAPPED.get(one.number, one.number) for one in report.slaves]
    acks = tuple(SlaveState(number=one, identity=f"store-{one}", received=10_000) for one in followers)
    fields: dict[str, Any] = {"identity": f"store-{number}", "ha_address": f"{number}.example:10912", "slaves": acks}
    if report.master:
        fields["master"] = "2.example:10912"
    return msgspec.structs.replace(member, number=number, report=msgspec.structs.replace(report, **fields))


# -- restarts ----------------------------------------------------------------------------------------------------------


def with_outdated_members(shard: ObservedShard, *numbers: int) -> ObservedShard:
    """Return the shard with members that run with an outdated configuration."""
    for number in numbers:
        shard = with_member(shard, number, template="old")
    return shard


def test_slaves_are_restarted_first_and_the_farthest_behind_before_others() -> None:
    """One slave is restarted at a time, and the master's role moves after them."""
    shard = with_outdated_members(healthy_shard(slaves=2), 1, 2, 3)
    acks = tuple(SlaveState(number=one, identity=f"store-{one}", received=10_000 - one) for one in (2, 3))
    shard = with_report(shard, 1, slaves=acks, acked=9_998, confirmed=9_998)

    [restart] = decided_actions(shard, spec=spec_with(**TWO))

    assert isinstance(restart, act.Restart)
    assert (restart.member, restart.boot_id) == (3, "boot-3")


def test_the_next_slave_waits_until_the_last_is_in_sync_again() -> None:
    """Otherwise two slaves would be absent at once."""
    shard = with_outdated_members(healthy_shard(slaves=2), 1, 2)
    acks = (SlaveState(number=2, identity="store-2", received=10_000),)
    shard = with_report(shard, 1, slaves=acks)

    assert decided_actions(shard, spec=spec_with(**TWO)) == []
    assert "members [3] are not in sync; member 2 is restarted after them" in wait_reasons(shard, spec=spec_with(**TWO))


def test_a_shard_is_withdrawn_before_its_last_slave_in_sync_stops() -> None:
    """Clients use other shards instead of getting code 11 from this one."""
    shard = with_outdated_members(healthy_shard(), 2)

    assert [type(one) for one in decided_actions(shard)] == [act.Withdraw]
    assert [type(one) for one in decided_actions(with_report(shard, 1, is_draining=True))] == [act.Restart]
    assert [type(one) for one in decided_actions(with_report(healthy_shard(), 1, is_draining=True))] == [act.Resume]


def test_sends_are_refused_until_enough_slaves_are_in_sync() -> None:
    """A restarted slave is not in sync at once, and sends would be stored and answered with code 11."""
    alone = with_report(healthy_shard(), 1, is_draining=True, slaves=())

    assert not any(isinstance(one, act.Resume) for one in decided_actions(alone))
    assert "sends are refused until 1 more slaves can acknowledge" in wait_reasons(alone)


def shard_with_joining_slave(**master: Any) -> ObservedShard:
    """Return a shard whose slave 3 is in sync, but not electable, because it lacks what is confirmed."""
    acks = (
        SlaveState(number=2, identity="store-2", received=10_000, flushed=10_000),
        SlaveState(number=3, identity="store-3", received=9_000, flushed=9_000),
    )
    return with_report(with_record(healthy_shard(slaves=2), lease_record_of(1, (2,))), 1, **({"slaves": acks} | master))


def test_a_shard_is_withdrawn_before_its_only_electable_slave_stops() -> None:
    """The broker does not count the acks of a slave that is not electable, however near it is."""
    assert [
        type(one)
        for one in decided_actions(with_outdated_members(shard_with_joining_slave(), 2), spec=spec_with(**TWO))
    ] == [act.Withdraw]
    assert [
        type(one) for one in decided_actions(with_outdated_members(healthy_shard(slaves=2), 2), spec=spec_with(**TWO))
    ] == [act.Restart]
    [restart] = decided_actions(with_outdated_members(shard_with_joining_slave(), 3), spec=spec_with(**TWO))
    assert isinstance(restart, act.Restart) and restart.member == 3, (
        "expected a restart at once of the slave whose acks do not count"
    )


def test_sends_are_refused_until_enough_slaves_are_electable() -> None:
    """A slave that has the whole log suffices: it becomes electable as soon as the master takes sends."""
    drained = shard_with_joining_slave(is_draining=True)
    new = SlaveState(number=3, identity="store-3", received=9_000, flushed=9_000)
    alone = with_report(drained, 1, slaves=(new,))
    whole = with_report(drained, 1, slaves=(msgspec.structs.replace(new, received=10_000),))

    assert [type(one) for one in decided_actions(drained, spec=spec_with(**TWO))] == [act.Resume]
    assert not any(isinstance(one, act.Resume) for one in decided_actions(alone, spec=spec_with(**TWO)))
    assert "sends are refused until 1 more slaves can acknowledge" in wait_reasons(alone, spec=spec_with(**TWO))
    assert [type(one) for one in decided_actions(whole, spec=spec_with(**TWO))] == [act.Resume]


def test_a_shard_is_available_only_with_enough_electable_slaves() -> None:
    """Sends get no acks from a slave that is in sync but not electable."""
    new = SlaveState(number=3, identity="store-3", received=9_000, flushed=9_000)
    shards = (shard_with_joining_slave(), shard_with_joining_slave(slaves=(new,)))

    available = [decide(spec_with(**TWO), observed_group(one), NOW_MS).condition("Available") for one in shards]

    assert [(one.is_true, one.reason) for one in available] == [
        (True, "AllShardsAcknowledge"),
        (False, "NoInSyncSlave"),
    ]


def test_a_scaled_in_slave_does_not_stand_in_for_a_slave_of_the_spec() -> None:
    """A member that leaves still follows for a while; the group is ready when each slave of the spec is in sync."""
    acks = (SlaveState(number=3, identity="store-3", received=10_000, flushed=10_000),)
    shard = with_report(healthy_shard(slaves=2), 1, slaves=acks)

    decision = decide(spec_with(), observed_group(shard), NOW_MS)

    assert {name: decision.condition(name).is_true for name in ("Ready", "Replicating", "Degraded")} == {
        "Ready": False,
        "Replicating": False,
        "Degraded": True,
    }


def test_no_shard_is_disrupted_while_a_slave_of_another_is_behind() -> None:
    """A scaled-in slave that follows does not make up for it."""
    acks = (SlaveState(number=3, identity="store-3", received=10_000, flushed=10_000),)
    behind = with_report(healthy_shard(slaves=2), 1, slaves=acks)

    other = [
        one
        for one in decided_actions(behind, with_outdated_members(healthy_shard(number=1), 2), spec=spec_with(shards=2))
        if one.shard
    ]

    assert other == []


def test_the_master_is_restarted_last_and_as_a_slave() -> None:
    """Its role moves first. Where it may not move, the master is drained and restarted in place."""
    assert [type(one) for one in decided_actions(with_outdated_members(healthy_shard(), 1))] == [act.Drain]

    spec = spec_with(failover={"mode": "Disabled"})
    assert [type(one) for one in decided_actions(with_outdated_members(healthy_shard(), 1), spec=spec)] == [act.Drain]
    drained = with_report(with_outdated_members(healthy_shard(), 1), 1, is_draining=True)
    assert [type(one) for one in decided_actions(drained, spec=spec)] == [act.Restart]
    assert [type(one) for one in decided_actions(drained)] == [act.TakeEpoch]


def test_a_stuck_member_with_an_old_template_is_restarted_at_once() -> None:
    """A pod that never became ready must not block the rolling update that would repair it."""
    shard = with_outdated_members(healthy_shard(), 2)
    shard = with_report(with_report(shard, 2, asked_ms=NOW_MS - 60_000), 1, slaves=(), acked=None)

    assert [type(one) for one in decided_actions(shard)] == [act.Restart]


# -- one shard at a time -----------------------------------------------------------------------------------------------


def test_one_shard_is_disrupted_at_a_time() -> None:
    """It is the first, or the one that has already started."""
    spec = spec_with(shards=2)
    first, second = with_outdated_members(healthy_shard(), 2), with_outdated_members(healthy_shard(number=1), 2)

    assert [(type(one), one.shard) for one in decided_actions(first, second, spec=spec)] == [(act.Withdraw, 0)]
    assert "shard 0 is degraded or being changed; afterwards: " in wait_reasons(first, second, spec=spec)
    begun = with_report(second, 1, is_draining=True)
    assert [(type(one), one.shard) for one in decided_actions(first, begun, spec=spec)] == [(act.Restart, 1)]


def test_no_shard_is_disrupted_while_another_is_degraded() -> None:
    """Clients need another shard to send to."""
    spec = spec_with(shards=2)
    ill = with_report(healthy_shard(), 1, slaves=())

    assert decided_actions(ill, with_outdated_members(healthy_shard(number=1), 2), spec=spec) == []


def test_two_degraded_shards_do_not_wait_for_each_other() -> None:
    """Actions that repair a shard are never delayed."""
    spec = spec_with(shards=2)
    shards = [
        with_report(
            with_report(with_outdated_members(healthy_shard(number=number), 2), 2, asked_ms=NOW_MS - 60_000),
            1,
            slaves=(),
        )
        for number in (0, 1)
    ]

    assert [(type(one), one.shard) for one in decided_actions(*shards, spec=spec)] == [
        (act.Restart, 0),
        (act.Restart, 1),
    ]


def test_a_removed_shard_stays_until_it_is_empty() -> None:
    """Consumers and tools move its messages; a decision never deletes them."""
    surplus = healthy_shard(number=1)

    assert "stays until it has no messages" in wait_reasons(healthy_shard(), surplus)
    empty = msgspec.structs.replace(with_report(surplus, 1, is_withdrawn=True), is_empty=True)
    assert [type(one) for one in decided_actions(healthy_shard(), empty)] == [act.Remove, act.Remove]


def test_a_removed_shard_is_withdrawn_before_it_counts_as_empty() -> None:
    """It takes no new messages, and it counts as empty only when none can come."""
    surplus = msgspec.structs.replace(healthy_shard(number=1), remaining_text="3 messages of 1 topics: orders")

    for removed in (surplus, msgspec.structs.replace(surplus, is_empty=True)):
        [withdraw] = decided_actions(healthy_shard(), removed)
        assert isinstance(withdraw, act.Withdraw)
        assert (withdraw.shard, withdraw.member, withdraw.is_ordered, withdraw.clients_only) == (1, 1, True, True)
    emptying = with_report(surplus, 1, is_withdrawn=True)
    assert decided_actions(healthy_shard(), emptying) == []
    assert "until it has no messages: 3 messages of 1 topics: orders" in wait_reasons(healthy_shard(), emptying)
    still = with_report(surplus, 1, is_draining=True)
    assert [type(one) for one in decided_actions(healthy_shard(), still)] == [act.Resume], (
        "a drained shard would never deliver its due messages"
    )
    scaling_in = decide(spec_with(), observed_group(healthy_shard(), emptying), NOW_MS).condition("ScalingIn")
    assert (scaling_in.is_true, scaling_in.reason, scaling_in.message) == (
        True,
        "Draining",
        "shard 1: 3 messages of 1 topics: orders",
    )


def test_a_slave_must_catch_up_before_it_is_restarted() -> None:
    """The shard is withdrawn already; sends that wait for this slave are answered first."""
    shard = with_report(
        with_outdated_members(healthy_shard(), 2),
        1,
        is_draining=True,
        slaves=(SlaveState(number=2, identity="store-2", received=9_000, flushed=9_000),),
    )

    assert "member 2 must catch up before it is restarted" in wait_reasons(shard)
    held = with_report(
        shard, 1, is_draining=True, slaves=(SlaveState(number=2, identity="store-2", received=10_000, flushed=10_000),)
    )
    assert [type(one) for one in decided_actions(held)] == [act.Restart]


def test_nothing_is_restarted_while_the_risk_is_unknown() -> None:
    """The wait has the reason of the gate."""
    shard = with_report(with_outdated_members(healthy_shard(slaves=2), 2), 1, wrote=None)

    assert decided_actions(shard, spec=spec_with(**TWO)) == []
    assert "restart not allowed: the bytes at risk are unknown" in wait_reasons(shard, spec=spec_with(**TWO))
