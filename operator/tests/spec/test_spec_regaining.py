"""Recovery of a broker's role after a restart of its process: the pure decision, and histories of model worlds.

A twin is a test in which some checks are disabled: the checker of the model world's invariants must detect a role that
is recovered wrongly.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_world.brokers import Broker
from spec_world.history import History
from spec_world.invariant_checker import InvariantViolation
from spec_world.observations import EPOCH as OBSERVED_EPOCH
from spec_world.observations import NOW_MS, healthy_shard, spec_with, with_member, with_report
from spec_world.run_histories import Tally, run
from spec_world.shapes import Shape

from gantry_spec import role_recovery
from gantry_spec.ballot import promises_needed
from gantry_spec.decide.view import ShardView
from gantry_spec.lease import LeaseRecord, Term, Voter
from gantry_spec.observed import LastReport, PromotionRequest, Report, Role
from gantry_spec.role_recovery import RecoveryInput, Regain, Rejoin, StayUnassigned, decide_recovery, reports_by_number

EPOCH: Final = 3_000
OWN: Final = Report(
    asked_ms=0, answered_ms=0, role=Role.UNASSIGNED, broker_id=1, may_regain=True,
    epoch=EPOCH, promised_epoch=EPOCH, last_epoch=EPOCH, identity="store-1", wrote=5_000,
    electable=(2, 3), acks_needed=1, master_id=1, ha_address="one:10912",
)  # fmt: skip
SLAVE: Final = msgspec.structs.replace(
    OWN, role=Role.SLAVE, broker_id=2, identity="store-2", wrote=4_000, ha_address="two:10912"
)
TERM: Final = Term(
    epoch=EPOCH, master=1, identity="store-1", electable=(Voter(2), Voter(3)), acks_needed=1, last_epoch=2_000, end=100
)
NAMED: Final = LeaseRecord(epoch=EPOCH, terms=(TERM,))


def recovery_input(*, peers: dict[int, Report] | None = None, **changes: Any) -> RecoveryInput:
    """Return the input of a killed master while the API server is unavailable and one of two slaves answers."""
    own = {name: changes.pop(name) for name in tuple(changes) if name in Report.__struct_fields__}
    known = RecoveryInput(
        report=msgspec.structs.replace(OWN, **own),
        peers={2: SLAVE} if peers is None else peers, is_lease_read=False,
    )  # fmt: skip
    return known._replace(**changes)


def slave_report(**changes: Any) -> Report:
    """Return the report of a slave of the master, with changes."""
    return msgspec.structs.replace(SLAVE, **changes)


def record_with_term(**changes: Any) -> LeaseRecord:
    """Return a Lease record with one term, with changes of it."""
    return LeaseRecord(epoch=EPOCH, terms=(msgspec.structs.replace(TERM, **changes),))


def reason_against_recovery(known: RecoveryInput) -> str:
    """Return why the broker must not recover its role."""
    found = decide_recovery(known)
    assert isinstance(found, StayUnassigned), found
    return found.why


def test_the_master_recovers_its_role_with_enough_slaves_of_its_epoch() -> None:
    """With one ack one of two slaves is enough, since a newer epoch needs the promises of both."""
    assert decide_recovery(recovery_input()) == Regain(EPOCH)
    assert decide_recovery(recovery_input(peers={2: slave_report(role=Role.UNASSIGNED)})) == Regain(EPOCH), (
        "expected a slave without a role to count, since it may have been killed, too"
    )


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (recovery_input(may_regain=False), "by itself"),
        (recovery_input(role=Role.SLAVE), "SLAVE"),
        (recovery_input(peers={}), "must answer"),
        (recovery_input(peers={4: slave_report()}), "must answer"),
        (recovery_input(peers={2: slave_report(epoch=EPOCH - 1_000)}), "must answer"),
        (recovery_input(peers={2: slave_report(master_id=3)}), "must answer"),
        (recovery_input(peers={2: slave_report(promised_epoch=EPOCH + 1_000)}), "newer epoch"),
        (recovery_input(peers={2: slave_report(), 3: slave_report(promised_epoch=EPOCH + 1_000)}), "newer epoch"),
        (recovery_input(peers={2: slave_report(), 3: slave_report(epoch=EPOCH + 1_000)}), "newer epoch"),
        (recovery_input(peers={2: slave_report(wrote=5_001)}), "longer logs"),
        (recovery_input(peers={2: slave_report(), 3: slave_report(role=Role.MASTER)}), "are masters"),
        (recovery_input(acks_needed=0), "must answer"),
        (recovery_input(acks_needed=2), "must answer"),
        (recovery_input(electable=(), acks_needed=0), "could object"),
    ],
    ids=["broker", "role", "no-peer", "no-vote", "older", "elsewhere", "promised", "other-promised", "moved-on",
         "longer", "master", "no-acks", "two-acks", "lonely"],
)  # fmt: skip
def test_without_the_lease_any_doubt_prevents_recovery(known: RecoveryInput, text: str) -> None:
    """The reason names the doubt."""
    assert text in reason_against_recovery(known)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (None, "names no master"),
        (LeaseRecord(epoch=EPOCH + 1_000, terms=(TERM,)), "names no master"),
        (record_with_term(master=2), "names member 2"),
        (LeaseRecord(epoch=EPOCH + 1_000, terms=(msgspec.structs.replace(TERM, epoch=EPOCH + 1_000),)), "in epoch 4"),
        (record_with_term(identity="another"), "another one"),
        (record_with_term(last_epoch=EPOCH, end=5_001), "longer log"),
        (record_with_term(electable=(Voter(2),)), "other slaves"),
        (record_with_term(acks_needed=2), "other slaves"),
    ],
    ids=["none", "electing", "another", "newer", "store", "longer", "slaves", "acks"],
)
def test_with_the_lease_the_same_term_must_be_the_newest(record: LeaseRecord | None, text: str) -> None:
    """Reports of slaves do not replace what the Lease says."""
    assert text in reason_against_recovery(recovery_input(is_lease_read=True, record=record))


def test_the_lease_suffices_unless_a_peer_has_more() -> None:
    """With the Lease no peer has to answer."""
    known = recovery_input(is_lease_read=True, record=NAMED, peers={})
    assert decide_recovery(known) == Regain(EPOCH)
    assert "newer" in reason_against_recovery(known._replace(peers={2: slave_report(promised_epoch=EPOCH + 1_000)}))
    assert "longer logs" in reason_against_recovery(known._replace(peers={3: slave_report(wrote=5_001)}))


def test_a_slave_follows_its_master_again() -> None:
    """The master must have the role in the same epoch, and the Lease, if it is read, must not name another."""
    master = msgspec.structs.replace(OWN, role=Role.MASTER)
    mine = slave_report(role=Role.UNASSIGNED)
    known = RecoveryInput(report=mine, peers={1: master}, is_lease_read=False)

    assert decide_recovery(known) == Rejoin(EPOCH, "one:10912")
    assert decide_recovery(known._replace(is_lease_read=True, record=NAMED)) == Rejoin(EPOCH, "one:10912")
    assert "names member 3" in reason_against_recovery(
        known._replace(is_lease_read=True, record=record_with_term(master=3))
    )
    assert "has not confirmed" in reason_against_recovery(known._replace(peers={1: OWN}))
    assert "has not confirmed" in reason_against_recovery(known._replace(peers={3: master}))
    assert "newer" in reason_against_recovery(
        known._replace(peers={1: master, 3: slave_report(promised_epoch=EPOCH + 1)})
    )


def test_reports_with_the_same_number_are_ignored() -> None:
    """One of them belongs to another broker."""
    two, three = (msgspec.structs.replace(SLAVE, broker_id=number) for number in (2, 3))
    assert reports_by_number([two, three, msgspec.structs.replace(OWN, broker_id=2)]) == {3: three}


@given(st.integers(1, 5), st.integers(0, 5), st.data())
def test_recovery_leaves_no_quorum_for_a_newer_epoch(slaves: int, acks: int, data: st.DataObject) -> None:
    """The slaves that did not answer are too few to outvote the term, whichever they are."""
    acks = min(acks, slaves)
    electable = tuple(range(2, 2 + slaves))
    here = data.draw(st.sets(st.sampled_from(electable)))
    peers = {number: slave_report(electable=electable, acks_needed=acks) for number in here}

    found = decide_recovery(recovery_input(electable=electable, acks_needed=acks, peers=peers))

    left = slaves - len(here)
    assert isinstance(found, Regain) == (left < promises_needed(slaves, acks))


@pytest.mark.parametrize("is_complete", [True, False], ids=["whole", "harmed"])
def test_a_process_start_does_not_end_a_term_that_may_have_been_recovered(is_complete: bool) -> None:
    """A complete log may have been master again; an incomplete one was given no role."""
    shard = with_report(healthy_shard(acks_needed=0), 1, role=Role.UNASSIGNED, is_complete=is_complete)
    shard = with_member(shard, 1, boot_id="boot-1b", started_by_ms=NOW_MS - 9_000)
    last_report = LastReport(epoch=OBSERVED_EPOCH, asked_ms=NOW_MS - 10_000, boot_id="boot-1", wrote=10_000)
    shard_view = ShardView(spec_with(), msgspec.structs.replace(shard, last_report=last_report), NOW_MS)

    assert shard_view.silent_by_ms(shard_view.term, shard_view.possible_ballots()) == (
        NOW_MS if is_complete else NOW_MS - 9_000
    )


# -- histories ---------------------------------------------------------------------------------------------------------

SHAPES: Final = (
    *(Shape(slaves, acks_needed) for slaves, acks_needed in ((1, 1), (2, 1), (3, 2))),
    *(Shape(slaves, acks_needed=0, loss_bytes_max=1_000 << 20) for slaves in (1, 2)),
)


def is_violation_found(*, histories: int, steps: int = 500) -> bool:
    """Return whether the checker of invariants detects a violation in a number of histories."""
    for seed in range(histories):
        one = History(SHAPES[seed % len(SHAPES)], seed)
        try:
            one.run(steps, faults_share=0.25)
            one.end_faults()
            one.run_until_healthy(20)
        except InvariantViolation:
            return True
    return False


def test_histories_contain_recovered_roles() -> None:
    """Otherwise they would prove nothing: masters recover their roles, and slaves follow again."""
    tally = Tally()

    for seed in range(64):
        run(seed, 400, tally)

    assert tally.roles_regained > 3 and tally.rejoined > 0


class Scene:
    """A shard with members 1 to 3, one needed ack and master 1. The test controls decisions and partitions."""

    def __init__(self) -> None:
        self.history = History(Shape(slaves=2, acks_needed=1), 1)
        self.history.run_until_healthy(8)
        self.world = self.history.world
        self.epoch = self.world.brokers[1].store.epoch
        assert self.world.brokers[1].role is Role.MASTER

    def partition(self, number: int, *others: int | str) -> None:
        """Partition a member from other members, deciding processes (`op0`, `op1`) or the API server (`api`)."""
        self.world.partitions |= {frozenset({number, other}) for other in others}

    def until_moved(self) -> None:
        """Run the deciding processes until member 2 or 3 is the master."""
        world = self.world
        for _ in range(60):
            for decider_number, decider in enumerate(world.deciders):
                world.read_lease(decider_number)
                for number in (1, 2, 3):
                    member = world.observe_member(decider_number, number)
                    assert member is not None
                    world.receive(decider_number, member)
                world.decide(decider_number)
                while decider.pending_actions:
                    world.execute_pending(decider_number, 0)
            if any(one.number != 1 for one in world.masters()):
                return
            world.advance(500, 0.5)
            for number in (1, 2, 3):
                world.replicate(number, 1_000)
        raise AssertionError("no member was promoted")

    def returns(self) -> None:
        """Restart member 1 and let its sidecar check for recovery. Raises ``InvariantViolation``."""
        self.world.restart(1)
        self.world.sidecars.check_recovery(1)


def replaced_master(*cut: int | str) -> Scene:
    """Return a scene in which member 1 was killed and replaced as master, and does not reach these."""
    scene = Scene()
    scene.world.crash(1)
    scene.partition(1, "op0", "op1")
    scene.until_moved()
    scene.partition(1, *cut)
    return scene


def test_a_replaced_master_does_not_recover_its_role() -> None:
    """It may reach the Lease, slaves that know the newer epoch, or no other member."""
    for cut in ((), ("api",), ("api", 2), ("api", 3), (2, 3), ("api", 2, 3)):
        replaced_master(*cut).returns()


@pytest.mark.parametrize(
    ("rule", "cut"),
    [("quorum_gap", ("api", 2, 3)), ("lease_conflict", (2, 3))],
    ids=["no-peer-has-to-answer", "the-lease-is-not-believed"],
)
def test_the_checker_detects_recovery_without_proof(
    rule: str, cut: tuple[int | str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins: no slave has to answer, or the Lease is not checked."""
    scene = replaced_master(*cut)
    monkeypatch.setattr(role_recovery, rule, lambda _known: "")

    with pytest.raises(InvariantViolation, match="comes back"):
        scene.returns()


def test_the_checker_detects_recovery_that_ignores_promises() -> None:
    """Twin: slaves count although they have promised or begun a newer epoch."""
    scene = replaced_master("api")

    def without_promises(known: RecoveryInput) -> RecoveryInput:
        epoch = known.report.epoch
        before = slave_report(epoch=epoch, promised_epoch=epoch, last_epoch=epoch, wrote=0)
        return known._replace(peers=dict.fromkeys(known.peers, before))

    scene.world.sidecars.alter_input = without_promises

    with pytest.raises(InvariantViolation, match="comes back"):
        scene.returns()


def promised_master() -> Scene:
    """Return a scene in which the killed member 1 has promised a new master's epoch, unknown to member 3."""
    scene = Scene()
    for name in ("op0", "op1"):
        scene.partition(3, name)
    scene.world.promotion_request = PromotionRequest(id="w", to=2)
    scene.until_moved()
    assert scene.world.brokers[3].store.promised <= scene.epoch < scene.world.brokers[1].store.promised
    scene.world.crash(1)
    scene.partition(1, "op0", "op1", "api", 2)
    return scene


def test_the_checker_detects_recovery_against_the_own_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: a broker that has promised a newer epoch becomes master of the old one again."""
    promised_master().returns()
    scene = promised_master()

    def may(self: Broker) -> bool:
        return self.role is Role.UNASSIGNED and self.store.last_epoch == self.store.epoch and self.store.is_complete

    monkeypatch.setattr(Broker, "may_regain", property(may))

    with pytest.raises(InvariantViolation, match="comes back"):
        scene.returns()


@pytest.mark.verify
def test_the_checker_detects_recovery_with_an_incomplete_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: the broker does not check for missing data, and its sidecar not for longer logs of peers."""

    def may(self: Broker) -> bool:
        store = self.store
        return self.role is Role.UNASSIGNED and store.promised <= store.epoch == store.last_epoch

    monkeypatch.setattr(Broker, "may_regain", property(may))
    monkeypatch.setattr(role_recovery, "log_conflict", lambda _known: "")

    assert is_violation_found(histories=400)
