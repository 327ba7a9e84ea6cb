"""A broker's status becomes a report with the same numbers, and an unknown number stays unknown."""

from __future__ import annotations

import msgspec
import pytest
from spec_world.observations import NOW_MS

from gantry_spec.observed import Report, Role, report_of
from gantry_status.orders import HaRole, HaStatus, SlaveState, encode


def reported(status: HaStatus) -> Report:
    """Return the report of a status after a round trip through JSON."""
    return report_of(msgspec.json.decode(encode(status)), asked_ms=NOW_MS - 20, answered_ms=NOW_MS, boot_id="pod-1")


def test_a_masters_status_becomes_a_whole_report() -> None:
    """It has the offsets, epochs, slaves and electable members."""
    status = HaStatus(
        role=HaRole.MASTER,
        epoch=3_000,
        promised_epoch=3_000,
        broker_id=1,
        identity="store-1",
        ha_address="a:1",
        wrote=90,
        committed=80,
        flushed=70,
        acked=60,
        confirmed=60,
        last_epoch=3_000,
        electable=(2, 3),
        acks_needed=1,
        slaves=(SlaveState(identity="store-2", number=2, received=60, flushed=50),),
        master_id=1,
        epoch_start=40,
        is_complete=True,
        is_crash_safe=False,
        peak_bytes_per_s=7,
        granted_ms=0,
    )

    report = reported(status)

    assert (report.role, report.epoch, report.log_position) == (Role.MASTER, 3_000, (3_000, 90))
    assert (report.committed, report.flushed, report.acked, report.confirmed) == (80, 70, 60, 60)
    assert report.slaves == (SlaveState(number=2, identity="store-2", received=60, flushed=50),)
    assert (report.electable, report.acks_needed, report.master_id) == ((2, 3), 1, 1)
    assert (report.is_complete, report.is_crash_safe, report.peak_bytes_per_s) == (True, False, 7)
    assert (report.epoch_start, report.heartbeat_age_ms, report.granted_ms, report.boot_id) == (40, None, 0, "pod-1")


def test_an_unknown_number_stays_unknown() -> None:
    """-1 in JSON becomes None, and never an offset."""
    report = reported(HaStatus(role=HaRole.SLAVE, slaves=(SlaveState(identity="s", number=2),)))

    assert (report.wrote, report.flushed, report.acked, report.master_id) == (None, None, None, None)
    assert report.slaves[0].received is None


def test_a_status_of_an_earlier_version_becomes_a_report() -> None:
    """The operator is upgraded before the sidecars, so it reads the former names of fields."""
    former = {"role": "SLAVE", "trouble": "connecting", "heard_ms": 7, "is_whole": False}

    report = report_of(former, asked_ms=0, answered_ms=1)

    assert (report.problem, report.heartbeat_age_ms, report.is_complete) == ("connecting", 7, False)


def test_an_invalid_status_is_refused() -> None:
    """A status is decoded as a whole or not at all."""
    with pytest.raises(ValueError, match="not a broker status"):
        report_of({"role": "KING"}, asked_ms=0, answered_ms=1)
