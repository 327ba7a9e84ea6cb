"""The parts of a sidecar put together, and what they know together at this moment.

Owned by the event loop. ``start`` begins what runs in the background, ``close`` ends it; every method in between
answers from memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final, final

from gantry_admin.at_risk import AtRisk, acked_offset, at_risk
from gantry_admin.certificates import listener_certificates
from gantry_admin.describe import (
    buffer_document,
    disk_document,
    lease_document,
    missing_range_documents,
    motion_document,
    risk_documents,
    role_document,
    slave_documents,
)
from gantry_admin.documents import Answered, BrokerMotion, ReadyDocument, StatusDocument
from gantry_admin.group_view import group_view
from gantry_admin.guard import Guard
from gantry_admin.health import Following, Hysteresis, Verdict, ready
from gantry_admin.kubernetes_lease import KubernetesLease
from gantry_admin.lease_keeper import LeaseKeeper
from gantry_admin.lease_renewal import ORDER_TIMEOUT_S, LeaseRenewal
from gantry_admin.limits import LogLimits
from gantry_admin.link import BrokerLink
from gantry_admin.peer_roles import PeerRoles
from gantry_admin.peers import Peers
from gantry_admin.rates import Rates
from gantry_admin.regaining import RoleRegaining
from gantry_admin.resending import Resending
from gantry_admin.settings import SidecarSettings
from gantry_admin.shard_ledgers import ShardLedgers
from gantry_admin.store_files import StoreFiles
from gantry_admin.tables import Tables
from gantry_admin.upkeep import WantedFileReconciler
from gantry_admin.watch import Look, PageWatch
from gantry_remoting.http_admission import HttpAdmission
from gantry_status import Reading
from gantry_status.moment import Now, now
from gantry_status.orders import HaStatus, Lease
from gantry_wire.version import VERSION

log = logging.getLogger(__name__)

RATE_WINDOW_NS: Final = 5_000_000_000
LEDGER_INTERVAL_S: Final = 1.0


@final
class Sidecar:
    """See the module."""

    def __init__(self, settings: SidecarSettings, *, clock: Now = now) -> None:
        """Touches no broker. Raises ``SettingsError`` for token files that cannot be used."""
        self.settings: Final = settings
        self.guard: Final = Guard(settings)
        self.watch: Final = PageWatch(str(settings.broker.page), clock=clock)
        self.link: Final = BrokerLink(str(settings.broker.control), clock=clock)
        self.peers: Final = Peers(settings.peers, self.guard.peer_token)
        self.files: Final = StoreFiles(settings.broker.store)
        self.limits: Final = LogLimits(settings.log)
        self.admission: Final = HttpAdmission("main", settings.http, clock=time.monotonic)
        """Connections of the main listener."""
        self.log_admission: Final = HttpAdmission("log", settings.log_http, clock=time.monotonic)
        """Connections of the listener for ranges of the log, owned by its thread."""
        self.tables: Final = Tables(self)
        self.rates: Final = Rates(self)
        self.resending: Final = Resending(self)
        keeper = None if settings.lease is None else KubernetesLease(settings.lease)
        self.lease: Final = self._lease_renewal(keeper)
        """None where no Lease is renewed."""
        self.regaining: Final = self._role_regaining(keeper)
        """None where no role comes back by itself."""
        self.ledgers: Final = ShardLedgers(settings.health.lag_bytes_max)
        self.certificates: Final = listener_certificates(settings.access)
        """Of both listeners; None without TLS. Whoever serves starts and closes them."""
        self.fast_port: int | None = None
        """Where ranges leave by sendfile, once that listens."""
        self.waiters = 0
        """Callers that wait for an offset now."""
        self.streams = 0
        """Event streams that are open now."""
        self._health: Final = Hysteresis(settings.health)
        self._verdict = self._health.shown
        self._tasks: Final[list[asyncio.Task[None]]] = []

    def __repr__(self) -> str:
        return f"<Sidecar {self.settings.broker.page} {self._health!r}>"

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        self.watch.on_look(self._judge)
        self.watch.start()
        self._begin(self.link.run(), "link")
        self._begin(self.guard.keep_fresh(), "guard")
        self._begin(self.peers.run(), "peers")
        self._begin(self.rates.run(), "rates")
        self._begin(self._keep_ledgers(), "ledgers")
        if self.lease is not None:
            self._begin(self.lease.run(), "lease")
        if self.regaining is not None:
            self._begin(self.regaining.run(), "regaining")
        if self.settings.wanted is not None:
            reconciler = WantedFileReconciler(self.settings.wanted, self._fresh_word, self.tables.connected)
            self._begin(reconciler.run(), "reconcile topics")

    async def close(self) -> None:
        """End what runs in the background."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tables.close()
        await asyncio.to_thread(self.watch.close)

    async def _keep_ledgers(self) -> None:
        """Look at them though nobody asks: what is at risk gets its age from the look before."""
        while True:
            group_view(self)
            await asyncio.sleep(LEDGER_INTERVAL_S)

    def _lease_renewal(self, keeper: LeaseKeeper | None) -> LeaseRenewal | None:
        if keeper is None:
            return None

        async def give(order: Lease) -> object:
            return await self.link.order(order, timeout_s=ORDER_TIMEOUT_S)

        return LeaseRenewal(keeper, self._fresh_word, give)

    def _role_regaining(self, keeper: LeaseKeeper | None) -> RoleRegaining | None:
        settings = self.settings.lease
        if keeper is None or settings is None or not settings.regains:
            return None
        return RoleRegaining(keeper, PeerRoles(self.peers), self._fresh_word, self.link.order)

    def _fresh_word(self) -> HaStatus | None:
        """What the broker said lately of its role; None if it said nothing, or stands still."""
        return self.link.word.fresh(self.watch.now_ns()) if self.motion().state == "moving" else None

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"gantry-{name}")
        task.add_done_callback(_complain)
        self._tasks.append(task)

    # -- what is known now ---------------------------------------------------------------------------------------------

    @property
    def look(self) -> Look:
        return self.watch.look

    @property
    def reading(self) -> Reading | None:
        """The last publication, whatever its age."""
        return self.watch.look.reading

    @property
    def verdict(self) -> Verdict:
        """Ready or not, as it counts."""
        return self._health.shown

    def acked(self) -> int | None:
        """How far enough slaves have the log."""
        reading, word = self.reading, self.link.word.fresh(self.watch.now_ns())
        if reading is None:
            return None
        told = None if word is None else word.acked
        return acked_offset(reading.status, told, 0 if word is None else word.acks_needed or 0)

    def risks(self) -> tuple[AtRisk, ...]:
        """What would be lost now."""
        reading = self.reading
        if reading is None:
            return ()
        return at_risk(reading.status, self.acked(), self.watch.history, self.watch.now_ns())

    def lag_bytes(self) -> int | None:
        """How far this slave is behind its master, where a peer is that master; None otherwise."""
        reading = self.reading
        if reading is None or reading.status.wrote is None:
            return None
        ends = [
            word.status.wrote
            for word in self.peers.words.values()
            if word.status is not None and word.status.wrote is not None and word.status.role == "master"
            and word.status.broker_name == reading.origin.broker_name and word.status.epoch == reading.status.epoch
        ]  # fmt: skip
        return max(max(ends) - reading.status.wrote, 0) if ends else None

    def motion(self) -> BrokerMotion:
        """Whether the broker moves."""
        return motion_document(self.look, self.watch.now_ns(), self.settings.health)

    def readiness(self) -> ReadyDocument:
        """Ready or not, and why."""
        shown = self.verdict
        return ReadyDocument(ready=shown.is_good, reason=shown.reason, now=self._verdict.reason, broker=self.motion())

    def status(self) -> StatusDocument:
        """All of it."""
        now_ns, reading, word = self.watch.now_ns(), self.reading, self.link.word
        origin, status = (None, None) if reading is None else (reading.origin, reading.status)
        return StatusDocument(
            broker_name=origin and origin.broker_name,
            version=origin and origin.version,
            boot_id=None if origin is None else str(origin.boot_id),
            store_uuid=None if status is None or status.store_uuid is None else str(status.store_uuid),
            pid=origin and origin.pid,
            started_wall_ms=origin and origin.started_wall_ms,
            motion=self.motion(),
            looked_ms=self.watch.look.at_boottime_ns // 1_000_000,
            phase=None if status is None else status.phase.name.lower(),
            ready=self.readiness(),
            epoch=status and status.epoch,
            generation=status and status.generation,
            role=None if status is None else status.role.name.lower(),
            oldest=status and status.min_physical,
            wrote=status and status.wrote,
            committed=status and status.committed,
            flushed=status and status.flushed,
            acked=self.acked(),
            confirmed=status and status.confirmed,
            written_bytes_per_second=self.watch.history.rate(RATE_WINDOW_NS),
            at_risk=risk_documents(self.risks()),
            slaves=[] if status is None else slave_documents(status, word.status, now_ns),
            flush_mode=self.tables.flush_mode(),
            buffer=None if status is None else buffer_document(status),
            disk=None if status is None else disk_document(status),
            is_refusing_sends=status and status.is_refusing_sends,
            parked_sends=status and status.parked_sends,
            connections=status and status.connections,
            queues=status and status.queues,
            recovery_done_bytes=status and status.recovery_done_bytes,
            recovery_total_bytes=status and status.recovery_total_bytes,
            certificate_ends_wall_ms=status and status.certificate_ends_wall_ms,
            log_missing_bytes=status and status.log_missing_bytes,
            log_missing_ranges=missing_range_documents(status, word.status) or None,
            log_accepted_loss_bytes=status and status.log_accepted_loss_bytes,
            damaged_records=status and status.damaged_records,
            damaged_bytes=status and status.damaged_bytes,
            last_error=status and (status.last_error or None),
            last_error_wall_ms=status and status.last_error_wall_ms,
            lease=None if self.lease is None else lease_document(self.lease.shown, now_ns),
            regaining=None if self.regaining is None else self.regaining.reason or None,
            said=None if word.status is None else role_document(word.status),
            said_fresh=Answered(age_ms=word.age_ms(now_ns), fault=word.fault or None),
            rates=self.rates.shown(),
            sidecar={"version": VERSION},
        )

    def _judge(self, look: Look) -> None:
        now_ns = self.watch.now_ns()
        word = self.link.word.fresh(now_ns)
        following = Following(lag_bytes=self.lag_bytes(), still_ms=self.watch.history.still_ms(now_ns))
        self._verdict = ready(look, word, following, now_ns, self.settings.health)
        self._health.feed(self._verdict, now_ns)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("a task of the sidecar has ended", extra={"task": task.get_name()}, exc_info=task.exception())
