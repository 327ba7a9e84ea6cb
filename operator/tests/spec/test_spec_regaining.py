"""Who may have the role again that it had before its process ended, while nobody decides: the pure answer, and worlds.

The twins take one reason out each: the judge of the worlds must notice that a role comes back when it must not.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_world.brokers import Broker
from spec_world.history import History
from spec_world.judge import Wrong
from spec_world.looks import EPOCH as LOOKS_EPOCH
from spec_world.looks import NOW_MS, healthy, spec_with, with_member, with_report
from spec_world.run_histories import Tally, run
from spec_world.shapes import Shape

from gantry_spec import regaining
from gantry_spec.ballot import promises_needed
from gantry_spec.decide.view import View
from gantry_spec.lease import LeaseRecord, Term, Voter
from gantry_spec.observed import LastWord, PromotionRequest, Report, Role
from gantry_spec.regaining import Alone, Regain, Rejoin, Stay, numbered, regained

EPOCH: Final = 3_000
OWN: Final = Report(
    asked_ms=0, answered_ms=0, role=Role.UNASSIGNED, broker_id=1, may_regain=True,
    epoch=EPOCH, promised_epoch=EPOCH, last_epoch=EPOCH, identity="store-1", wrote=5_000,
    electable=(2, 3), acks_needed=1, master_id=1, ha_address="one:10912",
)  # fmt: skip
SLAVE: Final = msgspec.structs.replace(
    OWN, role=Role.SLAVE, broker_id=2, identity="store-2", wrote=4_000, ha_address="two:10912"
)
REIGN: Final = Term(
    epoch=EPOCH, master=1, identity="store-1", electable=(Voter(2), Voter(3)), acks_needed=1, last_epoch=2_000, end=100
)
NAMED: Final = LeaseRecord(epoch=EPOCH, terms=(REIGN,))


def alone(*, peers: dict[int, Report] | None = None, **changes: Any) -> Alone:
    """A master that was killed, the API server being away, one of its two slaves there."""
    own = {name: changes.pop(name) for name in tuple(changes) if name in Report.__struct_fields__}
    known = Alone(
        report=msgspec.structs.replace(OWN, **own),
        peers={2: SLAVE} if peers is None else peers, is_lease_read=False,
    )  # fmt: skip
    return known._replace(**changes)


def slave(**changes: Any) -> Report:
    return msgspec.structs.replace(SLAVE, **changes)


def named(**changes: Any) -> LeaseRecord:
    return LeaseRecord(epoch=EPOCH, terms=(msgspec.structs.replace(REIGN, **changes),))


def why(known: Alone) -> str:
    found = regained(known)
    assert isinstance(found, Stay), found
    return found.why


def test_with_a_slave_that_has_promised_nobody_else_the_master_goes_on() -> None:
    """One of two slaves is enough where one ack is: a newer epoch takes the promises of both."""
    assert regained(alone()) == Regain(EPOCH)
    assert regained(alone(peers={2: slave(role=Role.UNASSIGNED)})) == Regain(EPOCH), "it may have been killed, too"


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (alone(may_regain=False), "by itself"),
        (alone(role=Role.SLAVE), "SLAVE"),
        (alone(peers={}), "must answer"),
        (alone(peers={4: slave()}), "must answer"),
        (alone(peers={2: slave(epoch=EPOCH - 1_000)}), "must answer"),
        (alone(peers={2: slave(master_id=3)}), "must answer"),
        (alone(peers={2: slave(promised_epoch=EPOCH + 1_000)}), "newer epoch"),
        (alone(peers={2: slave(), 3: slave(promised_epoch=EPOCH + 1_000)}), "newer epoch"),
        (alone(peers={2: slave(), 3: slave(epoch=EPOCH + 1_000)}), "newer epoch"),
        (alone(peers={2: slave(wrote=5_001)}), "more than this log"),
        (alone(peers={2: slave(), 3: slave(role=Role.MASTER)}), "are masters"),
        (alone(acks_needed=0), "must answer"),
        (alone(acks_needed=2), "must answer"),
        (alone(electable=(), acks_needed=0), "could object"),
    ],
    ids=["broker", "role", "nobody", "no-voice", "older", "elsewhere", "promised", "other-promised", "moved-on",
         "longer", "master", "no-acks", "two-acks", "lonely"],
)  # fmt: skip
def test_without_the_lease_each_doubt_is_enough_to_wait(known: Alone, text: str) -> None:
    """And says what it is."""
    assert text in why(known)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (None, "nobody is named"),
        (LeaseRecord(epoch=EPOCH + 1_000, terms=(REIGN,)), "nobody is named"),
        (named(master=2), "names member 2"),
        (LeaseRecord(epoch=EPOCH + 1_000, terms=(msgspec.structs.replace(REIGN, epoch=EPOCH + 1_000),)), "in epoch 4"),
        (named(identity="another"), "another one"),
        (named(last_epoch=EPOCH, end=5_001), "had more"),
        (named(electable=(Voter(2),)), "other slaves"),
        (named(acks_needed=2), "other slaves"),
    ],
    ids=["none", "electing", "another", "newer", "store", "longer", "slaves", "acks"],
)
def test_with_the_lease_it_must_name_just_that_reign(record: LeaseRecord | None, text: str) -> None:
    """No slave can say more than the Lease does."""
    assert text in why(alone(is_lease_read=True, record=record))


def test_the_lease_is_enough_but_not_against_a_peer_that_knows_more() -> None:
    """With it nobody else needs to be there."""
    known = alone(is_lease_read=True, record=NAMED, peers={})
    assert regained(known) == Regain(EPOCH)
    assert "newer" in why(known._replace(peers={2: slave(promised_epoch=EPOCH + 1_000)}))
    assert "more than" in why(known._replace(peers={3: slave(wrote=5_001)}))


def test_a_slave_follows_its_master_again_where_that_is_one() -> None:
    """In the very epoch, and where the Lease, if it is read, has no other."""
    master = msgspec.structs.replace(OWN, role=Role.MASTER)
    mine = slave(role=Role.UNASSIGNED)
    known = Alone(report=mine, peers={1: master}, is_lease_read=False)

    assert regained(known) == Rejoin(EPOCH, "one:10912")
    assert regained(known._replace(is_lease_read=True, record=NAMED)) == Rejoin(EPOCH, "one:10912")
    assert "names member 3" in why(known._replace(is_lease_read=True, record=named(master=3)))
    assert "has not said" in why(known._replace(peers={1: OWN}))
    assert "has not said" in why(known._replace(peers={3: master}))
    assert "newer" in why(known._replace(peers={1: master, 3: slave(promised_epoch=EPOCH + 1)}))


def test_two_that_say_the_same_number_are_not_believed() -> None:
    """One of them is somebody else."""
    two, three = (msgspec.structs.replace(SLAVE, broker_id=number) for number in (2, 3))
    assert numbered([two, three, msgspec.structs.replace(OWN, broker_id=2)]) == {3: three}


@given(st.integers(1, 5), st.integers(0, 5), st.data())
def test_who_answers_leaves_no_quorum_to_a_newer_epoch(slaves: int, acks: int, data: st.DataObject) -> None:
    """Whoever may regain has heard so many that the rest is too few to outvote it, whichever they are."""
    acks = min(acks, slaves)
    electable = tuple(range(2, 2 + slaves))
    here = data.draw(st.sets(st.sampled_from(electable)))
    peers = {number: slave(electable=electable, acks_needed=acks) for number in here}

    found = regained(alone(electable=electable, acks_needed=acks, peers=peers))

    left = slaves - len(here)
    assert isinstance(found, Regain) == (left < promises_needed(slaves, acks))


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "harmed"])
def test_the_start_of_another_process_ends_no_reign_that_it_may_have_had_again(is_whole: bool) -> None:
    """One that has everything may have been the master since; one that may lack something was given no role."""
    shard = with_report(healthy(acks_needed=0), 1, role=Role.UNASSIGNED, is_whole=is_whole)
    shard = with_member(shard, 1, boot_id="boot-1b", started_by_ms=NOW_MS - 9_000)
    word = LastWord(epoch=LOOKS_EPOCH, asked_ms=NOW_MS - 10_000, boot_id="boot-1", wrote=10_000)
    look = View(spec_with(), msgspec.structs.replace(shard, last_word=word), NOW_MS)

    assert look.silent_by_ms(look.term, look.possible()) == (NOW_MS if is_whole else NOW_MS - 9_000)


# -- worlds ------------------------------------------------------------------------------------------------------------

SHAPES: Final = (Shape(1, 1), Shape(2, 1), Shape(3, 2), Shape(1, 0, 1_000 << 20), Shape(2, 0, 1_000 << 20))


def is_found(*, histories: int, steps: int = 500) -> bool:
    """Whether the judge notices anything in so many of them."""
    for seed in range(histories):
        one = History(SHAPES[seed % len(SHAPES)], seed)
        try:
            one.run(steps, faults_share=0.25)
            one.heal()
            one.calm(20)
        except Wrong:
            return True
    return False


def test_histories_are_about_roles_that_come_back() -> None:
    """Or they would prove nothing: masters are masters again, and slaves follow again."""
    tally = Tally()

    for seed in range(64):
        run(seed, 400, tally)

    assert tally.regained > 3 and tally.rejoined > 0


class Scene:
    """Members 1 to 3, one ack, 1 is the master; those who decide, and who reaches whom, is for the test to say."""

    def __init__(self) -> None:
        self.history = History(Shape(2, 1), 1)
        self.history.calm(8)
        self.world = self.history.world
        self.epoch = self.world.brokers[1].store.epoch
        assert self.world.brokers[1].role is Role.MASTER

    def cut(self, number: int, *others: int | str) -> None:
        self.world.cut |= {frozenset({number, other}) for other in others}

    def until_moved(self) -> None:
        """Those who decide go on until 2 or 3 is the master."""
        world = self.world
        for _ in range(60):
            for name, decider in enumerate(world.deciders):
                world.read_lease(name)
                for number in (1, 2, 3):
                    member = world.look(name, number)
                    assert member is not None
                    world.hear(name, member)
                world.decide(name)
                while decider.under_way:
                    world.deliver(name, 0)
            if any(one.number != 1 for one in world.masters()):
                return
            world.advance(500, 0.5)
            for number in (1, 2, 3):
                world.copy(number, 1_000)
        raise AssertionError("nobody was promoted")

    def returns(self) -> None:
        """Member 1 is started again, and whoever stands beside it looks around. Raises ``Wrong``."""
        self.world.restart(1)
        self.world.beside.find(1)


def left_behind(*cut: int | str) -> Scene:
    """1 was killed, another one is the master meanwhile, and 1 does not reach these."""
    scene = Scene()
    scene.world.crash(1)
    scene.cut(1, "op0", "op1")
    scene.until_moved()
    scene.cut(1, *cut)
    return scene


def test_one_that_was_left_behind_does_not_come_back() -> None:
    """Whatever it reaches: the Lease, slaves that know better, or nobody."""
    for cut in ((), ("api",), ("api", 2), ("api", 3), (2, 3), ("api", 2, 3)):
        left_behind(*cut).returns()


@pytest.mark.parametrize(
    ("rule", "cut"),
    [("why_too_few", ("api", 2, 3)), ("why_lease_differs", (2, 3))],
    ids=["nobody-has-to-answer", "the-lease-is-not-believed"],
)
def test_the_judge_notices_one_who_comes_back_unasked(
    rule: str, cut: tuple[int | str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins: no slave has to answer; whatever the Lease says is right."""
    scene = left_behind(*cut)
    monkeypatch.setattr(regaining, rule, lambda _known: "")

    with pytest.raises(Wrong, match="comes back"):
        scene.returns()


def test_the_judge_notices_one_who_hears_no_promise() -> None:
    """Twin: slaves count as soon as they answer, whatever they have promised or begun since."""
    scene = left_behind("api")

    def deaf(known: Alone) -> Alone:
        epoch = known.report.epoch
        before = slave(epoch=epoch, promised_epoch=epoch, last_epoch=epoch, wrote=0)
        return known._replace(peers=dict.fromkeys(known.peers, before))

    scene.world.beside.see = deaf

    with pytest.raises(Wrong, match="comes back"):
        scene.returns()


def gave_its_promise() -> Scene:
    """1 has promised the epoch that another one is the master of, and was killed; 3 has heard of nothing."""
    scene = Scene()
    for name in ("op0", "op1"):
        scene.cut(3, name)
    scene.world.request = PromotionRequest(id="w", to=2)
    scene.until_moved()
    assert scene.world.brokers[3].store.promised <= scene.epoch < scene.world.brokers[1].store.promised
    scene.world.crash(1)
    scene.cut(1, "op0", "op1", "api", 2)
    return scene


def test_the_judge_notices_one_who_forgets_its_own_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: a broker that has promised a newer epoch is the master of the old one again; with its promise it is not."""
    gave_its_promise().returns()
    scene = gave_its_promise()

    def may(self: Broker) -> bool:
        return self.role is Role.UNASSIGNED and self.store.last_epoch == self.store.epoch and self.store.is_whole

    monkeypatch.setattr(Broker, "may_regain", property(may))

    with pytest.raises(Wrong, match="comes back"):
        scene.returns()


@pytest.mark.verify
def test_the_judge_notices_one_who_has_lost_its_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: neither the broker nor its peers mind that something is missing."""

    def may(self: Broker) -> bool:
        store = self.store
        return self.role is Role.UNASSIGNED and store.promised <= store.epoch == store.last_epoch

    monkeypatch.setattr(Broker, "may_regain", property(may))
    monkeypatch.setattr(regaining, "why_log_differs", lambda _known: "")

    assert is_found(histories=400)
