"""Verdicts: pure functions of observations and reports, and their hysteresis."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from gantry_admin.health import Following, Hysteresis, LoopState, Verdict, loop_state_of, ready, started
from gantry_admin.settings import HealthSettings
from gantry_admin.sidecar import Sidecar
from gantry_admin.watch import PageObservation
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


def observation_of(status: Status = STATUS, *, is_alive: bool | None = True, age_ms: int | None = 0) -> PageObservation:
    """Return an observation of the status page: its status, its age, and whether its writer lives."""
    reading = Reading(origin=ORIGIN, status=status, age_ms=age_ms, is_writer_alive=is_alive)
    return PageObservation(at_boottime_ns=NOW, reading=reading)


ABSENT = PageObservation(at_boottime_ns=NOW, fault="there is none", is_absent=True)


@pytest.mark.parametrize(
    ("observation", "now", "state"),
    [
        (observation_of(), NOW, LoopState.RUNNING),
        (observation_of(), NOW + 3 * SECOND, LoopState.STALLED),
        (observation_of(age_ms=None), NOW, LoopState.STALLED),
        (observation_of(is_alive=None), NOW, LoopState.RUNNING),
        (observation_of(is_alive=False), NOW, LoopState.CRASHED),
        (observation_of(replace(STATUS, phase=Phase.STOPPED), is_alive=False), NOW + 99 * SECOND, LoopState.ENDED),
        (ABSENT, NOW, LoopState.ABSENT),
    ],
    ids=["running", "stalled", "before-the-boot", "file-system-without-locks", "killed", "stopped", "no-page"],
)
def test_loop_state_comes_from_the_page_alone(observation: PageObservation, now: int, state: LoopState) -> None:
    """The heartbeat on the boot-time clock, the lock of the page, and the final phase decide."""
    assert loop_state_of(observation, now, SETTINGS) is state


@pytest.mark.parametrize(
    ("state", "lag", "is_good", "text"),
    [
        (MASTER, None, True, "master of epoch 7"),
        (SLAVE, None, True, "slave in epoch 7"),
        (SLAVE, 1000, True, "1000 bytes behind"),
        (None, None, False, "no report of the broker's role"),
        (HaStatus(role=HaRole.UNASSIGNED), None, False, "no role"),
        (HaStatus(role=HaRole.COMPARING), None, False, "compares"),
        (
            HaStatus(role=HaRole.MASTER, epoch=7, may_acknowledge=True, promised_epoch=8),
            None,
            False,
            "no master below epoch 8",
        ),
        (HaStatus(role=HaRole.MASTER, epoch=7, may_acknowledge=False, problem="no key"), None, False, "no key"),
        (HaStatus(role=HaRole.MASTER, epoch=7, may_acknowledge=False), None, False, "may not acknowledge"),
        (HaStatus(role=HaRole.MASTER, epoch=7, may_acknowledge=True, is_draining=True), None, False, "drains"),
        (HaStatus(role=HaRole.SLAVE, epoch=7, problem="not following the master"), 0, False, "not following"),
        (SLAVE, SETTINGS.lag_bytes_max + 1, False, "behind its master"),
    ],
)
def test_readiness_depends_on_the_role(state: HaStatus | None, lag: int | None, is_good: bool, text: str) -> None:
    """A ready master owns its epoch, may acknowledge, does not drain. A ready slave follows within max-lag."""
    verdict = ready(observation_of(), state, Following(lag_bytes=lag), NOW, SETTINGS)

    assert verdict.is_good is is_good
    assert text in verdict.reason


def test_lagging_slave_must_make_progress() -> None:
    """A slave that lags and has written nothing for more than ten seconds is not ready; an idle one in sync is."""
    stuck = ready(observation_of(), SLAVE, Following(lag_bytes=5, idle_ms=10_001), NOW, SETTINGS)

    assert not stuck.is_good
    assert "written nothing for 10001 ms" in stuck.reason
    assert ready(observation_of(), SLAVE, Following(lag_bytes=0, idle_ms=99_999), NOW, SETTINGS).is_good
    assert ready(observation_of(), SLAVE, Following(lag_bytes=5, idle_ms=9_999), NOW, SETTINGS).is_good


def test_flow_control_does_not_affect_readiness() -> None:
    """An exhausted buffer and refused sends must not become refused connections."""
    status = replace(STATUS, pool_buffers_total=3, pool_buffers_free=0, is_refusing_sends=True)

    assert ready(observation_of(status), MASTER, Following(), NOW, SETTINGS).is_good


@pytest.mark.parametrize("fault", [None, "no answer within 3 s"])
def test_lag_is_unknown_while_the_masters_sidecar_does_not_answer(fault: str | None) -> None:
    """Its last report has an old end of the log, by which a slave that lags behind would be 0 bytes behind."""
    status = SimpleNamespace(wrote=5_000, role="master", broker_name="orders-0", epoch=7)
    own = SimpleNamespace(status=SimpleNamespace(wrote=5_000, epoch=7), origin=SimpleNamespace(broker_name="orders-0"))
    peers = SimpleNamespace(reports={"peer": SimpleNamespace(fault=fault, status=status)})
    sidecar = SimpleNamespace(broker=SimpleNamespace(reading=own), peers=peers)

    assert Sidecar.lag_bytes(cast("Sidecar", sidecar)) == (0 if fault is None else None)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RECOVERING, Phase.STOPPING, Phase.STOPPED, Phase.FAILED])
def test_only_the_serving_phase_is_ready(phase: Phase) -> None:
    """Any other phase takes effect at once, because the broker itself reports it."""
    verdict = ready(observation_of(replace(STATUS, phase=phase)), MASTER, Following(), NOW, SETTINGS)

    assert not verdict.is_good
    assert verdict.is_final


def test_started_reports_the_progress_of_recovery() -> None:
    """Not started during recovery (with the bytes checked), without a page or after a crash; started when it serves."""
    recovering = replace(STATUS, phase=Phase.RECOVERING, recovery_done_bytes=70, recovery_total_bytes=200)

    assert started(observation_of(recovering), NOW, SETTINGS).reason == "recovering: 70 of 200 bytes checked"
    assert not started(ABSENT, NOW, SETTINGS).is_good
    assert started(observation_of(), NOW, SETTINGS).is_good
    assert not started(observation_of(is_alive=False), NOW, SETTINGS).is_good


def test_hysteresis_delays_changes_of_readiness() -> None:
    """A ready broker becomes unready after down-after, an unready one ready after up-after; flapping resets it."""
    hysteresis = Hysteresis(SETTINGS)
    good, bad = Verdict(is_good=True, reason="well"), Verdict(is_good=False, reason="ill")

    def feed(verdict: Verdict, seconds: float) -> bool:
        return hysteresis.feed(verdict, NOW + int(seconds * SECOND)).is_good

    assert not feed(good, 0)
    assert not feed(good, 0.9)
    assert feed(good, 1.0)
    assert feed(bad, 2)
    assert feed(bad, 4.9), "expected ready: it was bad for less than down-after"
    assert "still ready" in hysteresis.current.reason
    assert feed(good, 5.0)
    assert feed(bad, 6)
    assert not feed(bad, 9.0)
    assert hysteresis.current.reason == "ill"


def test_final_verdict_takes_effect_at_once() -> None:
    """A process that is gone makes the broker unready without a delay."""
    hysteresis = Hysteresis(SETTINGS)
    good = Verdict(is_good=True, reason="well")
    hysteresis.feed(good, NOW)
    assert hysteresis.feed(good, NOW + SECOND).is_good

    assert not hysteresis.feed(Verdict(is_good=False, reason="gone", is_final=True), NOW + SECOND).is_good
