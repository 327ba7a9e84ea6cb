"""Decisions about a failed master. The invariants of all histories are in ``test_spec_worlds``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from spec_world.decisions import decided_actions, wait_reasons, with_disconnected_slaves, with_silent_member
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

from gantry_spec import actions as act
from gantry_spec.ballot import UNOBSERVED_BYTES_PER_S
from gantry_spec.decide import decide
from gantry_spec.explain import explain
from gantry_spec.lease import EPOCH_STRIDE, TERMS_MAX, Goal
from gantry_spec.observed import LastReport, ObservedShard, Process, PromotionRequest, Role

NEXT = EPOCH + EPOCH_STRIDE
ASYNC: dict[str, Any] = {"replication": {"mode": "Async"}}


# -- failover ----------------------------------------------------------------------------------------------------------


def test_an_epoch_is_taken_before_any_promise_is_requested() -> None:
    """No member is asked for a promise or promoted before the new epoch is in the Lease."""
    [take] = decided_actions(with_disconnected_slaves(with_silent_member(healthy_shard(), 1), 2))

    assert isinstance(take, act.TakeEpoch)
    assert (take.expected, take.record.epoch, take.record.is_settled) == ("7", NEXT, False)
    assert take.record.terms == lease_record_of().terms


def test_a_failed_master_is_awaited_for_the_timeout() -> None:
    """Its process may be back in a moment with all its data."""
    shard = with_silent_member(healthy_shard(), 1, for_ms=2_000, process=Process.STOPPED)

    assert "master 1 does not answer" in wait_reasons(with_disconnected_slaves(shard, 2))


def test_a_master_in_contact_with_its_slaves_has_not_failed() -> None:
    """Then the operator is partitioned, or the master's sidecar has failed."""
    assert "slaves [2] are connected to it" in wait_reasons(with_silent_member(healthy_shard(), 1))


def test_no_election_starts_that_cannot_succeed() -> None:
    """Slaves that have promised stop following the old master, so the votes are counted first."""
    shard = with_disconnected_slaves(with_silent_member(with_silent_member(healthy_shard(slaves=2), 1), 3), 2)

    assert "2 of the slaves [2, 3] of epoch 3000 must vote, and [3] cannot" in wait_reasons(shard, spec_with(slaves=2))


def with_taken_epoch(shard: ObservedShard, **goal: Any) -> ObservedShard:
    """Return the shard after a new epoch was taken in the Lease."""
    assert shard.lease is not None
    assert shard.lease.record is not None
    values: dict[str, Any] = {"why": "it is gone", "may_move": True} | goal
    goal_value = Goal(**values)
    return with_record(shard, msgspec.structs.replace(shard.lease.record, epoch=NEXT, goal=goal_value))


def with_promises(shard: ObservedShard, *numbers: int, **changes: Any) -> ObservedShard:
    """Return the shard after these members have promised the new epoch."""
    for number in numbers:
        fields = {"promised_epoch": NEXT, "role": Role.UNASSIGNED, "granted_ms": 0} | changes
        shard = with_report(shard, number, **fields)
    return shard


def test_all_members_that_may_answer_are_asked_for_a_promise() -> None:
    """The old master is asked, too: if it lives, the promise fences it."""
    assert decided_actions(with_taken_epoch(with_silent_member(healthy_shard(), 1))) == [
        act.Promise(shard=0, member=1, epoch=NEXT),
        act.Promise(shard=0, member=2, epoch=NEXT),
    ]


def test_the_longest_log_among_enough_voters_wins() -> None:
    """The next election asks the others, including the old master."""
    shard = with_promises(with_taken_epoch(with_silent_member(healthy_shard(slaves=2), 1)), 2, 3)
    shard = with_report(shard, 2, wrote=9_000)

    record_action = decided_actions(shard, spec_with(slaves=2))[0]

    assert isinstance(record_action, act.RecordMaster)
    term = record_action.record.newest
    assert term is not None
    assert (term.master, term.epoch, term.numbers, term.end, term.loss) == (3, NEXT, (1, 2), 10_000, 0)
    assert record_action.record.terms[0] == lease_record_of(1, (2, 3)).terms[0]


def test_one_promise_too_few_elects_no_member() -> None:
    """With two slaves and one ack needed, both must promise."""
    shard = with_promises(with_taken_epoch(with_silent_member(healthy_shard(slaves=2), 1)), 2)
    decision = decide(spec_with(slaves=2), observed_group(shard), NOW_MS)

    assert not any(isinstance(one, act.RecordMaster) for one in decision.actions)
    assert "2 of the slaves [2, 3] of epoch 3000 must vote, and [3] cannot" in decision.waits[0].why


def test_a_master_that_returns_with_a_complete_log_continues() -> None:
    """It has everything that it ever acknowledged, so it needs no other vote, in every mode."""
    shard = with_promises(with_taken_epoch(with_silent_member(healthy_shard(), 2), may_move=False), 1)

    for mode in ("Automatic", "Manual", "Disabled"):
        record_action = decided_actions(shard, spec_with(failover={"mode": mode}))[0]
        assert isinstance(record_action, act.RecordMaster)
        assert record_action.record.newest is not None
        assert record_action.record.newest.master == 1


def test_a_damaged_master_hands_over_to_an_equal_slave_only_where_the_role_may_move() -> None:
    """In other modes the shard would wait for a person."""
    for may_move, mode, expected in ((True, "Automatic", 2), (False, "Manual", 1), (False, "Disabled", 1)):
        shard = with_promises(with_taken_epoch(healthy_shard(), may_move=may_move), 1, 2)
        shard = with_report(shard, 1, damaged_bytes=700)
        record_action = decided_actions(shard, spec_with(failover={"mode": mode}))[0]
        assert isinstance(record_action, act.RecordMaster), mode
        assert record_action.record.newest is not None
        assert record_action.record.newest.master == expected, mode


@pytest.mark.parametrize(("is_complete", "is_unknown"), [(True, False), (False, True), (None, True)])
def test_an_unknown_loss_of_all_members_is_disclosed_and_waits_for_nothing(
    is_complete: bool | None, is_unknown: bool
) -> None:
    """The record, the reason of the action and the forecast state it; the master is recorded in the same round."""
    shard = with_promises(with_taken_epoch(healthy_shard()), 1, 2, is_complete=is_complete)
    record_action = decided_actions(shard)[0]

    assert isinstance(record_action, act.RecordMaster)
    term = record_action.record.newest
    assert term is not None
    assert (term.loss, term.is_loss_unknown) == (0, is_unknown)
    assert ("the loss is unknown" in record_action.why) is is_unknown
    assert ("0 B lost at most" in record_action.why) is not is_unknown

    [outlook] = explain(spec_with(), observed_group(with_record(shard, record_action.record)), NOW_MS)
    unknown = f"the election of epoch {NEXT} may have lost acknowledged messages; how many is unknown"
    assert outlook.election_loss == (unknown if is_unknown else "")
    assert (f"  {unknown}" in outlook.lines) is is_unknown


def test_a_master_that_may_have_lost_its_tail_waits_for_its_slaves() -> None:
    """A slave may have what it lost."""
    shard = with_promises(with_taken_epoch(with_silent_member(healthy_shard(), 2)), 1, is_complete=False)
    decision = decide(spec_with(), observed_group(shard), NOW_MS)

    assert not any(isinstance(one, act.RecordMaster) for one in decision.actions)


def test_a_newer_promise_of_a_member_leads_to_a_newer_epoch() -> None:
    """Another process holds or held an election; its epochs are exceeded, never reused."""
    shard = with_report(with_taken_epoch(healthy_shard()), 2, promised_epoch=NEXT + 7)

    [take] = decided_actions(shard)

    assert isinstance(take, act.TakeEpoch)
    assert take.record.epoch == NEXT + EPOCH_STRIDE


@pytest.mark.parametrize("mode", ["Manual", "Disabled"])
def test_the_role_moves_only_on_request(mode: str) -> None:
    """In Manual mode a request moves the role, in Disabled mode nothing does."""
    shard, spec = (
        with_disconnected_slaves(with_silent_member(healthy_shard(), 1), 2),
        spec_with(failover={"mode": mode}),
    )

    assert f"failover.mode is {mode}" in wait_reasons(shard, spec)

    ordered = msgspec.structs.replace(shard, request=PromotionRequest(id="w", to=2))
    kinds = [type(one) for one in decided_actions(ordered, spec)]
    assert kinds == ([act.TakeEpoch] if mode == "Manual" else [])


def with_terms(shard: ObservedShard, count: int) -> ObservedShard:
    """Return the shard with so many terms in its Lease, each with another store of the master, the present one last."""
    assert shard.lease is not None and shard.lease.record is not None
    present = shard.lease.record.terms[-1]
    terms = [msgspec.structs.replace(present, epoch=number, identity=f"former-{number}") for number in range(1, count)]
    return with_record(shard, msgspec.structs.replace(shard.lease.record, terms=(*terms, present)))


def test_no_term_is_recorded_that_a_reader_of_the_lease_would_refuse() -> None:
    """No epoch is taken while the record is full, so that the old master may return; nor is another master recorded."""
    failed = with_disconnected_slaves(with_silent_member(healthy_shard(), 1, process=Process.STOPPED), 2)
    full, nearly = with_terms(failed, TERMS_MAX), with_terms(failed, TERMS_MAX - 1)

    assert (
        "the Lease has 16 terms, which is the limit, and no master has replaced them. Start master 1"
        in wait_reasons(full)
    )
    assert act.TakeEpoch in {type(one) for one in decided_actions(nearly)}

    full, nearly = (with_promises(with_taken_epoch(shard), 2) for shard in (full, nearly))
    assert "member 2 cannot be recorded as master: the Lease has 16 terms" in wait_reasons(full)
    [recorded] = [one for one in decided_actions(nearly) if isinstance(one, act.RecordMaster)]
    assert len(recorded.record.terms) == TERMS_MAX


# -- asynchronous replication ------------------------------------------------------------------------------------------


def async_shard_with_ended_master(*, gap: int, stopped_ms: int = 3_000) -> ObservedShard:
    """Return an asynchronous shard whose master's process has ended and whose slave lacks ``gap`` bytes."""
    shard = with_disconnected_slaves(
        with_silent_member(
            healthy_shard(acks_needed=0), 1, process=Process.STOPPED, stopped_by_ms=NOW_MS - 20_000 + stopped_ms
        ),
        2,
    )
    return with_report(shard, 2, wrote=10_000 - gap)


def test_a_failover_with_too_much_loss_is_blocked() -> None:
    """What the slave lacks, plus what the master may have taken since its last report, exceeds the limit."""
    assert "3.0 MiB could be lost, but spec.failover.maxDataLossBytes allows 0 B" in wait_reasons(
        async_shard_with_ended_master(gap=2_000), spec_with(**ASYNC)
    )


def test_a_loss_within_the_limit_is_accepted() -> None:
    """The loss is recorded with the new term."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": 2_000 + 3 * UNOBSERVED_BYTES_PER_S})
    shard = async_shard_with_ended_master(gap=2_000)

    assert [type(one) for one in decided_actions(shard, spec)] == [act.Start, act.TakeEpoch]

    last_report = LastReport(epoch=EPOCH, asked_ms=NOW_MS - 20_000, epoch_start=0, wrote=10_000, peak_bytes_per_s=1_000)
    shard = msgspec.structs.replace(with_promises(with_taken_epoch(shard), 2), last_report=last_report)
    shard = with_member(shard, 1, process_asked_ms=NOW_MS, acks_needed=0)
    record_action = decided_actions(shard, spec)[1]
    assert isinstance(record_action, act.RecordMaster)
    assert record_action.record.newest is not None
    assert (record_action.record.newest.master, record_action.record.newest.loss) == (
        2,
        2_000 + 3 * UNOBSERVED_BYTES_PER_S,
    )


def test_an_unknown_loss_is_never_within_a_limit() -> None:
    """If the master's peak load is unknown, only a person can accept the loss."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": "1Gi"})
    shard = with_report(async_shard_with_ended_master(gap=0), 1, peak_bytes_per_s=None)

    assert "the possible loss is unknown" in wait_reasons(shard, spec)

    accepted = msgspec.structs.replace(shard, request=PromotionRequest(id="w", loss_accepted=None))
    assert isinstance(decided_actions(accepted, spec)[1], act.TakeEpoch)


def test_a_new_master_waits_until_lease_and_grant_of_the_old_one_have_expired() -> None:
    """Until then the old master may acknowledge sends."""
    spec = spec_with(**ASYNC, failover={"maxDataLossBytes": "1Gi"})
    shard = with_promises(with_taken_epoch(with_silent_member(healthy_shard(acks_needed=0), 1)), 2)
    assert shard.lease is not None
    early = with_record(shard, shard.lease.record, age_ms=10_000)
    granting = with_report(shard, 2, granted_ms=3_000)

    for blocked in (early, granting):
        decision = decide(spec, observed_group(blocked), NOW_MS)
        assert not any(isinstance(one, act.RecordMaster) for one in decision.actions)
        assert "may still acknowledge" in decision.waits[0].why
    assert isinstance(decided_actions(shard, spec)[0], act.RecordMaster)
