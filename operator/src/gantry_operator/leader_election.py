"""Leader election between operators by a Lease: a state machine without I/O, and its execution in Kubernetes.

    holder       writes ---------- and is the leader until  sent + renew_deadline
    challenger   reads the same revision ... for a whole duration, on its own clock; its write requires that revision

A write changes the revision. So a challenger that waited out a revision has waited at least a whole duration since that
write was *sent*, and its holder has resigned before: ``renew_deadline_ms < duration_ms`` is the margin, in which clocks
may run at different speeds. Clocks are never compared with each other, and only the revision and the holder of the
Lease are used. A write without an answer may have succeeded: it makes no candidate a leader.

Losing leadership is final, and ends the process at once, with ``os._exit`` and not an exception: pending calls in
threads and tasks would continue while the process unwinds, and by then another operator is the leader. An orderly
shutdown, as at SIGTERM, is the other way out: everything is stopped first, then the Lease is released. Even so, safety
does not depend on leadership alone: changes of roles and pods have preconditions, and orders that give roles have
epochs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final, NamedTuple, final

from gantry_operator.api import LEASES, Kubernetes, Object, ObjectRef, revision_of, uid_of
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, Conflict, NotFound
from gantry_spec.lease_annotations import lease_seconds, lease_time

log = logging.getLogger(__name__)


class LeaseTimings(NamedTuple):
    """The durations of leader election."""

    duration_ms: int = 15_000
    """How long a renewed Lease cannot be acquired by another candidate, in milliseconds."""

    renew_deadline_ms: int = 10_000
    """How long its holder acts as the leader after a renewal, in milliseconds."""

    retry_ms: int = 2_000
    """The time between two reads or writes, in milliseconds."""


DEFAULT_TIMINGS: Final = LeaseTimings()


class LeaderLease(NamedTuple):
    """The state of the Lease according to a read, or a write that was answered."""

    revision: str
    """The resourceVersion of the Lease, which every write changes."""

    holder: str
    """The identity of the holder; empty if the Lease was released."""


class Write(NamedTuple):
    """Step: write the candidate's name, if the Lease still has this revision; None creates the Lease."""

    revision: str | None
    is_release: bool = False
    """Whether the candidate's name is removed instead."""


class Read(NamedTuple):
    """Step: read the Lease from the API server."""


class Sleep(NamedTuple):
    """Step: do nothing until this time."""

    until_ms: int


Step = Read | Write | Sleep


@final
class Candidate:
    """The state machine of one candidate: it takes results, and returns the next step. Times are of its own clock."""

    def __init__(self, name: str, timings: LeaseTimings = DEFAULT_TIMINGS) -> None:
        assert name, "an empty holder means a released Lease"
        assert timings.retry_ms < timings.renew_deadline_ms < timings.duration_ms, "safety rests on this margin"
        self.name: Final = name
        self.timings: Final = timings
        self._observed: LeaderLease | None = None
        self._is_known = False
        self._first_seen_ms = 0
        self._leader_until_ms: int | None = None
        self._tried_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Candidate {self.name} until={self._leader_until_ms}>"

    @property
    def was_leader(self) -> bool:
        """Return whether this candidate was the leader at any time."""
        return self._leader_until_ms is not None

    def is_leader(self, now_ms: int) -> bool:
        """Return whether this candidate is the leader: no other one can be now."""
        return self._leader_until_ms is not None and now_ms < self._leader_until_ms

    def is_lost(self, now_ms: int) -> bool:
        """Return whether this candidate was the leader, and has lost leadership. Then the process must end."""
        return self.was_leader and not self.is_leader(now_ms)

    # -- results of steps ----------------------------------------------------------------------------------------------

    def handle_read(self, lease: LeaderLease | None, answered_ms: int) -> None:
        """Handle the answer to a read; None if the Lease does not exist."""
        if not self._is_known or lease != self._observed:
            self._first_seen_ms = answered_ms
        self._observed, self._is_known = lease, True
        if lease is None or not lease.holder:
            self._tried_ms = None  # the Lease has no holder, so the write need not wait for the retry period

    def handle_write(self, lease: LeaderLease, sent_ms: int, answered_ms: int) -> None:
        """Handle the answer to a write of this candidate, which has succeeded."""
        self._observed, self._is_known, self._first_seen_ms = lease, True, answered_ms
        if lease.holder == self.name:
            self._leader_until_ms = sent_ms + self.timings.renew_deadline_ms

    def handle_failure(self) -> None:
        """Handle a write that was refused or not answered: the state of the Lease is unknown, and must be read."""
        self._is_known = False

    # -- next step -----------------------------------------------------------------------------------------------------

    def next_step(self, now_ms: int) -> Step:
        """Return the step to execute now. Its result must be passed back, however late it comes."""
        if self._tried_ms is not None and now_ms < self._tried_ms + self.timings.retry_ms:
            return Sleep(self._tried_ms + self.timings.retry_ms)
        self._tried_ms = now_ms
        if not self._is_known:
            return Read()
        lease = self._observed
        if lease is None:
            return Write(None)
        if lease.holder == self.name:
            return Write(lease.revision)
        if not lease.holder or now_ms - self._first_seen_ms >= self.timings.duration_ms:
            self._is_known = False
            return Write(lease.revision)
        return Read()

    def release_step(self) -> Write | None:
        """Return the write that releases the Lease; None if this candidate does not hold it."""
        if self._observed is None or self._observed.holder != self.name or not self._is_known:
            return None
        return Write(self._observed.revision, is_release=True)


# -- in Kubernetes -----------------------------------------------------------------------------------------------------

CHECK_S: Final = 0.2
"""The period, in seconds, of the check for lost leadership. It does not depend on answers of the API server."""


def end_process() -> None:
    """Exit at once, without cleanup, so that no pending change of this process can follow."""
    os._exit(1)


@final
class Leadership:
    """Executes the steps of a candidate on a Lease in Kubernetes. Owned by the event loop."""

    def __init__(
        self, api: Kubernetes, ref: ObjectRef, candidate: Candidate, clock: Clock,
        on_lost: Callable[[], None] = end_process,
    ) -> None:  # fmt: skip
        """Create the leadership of a candidate. ``api`` must allow writes before the candidate is the leader."""
        assert ref.kind is LEASES, "leaders are elected by a Lease"
        self.candidate: Final = candidate
        self.acquired: Final = asyncio.Event()
        self._api: Final = api
        self._ref: Final = ref
        self._clock: Final = clock
        self._on_lost: Final = on_lost
        self._uid = ""
        self._logged_holder = ""

    def is_leader(self) -> bool:
        """Return whether this process is the leader now."""
        return self.candidate.is_leader(self._clock.now_ms())

    async def run(self) -> None:
        """Acquire and renew the Lease until cancelled. When leadership is lost, ``on_lost`` is called."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="gantry-leader-watch")
            tasks.create_task(self._campaign(), name="gantry-leader")

    async def release(self) -> None:
        """Release the Lease, so that the next leader need not wait for its expiry. No change may be pending."""
        step = self.candidate.release_step()
        if step is not None and not await self._do(step):
            await self._do(Read())  # the last renewal may have succeeded after its answer was no longer awaited
            step = self.candidate.release_step()
            if step is not None and not await self._do(step):
                return
        if step is not None:
            log.info("released leadership", extra={"lease": str(self._ref)})

    async def _watch(self) -> None:
        while True:
            if self.candidate.is_lost(self._clock.now_ms()):
                log.critical("lost leadership; exiting", extra={"lease": str(self._ref)})
                self._on_lost()
                return
            await asyncio.sleep(CHECK_S)

    async def _campaign(self) -> None:
        while True:
            step = self.candidate.next_step(self._clock.now_ms())
            if isinstance(step, Sleep):
                await asyncio.sleep(max(0, step.until_ms - self._clock.now_ms()) / 1000)
                continue
            await self._do(step)
            if self.is_leader() and not self.acquired.is_set():
                log.info("acquired leadership", extra={"lease": str(self._ref), "holder": self.candidate.name})
                self.acquired.set()

    async def _do(self, step: Read | Write) -> bool:
        """Execute a step. Return False if it was refused or not answered; a Lease that does not exist is no failure."""
        sent_ms = self._clock.now_ms()
        try:
            if isinstance(step, Read):
                lease = self._parse_lease(await self._api.get(self._ref))
                self.candidate.handle_read(lease, self._clock.now_ms())
                self._log_holder(lease.holder)
            else:
                answer = await self._write(step)
                self.candidate.handle_write(self._parse_lease(answer), sent_ms, self._clock.now_ms())
        except NotFound:
            self.candidate.handle_read(None, self._clock.now_ms())
        except ApiError as error:
            was_leader = self.is_leader()
            if isinstance(step, Write):
                self.candidate.handle_failure()
            # When two candidates start at once, one gets a conflict. Only for a leader this is unexpected.
            level = logging.DEBUG if isinstance(error, Conflict) and not was_leader else logging.WARNING
            log.log(level, "leader Lease request failed; retrying", extra={"reason": str(error)})
            return False
        return True

    def _log_holder(self, holder: str) -> None:
        if holder not in ("", self.candidate.name, self._logged_holder):
            log.info("another operator is the leader; waiting", extra={"holder": holder})
            self._logged_holder = holder

    async def _write(self, step: Write) -> Object:
        moment = lease_time(self._clock.wall())
        spec: dict[str, object] = {
            "holderIdentity": "" if step.is_release else self.candidate.name,
            "leaseDurationSeconds": lease_seconds(self.candidate.timings.duration_ms),
            "renewTime": moment,
        }
        if step.revision is None:
            head = {"namespace": self._ref.namespace, "name": self._ref.name}
            kind = self._ref.kind
            spec["acquireTime"] = moment
            return await self._api.create(
                {"apiVersion": kind.api_version, "kind": kind.name, "metadata": head, "spec": spec}
            )
        if not self.candidate.was_leader:
            spec["acquireTime"] = moment
        return await self._api.patch(self._ref, {"spec": spec}, uid=self._uid, revision=step.revision)

    def _parse_lease(self, document: Object) -> LeaderLease:
        self._uid = uid_of(document)
        spec = document.get("spec") or {}
        return LeaderLease(revision_of(document), str(spec.get("holderIdentity") or ""))
