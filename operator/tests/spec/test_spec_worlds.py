"""Invariants in any order of events: one master an epoch, no forbidden promotion, no loss of acknowledged records.

Histories are random and repeatable; ``operator/tests/spec_world/run_histories.py`` runs any number of them, and
``GANTRY_SIMULATION_SEEDS`` increases the number here. A twin is a test with one rule disabled, and the checker of
invariants must detect that.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_world.history import History
from spec_world.invariant_checker import InvariantViolation
from spec_world.run_histories import Tally, run
from spec_world.shapes import Shape
from spec_world.world import LEASE_MS, World

from gantry_spec import ballot
from gantry_spec.ballot import Ballot, Loss
from gantry_spec.decide import election, group, view
from gantry_spec.decide.view import ShardView
from gantry_spec.gate import ALLOWED
from gantry_spec.lease import TERMS_MAX, Term
from gantry_spec.lease_annotations import lease_annotations, record_of
from gantry_spec.observed import LastReport, Role

EXAMPLES = int(os.environ.get("GANTRY_SIMULATION_SEEDS", "120"))
SYNC = tuple(Shape(slaves, acks_needed) for slaves, acks_needed in ((2, 1), (3, 2), (1, 1), (3, 1)))
ASYNC = tuple(Shape(slaves, acks_needed=0, loss_bytes_max=1_000 << 20) for slaves in (1, 2))
ASYNC_LITTLE_LOSS = tuple(Shape(slaves, acks_needed=0, loss_bytes_max=50_000) for slaves in (1, 2))
"""Asynchronous groups that may lose less than one record of the model."""


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_no_history_breaks_an_invariant_and_every_one_recovers(seed: int) -> None:
    """Observations and orders are delayed, lost and doubled; there are crashes, partitions, edits and requests.

    The checker of invariants stops a history at two masters of one epoch, at an acknowledgement of what a newer master
    does not have, at a decision to regain a role after a newer epoch began, at the removal of an only copy, at a loss
    in a synchronous group, and at a loss in another group beyond what was announced and allowed. When all faults have
    ended, the group must recover.
    """
    run(seed, 400)


def test_histories_contain_promotions_and_losses() -> None:
    """Otherwise they would prove nothing: roles move, messages are acknowledged, and losses are announced."""
    tally = Tally()

    for seed in range(21):
        run(seed, 400, tally)

    assert tally.promotions > 35
    assert tally.acknowledged > 2_000
    assert tally.losses


def test_a_seed_repeats_its_history() -> None:
    """A failure can be repeated by its seed alone."""
    first, second = (run(3, 300) for _ in range(2))

    assert first.world.lease == second.world.lease
    assert first.world.checker.acknowledged == second.world.checker.acknowledged


# -- twins -------------------------------------------------------------------------------------------------------------


def is_violation_found(shapes: tuple[Shape, ...], *, histories: int, steps: int = 500) -> bool:
    """Return whether the checker of invariants detects a violation in a number of histories."""
    for seed in range(histories):
        history = History(shapes[seed % len(shapes)], seed)
        try:
            history.run(steps)
            history.end_faults()
            history.run_until_healthy(20)
        except InvariantViolation:
            return True
    return False


def test_no_fault_is_detected_with_all_rules() -> None:
    """These are the first of the histories that detect the disabled rules of the twins below."""
    assert not any(is_violation_found(shapes, histories=24) for shapes in (SYNC, ASYNC, ASYNC_LITTLE_LOSS))


def test_a_promotion_without_enough_promises_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: one promise is enough, whichever slaves have acknowledged."""
    monkeypatch.setattr(ballot, "promises_needed", lambda electable, acks_needed: 0)

    assert is_violation_found(SYNC, histories=200)


def test_a_vote_of_an_emptied_disk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: voters are identified by number instead of by store."""
    monkeypatch.setattr(ballot, "voters_of", lambda term, ballots: [b for b in ballots if b.number in term.numbers])
    monkeypatch.setattr(ballot, "has_complete_log", lambda term, master: True)

    assert is_violation_found(SYNC, histories=200)


def test_a_loss_beyond_the_limit_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: the limit of the spec is not checked."""
    monkeypatch.setattr(election, "check_loss", lambda *_, **__: ALLOWED)
    monkeypatch.setattr(election, "check_action", lambda *_: ALLOWED)
    monkeypatch.setattr(group, "check_action", lambda *_: ALLOWED)

    assert is_violation_found(ASYNC_LITTLE_LOSS, histories=200)


def test_a_loss_calculated_from_an_old_report_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: what the master took after its last report is not counted."""

    def unaware(term: Term, winner: Ballot, ballots: list[Ballot], last_report: LastReport | None, _: int) -> Loss:
        return ballot.loss_of(term, winner, ballots, last_report, 0)

    monkeypatch.setattr(view, "loss_of", unaware)

    assert is_violation_found(ASYNC, histories=200)


def let_two_processes_decide(world: World) -> None:
    """Restart a master, and let one process observe only the master and another only the slaves."""
    history = History(SYNC[0], 1, world)
    assert history.run_until_healthy() < 50
    for number in world.brokers:
        world.replicate(number, 1_000)
    world.crash(1)
    world.restart(1)
    observe_and_act(world, 0, 1, 2, 3)  # the Lease is taken
    observe_and_act(world, 0, 1, 2, 3)  # all promise
    world.advance(4_000, 0)
    for decider_number in (0, 1):
        world.read_lease(decider_number)
    observe_and_act(world, 0, 2, 3)  # a slave is named
    observe_and_act(world, 0, 2, 3)  # and promoted
    world.deciders[1].members.clear()
    member = world.observe_member(1, 1)
    assert member is not None
    world.receive(1, member)
    decide_and_execute(world, 1)  # the old master is named, too, by the process that has not read the Lease since
    observe_and_act(world, 1, 1)


def observe_and_act(world: World, decider_number: int, *numbers: int) -> None:
    """Let a process observe the Lease and these members, decide, and execute its actions."""
    world.read_lease(decider_number)
    world.deciders[decider_number].members = {}
    for number in numbers:
        member = world.observe_member(decider_number, number)
        assert member is not None
        world.receive(decider_number, member)
    decide_and_execute(world, decider_number)


def decide_and_execute(world: World, decider_number: int) -> None:
    """Let a process decide, and execute its actions."""
    world.decide(decider_number)
    for _ in range(len(world.deciders[decider_number].pending_actions)):
        world.execute_pending(decider_number, 0)


def test_two_deciding_processes_record_one_master() -> None:
    """The second finds the Lease changed."""
    world = World(SYNC[0].spec, acks_needed=1)

    let_two_processes_decide(world)

    assert len(world.checker.masters) == 2


def test_an_overwritten_lease_is_detected() -> None:
    """Twin: without compare-and-swap two masters are recorded for one epoch."""
    world = World(SYNC[0].spec, acks_needed=1)
    world.is_lease_version_checked = False

    with pytest.raises(InvariantViolation, match="has the masters"):
        let_two_processes_decide(world)


def partition_master(world: World) -> None:
    """Partition the master of an asynchronous group, which still reaches its clients and its Lease."""
    assert History(ASYNC[0], 1, world).run_until_healthy() < 50
    for number in world.brokers:
        world.replicate(number, 1_000)
    master = next(broker.number for broker in world.brokers.values() if broker.role is Role.MASTER)
    others: list[int | str] = [number for number in world.brokers if number != master]
    world.partitions |= {frozenset({master, other}) for other in [*others, "op0", "op1"]}
    for _ in range(4 * LEASE_MS // 500):
        world.renew_lease()
        world.advance(500, 1.0)
        for number in (0, 1):
            world.read_lease(number)
            for member in world.spec.members:
                observation = world.observe_member(number, member)
                assert observation is not None
                world.receive(number, observation)
            world.decide(number)
            for _ in range(len(world.deciders[number].pending_actions)):
                world.execute_pending(number, 0)


def test_a_partitioned_master_has_stopped_before_another_begins() -> None:
    """It may acknowledge until its Lease expires, and the new master waits for that."""
    world = World(ASYNC[0].spec, acks_needed=0)

    partition_master(world)

    assert len(world.checker.masters) == 2
    [(lost, announced)] = world.checker.losses
    assert 0 < lost <= announced <= 1_000 << 20


def test_a_promotion_before_the_lease_expires_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: without the wait the old master acknowledges what the new one does not have."""
    monkeypatch.setattr(ShardView, "silent_by_ms", lambda self, term, ballots: self.now_ms)
    world = World(ASYNC[0].spec, acks_needed=0)

    with pytest.raises(InvariantViolation, match=r"after epoch|were announced"):
        partition_master(world)


# -- many terms --------------------------------------------------------------------------------------------------------


def isolate(world: World, *numbers: int) -> None:
    """Partition these members from all others, and from the API server and the deciding processes."""
    everything: set[int | str] = {*world.brokers, "api", *(f"op{decider.number}" for decider in world.deciders)}
    world.partitions.clear()
    world.partitions.update(frozenset({one, other}) for one in numbers for other in everything - {one})


def test_any_number_of_failovers_can_be_recorded_while_a_member_is_away() -> None:
    """Two acks of two slaves are needed: no message is acknowledged, and every term has to stay until one is."""
    history = History(Shape(slaves=2, acks_needed=2), 1)
    world = history.world
    assert history.run_until_healthy() < 50
    safe = set(world.checker.acknowledged)
    epochs = set()

    for _ in range(TERMS_MAX + 4):
        assert world.lease is not None and world.lease.newest is not None
        failed = world.lease.newest
        isolate(world, 3, failed.master)
        for _ in range(120):
            history.run_round()
            history.advance_second()
            newest = [one for one in world.masters() if one.store.epoch == world.lease.epoch != failed.epoch]
            if newest:
                break
        assert newest, f"no failover after {len(world.lease.terms)} terms: {world.deciders[0].decision}"
        epochs.add(world.lease.epoch)
        assert record_of(lease_annotations(world.lease)) is not None, "expected a record that can be read again"

    assert len(epochs) == TERMS_MAX + 4
    isolate(world)
    assert history.run_until_healthy() < 100
    assert world.lease is not None and len(world.lease.terms) == 1
    assert safe <= world.checker.acknowledged
