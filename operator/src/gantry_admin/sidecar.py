"""The sidecar: all its parts connected, and the answers that combine them.

Owned by the event loop. ``start`` starts the background tasks and ``close`` ends them; every other method answers from
memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final, final

from gantry_admin.broker_client import BrokerClient
from gantry_admin.certificates import listener_certificates
from gantry_admin.changes import ChangeExecutor
from gantry_admin.describe import (
    HOT_PATHS,
    buffer_document,
    disk_document,
    lease_document,
    missing_range_documents,
    page_values,
    risk_documents,
    role_document,
    slave_documents,
)
from gantry_admin.documents import ReadyDocument, ReportFreshness, StatusDocument
from gantry_admin.group_view import BrokerGroupDocument, ShardLedgers, group_view
from gantry_admin.guard import Guard
from gantry_admin.health import Following, Hysteresis, Verdict, ready
from gantry_admin.inventory_cache import InventoryCache
from gantry_admin.kubernetes_lease import KubernetesLeaseClient
from gantry_admin.lag_monitor import LagMonitor
from gantry_admin.lag_times import StoreTimes
from gantry_admin.lease_client import LeaseClient
from gantry_admin.lease_renewal import ORDER_TIMEOUT_S, LeaseRenewal
from gantry_admin.limits import ConcurrencyLimit, LogLimits
from gantry_admin.observed_broker import ObservedBroker
from gantry_admin.peers import PeerRoles, Peers
from gantry_admin.proxies import Proxies
from gantry_admin.ranges import log_span
from gantry_admin.rates import POLL_AFTER_REQUEST_S, Rates
from gantry_admin.resender import MessageResender
from gantry_admin.role_recovery import RoleRecovery
from gantry_admin.search.runner import Searches
from gantry_admin.settings import SidecarSettings
from gantry_admin.store_files import StoreFiles
from gantry_admin.topics_file import TopicsFileReconciler
from gantry_admin.watch import PageObservation
from gantry_remoting.http_admission import HttpAdmission
from gantry_status.clocks import Clock, now
from gantry_status.orders import Lease
from gantry_wire.version import VERSION

log = logging.getLogger(__name__)

RATE_WINDOW_NS: Final = 5_000_000_000
"""The time over which the rate of written bytes is averaged."""

LEDGER_INTERVAL_S: Final = 1.0
"""The interval between two updates of the durability ledgers, in seconds."""

WAITERS_MAX: Final = 64
"""The most callers that wait for an offset at a time."""

STREAMS_MAX: Final = 32
"""The most event streams at a time."""

TAILS_MAX: Final = 8
"""The most live tails at a time: each may decode some thousand messages per second."""


@final
class Sidecar:
    """One sidecar with all its parts."""

    def __init__(self, settings: SidecarSettings, *, fast_port: int | None = None, clock: Clock = now) -> None:
        """Create it without contacting the broker. Raises ``SettingsError`` for files that cannot be used.

        ``fast_port`` is the port of the listener for ranges by sendfile, or None without one.
        """
        self.settings: Final = settings
        self.fast_port: Final = fast_port
        self.guard: Final = Guard(settings)
        self.broker: Final = ObservedBroker(settings.broker, settings.health, clock=clock)
        self.peers: Final = Peers(settings.peers, self.guard.peer_token)
        self.proxies: Final = Proxies(settings.proxies)
        self.files: Final = StoreFiles(settings.broker.store)
        self.limits: Final = LogLimits(settings.log)
        self.admission: Final = HttpAdmission("main", settings.http, clock=time.monotonic)
        """The admission of connections to the main listener."""
        self.log_admission: Final = HttpAdmission("log", settings.log_http, clock=time.monotonic)
        """The admission of connections to the listener for ranges of the log; owned by its thread."""
        self.searches: Final = Searches(self.limits)
        self.client: Final = BrokerClient(settings.broker, self.broker.link)
        self.inventory: Final = InventoryCache(self.broker, self.client, self.files)
        times = StoreTimes(self.files, lambda: log_span(self.broker.reading), clock=clock)
        self.lag: Final = LagMonitor(self.inventory, times, settings.state, clock=clock)
        self.rates: Final = Rates(self.broker, self.client.connect)
        self.resender: Final = MessageResender(self.broker, self.client)
        self.changes: Final = ChangeExecutor(self.broker, self.client, settings.topics_file)
        lease_client = None if settings.lease is None else KubernetesLeaseClient(settings.lease)
        self.lease: Final = self._lease_renewal(lease_client)
        """The renewal of the shard's Lease; None without --lease."""
        self.role_recovery: Final = self._role_recovery(lease_client)
        """The recovery of the broker's role; None without --regain."""
        self.ledgers: Final = ShardLedgers(settings.health.lag_bytes_max)
        self.certificates: Final = listener_certificates(settings.access)
        """The certificates of both listeners; None without TLS. The server starts and closes them."""
        self.waiters: Final = ConcurrencyLimit(WAITERS_MAX, "callers are waiting already", retry_after_s=1)
        """The limit of callers that wait for an offset."""
        self.streams: Final = ConcurrencyLimit(STREAMS_MAX, "streams are open already", retry_after_s=5)
        """The limit of open event streams."""
        self.tails: Final = ConcurrencyLimit(TAILS_MAX, "tails are open already", retry_after_s=5)
        """The limit of open tails."""
        self._health: Final = Hysteresis(settings.health)
        self._newest_verdict = self._health.current
        self._tasks: Final[list[asyncio.Task[None]]] = []

    def __repr__(self) -> str:
        return f"<Sidecar {self.settings.broker.page} {self._health!r}>"

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the watch of the page and all background tasks."""
        self.broker.watch.on_observation(self._update_verdict)
        self.broker.watch.start()
        self._start_task(self.broker.link.run(), "link")
        self._start_task(self.guard.keep_fresh(), "guard")
        self._start_task(self.peers.run(), "peers")
        self._start_task(self.proxies.run(), "proxies")
        self._start_task(self.rates.run(), "rates")
        self._start_task(self.lag.run(), "consumer lag")
        self._start_task(self._update_ledgers(), "ledgers")
        if self.lease is not None:
            self._start_task(self.lease.run(), "lease")
        if self.role_recovery is not None:
            self._start_task(self.role_recovery.run(), "role recovery")
        if self.settings.topics_file is not None:
            reconciler = TopicsFileReconciler(self.settings.topics_file, self.broker.fresh_state, self.client.connect)
            self._start_task(reconciler.run(), "reconcile topics")

    async def close(self) -> None:
        """End the background tasks, and close all connections to the broker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.lag.close()
        await self.resender.close()
        await self.inventory.close()
        await self.client.close()
        await asyncio.to_thread(self.broker.watch.close)

    async def _update_ledgers(self) -> None:
        """Update the durability ledgers even without requests: the age of the data at risk comes from the update
        before."""
        while True:
            self.group()
            await asyncio.sleep(LEDGER_INTERVAL_S)

    def _lease_renewal(self, lease_client: LeaseClient | None) -> LeaseRenewal | None:
        if lease_client is None:
            return None

        async def send_lease(order: Lease) -> object:
            return await self.broker.link.order(order, timeout_s=ORDER_TIMEOUT_S)

        return LeaseRenewal(lease_client, self.broker.fresh_state, self.broker.boot_id, send_lease)

    def _role_recovery(self, lease_client: LeaseClient | None) -> RoleRecovery | None:
        settings = self.settings.lease
        if lease_client is None or settings is None or not settings.regains:
            return None
        return RoleRecovery(lease_client, PeerRoles(self.peers), self.broker.fresh_state, self.broker.link.order)

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"gantry-{name}")
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    # -- current state -------------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """The verdict on readiness that is in effect, after hysteresis."""
        return self._health.current

    def lag_bytes(self) -> int | None:
        """Return how far this slave is behind its master; None unless a peer that answers is that master."""
        reading = self.broker.reading
        if reading is None or reading.status.wrote is None:
            return None
        ends = [
            peer.status.wrote
            for peer in self.peers.reports.values()
            if peer.fault is None and peer.status is not None and peer.status.wrote is not None
            and peer.status.role == "master"
            and peer.status.broker_name == reading.origin.broker_name and peer.status.epoch == reading.status.epoch
        ]  # fmt: skip
        return max(max(ends) - reading.status.wrote, 0) if ends else None

    def readiness(self) -> ReadyDocument:
        """Return the readiness and its reason."""
        verdict, loop_state = self.verdict, self.broker.loop_state()
        newest = self._newest_verdict.reason
        return ReadyDocument(ready=verdict.is_good, reason=verdict.reason, now=newest, broker=loop_state)

    def request_rates(self, *, of_peers: bool) -> None:
        """Have the rates of this broker measured for some seconds, and those of all peers' brokers, too, if asked."""
        self.rates.request()
        if of_peers:
            self.peers.request_rates(POLL_AFTER_REQUEST_S)

    def status(self) -> StatusDocument:
        """Return the complete status of this broker."""
        broker = self.broker
        now_ns, reading, role_report = broker.watch.now_ns(), broker.reading, broker.link.role_report
        origin, status = (None, None) if reading is None else (reading.origin, reading.status)
        return StatusDocument(
            **page_values(status),
            broker_name=origin and origin.broker_name,
            version=origin and origin.version,
            hot_path=None if origin is None else HOT_PATHS[origin.hot_path],
            hot_path_reason=origin and (origin.hot_path_reason or None),
            boot_id=None if origin is None else str(origin.boot_id),
            store_uuid=None if status is None or status.store_uuid is None else str(status.store_uuid),
            pid=origin and origin.pid,
            started_wall_ms=origin and origin.started_wall_ms,
            loop_state=broker.loop_state(),
            observed_ms=broker.observation.at_boottime_ns // 1_000_000,
            phase=None if status is None else status.phase.name.lower(),
            ready=self.readiness(),
            role=None if status is None else status.role.name.lower(),
            oldest=status and status.min_physical,
            acked=broker.acked(),
            written_bytes_per_second=broker.watch.history.rate(RATE_WINDOW_NS),
            at_risk=risk_documents(broker.risks()),
            slaves=[] if status is None else slave_documents(status, role_report.status, now_ns),
            flush_mode=self.inventory.flush_mode(),
            buffer=None if status is None else buffer_document(status),
            disk=None if status is None else disk_document(status),
            log_missing_ranges=missing_range_documents(status, role_report.status) or None,
            last_error=status and (status.last_error or None),
            lease=None if self.lease is None else lease_document(self.lease.status, now_ns),
            regaining=None if self.role_recovery is None else self.role_recovery.reason or None,
            reported_role=None if role_report.status is None else role_document(role_report.status),
            reported_role_fresh=ReportFreshness(age_ms=role_report.age_ms(now_ns), fault=role_report.fault or None),
            rates=self.rates.document(),
            lag_history=self.lag.document(),
            sidecar={"version": VERSION},
        )

    def group(self) -> BrokerGroupDocument:
        """Return the view of the group: this broker, those of the peers, and the proxies."""
        now_ms = self.broker.watch.now_ns() // 1_000_000
        return group_view(self.status(), self.peers, self.proxies, self.ledgers, now_ms)

    def _update_verdict(self, observation: PageObservation) -> None:
        watch = self.broker.watch
        now_ns = watch.now_ns()
        state = self.broker.link.role_report.fresh_status(now_ns)
        following = Following(lag_bytes=self.lag_bytes(), idle_ms=watch.history.idle_ms(now_ns))
        self._newest_verdict = ready(observation, state, following, now_ns, self.settings.health)
        self._health.feed(self._newest_verdict, now_ns)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical(
            "sidecar task failed; restart the sidecar", extra={"task": task.get_name()}, exc_info=task.exception()
        )
