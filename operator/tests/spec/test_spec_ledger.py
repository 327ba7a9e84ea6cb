"""The durability ledger counts the bytes at risk by fault, and never treats unknown as zero."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_world.observations import NOW_MS, healthy_shard, lease_record_of, spec_with, with_record, with_report

from gantry_spec import actions as act
from gantry_spec.gate import check_action, check_durability, check_loss
from gantry_spec.ledger import Fault, Ledger, band_of, bytes_behind, ledger_of
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import ObservedShard, Role
from gantry_status.broker_state import SlaveState

ASYNC: dict[str, Any] = {"replication": {"mode": "Async"}}


def ledger(spec: Spec | None = None, *, received: int | None = 9_000, acks_needed: int = 0, **master: Any) -> Ledger:
    """Return the ledger of a shard with one slave: [flushed 7000, committed 8000, received 9000, wrote 10000)."""
    slaves = (SlaveState(number=2, identity="store-2", received=received),)
    fields: dict[str, Any] = {"committed": 8_000, "flushed": 7_000, "slaves": slaves} | master
    shard = with_report(healthy_shard(acks_needed=acks_needed), 1, **fields)
    return ledger_of(spec or spec_with(**ASYNC), shard, NOW_MS)


def at_risk(one: Ledger) -> dict[str, int | None]:
    """Return the bytes at risk by fault."""
    return {str(fault): one.risk(fault).bytes for fault in Fault}


def test_only_slaves_are_behind_the_master_that_the_lease_names() -> None:
    """Neither the master nor a member without a role has a lag, and a master of an older term is not compared."""
    shard = with_report(healthy_shard(slaves=2, wrote=10_000), 2, wrote=9_000)
    stale = with_report(shard, 3, role=Role.MASTER, epoch=2_000, wrote=50_000)
    unread = msgspec.structs.replace(shard, lease=None)

    assert bytes_behind(shard) == {1: None, 2: 1_000, 3: 0}
    assert bytes_behind(stale) == {1: None, 2: 1_000, 3: None}
    assert bytes_behind(with_report(shard, 3, role=Role.UNASSIGNED)) == {1: None, 2: 1_000, 3: None}
    assert bytes_behind(with_report(shard, 1, role=Role.UNASSIGNED)) == {1: None, 2: None, 3: None}
    assert bytes_behind(unread) == {1: None, 2: 1_000, 3: 0}, (
        "expected the member that reports the role to count as the master"
    )


def test_each_fault_loses_what_does_not_survive_it() -> None:
    """A buffer that survives its process loses nothing with it; a slave keeps what it has received."""
    assert at_risk(ledger()) == {"process": 0, "machine": 1_000, "disk": 1_000, "slave": 10_000}
    assert at_risk(ledger(is_crash_safe=False))["process"] == 1_000
    assert at_risk(ledger(is_crash_safe=False, received=0))["process"] == 2_000
    assert at_risk(ledger(received=0)) == {"process": 0, "machine": 3_000, "disk": 10_000, "slave": 10_000}


def test_unacknowledged_bytes_are_not_at_risk() -> None:
    """Where acks are needed, everything acknowledged has another copy."""
    sync = ledger(spec_with(), acks_needed=1, acked=9_000)

    assert at_risk(sync) == {"process": 0, "machine": 0, "disk": 0, "slave": 9_000}
    flushed = ledger(spec_with(**ASYNC, flush={"mode": "Sync"}), received=0)
    assert at_risk(flushed)["machine"] == 0


def test_a_second_slave_covers_the_loss_of_the_first() -> None:
    """With the loss of the furthest slave only what the second one lacks is at risk."""
    slaves = (SlaveState(number=2, received=9_000), SlaveState(number=3, received=6_000))
    shard = with_report(healthy_shard(slaves=2, acks_needed=0), 1, slaves=slaves)

    assert at_risk(ledger_of(spec_with(**ASYNC, slaves=2), shard, NOW_MS))["slave"] == 4_000


@pytest.mark.parametrize(
    ("change", "unknown"),
    [
        ({"flushed": None, "received": None}, {"machine", "disk"}),
        ({"wrote": None}, {"process", "machine", "disk", "slave"}),
        ({"committed": None, "is_crash_safe": None, "received": 0}, {"process"}),
        ({"received": None}, {"machine", "disk"}),
    ],
    ids=["flushed", "wrote", "committed", "received"],
)
def test_an_unknown_number_makes_the_risk_unknown(change: dict[str, Any], unknown: set[str]) -> None:
    """The exception is a risk that is zero by the known numbers alone."""
    one = ledger(**change)

    assert {fault for fault, size in at_risk(one).items() if size is None} == unknown
    assert not check_durability(one, spec_with(**ASYNC)).is_allowed or "machine" not in unknown


def test_without_a_master_every_risk_is_unknown() -> None:
    """The same holds for the master of an older epoch."""
    for shard in (with_record(healthy_shard(), None), with_record(healthy_shard(), lease_record_of(epoch=9_000))):
        assert set(at_risk(ledger_of(spec_with(), shard, NOW_MS)).values()) == {None}
    demoted = with_report(healthy_shard(), 1, role=Role.UNASSIGNED)
    assert ledger_of(spec_with(), demoted, NOW_MS).master is None


def test_the_age_of_a_risk_is_never_underestimated() -> None:
    """It is measured from the last observation without the oldest byte at risk; without one it is unknown."""
    spec = spec_with(**ASYNC)

    def ledger_at(at_ms: int, wrote: int, previous: Ledger | None) -> Ledger:
        shard = healthy_shard(acks_needed=0, wrote=wrote, flushed=7_000, asked_ms=at_ms)
        return ledger_of(spec, with_report(shard, 1, slaves=()), at_ms, previous)

    unknown = ledger_at(NOW_MS, 8_000, None)
    safe = ledger_at(NOW_MS, 7_000, None)
    first = ledger_at(NOW_MS + 300, 8_000, safe)
    second = ledger_at(NOW_MS + 700, 9_000, first)

    ages = [one.risk(Fault.MACHINE).age_ms for one in (unknown, safe, first, second)]
    assert ages == [None, 0, 300, 700]


def test_a_ledger_with_an_old_report_is_not_fresh() -> None:
    """A report older than `failover.after` is not fresh."""
    old = with_report(healthy_shard(), 1, asked_ms=NOW_MS - 6_000)

    assert ledger_of(spec_with(), healthy_shard(), NOW_MS).is_fresh
    assert not ledger_of(spec_with(), old, NOW_MS).is_fresh
    assert ledger_of(spec_with(), old, NOW_MS).observed_ms == NOW_MS - 6_000


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_bands_are_in_order(one: int, other: int) -> None:
    """More bytes are never in a smaller band, and zero has a band of its own."""
    names = ["none", "64Ki", "1Mi", "16Mi", "256Mi", "more"]

    assert (names.index(band_of(one)) <= names.index(band_of(other))) or one > other
    assert (band_of(one) == "none") == (one == 0)
    assert band_of(None) == "unknown"


def test_the_ledger_names_what_bounds_the_risk() -> None:
    """It is the buffer, the disk, or a slave."""
    assert ledger().bottleneck == "buffer"
    assert ledger(committed=10_000).bottleneck == "disk"
    assert ledger(committed=10_000, flushed=10_000).bottleneck == "slave"
    assert ledger(committed=10_000, flushed=10_000, received=10_000).bottleneck == ""


# -- the gate ----------------------------------------------------------------------------------------------------------


def restart(member: int) -> act.Restart:
    """Return the restart of a member."""
    return act.Restart(shard=0, member=member, boot_id="")


def test_only_slaves_whose_acks_count_can_acknowledge() -> None:
    """The broker counts the electable slaves, or all if none is; a scaled-in or a new slave may be in sync, too."""
    behind = (SlaveState(number=2, received=1_000), SlaveState(number=3, received=10_000))
    near = healthy_shard(slaves=2)
    far = with_report(near, 1, slaves=behind)
    spec = spec_with(slaves=2, replication={"maxLag": 1_000})

    def acknowledging(shard: ObservedShard, electable: tuple[int, ...]) -> tuple[int, ...]:
        return ledger_of(spec, with_record(shard, lease_record_of(1, electable)), NOW_MS).acknowledging

    assert acknowledging(near, (2,)) == (2,)
    assert acknowledging(far, (2,)) == ()
    assert acknowledging(near, ()) == (2, 3)
    assert ledger_of(spec, with_record(near, lease_record_of(1, (2,))), NOW_MS).in_sync == (2, 3)


def ledger_in_sync(**changes: Any) -> Ledger:
    """Return a ledger with two slaves, everything flushed and in sync."""
    shard = healthy_shard(slaves=2)
    return msgspec.structs.replace(ledger_of(spec_with(slaves=2), shard, NOW_MS), **changes)


def test_a_slave_may_stop_while_enough_others_are_in_sync() -> None:
    """Otherwise sends would be answered 11, so the shard must be withdrawn first."""
    spec = spec_with(slaves=2)

    assert check_action(restart(2), ledger_in_sync(), spec).is_allowed
    blocked = check_action(restart(2), ledger_in_sync(acknowledging=(2,)), spec)
    assert not blocked.is_allowed
    assert "acknowledgements need 1 slaves, but 0 would remain; withdraw first" in blocked.reason
    assert check_action(restart(2), ledger_in_sync(acknowledging=(2,), is_draining=True), spec).is_allowed
    assert check_action(restart(3), ledger_in_sync(acknowledging=(2,)), spec).is_allowed, (
        "expected that a slave may stop whose ack no send needs"
    )


def test_a_master_may_stop_only_drained_and_flushed() -> None:
    """The reason has the number of bytes that are not flushed."""
    spec = spec_with(slaves=2)

    assert "is not drained" in check_action(restart(1), ledger_in_sync(), spec).reason
    unflushed = check_action(restart(1), ledger_in_sync(is_draining=True, flushed=4_000), spec)
    assert (unflushed.is_allowed, unflushed.bytes) == (False, 6_000)
    assert check_action(restart(1), ledger_in_sync(is_draining=True, flushed=None), spec).bytes is None
    assert check_action(restart(1), ledger_in_sync(is_draining=True), spec).is_allowed


@pytest.mark.parametrize(
    "action", [restart(2), act.Remove(shard=0, member=2, boot_id=""), act.ReplaceDisk(shard=0, member=2, disk_id="")]
)
def test_nothing_is_stopped_without_a_fresh_ledger(action: act.MemberAction) -> None:
    """The risk must be known at the time of the action."""
    verdict = check_action(action, ledger_in_sync(is_fresh=False), spec_with())

    assert (verdict.is_allowed, verdict.bytes) == (False, None)


def test_a_masters_disk_is_never_replaced() -> None:
    """This holds whether or not it is drained."""
    assert not check_action(
        act.ReplaceDisk(shard=0, member=1, disk_id=""), ledger_in_sync(is_draining=True), spec_with()
    ).is_allowed


def test_no_risk_is_added_while_durability_is_violated() -> None:
    """While more is at risk than the spec allows, a restart of a slave waits. A drain adds no risk."""
    spec = spec_with(**ASYNC, durability={"maxAtRiskBytes": 500})
    one = ledger(spec)

    verdict = check_action(restart(2), one, spec)
    assert check_action(act.Drain(shard=0, member=1, timeout_ms=1), one, spec).is_allowed
    assert check_action(act.Withdraw(shard=0, member=1, timeout_ms=1), one, spec).is_allowed

    assert (verdict.is_allowed, verdict.bytes) == (False, 1_000)
    assert verdict.reason == "1000 B are at risk, but spec.durability allows 500 B"


@pytest.mark.parametrize(
    ("at_most", "accepted", "is_allowed"),
    [(0, 0, True), (100, 0, True), (101, 0, False), (101, 200, True), (None, 0, False), (None, None, True)],
)
def test_a_loss_is_compared_with_the_limit_in_bytes(
    at_most: int | None, accepted: int | None, is_allowed: bool
) -> None:
    """The limit is that of the spec or what a person has accepted; only a person can accept an unknown loss."""
    spec = spec_with(failover={"maxDataLossBytes": 100})

    assert check_loss(at_most, spec, accepted=accepted).is_allowed == is_allowed
