"""`gantry ha promote`: what was acknowledged stays, and what cannot be done is refused before it begins."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple, overload

import pytest

from gantry_broker.control.orders import obey
from gantry_cli.ha import promote as ha_promote
from gantry_cli.ha.group import CannotPromote, MemberClient
from gantry_cli.ha.promote import Promoted, Promotion, Step, Wanted
from gantry_spec.decide import electing
from gantry_status.order_client import Check
from gantry_status.orders import (
    UNKNOWN,
    AnyOrder,
    AskPromise,
    AskStatus,
    BrokerUnreachable,
    Failed,
    HaRole,
    HaStatus,
    OrderRefused,
    OrderUnanswered,
    Promised,
    Refused,
    StatusOrder,
)
from gantry_testing.fake_group import FakeGroup, FakeMember


class Direct:
    """An ``OrderClient`` without a socket."""

    def __init__(self, member: FakeMember) -> None:
        self.path = f"socket-{member.number}"
        self._member = member

    @overload
    async def call(self, order: AskPromise, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...

    async def call(self, order: AskPromise | StatusOrder, *, timeout_s: float | None = None) -> HaStatus | Promised:
        await asyncio.sleep(0)
        if not self._member.is_answering:
            raise BrokerUnreachable(f"nobody listens at {self.path}")
        answer = await obey(self._member, order)
        if isinstance(answer, Refused):
            raise OrderRefused(answer.reason)
        assert not isinstance(answer, Failed), "a fake member never fails"
        return answer

    async def call_checked(self, order: AnyOrder, check: Check | None) -> HaStatus | Promised:
        if check is not None:
            check(await self.call(AskStatus()))
        return await self.call(order)


def group_of(count: int, *, acks_needed: int = 1) -> FakeGroup:
    """Members 1 to ``count``; 1 is the master, all have the same log."""
    group = FakeGroup(range(1, count + 1), acks_needed=acks_needed)
    group.begin(1)
    return group


def promote(group: FakeGroup, *, yes: bool = False, steps: list[Step] | None = None, **typed: object) -> Promoted:
    """Give it another master, as a person does."""
    clients: list[MemberClient] = [Direct(member) for member in group.members.values()]
    reported: list[Step] = [] if steps is None else steps
    wanted = Wanted(**{"timeout_ms": 50, **typed})  # type: ignore[arg-type]
    return asyncio.run(Promotion(clients, wanted, report=reported.append, confirm=lambda _: yes).run())


def orders(group: FakeGroup) -> list[list[str]]:
    """What each member was ordered."""
    return [member.ordered for member in group.members.values()]


def test_a_master_that_answers_hands_over() -> None:
    """It is drained and promises, then the slave is promoted, and all others follow: the old master, too."""
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


def test_a_hand_over_needs_no_third_member() -> None:
    """What the master has written when it is drained is the measure, and one slave has it all."""
    group = group_of(3)
    group.members[3].is_answering = group.members[3].is_linked = False

    promoted = promote(group)

    assert (promoted.number, promoted.loss) == (2, "")
    assert group.members[2].electable == [1, 3]


def test_the_furthest_slave_is_chosen() -> None:
    """Whoever is asked for nobody in particular takes the least to wait for."""
    group = group_of(3)
    group.members[1].send()
    group.members[3].copy(1)
    group.members[1].acknowledge()

    with pytest.raises(CannotPromote, match="member 2 gets the rest: it has received up to 1 of 2"):
        promote(group, to=2)
    assert promote(group).number == 3


def test_a_slave_that_cannot_catch_up_leaves_all_as_it_was() -> None:
    """The master takes sends again, in its own epoch, and nobody was asked for a promise."""
    group = group_of(2)
    group.members[1].send()

    with pytest.raises(CannotPromote, match="received up to 1 of 2 -- see what holds it up"):
        promote(group)

    assert orders(group) == [["drain", "promote 1"], []]
    assert group.masters == [group.members[1]] and not group.members[1].is_draining


def test_a_master_that_cannot_be_drained_stays() -> None:
    """It says why; no other member is ordered anything."""
    group = group_of(2)
    group.members[1].drain_reason = "not acknowledged in time"

    with pytest.raises(OrderRefused, match="not acknowledged in time"):
        promote(group)

    assert group.masters == [group.members[1]]
    assert orders(group) == [["drain"], []]


def test_a_master_whose_drain_was_not_answered_takes_sends_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been drained, so the next observation decides whether there is anything to end."""
    group = group_of(2)
    master = group.members[1]
    drain = master.drain

    async def unanswered(timeout_ms: int, withdraw: bool = False, goes_on: bool = False) -> HaStatus:
        await drain(timeout_ms)
        raise OrderUnanswered("no answer within 1 s")

    monkeypatch.setattr(master, "drain", unanswered)
    with pytest.raises(OrderUnanswered):
        promote(group)

    assert orders(group) == [["drain", "promote 1"], []]
    assert not master.is_draining


def test_a_master_that_writes_after_it_was_drained_gets_the_role_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slave lacks something once the master has promised: no other member may have the role."""
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


def test_a_dead_master_is_replaced_by_the_furthest_of_enough_slaves() -> None:
    """S - k + 1 have promised, so the furthest of them has all that was acknowledged."""
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


def test_too_few_slaves_are_refused_before_anybody_is_asked() -> None:
    """A promise stops a slave from following, so none is asked for in vain."""
    group = group_of(3)
    for number in (1, 3):
        group.members[number].is_answering = False

    with pytest.raises(CannotPromote, match=r"2 of the slaves \[2, 3\] of epoch 1 must vote, and \[3\] cannot"):
        promote(group)

    assert orders(group) == [[], [], []]


def test_a_forced_promotion_asks_first_and_says_what_may_be_lost() -> None:
    """Not confirmed, nothing is done; confirmed, it is done, and the loss is named."""
    group = group_of(3)
    for number in (1, 3):
        group.members[number].is_answering = False

    with pytest.raises(CannotPromote, match="nothing was done"):
        promote(group, may_force=True, yes=False)
    assert orders(group) == [[], [], []]
    promoted = promote(group, may_force=True, yes=True)

    assert promoted.number == 2
    assert promoted.loss == "whatever was acknowledged beyond 1 by members that do not answer"


def test_a_master_that_waits_for_slaves_that_are_gone_is_forced_to_go_on() -> None:
    """It compares with somebody before it appends anything; nobody comes, and a person takes its log as it is."""
    group = FakeGroup([0], acks_needed=1)
    group.begin(0)
    group.members[0].role = HaRole.COMPARING

    with pytest.raises(CannotPromote, match="nobody has recorded who may be promoted"):
        promote(group)
    promoted = promote(group, may_force=True, yes=True)

    assert (promoted.epoch, promoted.number) == (1000, 0)
    assert group.members[0].role is HaRole.MASTER


def test_nobody_who_has_less_is_promoted_by_name() -> None:
    """Unless it is forced, and then the bytes are counted."""
    group = group_of(3)
    group.members[1].send()
    group.members[2].copy(1)
    group.members[1].is_answering = False

    with pytest.raises(CannotPromote, match="3 ends at 1 of epoch 1, member 2 ends at 2 of epoch 1 -- promote --to 2"):
        promote(group, to=3)
    promoted = promote(group, to=3, may_force=True, yes=True)

    assert promoted.loss == "1 bytes, from 1 on, that another member has"
    assert group.members[3].role is HaRole.MASTER


def test_a_member_with_all_that_was_acknowledged_may_be_named_though_another_has_more() -> None:
    """The old master was fenced, for its disk perhaps; what it alone has was promised to nobody."""
    group = group_of(3)
    group.members[1].send()
    group.members[1].role = HaRole.UNASSIGNED

    promoted = promote(group, to=2)

    assert promoted.number == 2
    assert promoted.loss == "1 bytes, from 1 on, that another member has; none of them was acknowledged"


def test_an_asynchronous_group_says_that_nobody_knows_what_is_lost() -> None:
    """One promise is enough there, and what only the old master has is gone."""
    group = group_of(2, acks_needed=0)
    group.members[1].is_answering = False

    promoted = promote(group)

    assert promoted.number == 2
    assert promoted.loss == "what the old master wrote beyond 1: in an asynchronous group nobody else has that"


def test_grants_that_were_given_are_waited_for() -> None:
    """Until they end the old master may acknowledge, whatever is promised."""
    group = group_of(2, acks_needed=0)
    group.members[1].is_answering = False
    group.members[2].granted_ms = 60
    steps: list[Step] = []

    promote(group, steps=steps)

    assert group.members[2].granted_ms_at_promotion == 0
    assert [step.what for step in steps].index("wait") < [step.what for step in steps].index("promote")


def test_an_old_master_that_is_back_and_has_more_is_taken() -> None:
    """It has no role, but what it alone has is lost with anybody else."""
    group = group_of(2, acks_needed=0)
    group.members[1].send()
    group.members[1].acknowledge()
    group.members[1].role = HaRole.UNASSIGNED

    promoted = promote(group)

    assert (promoted.number, promoted.loss) == (1, "")
    assert group.acknowledged <= set(group.members[1].log)


def test_the_next_epoch_is_greater_than_all_that_anybody_has_recorded() -> None:
    """A promise that led to nothing counts, too."""
    group = group_of(3)
    group.members[2].promised = 8_003
    group.members[1].is_answering = False

    assert promote(group).epoch == 9_002


def test_the_master_itself_may_be_named() -> None:
    """Then nothing moves; a drain that somebody began ends, and whoever has no role is gathered."""
    group = group_of(2)
    group.members[1].is_draining = True
    group.members[2].role = HaRole.UNASSIGNED

    promoted = promote(group, to=1)

    assert (promoted.epoch, promoted.number) == (1, 1)
    assert not group.members[1].is_draining
    assert orders(group) == [["promote 1"], ["follow 1 127.0.0.1:20001"]]
    assert group.members[2].role is HaRole.SLAVE


def test_a_group_that_never_had_a_master_gets_one() -> None:
    """Then everybody who may be the master is named, and enough of them have to promise."""
    group = FakeGroup([1, 2], acks_needed=1)

    with pytest.raises(CannotPromote, match="nobody has recorded who may be promoted -- name all slaves"):
        promote(group)
    promoted = promote(group, electable=frozenset({1, 2}))

    assert (promoted.epoch, promoted.number, promoted.is_complete) == (1001, 1, True)
    assert group.members[1].electable == [2]


def test_a_slave_that_recorded_nothing_is_told_who_the_master_was() -> None:
    """Its number makes the difference between a slave that is missing and the master that is dead."""
    group = group_of(2)
    group.members[1].is_answering = False
    group.members[2].master_id, group.members[2].electable = UNKNOWN, []

    with pytest.raises(CannotPromote, match=r"2 of the slaves \[1, 2\] of epoch 1 must vote"):
        promote(group, electable=frozenset({1, 2}))
    promoted = promote(group, electable=frozenset({1, 2}), old_master=1)

    assert (promoted.number, group.members[2].electable) == (2, [1])


def test_a_master_without_anybody_to_acknowledge_is_not_made() -> None:
    """It could never answer 0; who may come back has to be named."""
    group = group_of(2)
    group.members[1].is_answering = False
    group.members[2].master_id = UNKNOWN

    with pytest.raises(CannotPromote, match=r"code 0 needs 1 ack\(s\), and only \[\] could give them to member 2"):
        promote(group)


def test_somebody_who_does_not_follow_is_said() -> None:
    """The role has promoted all the same."""
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
        (lambda two, three: setattr(three, "name", "other"), "these are members of different groups: c/b and c/other"),
        (lambda two, three: three.group.silence(), "no broker answers"),
    ],
    ids=["twice", "mixed", "nobody"],
)
def test_a_vote_that_is_worth_nothing_is_not_held(spoil: object, reason: str) -> None:
    """One broker named twice would have two votes; two groups know nothing of each other."""
    group = group_of(3)
    clients: list[MemberClient] = [Direct(member) for member in group.members.values()]
    assert callable(spoil)
    spoil(group.members[2], group.members[3])

    with pytest.raises(CannotPromote, match=reason):
        asyncio.run(Promotion(clients, Wanted(), report=lambda step: None, confirm=lambda text: True).run())
    assert all(ordered == [] for ordered in orders(group))


# -- any order of events -----------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """Of one seed."""

    moves: int
    lost: int
    """Acknowledged records that a new master did not have."""
    unsaid: int
    """Of these, the ones of moves that said nothing of a loss."""
    twins: int
    """Epochs that had two masters."""


def run_seed(
    seed: int, *, acks_needed: int | None = None, may_force: bool = False, are_old_epochs_counted: bool = False
) -> Outcome:
    """Sends, copies, faults and moves in any order."""
    chance = random.Random(seed)
    count = chance.randint(2, 5)
    acks = chance.randint(1, count - 1) if acks_needed is None else acks_needed
    group = group_of(count, acks_needed=acks)
    group.are_old_epochs_counted = are_old_epochs_counted
    masters = {1: {1}}
    moves = lost = unsaid = 0
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
                unsaid += 0 if promoted.loss else len(missing)
                group.acknowledged -= missing
    return Outcome(moves, lost, unsaid, sum(len(who) > 1 for who in masters.values()))


@pytest.mark.verify
def test_no_order_of_events_loses_what_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any number of members and of needed acks, whoever answers, and old masters that know of nothing."""
    monkeypatch.setattr(ha_promote, "POLL_S", 0)
    outcomes = [run_seed(seed) for seed in range(150)]

    assert sum(one.moves for one in outcomes) > 150
    assert [seed for seed, one in enumerate(outcomes) if one.lost or one.twins] == []


@pytest.mark.verify
def test_acks_of_an_older_epoch_alone_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that counted them would lose messages, however carefully the role is promoted: why masters do not."""
    monkeypatch.setattr(ha_promote, "POLL_S", 0)

    assert sum(run_seed(seed, are_old_epochs_counted=True).lost for seed in range(150)) > 0


@pytest.mark.parametrize(("acks_needed", "may_force"), [(0, False), (1, True)], ids=["asynchronous", "forced"])
def test_whatever_is_lost_was_said(acks_needed: int, may_force: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a mode covers no dead master, or a person forces it. This also shows that the test above sees a loss."""
    monkeypatch.setattr(ha_promote, "POLL_S", 0)
    outcomes = [run_seed(seed, acks_needed=acks_needed, may_force=may_force) for seed in range(100)]

    assert sum(one.lost for one in outcomes) > 0
    assert [seed for seed, one in enumerate(outcomes) if one.unsaid or one.twins] == []


@pytest.mark.parametrize("is_numbered", [True, False], ids=["its-own-number", "one-more"])
def test_promotions_that_know_nothing_of_each_other_begin_different_epochs(
    is_numbered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch has one master, or nothing is sure any more. One more than is known would be the same for both."""
    if not is_numbered:
        monkeypatch.setattr(electing, "next_epoch", lambda known, suffix=0: max(known) + 1)
        monkeypatch.setattr(electing, "EPOCH_STRIDE", 1)
    group = group_of(3, acks_needed=0)
    for winner in (2, 3):
        for number, member in group.members.items():
            member.is_answering = number == winner
        promote(group)

    epochs = [group.members[number].epoch for number in (2, 3)]
    assert epochs == ([1002, 1003] if is_numbered else [2, 2])


def test_a_dead_master_of_an_asynchronous_group_does_not_stop_its_successor() -> None:
    """Without acks a master asks all of S for grants, and the dead grant nothing; when it is back it can be named."""
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


def test_a_slave_that_is_away_is_never_left_out() -> None:
    """It could be elected by what it has recorded; the new master must ask it, or there would be two."""
    group = group_of(3, acks_needed=0)
    for number in (1, 3):
        group.members[number].is_answering = group.members[number].is_linked = False

    promote(group)

    assert group.members[2].electable == [3]


def test_a_master_that_asks_nobody_is_deposed_by_force_alone() -> None:
    """No promise ends what it may acknowledge, whoever is named."""
    group = group_of(2, acks_needed=0)
    group.members[1].is_answering = False
    promote(group)
    group.members[1].is_answering, group.members[2].is_answering = True, False
    group.members[1].master_id, group.members[1].electable, group.members[1].epoch = 2, [], 1002
    group.members[1].role = HaRole.SLAVE

    with pytest.raises(CannotPromote, match="nobody has recorded which slaves may be promoted"):
        promote(group, electable=frozenset({1, 2}))

    assert promote(group, electable=frozenset({1, 2}), may_force=True, yes=True).number == 1


def test_who_may_be_promoted_changes_only_where_that_makes_no_second_master() -> None:
    """Where acks count, an election among those of before would not ask those of after."""
    group = group_of(3)

    with pytest.raises(CannotPromote, match=r"\[2\] only after an election"):
        promote(group, to=1, electable=frozenset({1, 2}))

    assert group.members[1].electable == [2, 3]
