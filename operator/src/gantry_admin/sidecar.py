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

from gantry_admin.broker_client import BrokerClient
from gantry_admin.certificates import listener_certificates
from gantry_admin.describe import (
    buffer_document,
    disk_document,
    lease_document,
    missing_range_documents,
    page_values,
    risk_documents,
    role_document,
    slave_documents,
)
from gantry_admin.documents import Answered, ReadyDocument, StatusDocument
from gantry_admin.group_view import GroupDocumentView, ShardLedgers, group_view
from gantry_admin.guard import Guard
from gantry_admin.health import Following, Hysteresis, Verdict, ready
from gantry_admin.kubernetes_lease import KubernetesLease
from gantry_admin.lease_keeper import LeaseKeeper
from gantry_admin.lease_renewal import ORDER_TIMEOUT_S, LeaseRenewal
from gantry_admin.limits import LogLimits, Places
from gantry_admin.observed_broker import ObservedBroker
from gantry_admin.peers import PeerRoles, Peers
from gantry_admin.rates import Rates
from gantry_admin.regaining import RoleRegaining
from gantry_admin.resending import Resending
from gantry_admin.settings import SidecarSettings
from gantry_admin.store_files import StoreFiles
from gantry_admin.tables import Tables
from gantry_admin.wanted_file import WantedFileReconciler
from gantry_admin.watch import Look
from gantry_remoting.http_admission import HttpAdmission
from gantry_status.moment import Now, now
from gantry_status.orders import Lease
from gantry_wire.version import VERSION

log = logging.getLogger(__name__)

RATE_WINDOW_NS: Final = 5_000_000_000
LEDGER_INTERVAL_S: Final = 1.0
WAITERS_MAX: Final = 64
STREAMS_MAX: Final = 32


@final
class Sidecar:
    """See the module."""

    def __init__(self, settings: SidecarSettings, *, fast_port: int | None = None, clock: Now = now) -> None:
        """Touches no broker. Raises ``SettingsError`` for token files that cannot be used.

        ``fast_port`` is where ranges leave by sendfile, if anything listens there.
        """
        self.settings: Final = settings
        self.fast_port: Final = fast_port
        self.guard: Final = Guard(settings)
        self.broker: Final = ObservedBroker(settings.broker, settings.health, clock=clock)
        self.peers: Final = Peers(settings.peers, self.guard.peer_token)
        self.files: Final = StoreFiles(settings.broker.store)
        self.limits: Final = LogLimits(settings.log)
        self.admission: Final = HttpAdmission("main", settings.http, clock=time.monotonic)
        """Connections of the main listener."""
        self.log_admission: Final = HttpAdmission("log", settings.log_http, clock=time.monotonic)
        """Connections of the listener for ranges of the log, owned by its thread."""
        self.client: Final = BrokerClient(settings.broker, self.broker.link)
        self.tables: Final = Tables(self.broker, self.client, self.files)
        self.rates: Final = Rates(self.broker, self.client.connected)
        self.resending: Final = Resending(self.broker, self.client)
        keeper = None if settings.lease is None else KubernetesLease(settings.lease)
        self.lease: Final = self._lease_renewal(keeper)
        """None where no Lease is renewed."""
        self.regaining: Final = self._role_regaining(keeper)
        """None where no role comes back by itself."""
        self.ledgers: Final = ShardLedgers(settings.health.lag_bytes_max)
        self.certificates: Final = listener_certificates(settings.access)
        """Of both listeners; None without TLS. Whoever serves starts and closes them."""
        self.waiters: Final = Places(WAITERS_MAX, "callers wait already", retry_after_s=1)
        """Callers that wait for an offset."""
        self.streams: Final = Places(STREAMS_MAX, "streams are open already", retry_after_s=5)
        """Event streams."""
        self._health: Final = Hysteresis(settings.health)
        self._verdict = self._health.shown
        self._tasks: Final[list[asyncio.Task[None]]] = []

    def __repr__(self) -> str:
        return f"<Sidecar {self.settings.broker.page} {self._health!r}>"

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        self.broker.watch.on_look(self._judge)
        self.broker.watch.start()
        self._begin(self.broker.link.run(), "link")
        self._begin(self.guard.keep_fresh(), "guard")
        self._begin(self.peers.run(), "peers")
        self._begin(self.rates.run(), "rates")
        self._begin(self._keep_ledgers(), "ledgers")
        if self.lease is not None:
            self._begin(self.lease.run(), "lease")
        if self.regaining is not None:
            self._begin(self.regaining.run(), "regaining")
        if self.settings.wanted is not None:
            reconciler = WantedFileReconciler(self.settings.wanted, self.broker.fresh_state, self.client.connected)
            self._begin(reconciler.run(), "reconcile topics")

    async def close(self) -> None:
        """End what runs in the background."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tables.close()
        await self.client.close()
        await asyncio.to_thread(self.broker.watch.close)

    async def _keep_ledgers(self) -> None:
        """Look at them though nobody asks: what is at risk gets its age from the look before."""
        while True:
            self.group()
            await asyncio.sleep(LEDGER_INTERVAL_S)

    def _lease_renewal(self, keeper: LeaseKeeper | None) -> LeaseRenewal | None:
        if keeper is None:
            return None

        async def give(order: Lease) -> object:
            return await self.broker.link.order(order, timeout_s=ORDER_TIMEOUT_S)

        return LeaseRenewal(keeper, self.broker.fresh_state, give)

    def _role_regaining(self, keeper: LeaseKeeper | None) -> RoleRegaining | None:
        settings = self.settings.lease
        if keeper is None or settings is None or not settings.regains:
            return None
        return RoleRegaining(keeper, PeerRoles(self.peers), self.broker.fresh_state, self.broker.link.order)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"gantry-{name}")
        task.add_done_callback(_complain)
        self._tasks.append(task)

    # -- what is known now ---------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """Ready or not, as it counts."""
        return self._health.shown

    def lag_bytes(self) -> int | None:
        """How far this slave is behind its master, where a peer is that master; None otherwise."""
        reading = self.broker.reading
        if reading is None or reading.status.wrote is None:
            return None
        ends = [
            word.status.wrote
            for word in self.peers.words.values()
            if word.status is not None and word.status.wrote is not None and word.status.role == "master"
            and word.status.broker_name == reading.origin.broker_name and word.status.epoch == reading.status.epoch
        ]  # fmt: skip
        return max(max(ends) - reading.status.wrote, 0) if ends else None

    def readiness(self) -> ReadyDocument:
        """Ready or not, and why."""
        shown, motion = self.verdict, self.broker.motion()
        return ReadyDocument(ready=shown.is_good, reason=shown.reason, now=self._verdict.reason, broker=motion)

    def status(self) -> StatusDocument:
        """All of it."""
        broker = self.broker
        now_ns, reading, word = broker.watch.now_ns(), broker.reading, broker.link.word
        origin, status = (None, None) if reading is None else (reading.origin, reading.status)
        return StatusDocument(
            **page_values(status),
            broker_name=origin and origin.broker_name,
            version=origin and origin.version,
            boot_id=None if origin is None else str(origin.boot_id),
            store_uuid=None if status is None or status.store_uuid is None else str(status.store_uuid),
            pid=origin and origin.pid,
            started_wall_ms=origin and origin.started_wall_ms,
            motion=broker.motion(),
            looked_ms=broker.look.at_boottime_ns // 1_000_000,
            phase=None if status is None else status.phase.name.lower(),
            ready=self.readiness(),
            role=None if status is None else status.role.name.lower(),
            oldest=status and status.min_physical,
            acked=broker.acked(),
            written_bytes_per_second=broker.watch.history.rate(RATE_WINDOW_NS),
            at_risk=risk_documents(broker.risks()),
            slaves=[] if status is None else slave_documents(status, word.status, now_ns),
            flush_mode=self.tables.flush_mode(),
            buffer=None if status is None else buffer_document(status),
            disk=None if status is None else disk_document(status),
            log_missing_ranges=missing_range_documents(status, word.status) or None,
            last_error=status and (status.last_error or None),
            lease=None if self.lease is None else lease_document(self.lease.shown, now_ns),
            regaining=None if self.regaining is None else self.regaining.reason or None,
            said=None if word.status is None else role_document(word.status),
            said_fresh=Answered(age_ms=word.age_ms(now_ns), fault=word.fault or None),
            rates=self.rates.shown(),
            sidecar={"version": VERSION},
        )

    def group(self) -> GroupDocumentView:
        """This broker and those of the peers."""
        return group_view(self.status(), self.peers, self.ledgers, self.broker.watch.now_ns() // 1_000_000)

    def _judge(self, look: Look) -> None:
        watch = self.broker.watch
        now_ns = watch.now_ns()
        word = self.broker.link.word.fresh(now_ns)
        following = Following(lag_bytes=self.lag_bytes(), still_ms=watch.history.still_ms(now_ns))
        self._verdict = ready(look, word, following, now_ns, self.settings.health)
        self._health.feed(self._verdict, now_ns)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("a task of the sidecar has ended", extra={"task": task.get_name()}, exc_info=task.exception())
