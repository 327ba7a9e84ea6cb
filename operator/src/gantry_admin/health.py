"""Is this broker alive, started, ready? Verdicts with their reasons. Pure, the hysteresis included.

A probe must not turn a moment of load into refused connections, and must not call a broker ready that has just
stumbled: a verdict counts when it has stood for a while. What cannot mend itself in that while counts at once: no page,
a process that is gone, a phase that is not serving. An exhausted write buffer and a disk that is rather full are no
reason: they are flow control, and belong into metrics.

    ready     master: owns its epoch, holds a key to acknowledge, does not drain
              slave: follows its master, moves, and is not further behind than max-lag
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from gantry_admin.settings import HealthSettings
from gantry_admin.watch import Look
from gantry_status import Phase, Reading
from gantry_status.orders import HaRole, HaStatus

STILL_MS_MAX: Final = 10_000
"""A slave that is behind and has written nothing for so long does not move."""


class Motion(StrEnum):
    """What a broker does, as its page shows it."""

    ABSENT = "absent"
    """There is no page, or none that can be read."""
    MOVING = "moving"
    STANDING = "standing still"
    """The process is there and its event loop has stopped: SIGSTOP, a wedged call, starvation."""
    GONE = "gone"
    """The process is not there any more, and has not said a last word."""
    ENDED = "ended"
    """It said its last word, stopped or failed."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Yes or no, and why."""

    is_good: bool
    reason: str
    is_final: bool = False
    """Whether a bad one counts at once."""


def motion(look: Look, now_ns: int, settings: HealthSettings) -> Motion:
    """Of the broker, at this moment."""
    reading = look.reading
    if reading is None:
        return Motion.ABSENT
    if reading.status.phase.is_final:
        return Motion.ENDED
    if reading.is_writer_alive is False:
        return Motion.GONE
    age_ms = look.age_ms(now_ns)
    return Motion.STANDING if age_ms is None or age_ms > settings.stale_ms else Motion.MOVING


def moving_words(look: Look, now_ns: int, settings: HealthSettings) -> str:
    """The same for people."""
    state, age_ms = motion(look, now_ns, settings), look.age_ms(now_ns)
    since = "since before the machine was started last" if age_ms is None else f"for {age_ms} ms"
    match state:
        case Motion.ABSENT:
            return f"there is no status page that can be read: {look.fault}"
        case Motion.STANDING:
            return f"the broker's event loop stands still {since}"
        case Motion.GONE:
            return f"the broker's process is gone, silent {since}"
        case Motion.ENDED:
            assert look.reading is not None, "a last word is on a page"
            status = look.reading.status
            error = f": {status.last_error}" if status.phase is Phase.FAILED and status.last_error else ""
            return f"the broker has {status.phase.name.lower()}{error}"
        case Motion.MOVING:
            return "the broker's event loop moves"


def started(look: Look, now_ns: int, settings: HealthSettings) -> Verdict:
    """Whether recovery is over."""
    reading = look.reading
    if reading is None:
        return Verdict(is_good=False, reason=f"not started: {look.fault}")
    status = reading.status
    if status.phase is Phase.RECOVERING and status.recovery_total_bytes:
        text = f"recovering: {status.recovery_done_bytes or 0} of {status.recovery_total_bytes} bytes are checked"
        return Verdict(is_good=False, reason=text)
    if status.phase in (Phase.STARTING, Phase.RECOVERING, Phase.UNKNOWN):
        return Verdict(is_good=False, reason=status.phase.name.lower())
    if motion(look, now_ns, settings) in (Motion.GONE, Motion.ENDED):
        return Verdict(is_good=False, reason=moving_words(look, now_ns, settings))
    return Verdict(is_good=True, reason=status.phase.name.lower())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How a slave keeps up, as far as it is known."""

    lag_bytes: int | None = None
    still_ms: int | None = None
    """Since it wrote anything."""


def ready(look: Look, word: HaStatus | None, following: Following, now_ns: int, settings: HealthSettings) -> Verdict:
    """Whether clients should be here now; ``word`` is what the broker said of its role, if that is fresh."""
    state = motion(look, now_ns, settings)
    if state is not Motion.MOVING:
        is_final = state in (Motion.ABSENT, Motion.GONE, Motion.ENDED)
        return Verdict(is_good=False, reason=moving_words(look, now_ns, settings), is_final=is_final)
    assert look.reading is not None, "what moves has a page"
    if look.reading.status.phase is not Phase.SERVING:
        return Verdict(is_good=False, reason=_phase_words(look.reading), is_final=True)
    if word is None:
        return Verdict(is_good=False, reason="the broker has not said for 10 s who it is")
    return _in_role(word, following, settings)


def _in_role(word: HaStatus, following: Following, settings: HealthSettings) -> Verdict:
    match word.role:
        case HaRole.UNASSIGNED:
            return Verdict(is_good=False, reason=f"it has no role{_because(word.trouble)}")
        case HaRole.COMPARING:
            what = "log data is missing" if word.missing else "it compares its log with its slaves"
            return Verdict(is_good=False, reason=f"{what}{_because(word.trouble)}")
        case HaRole.MASTER:
            return _master(word)
        case HaRole.SLAVE:
            return _slave(word, following, settings)


def _master(word: HaStatus) -> Verdict:
    if word.promised_epoch > word.epoch:
        text = f"it is the master of epoch {word.epoch}, and has promised epoch {word.promised_epoch} to another"
        return Verdict(is_good=False, reason=text)
    if word.is_draining:
        return Verdict(is_good=False, reason="it drains: sends are refused until the next promotion")
    if not word.may_acknowledge:
        return Verdict(is_good=False, reason=f"it may not acknowledge sends{_because(word.trouble)}")
    return Verdict(is_good=True, reason=f"master of epoch {word.epoch}")


def _slave(word: HaStatus, following: Following, settings: HealthSettings) -> Verdict:
    lag_bytes, still_ms = following.lag_bytes, following.still_ms
    if word.trouble:
        return Verdict(is_good=False, reason=f"a slave in trouble: {word.trouble}")
    if lag_bytes is not None and lag_bytes > settings.lag_bytes_max:
        text = f"a slave that is {lag_bytes} bytes behind its master; {settings.lag_bytes_max} are allowed"
        return Verdict(is_good=False, reason=text)
    if lag_bytes and still_ms is not None and still_ms > STILL_MS_MAX:
        text = f"a slave that is {lag_bytes} bytes behind its master, and has written nothing for {still_ms} ms"
        return Verdict(is_good=False, reason=text)
    behind = "how far behind is not known: no peer is its master" if lag_bytes is None else f"{lag_bytes} bytes behind"
    return Verdict(is_good=True, reason=f"slave in epoch {word.epoch}, {behind}")


def _phase_words(reading: Reading) -> str:
    return f"the broker is {reading.status.phase.name.lower()}"


def _because(trouble: str) -> str:
    return f": {trouble}" if trouble else ""


@final
class Hysteresis:
    """Lets a verdict count when it has stood long enough. Owned by the event loop; fed by every look."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings: Final = settings
        self._shown = Verdict(is_good=False, reason="nobody has looked yet")
        self._other_since_ns: int | None = None

    def __repr__(self) -> str:
        return f"<Hysteresis {'good' if self._shown.is_good else 'bad'}: {self._shown.reason}>"

    @property
    def shown(self) -> Verdict:
        """What counts."""
        return self._shown

    def feed(self, verdict: Verdict, now_ns: int) -> Verdict:
        """What counts, now that ``verdict`` was found."""
        if verdict.is_good == self._shown.is_good:
            self._shown, self._other_since_ns = verdict, None
            return self._shown
        if self._other_since_ns is None:
            self._other_since_ns = now_ns
        wait_ms = self._settings.up_after_ms if verdict.is_good else self._settings.down_after_ms
        stood_ms = (now_ns - self._other_since_ns) // 1_000_000
        if stood_ms >= wait_ms or (verdict.is_final and not verdict.is_good):
            self._shown, self._other_since_ns = verdict, None
        elif verdict.is_good:
            reason = f"ready soon, well for {stood_ms} of {wait_ms} ms: {verdict.reason}"
            self._shown = Verdict(is_good=False, reason=reason)
        else:
            reason = f"still ready, unwell for {stood_ms} of {wait_ms} ms: {verdict.reason}"
            self._shown = Verdict(is_good=True, reason=reason)
        return self._shown
