"""Verdicts: pure functions of looks and words, and the hysteresis over them."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from gantry_admin.health import Following, Hysteresis, Motion, Verdict, motion, ready, started
from gantry_admin.settings import HealthSettings
from gantry_admin.watch import Look
from gantry_status import Origin, Phase, Reading, Role, Status
from gantry_status.orders import HaRole, HaStatus

SECOND = 1_000_000_000
NOW = 100 * SECOND
SETTINGS = HealthSettings()
STATUS = Status(published_boottime_ns=NOW, published_wall_ms=0, phase=Phase.SERVING, role=Role.MASTER, wrote=900)
ORIGIN = Origin(
    boot_id=uuid.uuid4(), machine_boot_id=None, started_wall_ms=0, started_boottime_ns=0, pid=1, broker_name="b",
    version="1", minor=0,
)  # fmt: skip
MASTER = HaStatus(role=HaRole.MASTER, epoch=7, may_acknowledge=True)
SLAVE = HaStatus(role=HaRole.SLAVE, epoch=7)


def seen(status: Status = STATUS, *, is_alive: bool | None = True, age_ms: int | None = 0) -> Look:
    reading = Reading(origin=ORIGIN, status=status, age_ms=age_ms, is_writer_alive=is_alive)
    return Look(at_boottime_ns=NOW, reading=reading)


ABSENT = Look(at_boottime_ns=NOW, fault="there is none", is_absent=True)


@pytest.mark.parametrize(
    ("look", "now", "state"),
    [
        (seen(), NOW, Motion.MOVING),
        (seen(), NOW + 3 * SECOND, Motion.STANDING),
        (seen(age_ms=None), NOW, Motion.STANDING),
        (seen(is_alive=None), NOW, Motion.MOVING),
        (seen(is_alive=False), NOW, Motion.GONE),
        (seen(replace(STATUS, phase=Phase.STOPPED), is_alive=False), NOW + 99 * SECOND, Motion.ENDED),
        (ABSENT, NOW, Motion.ABSENT),
    ],
    ids=["moves", "stands", "before-the-boot", "file-system-without-locks", "killed", "stopped", "no-page"],
)
def test_motion_is_told_from_the_page_alone(look: Look, now: int, state: Motion) -> None:
    """The heartbeat on the boot-time clock, the lock of the page, and the last word decide."""
    assert motion(look, now, SETTINGS) is state


@pytest.mark.parametrize(
    ("word", "lag", "is_good", "text"),
    [
        (MASTER, None, True, "master of epoch 7"),
        (SLAVE, None, True, "slave in epoch 7"),
        (SLAVE, 1000, True, "1000 bytes behind"),
        (None, None, False, "who it is"),
        (HaStatus(role=HaRole.UNASSIGNED), None, False, "no role"),
        (HaStatus(role=HaRole.COMPARING), None, False, "compares"),
        (
            HaStatus(role=HaRole.MASTER, epoch=7, may_acknowledge=True, promised_epoch=8),
            None,
            False,
            "promised epoch 8",
        ),
        (HaStatus(role=HaRole.MASTER, epoch=7, may_acknowledge=False, trouble="no key"), None, False, "no key"),
        (HaStatus(role=HaRole.MASTER, epoch=7, may_acknowledge=False), None, False, "may not acknowledge"),
        (HaStatus(role=HaRole.MASTER, epoch=7, may_acknowledge=True, is_draining=True), None, False, "drains"),
        (HaStatus(role=HaRole.SLAVE, epoch=7, trouble="the master is not followed"), 0, False, "not followed"),
        (SLAVE, SETTINGS.lag_bytes_max + 1, False, "behind its master"),
    ],
)
def test_ready_is_a_question_of_role(word: HaStatus | None, lag: int | None, is_good: bool, text: str) -> None:
    """Master: owns its epoch, may acknowledge, does not drain. Slave: follows, and not too far behind."""
    verdict = ready(seen(), word, Following(lag_bytes=lag), NOW, SETTINGS)

    assert verdict.is_good is is_good
    assert text in verdict.reason


def test_a_slave_that_is_behind_must_move() -> None:
    """Behind and still for more than ten seconds is not following, whatever the stream says; idle and level is."""
    stuck = ready(seen(), SLAVE, Following(lag_bytes=5, still_ms=10_001), NOW, SETTINGS)

    assert not stuck.is_good
    assert "written nothing for 10001 ms" in stuck.reason
    assert ready(seen(), SLAVE, Following(lag_bytes=0, still_ms=99_999), NOW, SETTINGS).is_good
    assert ready(seen(), SLAVE, Following(lag_bytes=5, still_ms=9_999), NOW, SETTINGS).is_good


def test_an_exhausted_buffer_and_refused_sends_are_no_reason() -> None:
    """Flow control must not become refused connections."""
    status = replace(STATUS, pool_buffers_total=3, pool_buffers_free=0, is_refusing_sends=True)

    assert ready(seen(status), MASTER, Following(), NOW, SETTINGS).is_good


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RECOVERING, Phase.DRAINING, Phase.STOPPED, Phase.FAILED])
def test_no_other_phase_than_serving_is_ready(phase: Phase) -> None:
    """And it counts at once, because the broker says so itself."""
    verdict = ready(seen(replace(STATUS, phase=phase)), MASTER, Following(), NOW, SETTINGS)

    assert not verdict.is_good
    assert verdict.is_final


def test_started_says_how_far_recovery_is() -> None:
    """Not started while it recovers, with the bytes that are done; started when it serves or drains."""
    recovering = replace(STATUS, phase=Phase.RECOVERING, recovery_done_bytes=70, recovery_total_bytes=200)

    assert started(seen(recovering), NOW, SETTINGS).reason == "recovering: 70 of 200 bytes are checked"
    assert not started(ABSENT, NOW, SETTINGS).is_good
    assert started(seen(), NOW, SETTINGS).is_good
    assert not started(seen(is_alive=False), NOW, SETTINGS).is_good


def test_a_stumble_is_not_shown_and_a_fall_is() -> None:
    """A ready broker is called unready after down-after, an unready one ready after up-after; flapping starts anew."""
    hysteresis = Hysteresis(SETTINGS)
    good, bad = Verdict(is_good=True, reason="well"), Verdict(is_good=False, reason="ill")

    def feed(verdict: Verdict, seconds: float) -> bool:
        return hysteresis.feed(verdict, NOW + int(seconds * SECOND)).is_good

    assert not feed(good, 0)
    assert not feed(good, 0.9)
    assert feed(good, 1.0)
    assert feed(bad, 2)
    assert feed(bad, 4.9), "it was not long enough"
    assert "still ready" in hysteresis.shown.reason
    assert feed(good, 5.0)
    assert feed(bad, 6)
    assert not feed(bad, 9.0)
    assert hysteresis.shown.reason == "ill"


def test_what_cannot_mend_itself_counts_at_once() -> None:
    """A process that is gone is not waited for."""
    hysteresis = Hysteresis(SETTINGS)
    good = Verdict(is_good=True, reason="well")
    hysteresis.feed(good, NOW)
    assert hysteresis.feed(good, NOW + SECOND).is_good

    assert not hysteresis.feed(Verdict(is_good=False, reason="gone", is_final=True), NOW + SECOND).is_good
