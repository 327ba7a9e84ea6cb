"""The leader's Lease kept in Kubernetes: what ``leader`` says is done, and its loss ends the process at once.

``os._exit`` and not an exception: whatever is under way in threads and tasks would go on while the process unwinds, and
by then another one leads. SIGTERM is the other way out: everything is stopped first, then the Lease is given back.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final, final

from gantry_operator.api import LEASES, Kubernetes, Object, Place, revision_of, uid_of
from gantry_operator.clock import Clock, micro_text
from gantry_operator.errors import ApiError, Conflict, Gone
from gantry_operator.leader import Candidate, Read, SeenLease, Sleep, Write

log = logging.getLogger(__name__)

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
        moment = micro_text(self._clock.wall())
        spec: dict[str, object] = {
            "holderIdentity": "" if step.is_release else self.candidate.name,
            "leaseDurationSeconds": max(1, self.candidate.terms.duration_ms // 1000),
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
