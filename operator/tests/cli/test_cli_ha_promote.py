"""`gantry ha promote`: acknowledged messages survive, and an impossible promotion moves no role."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple, overload

import pytest

from gantry_broker.control.orders import execute_order
from gantry_cli.ha import promote as ha_promote
from gantry_cli.ha.group import CannotPromote, MemberClient
from gantry_cli.ha.promote import Promoted, Promotion, PromotionOptions, Step
from gantry_spec.decide import election
from gantry_status.order_client import Check
from gantry_status.orders import (
    UNKNOWN,
    AnyOrder,
    BrokerUnreachable,
    Failed,
    HaRole,
    HaStatus,
    OrderRefused,
    OrderUnanswered,
    Promised,
    PromiseRequest,
    Refused,
    StatusOrder,
    StatusRequest,
)
from gantry_testing.fake_group import FakeGroup, FakeMember


class Direct:
    """An ``OrderClient`` without a socket."""

    def __init__(self, member: FakeMember) -> None:
        self.path = f"socket-{member.number}"
        self._member = member

    @overload
    async def call(self, order: PromiseRequest, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...

    async def call(self, order: PromiseRequest | StatusOrder, *, timeout_s: float | None = None) -> HaStatus | Promised:
        await asyncio.sleep(0)
        if not self._member.is_answering:
            raise BrokerUnreachable(f"no broker listens at {self.path}")
        answer = await execute_order(self._member, order)
        if isinstance(answer, Refused):
            raise OrderRefused(answer.reason)
        assert not isinstance(answer, Failed), "a fake member failed"
        return answer

    async def call_checked(self, order: AnyOrder, check: Check | None) -> HaStatus | Promised:
        if check is not None:
            check(await self.call(StatusRequest()))
        return await self.call(order)


def group_of(count: int, *, acks_needed: int = 1) -> FakeGroup:
    """Return members 1 to ``count``; 1 is the master, and all have the same log."""
    group = FakeGroup(range(1, count + 1), acks_needed=acks_needed)
    group.begin(1)
    return group


def promote(group: FakeGroup, *, yes: bool = False, steps: list[Step] | None = None, **typed: object) -> Promoted:
    """Promote a member, as a person does."""
    clients: list[MemberClient] = [Direct(member) for member in group.members.values()]
    reported: list[Step] = [] if steps is None else steps
    options = PromotionOptions(**{"timeout_ms": 50, **typed})  # type: ignore[arg-type]
    return asyncio.run(Promotion(clients, options, report=reported.append, confirm=lambda _: yes).run())


def orders(group: FakeGroup) -> list[list[str]]:
    """Return the orders that each member got."""
    return [member.received_orders for member in group.members.values()]


def test_answering_master_hands_over() -> None:
    """It is drained and promises, the slave is promoted, and all others follow, including the old master."""
    group = group_of(3)
    steps: list[Step] = []
    promoted = promote(group, to=3, steps=steps)

    assert (promoted.epoch, promoted.number, promoted.loss, promoted.is_complete) == (1003, 3, "", True)
    assert group.masters == [group.members[3]]
    assert group.members[3].electable == [1, 2]
    assert orders(group) == [
        ["drain", "promise 1003", "follow 1003 127.0.0.1:20003"],
        ["promise 1003", "follow 1003 127.0.0.1:20003"],
        ["promise 1003", "promote 1003"],
    ]
    assert [step.what for step in steps][:4] == ["drain", "promise", "promise", "promise"]
    assert [step.what for step in steps][-3:] == ["promote", "follow", "follow"]
    assert all(step.is_done and step.took_ms >= 0 for step in steps)


def test_hand_over_needs_no_third_member() -> None:
    """One slave with the log of the drained master is enough."""
    group = group_of(3)
    group.members[3].is_answering = group.members[3].is_linked = False

    promoted = promote(group)

    assert (promoted.number, promoted.loss) == (2, "")
    assert group.members[2].electable == [1, 3]


def test_slave_with_the_longest_log_is_chosen() -> None:
    """Without --to the slave with the smallest lag is promoted."""
    group = group_of(3)
    group.members[1].send()
    group.members[3].copy(1)
    group.members[1].acknowledge()

    with pytest.raises(CannotPromote, match="member 2 is catching up: it has received 1 of 2"):
        promote(group, to=2)
    assert promote(group).number == 3


def test_slave_that_cannot_catch_up_changes_nothing() -> None:
    """The master takes sends again, in its own epoch, and no promise was requested."""
    group = group_of(2)
    group.members[1].send()

    with pytest.raises(CannotPromote, match="it has received 1 of 2 -- remove the cause"):
        promote(group)

    assert orders(group) == [["drain", "promote 1"], []]
    assert group.masters == [group.members[1]] and not group.members[1].is_draining


def test_master_that_cannot_be_drained_stays_master() -> None:
    """The reason is reported; no other member gets an order."""
    group = group_of(2)
    group.members[1].drain_reason = "not acknowledged in time"

    with pytest.raises(OrderRefused, match="not acknowledged in time"):
        promote(group)

    assert group.masters == [group.members[1]]
    assert orders(group) == [["drain"], []]


def test_master_with_an_unanswered_drain_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been drained, so the next observation decides whether it must resume."""
    group = group_of(2)
    master = group.members[1]
    drain = master.drain

    async def unanswered(timeout_ms: int, withdraw: bool = False, clients_only: bool = False) -> HaStatus:
        await drain(timeout_ms)
        raise OrderUnanswered("no answer within 1 s")

    monkeypatch.setattr(master, "drain", unanswered)
    with pytest.raises(OrderUnanswered):
        promote(group)

    assert orders(group) == [["drain", "promote 1"], []]
    assert not master.is_draining


def test_master_that_writes_after_its_drain_keeps_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the master's promise the slave lacks data, so no other member may become master."""
    group = group_of(2)
    master = group.members[1]
    promise = master.promise

    async def leaky(epoch: int, to: str) -> Promised:
        if epoch == 1_002:
            master.log.append((1, group.next_serial()))
        return await promise(epoch, to)

    monkeypatch.setattr(master, "promise", leaky)
    with pytest.raises(CannotPromote, match=r"b/1 is the master again, in epoch 2001 -- run the same command again"):
        promote(group)

    assert group.masters == [master]
    assert (master.epoch, group.members[2].epoch) == (2001, 2001)


def test_dead_master_is_replaced_by_the_longest_log_of_a_quorum() -> None:
    """Of S slaves with k needed acks, S - k + 1 have promised: their longest log has every acknowledged message."""
    group = group_of(3)
    group.members[1].send()
    group.members[3].copy(1)
    group.members[1].acknowledge()
    group.members[1].is_answering = group.members[1].is_linked = False

    promoted = promote(group)

    assert (promoted.epoch, promoted.number, promoted.loss, promoted.is_complete) == (1003, 3, "", True)
    assert group.acknowledged <= set(group.members[3].log)
    assert group.members[3].electable == [1, 2]
    assert orders(group)[0] == []


def test_too_few_slaves_are_refused_before_any_promise() -> None:
    """A promise stops a slave from following, so none is requested in vain."""
    group = group_of(3)
    for number in (1, 3):
        group.members[number].is_answering = False

    with pytest.raises(CannotPromote, match=r"2 of the slaves \[2, 3\] of epoch 1 must vote, and \[3\] cannot"):
        promote(group)

    assert orders(group) == [[], [], []]


def test_forced_promotion_asks_first_and_names_the_loss() -> None:
    """Without confirmation nothing changes; with it the promotion is done and its loss named."""
    group = group_of(3)
    for number in (1, 3):
        group.members[number].is_answering = False

    with pytest.raises(CannotPromote, match="not confirmed"):
        promote(group, may_force=True, yes=False)
    assert orders(group) == [[], [], []]
    promoted = promote(group, may_force=True, yes=True)

    assert promoted.number == 2
    assert promoted.loss == "acknowledged messages beyond 1 that only unreachable members have"


def test_master_waiting_for_lost_slaves_can_be_forced() -> None:
    """It compares its log with a slave before it appends; without slaves a person accepts its log as it is."""
    group = FakeGroup([0], acks_needed=1)
    group.begin(0)
    group.members[0].role = HaRole.COMPARING

    with pytest.raises(CannotPromote, match="no member has recorded which slaves may be promoted"):
        promote(group)
    promoted = promote(group, may_force=True, yes=True)

    assert (promoted.epoch, promoted.number) == (1000, 0)
    assert group.members[0].role is HaRole.MASTER


def test_named_member_with_a_shorter_log_is_refused() -> None:
    """With --force it is promoted, and the lost bytes are counted."""
    group = group_of(3)
    group.members[1].send()
    group.members[2].copy(1)
    group.members[1].is_answering = False

    with pytest.raises(CannotPromote, match="3 ends at 1 of epoch 1, member 2 ends at 2 of epoch 1 -- promote --to 2"):
        promote(group, to=3)
    promoted = promote(group, to=3, may_force=True, yes=True)

    assert promoted.loss == "1 bytes, from 1 on, that another member has"
    assert group.members[3].role is HaRole.MASTER


def test_named_member_with_all_acknowledged_messages_is_promoted() -> None:
    """The fenced old master has more, but its additional records were never acknowledged."""
    group = group_of(3)
    group.members[1].send()
    group.members[1].role = HaRole.UNASSIGNED

    promoted = promote(group, to=2)

    assert promoted.number == 2
    assert promoted.loss == "1 bytes, from 1 on, that another member has, and none of them was acknowledged"


def test_asynchronous_promotion_reports_an_unknown_loss() -> None:
    """One promise is enough, and records that only the old master has are lost."""
    group = group_of(2, acks_needed=0)
    group.members[1].is_answering = False

    promoted = promote(group)

    assert promoted.number == 2
    assert promoted.loss == "the old master's records beyond 1: an asynchronous group has no other copy of them"


def test_promotion_after_a_power_cut_of_all_members_reports_an_unknown_loss() -> None:
    """No member is known to have everything that it acknowledged, so the loss is not reported as none."""
    group = group_of(2)
    for member in group.members.values():
        member.role, member.is_complete = HaRole.UNASSIGNED, False

    promoted = promote(group)

    assert promoted.loss.startswith("acknowledged messages, how many is unknown")
    assert group.masters == [group.members[promoted.number]]


def test_promotion_waits_for_grants_to_expire() -> None:
    """Until then the old master may acknowledge, despite all promises."""
    group = group_of(2, acks_needed=0)
    group.members[1].is_answering = False
    group.members[2].granted_ms = 60
    steps: list[Step] = []

    promote(group, steps=steps)

    assert group.members[2].granted_ms_at_promotion == 0
    assert [step.what for step in steps].index("wait") < [step.what for step in steps].index("promote")


def test_returned_old_master_with_the_longest_log_is_promoted() -> None:
    """It has no role, but its additional records would be lost with any other member."""
    group = group_of(2, acks_needed=0)
    group.members[1].send()
    group.members[1].acknowledge()
    group.members[1].role = HaRole.UNASSIGNED

    promoted = promote(group)

    assert (promoted.number, promoted.loss) == (1, "")
    assert group.acknowledged <= set(group.members[1].log)


def test_next_epoch_exceeds_all_recorded_epochs() -> None:
    """A promise without a promotion counts, too."""
    group = group_of(3)
    group.members[2].promised = 8_003
    group.members[1].is_answering = False

    assert promote(group).epoch == 9_002


def test_present_master_may_be_named() -> None:
    """The role does not move; a pending drain ends, and members without a role follow."""
    group = group_of(2)
    group.members[1].is_draining = True
    group.members[2].role = HaRole.UNASSIGNED

    promoted = promote(group, to=1)

    assert (promoted.epoch, promoted.number) == (1, 1)
    assert not group.members[1].is_draining
    assert orders(group) == [["promote 1"], ["follow 1 127.0.0.1:20001"]]
    assert group.members[2].role is HaRole.SLAVE


def test_group_without_any_master_gets_its_first() -> None:
    """All electable members are named, and enough of them must promise."""
    group = FakeGroup([1, 2], acks_needed=1)

    with pytest.raises(CannotPromote, match="no member has recorded which slaves may be promoted -- name all slaves"):
        promote(group)
    promoted = promote(group, electable=frozenset({1, 2}))

    assert (promoted.epoch, promoted.number, promoted.is_complete) == (1001, 1, True)
    assert group.members[1].electable == [2]


def test_old_master_can_be_named_for_slaves_without_records() -> None:
    """Its number distinguishes a missing slave from the dead master."""
    group = group_of(2)
    group.members[1].is_answering = False
    group.members[2].master_id, group.members[2].electable = UNKNOWN, []

    with pytest.raises(CannotPromote, match=r"2 of the slaves \[1, 2\] of epoch 1 must vote"):
        promote(group, electable=frozenset({1, 2}))
    promoted = promote(group, electable=frozenset({1, 2}), old_master=1)

    assert (promoted.number, group.members[2].electable) == (2, [1])


def test_master_without_acknowledging_slaves_is_refused() -> None:
    """It could never answer 0; the slaves that may return must be named."""
    group = group_of(2)
    group.members[1].is_answering = False
    group.members[2].master_id = UNKNOWN

    with pytest.raises(CannotPromote, match=r"code 0 needs 1 ack\(s\), but only \[\] could give them to member 2"):
        promote(group)


def test_member_that_does_not_follow_is_reported() -> None:
    """The promotion is done nevertheless."""
    group = group_of(3)
    group.members[1].is_answering = False
    steps: list[Step] = []

    async def refuses(epoch: int, master: str) -> HaStatus:
        raise OrderRefused("its history is another one")

    group.members[2].follow = refuses  # type: ignore[method-assign]
    group.members[3].log.append((1, 99))
    promoted = promote(group, steps=steps)

    assert (promoted.number, promoted.is_complete) == (3, False)
    failed = [step for step in steps if not step.is_done]
    assert [(step.what, step.member, step.note) for step in failed] == [
        ("follow", "b/2", "its history is another one"),
    ]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda two, three: setattr(three, "number", 2), "socket-2 and socket-3 are brokers with the same store"),
        (lambda two, three: setattr(three, "name", "other"), "the sockets belong to different groups: c/b and c/other"),
        (lambda two, three: three.group.make_unreachable(), "no broker answers"),
    ],
    ids=["twice", "mixed", "silent"],
)
def test_invalid_set_of_members_is_refused(spoil: object, reason: str) -> None:
    """A broker that is named twice would have two votes, and two groups share no epochs."""
    group = group_of(3)
    clients: list[MemberClient] = [Direct(member) for member in group.members.values()]
    assert callable(spoil)
    spoil(group.members[2], group.members[3])

    with pytest.raises(CannotPromote, match=reason):
        asyncio.run(Promotion(clients, PromotionOptions(), report=lambda step: None, confirm=lambda text: True).run())
    assert all(ordered == [] for ordered in orders(group))


# -- any order of events -----------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The result of one seed."""

    moves: int
    lost: int
    """Acknowledged records that a new master did not have."""
    unreported: int
    """Those of them that were lost by a promotion which reported no loss."""
    epochs_with_two_masters: int
    """Epochs that had two masters."""


def run_seed(
    seed: int, *, acks_needed: int | None = None, may_force: bool = False, are_old_epochs_counted: bool = False
) -> Outcome:
    """Run sends, copies, faults and promotions in random order."""
    chance = random.Random(seed)
    count = chance.randint(2, 5)
    acks = chance.randint(1, count - 1) if acks_needed is None else acks_needed
    group = group_of(count, acks_needed=acks)
    group.are_old_epochs_counted = are_old_epochs_counted
    masters = {1: {1}}
    moves = lost = unreported = 0
    for _ in range(60):
        member = chance.choice(list(group.members.values()))
        match chance.randrange(6):
            case 0 | 1:
                for master in group.masters:
                    master.send()
            case 2 | 3:
                member.copy(chance.randint(1, 3))
                for master in group.masters:
                    master.acknowledge()
            case 4:
                member.is_answering = chance.random() < 0.6
                member.is_linked = member.is_answering or chance.random() < 0.3
            case 5:
                to = chance.choice([None, member.number])
                before = {one.epoch for one in group.members.values()}
                try:
                    promoted = promote(group, to=to, may_force=may_force, yes=True, timeout_ms=0)
                except (CannotPromote, OrderRefused):
                    continue
                finally:
                    for one in group.masters:
                        masters.setdefault(one.epoch, set()).add(one.number)
                if promoted.epoch in before:
                    continue  # it was the master already
                moves += 1
                missing = group.acknowledged - set(group.members[promoted.number].log)
                lost += len(missing)
                unreported += 0 if promoted.loss else len(missing)
                group.acknowledged -= missing
    return Outcome(moves, lost, unreported, sum(len(who) > 1 for who in masters.values()))


@pytest.mark.verify
def test_no_order_of_events_loses_acknowledged_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any number of members and acks, any set that answers, and old masters that return."""
    monkeypatch.setattr(ha_promote, "POLL_S", 0)
    outcomes = [run_seed(seed) for seed in range(150)]

    assert sum(one.moves for one in outcomes) > 150
    assert [seed for seed, one in enumerate(outcomes) if one.lost or one.epochs_with_two_masters] == []


@pytest.mark.verify
def test_acks_of_an_older_epoch_alone_would_lose_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that counted them would lose messages after a correct promotion, so masters do not."""
    monkeypatch.setattr(ha_promote, "POLL_S", 0)

    assert sum(run_seed(seed, are_old_epochs_counted=True).lost for seed in range(150)) > 0


@pytest.mark.parametrize(("acks_needed", "may_force"), [(0, False), (1, True)], ids=["asynchronous", "forced"])
def test_every_loss_is_reported(acks_needed: int, may_force: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss is possible in modes without acks and by force. This also shows that the test above can detect a loss."""
    monkeypatch.setattr(ha_promote, "POLL_S", 0)
    outcomes = [run_seed(seed, acks_needed=acks_needed, may_force=may_force) for seed in range(100)]

    assert sum(one.lost for one in outcomes) > 0
    assert [seed for seed, one in enumerate(outcomes) if one.unreported or one.epochs_with_two_masters] == []


@pytest.mark.parametrize("is_numbered", [True, False], ids=["its-own-number", "one-more"])
def test_concurrent_promotions_take_different_epochs(is_numbered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch must have one master. The next number after the known epochs would be the same for both."""
    if not is_numbered:
        monkeypatch.setattr(election, "next_epoch", lambda known, suffix=0: max(known) + 1)
        monkeypatch.setattr(election, "EPOCH_STRIDE", 1)
    group = group_of(3, acks_needed=0)
    for winner in (2, 3):
        for number, member in group.members.items():
            member.is_answering = number == winner
        promote(group)

    epochs = [group.members[number].epoch for number in (2, 3)]
    assert epochs == ([1002, 1003] if is_numbered else [2, 2])


def test_dead_asynchronous_master_does_not_block_its_successor() -> None:
    """Without acks a master needs grants of all its slaves, so the dead one is left out until it is named."""
    group = group_of(2, acks_needed=0)
    old, new = group.members[1], group.members[2]
    old.is_answering = old.is_linked = False
    steps: list[Step] = []

    promote(group, steps=steps)
    new.send()
    new.acknowledge()

    assert group.acknowledged >= set(new.log)
    assert "without [1] until named with --electable" in next(one.note for one in steps if one.what == "promote")
    old.is_answering = old.is_linked = True
    old.role = HaRole.UNASSIGNED
    promoted = promote(group, to=2, electable=frozenset({1, 2}))
    assert (promoted.epoch, new.electable, old.role) == (2002, [1], HaRole.SLAVE)


def test_absent_slave_stays_electable() -> None:
    """It could be elected from its records; the new master must need it, or there could be two masters."""
    group = group_of(3, acks_needed=0)
    for number in (1, 3):
        group.members[number].is_answering = group.members[number].is_linked = False

    promote(group)

    assert group.members[2].electable == [3]


def test_master_without_slaves_is_replaced_only_by_force() -> None:
    """No promise limits what it may acknowledge."""
    group = group_of(2, acks_needed=0)
    group.members[1].is_answering = False
    promote(group)
    group.members[1].is_answering, group.members[2].is_answering = True, False
    group.members[1].master_id, group.members[1].electable, group.members[1].epoch = 2, [], 1002
    group.members[1].role = HaRole.SLAVE

    with pytest.raises(CannotPromote, match="no member has recorded which slaves may be promoted"):
        promote(group, electable=frozenset({1, 2}))

    assert promote(group, electable=frozenset({1, 2}), may_force=True, yes=True).number == 1


def test_electable_set_changes_only_without_a_second_master() -> None:
    """Where acks count, an election among the previous members would not need the new ones."""
    group = group_of(3)

    with pytest.raises(CannotPromote, match=r"\[2\] only after an election"):
        promote(group, to=1, electable=frozenset({1, 2}))

    assert group.members[1].electable == [2, 3]
