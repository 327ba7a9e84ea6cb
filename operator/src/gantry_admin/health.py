"""Verdicts, with reasons, on whether a broker is alive, started and ready. Pure functions, hysteresis included.

A probe must not turn a moment of load into refused connections, nor report a broker as ready right after a failure: a
verdict takes effect after it has been the same for a while. A failure that cannot recover in that time takes effect at
once: no status page, a process that is gone, a phase other than serving. An exhausted write buffer and a nearly full
disk do not matter here: they are flow control, and belong in metrics.

    ready     master: owns its epoch, may acknowledge, does not drain
              slave: reports no problem, and, where its lag is known, makes progress and is at most max-lag behind
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from gantry_admin.settings import HealthSettings
from gantry_admin.watch import PageObservation
from gantry_status import Phase, Reading
from gantry_status.orders import HaRole, HaStatus

IDLE_MS_MAX: Final = 10_000
"""A slave that lags behind and has written nothing for longer than this makes no progress."""


class LoopState(StrEnum):
    """The state of a broker's event loop, as its status page shows it."""

    ABSENT = "absent"
    """There is no status page, or none that can be read."""
    RUNNING = "running"
    STALLED = "stalled"
    """The process exists and its event loop does not run: SIGSTOP, a blocking call, starvation."""
    CRASHED = "crashed"
    """The process does not exist any more, and published no final phase: it was killed or crashed."""
    ENDED = "ended"
    """The process published a final phase, stopped or failed."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a check, and its reason."""

    is_good: bool
    reason: str
    """Why the verdict is good or bad, for people."""

    is_final: bool = False
    """Whether a bad verdict takes effect at once, without hysteresis."""


def loop_state_of(observation: PageObservation, now_ns: int, settings: HealthSettings) -> LoopState:
    """Return the state of the broker's event loop at this moment."""
    reading = observation.reading
    if reading is None:
        return LoopState.ABSENT
    if reading.status.phase.is_final:
        return LoopState.ENDED
    if reading.is_writer_alive is False:
        return LoopState.CRASHED
    age_ms = observation.age_ms(now_ns)
    return LoopState.STALLED if age_ms is None or age_ms > settings.stale_ms else LoopState.RUNNING


def describe_loop_state(observation: PageObservation, now_ns: int, settings: HealthSettings) -> str:
    """Return the state of the broker's event loop as a text for people."""
    loop_state, age_ms = loop_state_of(observation, now_ns, settings), observation.age_ms(now_ns)
    since = "since before the machine's last boot" if age_ms is None else f"for {age_ms} ms"
    match loop_state:
        case LoopState.ABSENT:
            return f"no readable status page: {observation.fault}"
        case LoopState.STALLED:
            return f"the broker's event loop is stalled {since}"
        case LoopState.CRASHED:
            return f"the broker's process has crashed or was killed, without a heartbeat {since}"
        case LoopState.ENDED:
            assert observation.reading is not None, "a final phase is on a page"
            status = observation.reading.status
            error = f": {status.last_error}" if status.phase is Phase.FAILED and status.last_error else ""
            return f"the broker has {status.phase.name.lower()}{error}"
        case LoopState.RUNNING:
            return "the broker's event loop runs"


def started(observation: PageObservation, now_ns: int, settings: HealthSettings) -> Verdict:
    """Return whether recovery is complete, and the process has neither crashed nor ended since."""
    reading = observation.reading
    if reading is None:
        return Verdict(is_good=False, reason=f"not started: {observation.fault}")
    status = reading.status
    if status.phase is Phase.RECOVERING and status.recovery_total_bytes:
        text = f"recovering: {status.recovery_done_bytes or 0} of {status.recovery_total_bytes} bytes checked"
        return Verdict(is_good=False, reason=text)
    if status.phase in (Phase.STARTING, Phase.RECOVERING, Phase.UNKNOWN):
        return Verdict(is_good=False, reason=status.phase.name.lower())
    if loop_state_of(observation, now_ns, settings) in (LoopState.CRASHED, LoopState.ENDED):
        return Verdict(is_good=False, reason=describe_loop_state(observation, now_ns, settings))
    return Verdict(is_good=True, reason=status.phase.name.lower())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """The progress of a slave, as far as it is known."""

    lag_bytes: int | None = None
    """How far it is behind its master; None if no peer is its master."""
    idle_ms: int | None = None
    """The time since its last write, or since it was first observed, in ms; None before that."""


def ready(
    observation: PageObservation, state: HaStatus | None, following: Following, now_ns: int, settings: HealthSettings
) -> Verdict:
    """Return whether clients should use this broker now; ``state`` is its role report, or None if it is too old."""
    loop_state = loop_state_of(observation, now_ns, settings)
    if loop_state is not LoopState.RUNNING:
        is_final = loop_state in (LoopState.ABSENT, LoopState.CRASHED, LoopState.ENDED)
        return Verdict(is_good=False, reason=describe_loop_state(observation, now_ns, settings), is_final=is_final)
    assert observation.reading is not None, "a broker whose loop runs has a page"
    if observation.reading.status.phase is not Phase.SERVING:
        return Verdict(is_good=False, reason=_phase_words(observation.reading), is_final=True)
    if state is None:
        return Verdict(is_good=False, reason="no report of the broker's role in the last 10 s")
    return _in_role(state, following, settings)


def _in_role(state: HaStatus, following: Following, settings: HealthSettings) -> Verdict:
    """Return whether clients should use a broker that serves, by its role."""
    match state.role:
        case HaRole.UNASSIGNED:
            return Verdict(is_good=False, reason=f"the broker has no role{_because(state.problem)}")
        case HaRole.COMPARING:
            what = "log data is missing" if state.missing else "the broker compares its log with its slaves"
            return Verdict(is_good=False, reason=f"{what}{_because(state.problem)}")
        case HaRole.MASTER:
            return _master(state)
        case HaRole.SLAVE:
            return _slave(state, following, settings)


def _master(state: HaStatus) -> Verdict:
    """Return whether clients should use a broker with the master role."""
    if state.promised_epoch > state.epoch:
        text = f"master of epoch {state.epoch}, which has promised to be no master below epoch {state.promised_epoch}"
        return Verdict(is_good=False, reason=text)
    if state.is_draining:
        return Verdict(is_good=False, reason="the master drains: sends are refused until the next promotion")
    if not state.may_acknowledge:
        return Verdict(is_good=False, reason=f"the master may not acknowledge sends{_because(state.problem)}")
    return Verdict(is_good=True, reason=f"master of epoch {state.epoch}")


def _slave(state: HaStatus, following: Following, settings: HealthSettings) -> Verdict:
    """Return whether clients should use a broker with the slave role."""
    lag_bytes, idle_ms = following.lag_bytes, following.idle_ms
    if state.problem:
        return Verdict(is_good=False, reason=f"the slave reports an error: {state.problem}")
    if lag_bytes is not None and lag_bytes > settings.lag_bytes_max:
        text = f"the slave is {lag_bytes} bytes behind its master; {settings.lag_bytes_max} are allowed"
        return Verdict(is_good=False, reason=text)
    if lag_bytes and idle_ms is not None and idle_ms > IDLE_MS_MAX:
        text = f"the slave is {lag_bytes} bytes behind its master, and has written nothing for {idle_ms} ms"
        return Verdict(is_good=False, reason=text)
    behind = "lag unknown: no peer that answers is its master" if lag_bytes is None else f"{lag_bytes} bytes behind"
    return Verdict(is_good=True, reason=f"slave in epoch {state.epoch}, {behind}")


def _phase_words(reading: Reading) -> str:
    return f"the broker is {reading.status.phase.name.lower()}"


def _because(problem: str) -> str:
    return f": {problem}" if problem else ""


@final
class Hysteresis:
    """Delays a change of verdict until it has lasted long enough. Owned by the event loop; fed every observation."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings: Final = settings
        self._current = Verdict(is_good=False, reason="not checked yet")
        self._other_since_ns: int | None = None

    def __repr__(self) -> str:
        return f"<Hysteresis {'good' if self._current.is_good else 'bad'}: {self._current.reason}>"

    @property
    def current(self) -> Verdict:
        """The verdict that is in effect now."""
        return self._current

    def feed(self, verdict: Verdict, now_ns: int) -> Verdict:
        """Add the verdict of the newest observation, and return the verdict in effect."""
        if verdict.is_good == self._current.is_good:
            self._current, self._other_since_ns = verdict, None
            return self._current
        if self._other_since_ns is None:
            self._other_since_ns = now_ns
        wait_ms = self._settings.up_after_ms if verdict.is_good else self._settings.down_after_ms
        lasted_ms = (now_ns - self._other_since_ns) // 1_000_000
        if lasted_ms >= wait_ms or (verdict.is_final and not verdict.is_good):
            self._current, self._other_since_ns = verdict, None
        elif verdict.is_good:
            reason = f"ready soon: checks have passed for {lasted_ms} of {wait_ms} ms: {verdict.reason}"
            self._current = Verdict(is_good=False, reason=reason)
        else:
            reason = f"still ready: checks have failed for {lasted_ms} of {wait_ms} ms: {verdict.reason}"
            self._current = Verdict(is_good=True, reason=reason)
        return self._current
