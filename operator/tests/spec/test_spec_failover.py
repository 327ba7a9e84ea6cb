"""What is decided when a master is gone. What may never happen in any case is in ``test_spec_worlds``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from spec_world.decided import deaf, decided, silent, waits
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
from gantry_spec.ballot import UNSEEN_BYTES_PER_S
from gantry_spec.decide import decide
from gantry_spec.lease import EPOCH_STRIDE, Goal
from gantry_spec.observed import LastWord, ObservedShard, Process, PromotionRequest, Role

NEXT = EPOCH + EPOCH_STRIDE
ASYNC: dict[str, Any] = {"replication": {"mode": "Async"}}


# -- failover ----------------------------------------------------------------------------------------------------------


def test_a_silent_master_loses_the_lease_first() -> None:
    """Nobody is asked for a promise, nor promoted, before the new epoch is written down."""
    [take] = decided(deaf(silent(healthy(), 1), 2))

    assert isinstance(take, act.TakeLease)
    assert (take.expected, take.record.epoch, take.record.is_settled) == ("7", NEXT, False)
    assert take.record.terms == record_of().terms


def test_a_master_is_not_given_up_at_once() -> None:
    """Its process may be back in a moment, with all that it had."""
    shard = silent(healthy(), 1, for_ms=2_000, process=Process.STOPPED)

    assert "master 1 is silent" in waits(deaf(shard, 2))


def test_a_master_whom_its_slaves_hear_is_not_dead() -> None:
    """Then it is we who are cut off, or its sidecar is gone."""
    assert "members [2] hear it" in waits(silent(healthy(), 1))


def test_nobody_is_disturbed_by_an_election_that_cannot_succeed() -> None:
    """Slaves that have promised follow the old master no more: so it is looked first whether enough could promise."""
    shard = deaf(silent(silent(healthy(slaves=2), 1), 3), 2)

    assert "2 of the slaves [2, 3] of epoch 3000 must vote, and [3] cannot" in waits(shard, spec_with(slaves=2))


def electing(shard: ObservedShard, **goal: Any) -> ObservedShard:
    """The same shard after the Lease was taken for a new epoch."""
    assert shard.lease is not None
    assert shard.lease.record is not None
    values: dict[str, Any] = {"why": "it is gone", "may_move": True} | goal
    goal_value = Goal(**values)
    return with_record(shard, msgspec.structs.replace(shard.lease.record, epoch=NEXT, goal=goal_value))


def promised(shard: ObservedShard, *numbers: int, **changes: Any) -> ObservedShard:
    """These have promised the new epoch."""
    for number in numbers:
        said = {"promised_epoch": NEXT, "role": Role.UNASSIGNED, "granted_ms": 0} | changes
        shard = with_report(shard, number, **said)
    return shard


def test_everybody_who_may_answer_is_asked_for_a_promise() -> None:
    """The old master, too: if it lives, it is fenced by that."""
    assert decided(electing(silent(healthy(), 1))) == [
        act.Promise(shard=0, member=1, epoch=NEXT),
        act.Promise(shard=0, member=2, epoch=NEXT),
    ]


def test_the_furthest_of_enough_is_named() -> None:
    """And the next election asks the others, the old master among them."""
    shard = promised(electing(silent(healthy(slaves=2), 1)), 2, 3)
    shard = with_report(shard, 2, wrote=9_000)

    crown = decided(shard, spec_with(slaves=2))[0]

    assert isinstance(crown, act.Crown)
    term = crown.record.newest
    assert term is not None
    assert (term.master, term.epoch, term.numbers, term.end, term.loss) == (3, NEXT, (1, 2), 10_000, 0)
    assert crown.record.terms[0] == record_of(1, (2, 3)).terms[0]


def test_one_promise_too_few_names_nobody() -> None:
    """With two slaves and one ack needed, both must promise."""
    shard = promised(electing(silent(healthy(slaves=2), 1)), 2)
    decision = decide(spec_with(slaves=2), observed(shard), NOW_MS)

    assert not any(isinstance(one, act.Crown) for one in decision.actions)
    assert "2 of the slaves [2, 3] of epoch 3000 must vote, and [3] cannot" in decision.waits[0].why


def test_a_master_that_comes_back_whole_goes_on() -> None:
    """It has all that it ever acknowledged, so it needs nobody's vote, in every mode."""
    shard = promised(electing(silent(healthy(), 2), may_move=False), 1)

    for mode in ("Automatic", "Manual", "Disabled"):
        crown = decided(shard, spec_with(failover={"mode": mode}))[0]
        assert isinstance(crown, act.Crown)
        assert crown.record.newest is not None
        assert crown.record.newest.master == 1


def test_a_damaged_master_hands_over_to_an_equal_slave_only_where_the_role_may_move() -> None:
    """Elsewhere it would wait for a person, and the shard with it."""
    for may_move, mode, expected in ((True, "Automatic", 2), (False, "Manual", 1), (False, "Disabled", 1)):
        shard = promised(electing(healthy(), may_move=may_move), 1, 2)
        shard = with_report(shard, 1, damaged_bytes=700)
        crown = decided(shard, spec_with(failover={"mode": mode}))[0]
        assert isinstance(crown, act.Crown), mode
        assert crown.record.newest is not None
        assert crown.record.newest.master == expected, mode


def test_a_master_that_may_have_lost_its_tail_waits_for_its_slaves() -> None:
    """What it has forgotten, one of them has."""
    shard = promised(electing(silent(healthy(), 2)), 1, is_whole=False)
    decision = decide(spec_with(), observed(shard), NOW_MS)

    assert not any(isinstance(one, act.Crown) for one in decision.actions)


def test_a_newer_promise_somewhere_takes_a_newer_epoch() -> None:
    """Somebody else is at it, or was: his epochs are passed, never repeated."""
    shard = with_report(electing(healthy()), 2, promised_epoch=NEXT + 7)

    [take] = decided(shard)

    assert isinstance(take, act.TakeLease)
    assert take.record.epoch == NEXT + EPOCH_STRIDE


@pytest.mark.parametrize("mode", ["Manual", "Disabled"])
def test_the_role_moves_on_order_only(mode: str) -> None:
    """In Manual mode an order moves it, in Disabled mode nothing does."""
    shard, spec = deaf(silent(healthy(), 1), 2), spec_with(failover={"mode": mode})

    assert f"failover.mode is {mode}" in waits(shard, spec)

    ordered = msgspec.structs.replace(shard, request=PromotionRequest(id="w", to=2))
    kinds = [type(one) for one in decided(ordered, spec)]
    assert kinds == ([act.TakeLease] if mode == "Manual" else [])


# -- where nobody waits for slaves -------------------------------------------------------------------------------------


def dead_async(*, gap: int, stopped_ms: int = 3_000) -> ObservedShard:
    """An asynchronous group whose master's process has ended; the slave lacks something."""
    shard = deaf(
        silent(healthy(acks_needed=0), 1, process=Process.STOPPED, stopped_by_ms=NOW_MS - 20_000 + stopped_ms), 2
    )
    return with_report(shard, 2, wrote=10_000 - gap)


def test_a_lossy_failover_is_announced_and_not_done() -> None:
    """What the slave lacks, and what the master may have taken since it was heard last, is more than is allowed."""
    assert "3.0 MiB could be lost, and spec.failover.maxDataLossBytes allows 0 bytes" in waits(
        dead_async(gap=2_000), spec_with(**ASYNC)
    )


def test_a_loss_within_the_bound_is_accepted() -> None:
    """It is written down with the new term."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": 2_000 + 3 * UNSEEN_BYTES_PER_S})
    shard = dead_async(gap=2_000)

    assert [type(one) for one in decided(shard, spec)] == [act.Start, act.TakeLease]

    word = LastWord(epoch=EPOCH, asked_ms=NOW_MS - 20_000, epoch_start=0, wrote=10_000, peak_bytes_per_s=1_000)
    shard = msgspec.structs.replace(promised(electing(shard), 2), last_word=word)
    shard = with_member(shard, 1, process_asked_ms=NOW_MS, acks_needed=0)
    crown = decided(shard, spec)[1]
    assert isinstance(crown, act.Crown)
    assert crown.record.newest is not None
    assert (crown.record.newest.master, crown.record.newest.loss) == (2, 2_000 + 3 * UNSEEN_BYTES_PER_S)


def test_a_loss_that_nobody_knows_is_never_within_a_bound() -> None:
    """Unknown is not zero: without a last word of the master, only a person can say yes."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": "1Gi"})
    shard = with_report(dead_async(gap=0), 1, peak_bytes_per_s=None)

    assert "nobody knows how much would be lost" in waits(shard, spec)

    accepted = msgspec.structs.replace(shard, request=PromotionRequest(id="w", loss_accepted=None))
    assert isinstance(decided(accepted, spec)[1], act.TakeLease)


def test_a_new_master_waits_until_the_old_one_has_lost_both_keys() -> None:
    """The Lease has to run out, and a slave's grant."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": "1Gi"})
    shard = promised(electing(silent(healthy(acks_needed=0), 1)), 2)
    assert shard.lease is not None
    early = with_record(shard, shard.lease.record, age_ms=10_000)
    granting = with_report(shard, 2, granted_ms=3_000)

    for look in (early, granting):
        decision = decide(spec, observed(look), NOW_MS)
        assert not any(isinstance(one, act.Crown) for one in decision.actions)
        assert "may still acknowledge" in decision.waits[0].why
    assert isinstance(decided(shard, spec)[0], act.Crown)
