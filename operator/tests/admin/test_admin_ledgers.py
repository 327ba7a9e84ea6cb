"""The ledger of a shard from what sidecars say: every slave counts where none is elected, and what is at risk ages."""

from __future__ import annotations

from typing import Any

from gantry_admin.documents import StatusDocument
from gantry_admin.group_view import LedgerDocument, MemberDocument, ShardLedgers

NOW_MS = 1_000_000


def master(**fields: Any) -> MemberDocument:
    """Its status: 1000 bytes are written, 900 in the page cache, 600 on the disk, 800 at the slave."""
    motion = {"state": "moving", "reason": "", "since_ms": 0, "last_heartbeat_wall_ms": 0}
    said = {
        "role": "master", "epoch": 7, "promised_epoch": 7, "broker_id": 1, "identity": "i", "cluster": "c",
        "broker_name": "b", "address": "a", "ha_address": "h", "electable": [2], "acks_needed": 0, "acked": None,
        "dispatched": None, "master": None, "trouble": None, "is_draining": False, "may_acknowledge": True,
    }  # fmt: skip
    slave = {"slave_id": 2, "identity": "j", "address": None, "received": 800, "flushed": 700, "behind_bytes": 200,
             "silent_ms": 1}  # fmt: skip
    values: dict[str, Any] = dict.fromkeys(StatusDocument.model_fields)
    values |= {
        "broker_name": "b", "role": "master", "epoch": 7, "wrote": 1_000, "committed": 900, "flushed": 600,
        "acked": None, "confirmed": 1_000, "at_risk": [], "slaves": [slave], "motion": motion, "sidecar": {},
        "said": said, "said_fresh": {"age_ms": 0, "fault": None}, "flush_mode": "async",
        "buffer": {"medium": "tmpfs", "buffers_total": 3, "buffers_free": 2, "is_crash_safe": True},
        "ready": {"ready": True, "reason": "", "now": "", "broker": motion},
    }  # fmt: skip
    values["said"] = said | fields.pop("said", {})
    values["motion"] = motion | fields.pop("motion", {})
    status = StatusDocument.model_validate(values | fields)
    return MemberDocument(url="u", is_self=True, is_reachable=True, age_ms=0, fault=None, status=status)


def look(ledgers: ShardLedgers, *members: MemberDocument, now_ms: int = NOW_MS) -> LedgerDocument:
    found = ledgers.look("b", members, now_ms)
    assert found is not None, "there is one master"
    return found


def risks(ledger: LedgerDocument) -> dict[str, int | None]:
    return {risk.fault: risk.bytes for risk in ledger.risks}


def test_a_copy_counts_for_every_fault() -> None:
    """A buffer that outlives its process, a slave, a disk: what is acknowledged and on none of them is at risk."""
    ledgers = ShardLedgers(1 << 20)

    assert risks(look(ledgers, master())) == {"process": 0, "machine": 200, "disk": 200, "slave": 1_000}
    unsafe = {"medium": "anonymous", "buffers_total": 3, "buffers_free": 2, "is_crash_safe": False}
    assert risks(look(ledgers, master(buffer=unsafe)))["process"] == 100


def test_what_is_not_acknowledged_yet_is_not_at_risk() -> None:
    """With acks that are waited for, and with a disk that is."""
    ledgers = ShardLedgers(1 << 20)

    assert risks(look(ledgers, master(acked=800, said={"acks_needed": 1})))["disk"] == 0
    synced = look(ledgers, master(flush_mode="sync"))
    assert (synced.acknowledged, risks(synced)["machine"]) == (600, 0)


def test_a_flush_mode_that_nobody_has_told_is_the_weaker_one() -> None:
    """More is shown at risk than may be, never less."""
    unknown = look(ShardLedgers(1 << 20), master(flush_mode=None))

    assert (unknown.flush_mode, unknown.acknowledged) == ("async", 1_000)


def test_where_nobody_is_elected_every_slave_is_a_copy() -> None:
    """Roles that do not move have no electable slaves; what those have is there all the same."""
    assert look(ShardLedgers(1 << 20), master(said={"electable": []})).replicated == 800
    assert look(ShardLedgers(1 << 20), master(said={"electable": [3]})).replicated == 0


def test_what_stays_at_risk_gets_older() -> None:
    """Its age is counted from the look before it was there; in a new epoch nothing is known of it."""
    ledgers = ShardLedgers(1 << 20)
    look(ledgers, master(wrote=800, confirmed=800, committed=800))
    ages = [
        {risk.fault: risk.age_ms for risk in look(ledgers, master(), now_ms=NOW_MS + later_ms).risks}["machine"]
        for later_ms in (1_000, 3_000)
    ]

    assert ages == [1_000, 3_000]
    newer = look(ledgers, master(epoch=8), now_ms=NOW_MS + 4_000)
    assert {risk.fault: risk.age_ms for risk in newer.risks}["machine"] is None


def test_a_master_that_stands_still_has_no_fresh_ledger() -> None:
    """Its numbers stay, and say that they are old."""
    old = look(ShardLedgers(1 << 20), master(motion={"state": "standing still", "since_ms": 60_000}))

    assert (old.is_fresh, old.wrote) == (False, 1_000)


def test_two_masters_and_one_that_has_not_spoken_have_none() -> None:
    """Nobody knows whose it would be."""
    ledgers = ShardLedgers(1 << 20)

    assert ledgers.look("b", [master(), master()], NOW_MS) is None
    assert ledgers.look("b", [], NOW_MS) is None
    assert ledgers.look("b", [master(said={"broker_id": None})], NOW_MS) is None
