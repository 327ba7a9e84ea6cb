"""Renewal of the shard's Lease for this sidecar's broker, as long as the record in the Lease names it as the master.

    sent ------- the API server renews ------- answered ------- order `lease` ------> the broker holds the lease until
      |                                                                               sent + duration, less a margin
      `- the lease is valid from here, on the boot-time clock of the machine that broker and sidecar share

If no slave's ack is needed, a master may acknowledge only while it holds the lease or a grant of every electable slave,
so that it has stopped before another master can acknowledge. The rules of the lease:

- A lease is valid from the time the request was *sent*. An election waits for the whole duration after its own write to
  the Lease, and every renewal that succeeds was sent before that write.
- Only renewals that were answered are passed to the broker. An unanswered renewal may have succeeded: ignoring it
  wastes a lease and risks nothing.
- A renewal leaves the record unchanged. If the record has been replaced, the renewal fails, and it is not tried again
  before the record was read and still names this broker.
- No request is sent for a broker that is not a master, or whose event loop does not run.
- A broker that has regained its role by itself (``role_recovery``) gets no lease before the Lease could be read for
  half a minute without interruption while this process of the broker had the role: an election may rest on kubelet's
  report that the process before it does not run, and kubelet updates that report every ten seconds. That the Lease was
  readable before the process began proves nothing about that report. Once it has been readable for so long, later
  failures need no other wait: what kubelet has reported about this process replaces the older report for good, and an
  election reads the report from the API server itself after it has taken its epoch, when no renewal succeeds any more.
  Like the Lease itself this relies on an API server that loses no write that it has confirmed.
- A renewal that was sent before such a process regained the role is not passed to it.

A sidecar that stops revokes nothing: its broker keeps the lease until it expires, and the next sidecar renews it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from gantry_admin.errors import Problem
from gantry_admin.lease_client import LeaseClient, LeaseConflict, LeaseSnapshot, LeaseUnavailable
from gantry_spec.lease import LeaseRecord
from gantry_status.clocks import Clock, now
from gantry_status.orders import HaRole, HaStatus, Lease

log = logging.getLogger(__name__)

RENEWALS_PER_DURATION: Final = 3
"""How often the Lease is renewed within its duration."""
INTERVAL_S_MIN: Final = 0.2
"""The least time between two renewals, in seconds."""
RETRY_S: Final = 1.0
"""The wait after a failure, and while the record does not name this broker; shorter if the duration is short."""
READABLE_S_MIN: Final = 30.0
"""For how long the Lease must be readable, after a broker regained its role by itself, before it gets a lease."""
READ_PAUSE_S_MAX: Final = 10.0
"""The longest time between two reads of the Lease during that wait; a step of the wait takes half of it at most. After
a longer one, as of a suspended machine, the wait begins anew: kubelet has reported nothing either meanwhile."""
IDLE_S: Final = 0.5
"""The wait between two checks of a broker that is not a master; a check sends no request."""
ASK_TIMEOUT_S: Final = 4.0
"""The longest time of one request to the API server."""
ORDER_TIMEOUT_S: Final = 1.0
"""How long the broker may take to accept a renewal."""

SendOrder = Callable[[Lease], Awaitable[object]]
"""A function that passes an order on to the broker, and raises ``Problem`` if that fails."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewalStatus:
    """The state of the renewal, for people."""

    reason: str = "the Lease has not been read yet"
    """Why the Lease is not renewed; empty while it is."""
    renewed_ms: int | None = None
    """When the last renewal that was answered, and passed to the broker, was sent; on the boot-time clock."""
    duration_ms: int | None = None
    """The duration of the last renewal; None before the first."""


class _Readable(NamedTuple):
    """A time in which every request for the Lease was answered, while one process of the broker had a regained role."""

    process: object
    """What identifies the process of the broker."""
    since_ms: int
    """When the Lease was first read in this time."""
    last_ms: int
    """When the Lease was read last."""
    is_enough: bool = False
    """Whether it has been long enough. A later pause or failed request of the same process needs no other wait."""

    def is_interrupted(self, now_ms: int) -> bool:
        """Return whether the time has not been long enough so far, and the last read was too long ago."""
        return not self.is_enough and now_ms - self.last_ms > READ_PAUSE_S_MAX * 1000


def has_lost_lease(before: HaStatus | None, state: HaStatus | None) -> bool:
    """Return whether a master needs a lease at once: its term is new, or it may not acknowledge, as after a restart.

    A lease belongs to one term.
    """
    if before is None or state is None or state.role is not HaRole.MASTER:
        return False
    return (before.role, before.epoch, before.identity) != (state.role, state.epoch, state.identity) or (
        not state.may_acknowledge
    )


@final
class LeaseRenewal:
    """Renews the Lease again and again. Owned by the event loop."""

    def __init__(
        self, client: LeaseClient, state: Callable[[], HaStatus | None], process: Callable[[], object],
        send_order: SendOrder, *, clock: Clock = now, readable_s_min: float = READABLE_S_MIN,
    ) -> None:  # fmt: skip
        """``state`` returns the broker's recent report about its role, None without one; ``process`` returns what
        identifies its process."""
        self.status: LeaseRenewalStatus = LeaseRenewalStatus()
        self.renewed = 0
        self.conflicts = 0
        self.failed = 0
        self._client: Final = client
        self._fresh_state: Final = state
        self._process: Final = process
        self._send_order: Final = send_order
        self._clock: Final = clock
        self._readable_s_min: Final = readable_s_min
        self._lease: LeaseSnapshot | None = None
        self._readable: _Readable | None = None
        """The time without a failed request for the Lease, renewals included, while the broker had a regained role. It
        is None after a failure before it was long enough."""

    def __repr__(self) -> str:
        return f"<LeaseRenewal renewed={self.renewed} {self.status.reason}>"

    async def run(self) -> None:
        """Renew the Lease whenever it is due, until cancelled."""
        while True:
            state, wait_s = self._fresh_state(), await self.step()
            began_s = time.monotonic()
            while (rest_s := began_s + wait_s - time.monotonic()) > 0:
                await asyncio.sleep(min(rest_s, IDLE_S))
                if time.monotonic() - began_s >= RETRY_S and has_lost_lease(state, self._fresh_state()):
                    break

    async def step(self) -> float:
        """Renew the Lease if the rules allow it. Returns the seconds until the next step."""
        state = self._fresh_state()
        reason = reason_to_skip(state)
        if reason or state is None:
            self._lease = None
            self._interrupt_reading()  # no request is sent now, so the Lease may be unreadable
            self._set_reason(reason)
            return IDLE_S
        try:
            return await self._renew(state)
        except LeaseConflict:
            self.conflicts += 1
            self._lease = None
            self._set_reason("the Lease was changed concurrently")
            return 0.0
        except LeaseUnavailable as error:
            self.failed += 1
            self._lease = None
            self._interrupt_reading()
            self._set_reason(str(error))
        except Problem as problem:
            self._set_reason(f"the order to the broker failed: {problem.reason}")
        return self._retry_s()

    async def _renew(self, state: HaStatus) -> float:
        """Renew the Lease once, and pass the renewal to the broker. Return the seconds until the next step."""
        lease = self._lease
        if lease is None:
            lease = await self._client.read(timeout_s=self._timeout_s())
        withheld = self._reason_to_withhold(state)
        reason = reason_not_named(lease.record, state) or withheld
        if reason or lease.record is None:
            self._lease = None
            self._set_reason(reason)
            return self._retry_s()
        sent_ms = self._now_ms()
        holder = f"{state.broker_name}/{state.broker_id}/{state.identity}"
        self._lease = await self._client.renew(lease, holder, timeout_s=self._timeout_s())
        withheld = self._reason_to_withhold(self._fresh_state())
        if withheld:
            self._set_reason(withheld)
            return self._retry_s()
        duration_ms = lease.record.duration_ms
        await self._send_order(Lease(renewed_ms=sent_ms, duration_ms=duration_ms))
        self.renewed += 1
        if self.status.reason:
            log.info("started renewing lease", extra={"epoch": state.epoch})
        self.status = LeaseRenewalStatus(reason="", renewed_ms=sent_ms, duration_ms=duration_ms)
        return max(duration_ms / 1000 / RENEWALS_PER_DURATION, INTERVAL_S_MIN)

    def _interrupt_reading(self) -> None:
        """Begin the wait of a regained role anew, unless it is over for this process."""
        if self._readable is not None and not self._readable.is_enough:
            self._readable = None

    def _reason_to_withhold(self, state: HaStatus | None) -> str:
        """Return why a broker in this state gets no lease although the Lease was read; empty if it gets one."""
        if state is None or not state.is_regained:
            return ""
        known, process, now_ms = self._readable, self._process(), self._now_ms()
        if known is None or known.process != process or known.is_interrupted(now_ms):
            known = _Readable(process, now_ms, now_ms)
        is_enough = known.is_enough or now_ms - known.since_ms >= self._readable_s_min * 1000
        self._readable = known._replace(is_enough=is_enough, last_ms=now_ms)
        if is_enough:
            return ""
        return (
            "the broker regained its role by itself, and the Lease has not been readable without interruption for"
            f" {self._readable_s_min:g} s since then"
        )

    def _timeout_s(self) -> float:
        known = self.status.duration_ms
        return ASK_TIMEOUT_S if known is None else min(ASK_TIMEOUT_S, known / 1000 / RENEWALS_PER_DURATION)

    def _retry_s(self) -> float:
        known = self.status.duration_ms
        return RETRY_S if known is None else min(RETRY_S, known / 1000 / (4 * RENEWALS_PER_DURATION))

    def _set_reason(self, reason: str) -> None:
        if reason != self.status.reason and not self.status.reason:
            log.warning("stopped renewing lease; it expires unless it is renewed again", extra={"reason": reason})
        status = self.status
        self.status = LeaseRenewalStatus(reason=reason, renewed_ms=status.renewed_ms, duration_ms=status.duration_ms)

    def _now_ms(self) -> int:
        return self._clock().boottime_ns // 1_000_000


def reason_to_skip(state: HaStatus | None) -> str:
    """Return why the Lease is not renewed for a broker in this state; empty if the Lease may name it."""
    if state is None:
        return "the broker has not reported its role recently"
    return "" if state.role is HaRole.MASTER else "this broker is not a master"


def reason_not_named(record: LeaseRecord | None, state: HaStatus) -> str:
    """Return why the record does not name a broker in this state as the master; empty if it does."""
    if record is None:
        return "the Lease has no record"
    term = record.newest
    if term is None or not record.is_settled:
        return f"epoch {record.epoch} has no master yet"
    if term.epoch != state.epoch:
        return f"the newest term is of epoch {term.epoch}, this broker is in {state.epoch}"
    if term.master != state.broker_id:
        return f"the master of epoch {term.epoch} is {term.master}, this broker is {state.broker_id}"
    if term.identity != state.identity:
        return f"the master of epoch {term.epoch} has another store"
    return ""
