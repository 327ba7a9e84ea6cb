"""What is done on purpose to a group that is well: nobody notices more than a moment, and nothing is lost."""

from __future__ import annotations

from typing import Any

import msgspec
from spec_world.looks import (
    EPOCH,
    NOW_MS,
    healthy,
    observed,
    record_of,
    spec_with,
    with_member,
    with_record,
    with_report,
)

from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.lease import Goal
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Member, ObservedShard, PromotionRequest
from gantry_status.broker_state import SlaveState

TWO = {"slaves": 2}


def decided(*shards: ObservedShard, spec: Spec | None = None, template: str = "t") -> list[act.Action]:
    """The actions, waits left out."""
    look = observed(*shards, template=template)
    return [one for one in decide(spec or spec_with(), look, NOW_MS).actions if not isinstance(one, act.Wait)]


def reasons(*shards: ObservedShard, spec: Spec | None = None, template: str = "t") -> str:
    """What is waited for."""
    decision = decide(spec or spec_with(), observed(*shards, template=template), NOW_MS)
    return "; ".join(one.why for one in decision.waits)


def wished(shard: ObservedShard, to: int = 2) -> ObservedShard:
    """Somebody wants another master."""
    return msgspec.structs.replace(shard, request=PromotionRequest(id="w", to=to))


# -- the role ----------------------------------------------------------------------------------------------------------


def test_a_master_is_drained_before_its_role_moves() -> None:
    """Sends are refused unstored from then on, so there is an end that a slave can reach."""
    assert decided(wished(healthy())) == [act.Drain(shard=0, member=1, timeout_ms=10_000, why="it was ordered")]


def test_the_role_moves_when_a_slave_has_everything() -> None:
    """Not a byte before."""
    acks = (SlaveState(number=2, identity="store-2", received=9_000),)
    behind = with_report(wished(healthy()), 1, is_draining=True, slaves=acks)
    complete = with_report(wished(healthy()), 1, is_draining=True)

    assert decided(behind) == []
    assert "member 2 gets the rest" in reasons(behind)
    [take] = decided(complete)
    assert isinstance(take, act.TakeLease)
    assert take.record.goal == Goal(why="it was ordered", request="w", to=2, may_move=True)


def test_the_one_who_was_wanted_is_named_among_equals() -> None:
    """The old master has promised, has everything, and is not it any more."""
    shard = healthy(slaves=2)
    assert shard.lease is not None
    assert shard.lease.record is not None
    goal = Goal(why="it was ordered", request="w", to=3, may_move=True)
    shard = with_record(wished(shard, 3), msgspec.structs.replace(shard.lease.record, epoch=4_000, goal=goal))
    for number in (1, 2, 3):
        shard = with_report(shard, number, promised_epoch=4_000)

    crown = decided(shard, spec=spec_with(**TWO))[0]

    assert isinstance(crown, act.Crown)
    assert crown.record.newest is not None
    assert (crown.record.newest.master, crown.record.newest.loss) == (3, 0)


def test_clients_do_not_wait_for_a_slave_that_is_far_behind() -> None:
    """It catches up first; then the master is drained."""
    acks = (SlaveState(number=2, identity="store-2", received=0),)
    shard = with_report(wished(healthy(wrote=100 << 20)), 1, slaves=acks)

    assert decided(shard) == []
    assert "member 2 is near enough to take the role" in reasons(shard)


def test_a_drain_without_a_reason_ends() -> None:
    """Whoever wanted something has thought better of it, or died."""
    shard = with_report(healthy(), 1, is_draining=True)

    assert decided(shard) == [act.Resume(shard=0, member=1, epoch=EPOCH, electable=(2,))]


def test_an_order_that_was_obeyed_is_taken_off() -> None:
    """Or it would be obeyed again at the next failover."""
    came_out_otherwise = msgspec.structs.replace(record_of(), goal=Goal(why="it was ordered", request="w"))

    for shard in (wished(healthy(), 1), wished(with_record(healthy(), came_out_otherwise))):
        assert decided(shard)[0] == act.ClearRequest(shard=0, request="w", why="member 1 is the master of epoch 3000")


def test_the_role_leaves_a_machine_that_is_emptied() -> None:
    """Before the machine is taken away; where there is no other, nothing can be done."""
    assert [type(one) for one in decided(with_member(healthy(), 1, is_leaving=True))] == [act.Drain]
    both = with_member(with_member(healthy(), 1, is_leaving=True), 2, is_leaving=True)
    assert decided(both) == []


def test_the_role_goes_back_only_if_that_was_asked_for() -> None:
    """And only once the first broker has everything again."""
    shard = healthy(slaves=1)
    swapped = msgspec.structs.replace(shard, members=tuple(_swapped(one) for one in shard.members))
    swapped = with_record(swapped, record_of(2, (1,)))

    assert decided(swapped) == []
    assert [type(one) for one in decided(swapped, spec=spec_with(failover={"switchback": True}))] == [act.Drain]


def _swapped(member: Member) -> Member:
    """Member 1 as 2 and 2 as 1."""
    number, report = 3 - member.number, member.report
    assert report is not None, "both have reported"
    acks = tuple(SlaveState(number=1, identity="store-1", received=10_000) for _ in report.slaves)
    said: dict[str, Any] = {"identity": f"store-{number}", "ha_address": f"{number}.example:10912", "slaves": acks}
    if report.master:
        said["master"] = "2.example:10912"
    return msgspec.structs.replace(member, number=number, report=msgspec.structs.replace(report, **said))


# -- restarts ----------------------------------------------------------------------------------------------------------


def outdated(shard: ObservedShard, *numbers: int) -> ObservedShard:
    """These run with what the spec said before."""
    for number in numbers:
        shard = with_member(shard, number, template="old")
    return shard


def test_slaves_are_restarted_first_and_the_farthest_behind_before_others() -> None:
    """One at a time; the master's role moves when they are done."""
    shard = outdated(healthy(slaves=2), 1, 2, 3)
    acks = tuple(SlaveState(number=one, identity=f"store-{one}", received=10_000 - one) for one in (2, 3))
    shard = with_report(shard, 1, slaves=acks, acked=9_998, confirmed=9_998)

    [restart] = decided(shard, spec=spec_with(**TWO))

    assert isinstance(restart, act.Restart)
    assert (restart.member, restart.boot_id) == (3, "boot-3")


def test_the_next_slave_waits_until_the_last_is_in_sync_again() -> None:
    """Or two would be away at once."""
    shard = outdated(healthy(slaves=2), 1, 2)
    acks = (SlaveState(number=2, identity="store-2", received=10_000),)
    shard = with_report(shard, 1, slaves=acks)

    assert decided(shard, spec=spec_with(**TWO)) == []
    assert "members [3] are not in sync; member 2 comes after" in reasons(shard, spec=spec_with(**TWO))


def test_a_shard_is_withdrawn_before_its_last_slave_in_sync_goes() -> None:
    """Clients go to other shards, instead of hearing 11 here."""
    shard = outdated(healthy(), 2)

    assert [type(one) for one in decided(shard)] == [act.Withdraw]
    assert [type(one) for one in decided(with_report(shard, 1, is_draining=True))] == [act.Restart]
    assert [type(one) for one in decided(with_report(healthy(), 1, is_draining=True))] == [act.Resume]


def test_sends_are_refused_until_somebody_acknowledges_them() -> None:
    """A slave that was restarted is not in sync at once: what came meanwhile would be stored, and answered 11."""
    alone = with_report(healthy(), 1, is_draining=True, slaves=())

    assert not any(isinstance(one, act.Resume) for one in decided(alone))
    assert "sends are refused until 1 more slaves are in sync" in reasons(alone)


def test_the_master_is_restarted_last_and_as_a_slave() -> None:
    """Its role moves first. Where it may not, it is drained and restarted in place."""
    assert [type(one) for one in decided(outdated(healthy(), 1))] == [act.Drain]

    spec = spec_with(failover={"mode": "Disabled"})
    assert [type(one) for one in decided(outdated(healthy(), 1), spec=spec)] == [act.Drain]
    drained = with_report(outdated(healthy(), 1), 1, is_draining=True)
    assert [type(one) for one in decided(drained, spec=spec)] == [act.Restart]
    assert [type(one) for one in decided(drained)] == [act.TakeLease]


def test_one_that_is_stuck_with_an_old_template_is_restarted_at_once() -> None:
    """A pod that never became ready must not hold up the roll that would mend it."""
    shard = outdated(healthy(), 2)
    shard = with_report(with_report(shard, 2, asked_ms=NOW_MS - 60_000), 1, slaves=(), acked=None)

    assert [type(one) for one in decided(shard)] == [act.Restart]


# -- one shard at a time -----------------------------------------------------------------------------------------------


def test_one_shard_is_disturbed_at_a_time() -> None:
    """The first; and the one that has begun goes on, whatever its number."""
    spec = spec_with(shards=2)
    first, second = outdated(healthy(), 2), outdated(healthy(number=1), 2)

    assert [(type(one), one.shard) for one in decided(first, second, spec=spec)] == [(act.Withdraw, 0)]
    assert "shard 0 comes first" in reasons(first, second, spec=spec)
    begun = with_report(second, 1, is_draining=True)
    assert [(type(one), one.shard) for one in decided(first, begun, spec=spec)] == [(act.Restart, 1)]


def test_no_shard_is_disturbed_while_another_is_ill() -> None:
    """Clients need somewhere to go."""
    spec = spec_with(shards=2)
    ill = with_report(healthy(), 1, slaves=())

    assert decided(ill, outdated(healthy(number=1), 2), spec=spec) == []


def test_two_ill_shards_do_not_wait_for_each_other() -> None:
    """What heals is never held back."""
    spec = spec_with(shards=2)
    shards = [
        with_report(with_report(outdated(healthy(number=number), 2), 2, asked_ms=NOW_MS - 60_000), 1, slaves=())
        for number in (0, 1)
    ]

    assert [(type(one), one.shard) for one in decided(*shards, spec=spec)] == [(act.Restart, 0), (act.Restart, 1)]


def test_a_shard_that_is_scaled_away_stays_until_it_is_empty() -> None:
    """Messages and consumers are moved off it by others; nothing here throws them away."""
    surplus = healthy(number=1)

    assert "stays until no message and no consumer" in reasons(healthy(), surplus)
    empty = msgspec.structs.replace(with_report(surplus, 1, is_withdrawn=True), holds_nothing=True)
    assert [type(one) for one in decided(healthy(), empty)] == [act.Remove, act.Remove]


def test_a_shard_that_is_scaled_away_is_withdrawn_before_it_is_emptied() -> None:
    """Nothing more comes to it, and nothing opens it again; that it is empty counts only once nothing can come."""
    surplus = msgspec.structs.replace(healthy(number=1), left="3 messages of 1 topics: orders")

    for look in (surplus, msgspec.structs.replace(surplus, holds_nothing=True)):
        [withdraw] = decided(healthy(), look)
        assert isinstance(withdraw, act.Withdraw)
        assert (withdraw.shard, withdraw.member, withdraw.is_ordered, withdraw.goes_on) == (1, 1, True, True)
    emptying = with_report(surplus, 1, is_withdrawn=True)
    assert decided(healthy(), emptying) == []
    assert "no consumer is left on it: 3 messages of 1 topics: orders" in reasons(healthy(), emptying)
    still = with_report(surplus, 1, is_draining=True)
    assert [type(one) for one in decided(healthy(), still)] == [act.Resume], (
        "it delivers what is due, or is never empty"
    )
    said = decide(spec_with(), observed(healthy(), emptying), NOW_MS).condition("ScalingIn")
    assert (said.is_so, said.reason, said.message) == (True, "Draining", "shard 1: 3 messages of 1 topics: orders")


def test_a_slave_that_is_behind_gets_the_rest_before_it_goes() -> None:
    """The shard is withdrawn already; what waits for just this slave is answered first."""
    shard = with_report(
        outdated(healthy(), 2),
        1,
        is_draining=True,
        slaves=(SlaveState(number=2, identity="store-2", received=9_000, flushed=9_000),),
    )

    assert "member 2 gets the rest before it is restarted" in reasons(shard)
    held = with_report(
        shard, 1, is_draining=True, slaves=(SlaveState(number=2, identity="store-2", received=10_000, flushed=10_000),)
    )
    assert [type(one) for one in decided(held)] == [act.Restart]


def test_nothing_is_restarted_while_what_is_at_risk_is_not_known() -> None:
    """The gate says so, with the shard's own reason."""
    shard = with_report(outdated(healthy(slaves=2), 2), 1, wrote=None)

    assert decided(shard, spec=spec_with(**TWO)) == []
    assert "no restart: what is at risk is not known now" in reasons(shard, spec=spec_with(**TWO))
