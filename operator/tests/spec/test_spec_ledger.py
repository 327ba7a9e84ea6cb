"""What is at risk is counted against each fault, and what is not known is never called zero."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_world.looks import NOW_MS, healthy, record_of, spec_with, with_record, with_report

from gantry_spec import actions as act
from gantry_spec.gate import contract_kept, may, may_lose
from gantry_spec.ledger import Fault, Ledger, band_of, behind, ledger_of
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Role
from gantry_status.broker_state import SlaveState

ASYNC: dict[str, Any] = {"replication": {"mode": "Async"}}


def ledger(spec: Spec | None = None, *, received: int | None = 9_000, acks_needed: int = 0, **master: Any) -> Ledger:
    """Of a shard with one slave: [flushed 7000, committed 8000, received 9000, wrote 10000)."""
    slaves = (SlaveState(number=2, identity="store-2", received=received),)
    said: dict[str, Any] = {"committed": 8_000, "flushed": 7_000, "slaves": slaves} | master
    shard = with_report(healthy(acks_needed=acks_needed), 1, **said)
    return ledger_of(spec or spec_with(**ASYNC), shard, NOW_MS)


def at_risk(one: Ledger) -> dict[str, int | None]:
    """In bytes."""
    return {str(fault): one.risk(fault).bytes for fault in Fault}


def test_only_slaves_are_behind_the_master_that_the_lease_names() -> None:
    """A master is behind nobody, a member without a role has no lag, and a master of an older term is not compared."""
    shard = with_report(healthy(slaves=2, wrote=10_000), 2, wrote=9_000)
    stale = with_report(shard, 3, role=Role.MASTER, epoch=2_000, wrote=50_000)
    unread = msgspec.structs.replace(shard, lease=None)

    assert behind(shard) == {1: None, 2: 1_000, 3: 0}
    assert behind(stale) == {1: None, 2: 1_000, 3: None}
    assert behind(with_report(shard, 3, role=Role.UNASSIGNED)) == {1: None, 2: 1_000, 3: None}
    assert behind(with_report(shard, 1, role=Role.UNASSIGNED)) == {1: None, 2: None, 3: None}
    assert behind(unread) == {1: None, 2: 1_000, 3: 0}, "the member that reports the role is taken"


def test_each_fault_takes_what_does_not_survive_it() -> None:
    """A buffer that outlives its process loses nothing with it; a slave keeps what it has received."""
    assert at_risk(ledger()) == {"process": 0, "machine": 1_000, "disk": 1_000, "slave": 10_000}
    assert at_risk(ledger(is_crash_safe=False))["process"] == 1_000
    assert at_risk(ledger(is_crash_safe=False, received=0))["process"] == 2_000
    assert at_risk(ledger(received=0)) == {"process": 0, "machine": 3_000, "disk": 10_000, "slave": 10_000}


def test_what_was_not_acknowledged_is_not_at_risk() -> None:
    """Where acks are waited for, everything acknowledged is elsewhere, too."""
    sync = ledger(spec_with(), acks_needed=1, acked=9_000)

    assert at_risk(sync) == {"process": 0, "machine": 0, "disk": 0, "slave": 9_000}
    flushed = ledger(spec_with(**ASYNC, flush={"mode": "Sync"}), received=0)
    assert at_risk(flushed)["machine"] == 0


def test_a_second_slave_covers_the_loss_of_the_first() -> None:
    """What only the furthest slave has is what its loss puts at risk."""
    slaves = (SlaveState(number=2, received=9_000), SlaveState(number=3, received=6_000))
    shard = with_report(healthy(slaves=2, acks_needed=0), 1, slaves=slaves)

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
def test_unknown_is_unknown_and_never_zero(change: dict[str, Any], unknown: set[str]) -> None:
    """Unless what is known is enough to say zero."""
    one = ledger(**change)

    assert {fault for fault, size in at_risk(one).items() if size is None} == unknown
    assert not contract_kept(one, spec_with(**ASYNC)).is_allowed or "machine" not in unknown


def test_without_a_master_nothing_is_known() -> None:
    """Nor of one that was the master of an older epoch."""
    for shard in (with_record(healthy(), None), with_record(healthy(), record_of(epoch=9_000))):
        assert set(at_risk(ledger_of(spec_with(), shard, NOW_MS)).values()) == {None}
    demoted = with_report(healthy(), 1, role=Role.UNASSIGNED)
    assert ledger_of(spec_with(), demoted, NOW_MS).master is None


def test_the_age_of_a_risk_is_never_less_than_it_is() -> None:
    """It counts from the last look at which the oldest byte at risk was not there yet; without one it is unknown."""
    spec = spec_with(**ASYNC)

    def look(at_ms: int, wrote: int, previous: Ledger | None) -> Ledger:
        shard = healthy(acks_needed=0, wrote=wrote, flushed=7_000, asked_ms=at_ms)
        return ledger_of(spec, with_report(shard, 1, slaves=()), at_ms, previous)

    unknown = look(NOW_MS, 8_000, None)
    safe = look(NOW_MS, 7_000, None)
    first = look(NOW_MS + 300, 8_000, safe)
    second = look(NOW_MS + 700, 9_000, first)

    ages = [one.risk(Fault.MACHINE).age_ms for one in (unknown, safe, first, second)]
    assert ages == [None, 0, 300, 700]


def test_a_ledger_says_how_old_it_is() -> None:
    """A look that is older than a master may be silent is not fresh."""
    old = with_report(healthy(), 1, asked_ms=NOW_MS - 6_000)

    assert ledger_of(spec_with(), healthy(), NOW_MS).is_fresh
    assert not ledger_of(spec_with(), old, NOW_MS).is_fresh
    assert ledger_of(spec_with(), old, NOW_MS).observed_ms == NOW_MS - 6_000


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_bands_are_in_order(one: int, other: int) -> None:
    """More bytes are never in a smaller band, and none is a band of its own."""
    names = ["none", "64Ki", "1Mi", "16Mi", "256Mi", "more"]

    assert (names.index(band_of(one)) <= names.index(band_of(other))) or one > other
    assert (band_of(one) == "none") == (one == 0)
    assert band_of(None) == "unknown"


def test_the_ledger_says_what_is_waited_for() -> None:
    """The buffer, the disk, or a slave."""
    assert ledger().bound == "buffer"
    assert ledger(committed=10_000).bound == "disk"
    assert ledger(committed=10_000, flushed=10_000).bound == "slave"
    assert ledger(committed=10_000, flushed=10_000, received=10_000).bound == ""


# -- the gate ----------------------------------------------------------------------------------------------------------


def restart(member: int) -> act.Restart:
    """Of one."""
    return act.Restart(shard=0, member=member, boot_id="")


def whole(**changes: Any) -> Ledger:
    """Two slaves, everything flushed and in sync."""
    shard = healthy(slaves=2)
    return msgspec.structs.replace(ledger_of(spec_with(slaves=2), shard, NOW_MS), **changes)


def test_a_slave_may_go_while_enough_others_are_in_sync() -> None:
    """With its last ack the shard would only say 11: then it has to be withdrawn before."""
    spec = spec_with(slaves=2)

    assert may(restart(2), whole(), spec).is_allowed
    blocked = may(restart(2), whole(in_sync=(2,)), spec)
    assert not blocked.is_allowed
    assert "acknowledgements need 1 slaves, and 0 would be left; withdraw first" in blocked.because
    assert may(restart(2), whole(in_sync=(2,), is_draining=True), spec).is_allowed


def test_a_master_goes_only_drained_and_flushed() -> None:
    """How many bytes that is about is said."""
    spec = spec_with(slaves=2)

    assert "it is not drained" in may(restart(1), whole(), spec).because
    unflushed = may(restart(1), whole(is_draining=True, flushed=4_000), spec)
    assert (unflushed.is_allowed, unflushed.bytes) == (False, 6_000)
    assert may(restart(1), whole(is_draining=True, flushed=None), spec).bytes is None
    assert may(restart(1), whole(is_draining=True), spec).is_allowed


@pytest.mark.parametrize(
    "action", [restart(2), act.Remove(shard=0, member=2, boot_id=""), act.ReplaceDisk(shard=0, member=2, disk_id="")]
)
def test_nothing_is_stopped_on_an_old_look(action: act.MemberAction) -> None:
    """What is at risk now is what counts."""
    verdict = may(action, whole(is_fresh=False), spec_with())

    assert (verdict.is_allowed, verdict.bytes) == (False, None)


def test_a_masters_disk_is_never_replaced() -> None:
    """Drained or not."""
    assert not may(act.ReplaceDisk(shard=0, member=1, disk_id=""), whole(is_draining=True), spec_with()).is_allowed


def test_nothing_is_made_worse_while_the_contract_is_broken() -> None:
    """More at risk than the spec allows: first that, then the roll."""
    spec = spec_with(**ASYNC, durability={"maxAtRiskBytes": 500})
    one = ledger(spec)

    verdict = may(restart(2), one, spec)

    assert (verdict.is_allowed, verdict.bytes) == (False, 1_000)
    assert verdict.because == "1000 bytes are at risk, and the spec allows 500 bytes"


@pytest.mark.parametrize(
    ("at_most", "accepted", "is_allowed"),
    [(0, 0, True), (100, 0, True), (101, 0, False), (101, 200, True), (None, 0, False), (None, None, True)],
)
def test_a_loss_is_weighed_in_bytes(at_most: int | None, accepted: int | None, is_allowed: bool) -> None:
    """The bound of the spec, or what a person has accepted; unknown only if a person has accepted whatever it is."""
    spec = spec_with(failover={"maxDataLossBytes": 100})

    assert may_lose(at_most, spec, accepted=accepted).is_allowed == is_allowed
