"""The ledger of a shard from the reports of sidecars: which copies count, and how the data at risk ages."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gantry_admin.documents import StatusDocument
from gantry_admin.group_view import LedgerDocument, MemberDocument, ShardLedgers
from gantry_admin.order_documents import DrainBody

NOW_MS = 1_000_000


def master(**fields: Any) -> MemberDocument:
    """Its status: 1000 bytes are written, 900 in the page cache, 600 on the disk, 800 at the slave."""
    loop_state = {"state": "running", "reason": "", "since_ms": 0, "last_heartbeat_wall_ms": 0}
    reported = {
        "role": "master", "epoch": 7, "promised_epoch": 7, "broker_id": 1, "identity": "i", "cluster": "c",
        "broker_name": "b", "address": "a", "ha_address": "h", "electable": [2], "acks_needed": 0, "acked": None,
        "dispatched": None, "master": None, "problem": None, "is_draining": False, "may_acknowledge": True,
    }  # fmt: skip
    slave = {"slave_id": 2, "identity": "j", "address": None, "received": 800, "flushed": 700, "behind_bytes": 200,
             "silent_ms": 1}  # fmt: skip
    values: dict[str, Any] = dict.fromkeys(StatusDocument.model_fields)
    values |= {
        "broker_name": "b", "role": "master", "epoch": 7, "wrote": 1_000, "committed": 900, "flushed": 600,
        "acked": None, "confirmed": 1_000, "at_risk": [], "slaves": [slave], "loop_state": loop_state, "sidecar": {},
        "reported_role": reported, "reported_role_fresh": {"age_ms": 0, "fault": None}, "flush_mode": "async",
        "buffer": {"medium": "tmpfs", "buffers_total": 3, "buffers_free": 2, "is_crash_safe": True},
        "ready": {"ready": True, "reason": "", "now": "", "broker": loop_state},
    }  # fmt: skip
    values["reported_role"] = reported | fields.pop("reported_role", {})
    values["loop_state"] = loop_state | fields.pop("loop_state", {})
    status = StatusDocument.model_validate(values | fields)
    return MemberDocument(url="u", is_self=True, is_reachable=True, age_ms=0, fault=None, status=status)


def ledger_at(ledgers: ShardLedgers, *members: MemberDocument, now_ms: int = NOW_MS) -> LedgerDocument:
    found = ledgers.ledger_at("b", members, now_ms)
    assert found is not None, "expected a ledger, since there is one master"
    return found


def bytes_at_risk(ledger: LedgerDocument) -> dict[str, int | None]:
    """Return the bytes at risk by fault."""
    return {risk.fault: risk.bytes for risk in ledger.risks}


FORMER_FIELDS = {"loop_state": "motion", "observed_ms": "looked_ms", "reported_role": "said",
                 "reported_role_fresh": "said_fresh", "held_sends": "parked_sends"}  # fmt: skip


@pytest.mark.parametrize(
    ("former", "present"), [("moving", "running"), ("standing still", "stalled"), ("gone", "crashed")]
)
def test_status_of_a_peer_of_an_earlier_version_is_read(former: str, present: str) -> None:
    """During a roll the peers of a sidecar are of both versions: it reads the former names of fields and states."""
    expected = master().status
    assert expected is not None
    document = expected.model_dump()
    reported = document["reported_role"]
    reported["trouble"] = reported.pop("problem") or "connecting"
    document["loop_state"]["state"] = former
    for present_field, former_field in FORMER_FIELDS.items():
        document[former_field] = document.pop(present_field)

    status = StatusDocument.model_validate(document)

    assert status.loop_state.state == present
    assert status.reported_role is not None and status.reported_role.problem == "connecting"
    assert (status.observed_ms, status.reported_role_fresh) == (expected.observed_ms, expected.reported_role_fresh)
    assert "trouble" not in status.model_dump_json()


def test_order_of_an_operator_of_an_earlier_version_is_read() -> None:
    """`goes_on` is `clients_only`; both together are refused, as every unknown field is."""
    assert DrainBody.model_validate({"withdraw": True, "goes_on": True}).clients_only
    with pytest.raises(ValidationError, match="goes_on"):
        DrainBody.model_validate({"clients_only": True, "goes_on": True})


def test_every_copy_counts_for_every_fault() -> None:
    """Acknowledged data is at risk if a fault destroys its last copy: crash-safe buffer, slave or disk."""
    ledgers = ShardLedgers(1 << 20)

    assert bytes_at_risk(ledger_at(ledgers, master())) == {"process": 0, "machine": 200, "disk": 200, "slave": 1_000}
    unsafe = {"medium": "anonymous", "buffers_total": 3, "buffers_free": 2, "is_crash_safe": False}
    assert bytes_at_risk(ledger_at(ledgers, master(buffer=unsafe)))["process"] == 100


def test_unacknowledged_data_is_not_at_risk() -> None:
    """A master that waits for acks or for its disk has not acknowledged the data beyond them."""
    ledgers = ShardLedgers(1 << 20)

    assert bytes_at_risk(ledger_at(ledgers, master(acked=800, reported_role={"acks_needed": 1})))["disk"] == 0
    synced = ledger_at(ledgers, master(flush_mode="sync"))
    assert (synced.acknowledged, bytes_at_risk(synced)["machine"]) == (600, 0)


def test_unknown_flush_mode_is_treated_as_the_weaker_one() -> None:
    """The data at risk may be overstated, never understated."""
    unknown = ledger_at(ShardLedgers(1 << 20), master(flush_mode=None))

    assert (unknown.flush_mode, unknown.acknowledged) == ("async", 1_000)


def test_every_slave_is_a_copy_without_electable_members() -> None:
    """Where roles do not move no slave is electable, and all slaves hold copies."""
    assert ledger_at(ShardLedgers(1 << 20), master(reported_role={"electable": []})).replicated == 800
    assert ledger_at(ShardLedgers(1 << 20), master(reported_role={"electable": [3]})).replicated == 0


def test_data_that_stays_at_risk_gets_older() -> None:
    """Its age is counted from the update before it was written; in a new epoch the age is unknown."""
    ledgers = ShardLedgers(1 << 20)
    ledger_at(ledgers, master(wrote=800, confirmed=800, committed=800))
    ages = [
        {risk.fault: risk.age_ms for risk in ledger_at(ledgers, master(), now_ms=NOW_MS + later_ms).risks}["machine"]
        for later_ms in (1_000, 3_000)
    ]

    assert ages == [1_000, 3_000]
    newer = ledger_at(ledgers, master(epoch=8), now_ms=NOW_MS + 4_000)
    assert {risk.fault: risk.age_ms for risk in newer.risks}["machine"] is None


def test_ledger_of_a_stopped_master_is_not_fresh() -> None:
    """Its numbers remain, and are marked as old."""
    old = ledger_at(ShardLedgers(1 << 20), master(loop_state={"state": "stalled", "since_ms": 60_000}))

    assert (old.is_fresh, old.wrote) == (False, 1_000)


def test_no_ledger_without_exactly_one_reported_master() -> None:
    """With two masters, or one without a report, the ledger would be ambiguous."""
    ledgers = ShardLedgers(1 << 20)

    assert ledgers.ledger_at("b", [master(), master()], NOW_MS) is None
    assert ledgers.ledger_at("b", [], NOW_MS) is None
    assert ledgers.ledger_at("b", [master(reported_role={"broker_id": None})], NOW_MS) is None
