"""In any order of events: one master an epoch, no promotion outside the rules, nothing lost that was safe.

Histories are random and repeatable; ``operator/tests/spec_world/run_histories.py`` runs as many as one likes, and
``GANTRY_SIMULATION_SEEDS`` has this file run more. The twins take one rule out each, and the judge must notice.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_world.history import History
from spec_world.judge import Wrong
from spec_world.run_histories import Tally, run
from spec_world.shapes import Shape
from spec_world.world import LEASE_MS, World

from gantry_spec import ballot
from gantry_spec.ballot import Ballot, Loss
from gantry_spec.decide import electing, group, view
from gantry_spec.decide.view import View
from gantry_spec.gate import ALLOWED
from gantry_spec.lease import Term
from gantry_spec.observed import LastWord, Role

EXAMPLES = int(os.environ.get("GANTRY_SIMULATION_SEEDS", "120"))
SYNC = (Shape(2, 1), Shape(3, 2), Shape(1, 1), Shape(3, 1))
ASYNC = (Shape(1, 0, 1_000 << 20), Shape(2, 0, 1_000 << 20))
CAREFUL = (Shape(1, 0, 50_000), Shape(2, 0, 50_000))


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_no_history_breaks_a_promise_and_every_one_heals(seed: int) -> None:
    """Delayed, lost and doubled looks and orders, crashes, power cuts, partitions, lost disks, edits, orders by people.

    The judge stops a history at two masters of one epoch, at an acknowledgement after a newer epoch began, at a loss
    in a synchronous group, and at one elsewhere that is more than was announced or allowed. When all faults have
    ended, the group is well again.
    """
    run(seed, 400)


def test_histories_are_about_something() -> None:
    """Or the test above would prove nothing: roles move, messages are acknowledged, and losses are announced."""
    tally = Tally()

    for seed in range(21):
        run(seed, 400, tally)

    assert tally.promotions > 35
    assert tally.acknowledged > 2_000
    assert tally.losses


def test_a_history_is_the_same_each_time() -> None:
    """A seed is enough to repeat a failure."""
    first, second = (run(3, 300) for _ in range(2))

    assert first.world.lease == second.world.lease
    assert first.world.judge.safe == second.world.judge.safe


# -- twins -------------------------------------------------------------------------------------------------------------


def is_found(shapes: tuple[Shape, ...], *, histories: int, steps: int = 500) -> bool:
    """Whether the judge notices anything in so many histories."""
    for seed in range(histories):
        history = History(shapes[seed % len(shapes)], seed)
        try:
            history.run(steps)
            history.heal()
            history.calm(20)
        except Wrong:
            return True
    return False


def test_nothing_is_found_with_all_rules() -> None:
    """In the histories in which twins are found."""
    assert not any(is_found(shapes, histories=24) for shapes in (SYNC, ASYNC, CAREFUL))


def test_a_promotion_without_enough_promises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """S - k + 1 is needed, and no less."""
    monkeypatch.setattr(ballot, "promises_needed", lambda electable, acks_needed: 0)

    assert is_found(SYNC, histories=200)


def test_a_vote_of_an_emptied_disk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A voter is a store that has lost nothing, and not a number."""
    monkeypatch.setattr(ballot, "voters_of", lambda term, ballots: [b for b in ballots if b.number in term.numbers])
    monkeypatch.setattr(ballot, "is_own_witness", lambda term, master: True)

    assert is_found(SYNC, histories=200)


def test_a_loss_beyond_the_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bound, somebody is promoted who lacks more than the spec allows."""
    monkeypatch.setattr(electing, "may_lose", lambda *_, **__: ALLOWED)
    monkeypatch.setattr(electing, "may", lambda *_: ALLOWED)
    monkeypatch.setattr(group, "may", lambda *_: ALLOWED)

    assert is_found(CAREFUL, histories=200)


def test_a_loss_counted_from_an_old_look_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the master took after it was heard last is lost, too, and has to be announced."""

    def unaware(term: Term, winner: Ballot, ballots: list[Ballot], word: LastWord | None, _: int) -> Loss:
        return ballot.loss_of(term, winner, ballots, word, 0)

    monkeypatch.setattr(view, "loss_of", unaware)

    assert is_found(ASYNC, histories=200)


def two_minds(world: World) -> None:
    """A master was started again; one who decides hears only of him, and the other only of the slaves."""
    history = History(SYNC[0], 1, world)
    assert history.calm() < 50
    for number in world.brokers:
        world.copy(number, 1_000)
    world.crash(1)
    world.restart(1)
    see(world, 0, 1, 2, 3)  # the Lease is taken
    see(world, 0, 1, 2, 3)  # all promise
    world.advance(4_000, 0)
    for name in (0, 1):
        world.read_lease(name)
    see(world, 0, 2, 3)  # a slave is named
    see(world, 0, 2, 3)  # and promoted
    world.deciders[1].members.clear()
    look = world.look(1, 1)
    assert look is not None
    world.hear(1, look)
    act_on(world, 1)  # the old master is named, too, by who has not read the Lease since
    see(world, 1, 1)


def see(world: World, name: int, *numbers: int) -> None:
    """Look at the Lease and these, and do what follows."""
    world.read_lease(name)
    world.deciders[name].members = {}
    for number in numbers:
        look = world.look(name, number)
        assert look is not None
        world.hear(name, look)
    act_on(world, name)


def act_on(world: World, name: int) -> None:
    """Decide, and have it done."""
    world.decide(name)
    for _ in range(len(world.deciders[name].under_way)):
        world.deliver(name, 0)


def test_two_who_decide_name_one_master() -> None:
    """Whoever comes second finds the Lease changed."""
    world = World(SYNC[0].spec, acks_needed=1)

    two_minds(world)

    assert len(world.judge.masters) == 2


def test_a_lease_that_is_overwritten_is_found() -> None:
    """Without compare-and-swap, the same two name two masters of one epoch."""
    world = World(SYNC[0].spec, acks_needed=1)
    world.is_compared = False

    with pytest.raises(Wrong, match="has the masters"):
        two_minds(world)


def cut_off(world: World) -> None:
    """The master of an asynchronous group reaches its clients and its Lease, and nobody else reaches it."""
    assert History(ASYNC[0], 1, world).calm() < 50
    for number in world.brokers:
        world.copy(number, 1_000)
    master = next(broker.number for broker in world.brokers.values() if broker.role is Role.MASTER)
    others: list[int | str] = [number for number in world.brokers if number != master]
    world.cut |= {frozenset({master, other}) for other in [*others, "op0", "op1"]}
    for _ in range(4 * LEASE_MS // 500):
        world.renew()
        world.advance(500, 1.0)
        for number in (0, 1):
            world.read_lease(number)
            for member in world.spec.members:
                look = world.look(number, member)
                assert look is not None
                world.hear(number, look)
            world.decide(number)
            for _ in range(len(world.deciders[number].under_way)):
                world.deliver(number, 0)


def test_a_master_that_is_cut_off_has_stopped_before_another_begins() -> None:
    """It may acknowledge as long as its Lease runs, and the new master waits for that."""
    world = World(ASYNC[0].spec, acks_needed=0)

    cut_off(world)

    assert len(world.judge.masters) == 2
    [(lost, announced)] = world.judge.losses
    assert 0 < lost <= announced <= 1_000 << 20


def test_a_promotion_before_the_keys_are_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait, the old master acknowledges what the new one does not have."""
    monkeypatch.setattr(View, "silent_by_ms", lambda self, term, ballots: self.now_ms)
    world = World(ASYNC[0].spec, acks_needed=0)

    with pytest.raises(Wrong, match=r"after epoch|were announced"):
        cut_off(world)
