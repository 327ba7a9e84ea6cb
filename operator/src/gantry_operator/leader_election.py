"""Leader election between operators by a Lease: a state machine without I/O, and its execution in Kubernetes.

    holder   writes ------------ and believes until  sent + renew_deadline
    taker    reads the same revision ... for a whole duration, on its own clock, and writes onto just that revision

A write changes the revision, so a taker that waited out a revision has waited at least a whole duration since the write
behind it was *sent*, and its holder has stopped believing before: ``renew_deadline_ms < duration_ms`` is the margin, in
which clocks may run at different speeds. No clock is ever compared with another, and nothing in the Lease is believed
but its revision and its holder. A write that was not answered may have been done: it makes no candidate a leader.

Losing it is final, and ends the process at once, with ``os._exit`` and not an exception: what is under way in threads
and tasks would continue while the process unwinds, and by then another operator leads. SIGTERM is the other way out:
everything is stopped first, then the Lease is released. Even so nothing depends on this alone: every change that is
made in a cluster has preconditions, and every order an epoch.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final, NamedTuple, final

from gantry_operator.api import LEASES, Kubernetes, Object, Place, revision_of, uid_of
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, Conflict, Gone
from gantry_spec.lease_annotations import lease_seconds, lease_time

log = logging.getLogger(__name__)


class Terms(NamedTuple):
    """How long what counts."""

    duration_ms: int = 15_000
    """For how long nobody takes what was renewed."""

    renew_deadline_ms: int = 10_000
    """For how long its holder believes."""

    retry_ms: int = 2_000
    """Between two tries of anything."""


TERMS: Final = Terms()


class SeenLease(NamedTuple):
    """What a read, or a write that was answered, has shown."""

    revision: str
    holder: str
    """Empty if it was given back."""


class Write(NamedTuple):
    """Write our name onto just this revision; None makes the first one."""

    revision: str | None
    is_release: bool = False


class Read(NamedTuple):
    """Look at it."""


class Sleep(NamedTuple):
    """Nothing until then."""

    until_ms: int


Step = Read | Write | Sleep


@final
class Candidate:
    """One operator's part. Told what happened, it says what to do next; times are of its own clock."""

    def __init__(self, name: str, terms: Terms = TERMS) -> None:
        assert name, "an empty holder is nobody"
        assert terms.retry_ms < terms.renew_deadline_ms < terms.duration_ms, "the margin that everything rests on"
        self.name: Final = name
        self.terms: Final = terms
        self._seen: SeenLease | None = None
        self._is_known = False
        self._first_seen_ms = 0
        self._believes_until_ms: int | None = None
        self._tried_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Candidate {self.name} until={self._believes_until_ms}>"

    @property
    def was_leader(self) -> bool:
        """Whether it ever was."""
        return self._believes_until_ms is not None

    def is_leader(self, now_ms: int) -> bool:
        """Whether nobody else can be, now."""
        return self._believes_until_ms is not None and now_ms < self._believes_until_ms

    def is_lost(self, now_ms: int) -> bool:
        """Whether it was the leader, and may be no more. Then the process ends."""
        return self.was_leader and not self.is_leader(now_ms)

    # -- what happened -------------------------------------------------------------------------------------------------

    def read(self, lease: SeenLease | None, answered_ms: int) -> None:
        """A read was answered; None if there is no Lease."""
        if not self._is_known or lease != self._seen:
            self._first_seen_ms = answered_ms
        self._seen, self._is_known = lease, True
        if lease is None or not lease.holder:
            self._tried_ms = None  # it is nobody's: the write need not wait for its turn

    def written(self, lease: SeenLease, sent_ms: int, answered_ms: int) -> None:
        """A write of ours was answered: it was done."""
        self._seen, self._is_known, self._first_seen_ms = lease, True, answered_ms
        if lease.holder == self.name:
            self._believes_until_ms = sent_ms + self.terms.renew_deadline_ms

    def failed(self) -> None:
        """A write was refused, or not answered: how it stands is not known, and is to be read."""
        self._is_known = False

    # -- what to do ----------------------------------------------------------------------------------------------------

    def next(self, now_ms: int) -> Step:
        """What to do now. Whoever does it, however late, tells what came of it."""
        if self._tried_ms is not None and now_ms < self._tried_ms + self.terms.retry_ms:
            return Sleep(self._tried_ms + self.terms.retry_ms)
        self._tried_ms = now_ms
        if not self._is_known:
            return Read()
        seen = self._seen
        if seen is None:
            return Write(None)
        if seen.holder == self.name:
            return Write(seen.revision)
        if not seen.holder or now_ms - self._first_seen_ms >= self.terms.duration_ms:
            self._is_known = False
            return Write(seen.revision)
        return Read()

    def release(self) -> Write | None:
        """Give it back, once nothing is under way any more; None if it is not ours to give."""
        if self._seen is None or self._seen.holder != self.name or not self._is_known:
            return None
        return Write(self._seen.revision, is_release=True)


# -- in Kubernetes -----------------------------------------------------------------------------------------------------

WATCH_S: Final = 0.2
"""How often is looked whether it is lost, whatever the API server does meanwhile."""


def end_process() -> None:
    """At once."""
    os._exit(1)


@final
class Leadership:
    """Owned by the event loop."""

    def __init__(
        self, api: Kubernetes, place: Place, candidate: Candidate, clock: Clock,
        on_lost: Callable[[], None] = end_process,
    ) -> None:  # fmt: skip
        """``api`` must write whether or not we lead: it is how we come to."""
        assert place.kind is LEASES, "a Lease is a Lease"
        self.candidate: Final = candidate
        self.won: Final = asyncio.Event()
        self._api: Final = api
        self._place: Final = place
        self._clock: Final = clock
        self._on_lost: Final = on_lost
        self._uid = ""
        self._told = ""

    def is_leader(self) -> bool:
        """Now."""
        return self.candidate.is_leader(self._clock.now_ms())

    async def run(self) -> None:
        """Until cancelled, or lost."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="gantry-leader-watch")
            tasks.create_task(self._keep(), name="gantry-leader")

    async def release(self) -> None:
        """Give it back, so that the next one need not wait. Nothing may be under way any more."""
        step = self.candidate.release()
        if step is not None and not await self._do(step):
            await self._do(Read())  # the last renewal may have been done though nobody waited for its answer
            step = self.candidate.release()
            if step is not None and not await self._do(step):
                return
        if step is not None:
            log.info("released leadership", extra={"lease": str(self._place)})

    async def _watch(self) -> None:
        while True:
            if self.candidate.is_lost(self._clock.now_ms()):
                log.critical("lost leadership; exiting", extra={"lease": str(self._place)})
                self._on_lost()
                return
            await asyncio.sleep(WATCH_S)

    async def _keep(self) -> None:
        while True:
            step = self.candidate.next(self._clock.now_ms())
            if isinstance(step, Sleep):
                await asyncio.sleep(max(0, step.until_ms - self._clock.now_ms()) / 1000)
                continue
            await self._do(step)
            if self.is_leader() and not self.won.is_set():
                log.info("acquired leadership", extra={"lease": str(self._place), "holder": self.candidate.name})
                self.won.set()

    async def _do(self, step: Read | Write) -> bool:
        """Whether it was answered."""
        sent_ms = self._clock.now_ms()
        try:
            if isinstance(step, Read):
                seen = self._seen(await self._api.get(self._place))
                self.candidate.read(seen, self._clock.now_ms())
                self._tell(seen.holder)
            else:
                answer = await self._write(step)
                self.candidate.written(self._seen(answer), sent_ms, self._clock.now_ms())
        except Gone:
            self.candidate.read(None, self._clock.now_ms())
        except ApiError as error:
            was_leader = self.is_leader()
            if isinstance(step, Write):
                self.candidate.failed()
            # Of two that start at once one is slower: only a leader has reason to wonder.
            level = logging.DEBUG if isinstance(error, Conflict) and not was_leader else logging.WARNING
            log.log(level, "leader Lease request failed", extra={"reason": str(error)})
            return False
        return True

    def _tell(self, holder: str) -> None:
        if holder not in ("", self.candidate.name, self._told):
            log.info("another operator is the leader; waiting", extra={"holder": holder})
            self._told = holder

    async def _write(self, step: Write) -> Object:
        moment = lease_time(self._clock.wall())
        spec: dict[str, object] = {
            "holderIdentity": "" if step.is_release else self.candidate.name,
            "leaseDurationSeconds": lease_seconds(self.candidate.terms.duration_ms),
            "renewTime": moment,
        }
        if step.revision is None:
            head = {"namespace": self._place.namespace, "name": self._place.name}
            kind = self._place.kind
            spec["acquireTime"] = moment
            return await self._api.create(
                {"apiVersion": kind.api_version, "kind": kind.name, "metadata": head, "spec": spec}
            )
        if not self.candidate.was_leader:
            spec["acquireTime"] = moment
        return await self._api.patch(self._place, {"spec": spec}, uid=self._uid, revision=step.revision)

    def _seen(self, document: Object) -> SeenLease:
        self._uid = uid_of(document)
        spec = document.get("spec") or {}
        return SeenLease(revision_of(document), str(spec.get("holderIdentity") or ""))
