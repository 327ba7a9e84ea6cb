"""Bytes and seconds at risk: from one publication of the status page, and the history of earlier ones."""

from __future__ import annotations

import uuid
from dataclasses import replace

from gantry_admin.at_risk import SAMPLES_MAX, Loss, WrittenHistory, acked_offset, at_risk
from gantry_status import Origin, Phase, Reading, Role, SlaveStatus, Status

SECOND = 1_000_000_000
STATUS = Status(
    published_boottime_ns=0, published_wall_ms=0, phase=Phase.SERVING, role=Role.MASTER, wrote=900, committed=600,
    flushed=250, confirmed=900,
)  # fmt: skip
ORIGIN = Origin(
    boot_id=uuid.uuid4(), machine_boot_id=None, started_wall_ms=0, started_boottime_ns=0, pid=1, broker_name="b",
    version="1", minor=0,
)  # fmt: skip


def history_of(*pairs: tuple[int, int], origin: Origin = ORIGIN) -> WrittenHistory:
    """A history of (second, wrote)."""
    history = WrittenHistory()
    for second, wrote in pairs:
        record(history, second, wrote, origin)
    return history


def record(history: WrittenHistory, second: int, wrote: int, origin: Origin = ORIGIN) -> None:
    status = replace(STATUS, published_boottime_ns=second * SECOND, wrote=wrote)
    history.record(Reading(origin=origin, status=status, age_ms=0, is_writer_alive=True))


def test_data_at_risk_of_each_failure() -> None:
    """The process loses an unsafe buffer, the machine unflushed data, the master data that is not acked."""
    history = history_of((1, 100), (2, 250), (3, 600), (4, 900))

    risks = {risk.loss: risk for risk in at_risk(STATUS, 250, history, 10 * SECOND)}

    assert (risks[Loss.PROCESS].bytes, risks[Loss.PROCESS].seconds) == (300, 7.0)
    assert (risks[Loss.MACHINE].bytes, risks[Loss.MACHINE].seconds) == (650, 8.0)
    assert (risks[Loss.MASTER].bytes, risks[Loss.MASTER].seconds) == (650, 8.0)


def test_crash_safe_buffer_puts_nothing_at_risk() -> None:
    """With a crash-safe buffer a failure of the process alone loses nothing."""
    [process, *_] = at_risk(replace(STATUS, is_crash_safe=True), None, history_of((1, 900)), SECOND)

    assert (process.bytes, process.seconds) == (0, 0.0)


def test_unknown_values_are_none() -> None:
    """Without acks the loss with the master is unknown; bytes older than the history have no age."""
    risks = {risk.loss: risk for risk in at_risk(STATUS, None, history_of((5, 700), (6, 900)), 9 * SECOND)}

    assert (risks[Loss.MASTER].bytes, risks[Loss.MASTER].seconds) == (None, None)
    assert (risks[Loss.MACHINE].bytes, risks[Loss.MACHINE].seconds) == (650, None)


def test_observations_without_writes_update_the_age_limit() -> None:
    """Observations without writes move the time at which the newest byte was not written yet."""
    history = history_of((1, 100), (2, 100), (7, 100), (8, 200))

    assert history.moment_before(100) == 7 * SECOND
    assert history.moment_before(99) is None


def test_restart_or_shorter_log_resets_the_history() -> None:
    """Offsets of another log say nothing about the ages of this one."""
    history = history_of((1, 100), (2, 900))
    record(history, 3, 50)
    assert history.moment_before(60) == 3 * SECOND
    record(history, 4, 1000, replace(ORIGIN, boot_id=uuid.uuid4()))
    assert history.moment_before(60) is None


def test_history_is_bounded() -> None:
    """The history has a maximum number of samples."""
    history = history_of(*((second, second * 10) for second in range(SAMPLES_MAX + 50)))

    assert repr(history) == f"<WrittenHistory samples={SAMPLES_MAX // 2 + 50}>"
    assert history.rate(5 * SECOND) == 10.0


def test_acked_offset_is_what_enough_slaves_have() -> None:
    """It is the reported one, or more if more is confirmed and on enough slaves; without a report, what these have."""
    slaves = tuple(
        SlaveStatus(slave_id=number, received=received, flushed=None, last_seen_boottime_ns=None)
        for number, received in ((1, 500), (2, 800), (3, None))
    )
    status = replace(STATUS, slaves=slaves)

    assert acked_offset(replace(status, confirmed=None), 640, 1) == 640
    assert acked_offset(replace(status, confirmed=700), 640, 1) == 700, "the page is younger than the report"
    assert acked_offset(replace(status, confirmed=900), 640, 1) == 800, "confirmed counts up to the slave's end"
    assert acked_offset(replace(status, confirmed=900), 640, 0) == 640, "without acks confirmed does not count"
    assert acked_offset(status, None, 1) == 800
    assert acked_offset(status, None, 2) == 500
    assert acked_offset(status, None, 3) is None
