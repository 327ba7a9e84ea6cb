"""A proxy as one object: how it is built, and the order in which it starts and stops.

    start   accounts and certificates -> connections to servers -> periodic tasks -> ports
    drain   not ready -> `drainDelayMs` -> clients are asked to reconnect -> `RECONNECT_S`
            -> no new calls; Telemetry streams end -> running calls, at most `graceMs`
    close   leave producer groups -> close the connections

Messages in flight are left as they are: their consumers acknowledge them through another replica.
"""

import asyncio
import gc
import logging
import time
from typing import Final, final

from gantry_access import AccessFileError, AccessMode, AccountFile, OwnAccount, SignatureKind
from gantry_client.background import BackgroundTasks
from gantry_client.errors import BrokerRefused, ClientError
from gantry_client.session import Session
from gantry_client.settings import ClientSettings
from gantry_proxy.access import ClientAccounts, FileAccounts, ProxyGuard
from gantry_proxy.ack_batches import AckBatches
from gantry_proxy.bodies import BodyInflater
from gantry_proxy.broker_accounts import BrokerAccounts
from gantry_proxy.brokers import BrokerPort, RemotingBrokers
from gantry_proxy.client_requests import ClientRequests
from gantry_proxy.clients import ClientTable
from gantry_proxy.core import ProxyCore
from gantry_proxy.grpc_server import GrpcServer
from gantry_proxy.handlers.sessions import disconnect_revoked
from gantry_proxy.http_endpoint import HttpEndpoint
from gantry_proxy.metrics import Gauge, MetricFamily, ProxyMetrics, metric_families, metrics_text, own_gauges
from gantry_proxy.orphans import OrphanedTransactions
from gantry_proxy.registrations import ConsumerRegistrations
from gantry_proxy.renewal import Renewals
from gantry_proxy.send_batches import SendBatches
from gantry_proxy.service import MessagingService
from gantry_proxy.settings import BROKERS, ProxySettings
from gantry_proxy.topics import Topics
from gantry_remoting.setting_kinds import SettingsError
from gantry_remoting.settings import ClientTlsSettings

log = logging.getLogger(__name__)

RENEW_INTERVAL_MS: Final = 2_000
"""How often messages in flight are examined; well below the time for which they are renewed ahead."""
REGISTER_INTERVAL_MS: Final = 10_000
"""How often the proxy registers as a producer; brokers forget it after 120 s."""
RECONNECT_S: Final = 1.0
"""How long clients have to open another connection before this proxy accepts no calls: a call that arrives while gRPC's
core stops is cancelled."""
OWN_ACCOUNT_INTERVAL_MS: Final = 1_000
"""How often the file with the proxy's own account is read, as that with the accounts of clients."""
SHOW_INTERVAL_MS: Final = 5_000
"""How often new consumers are registered at brokers, and those that are gone unregistered."""
CONFIRM_INTERVAL_MS: Final = 5_000
"""How often the accounts of connected clients are compared with the present ones."""
GC_THRESHOLD: Final = 20_000
"""Objects between two runs of the garbage collector, as in a broker: calls are freed by reference counting."""
CLEAN_INTERVAL_MS: Final = 5_000
"""How often clients that are gone and unused answers are removed."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def tune_garbage_collector() -> None:
    """Exempt the objects of the start from collections, and make those rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


@final
class Proxy:
    """A proxy in this process; one replica, or one of its processes. Owned by the event loop that creates it."""

    def __init__(self, settings: ProxySettings) -> None:
        """Build all parts. Blocking: reads accounts. Raises SettingsError and AccessFileError."""
        self.settings: Final = settings
        self._accounts: Final = _accounts(settings)
        self._own_account: Final = _own_account(settings)
        self._session: Final = Session(settings.name_servers, _client_settings(settings, self._own_account))
        limits = settings.limits
        brokers = self._brokers = RemotingBrokers(self._session)
        self._broker_accounts: Final = _broker_accounts(settings, brokers)
        self._topics: Final = Topics(brokers, monotonic_ms)
        self._clients: Final = ClientTable(monotonic_ms, limits.clients_max, limits.clients_per_account_max)
        self._tasks: Final = BackgroundTasks("proxy")
        self._renewals: Final = Renewals(
            brokers, self._topics, monotonic_ms, limits.in_flight_messages_per_client_max, self._tasks
        )
        self._orphans: Final = OrphanedTransactions(brokers, self._topics, self._clients, limits.message_bytes_max)
        brokers.on_transaction_check(self._orphans.on_check)
        client_requests = ClientRequests(self._clients, wall_ms, limits.message_bytes_max)
        brokers.on_client_request(client_requests.answer)
        self._registrations: Final = ConsumerRegistrations(
            brokers, self._topics, self._clients, wall_ms, limits.visible_consumers_max
        )
        self._metrics: Final = ProxyMetrics()
        source: ClientAccounts | None = self._broker_accounts
        if self._accounts is not None:
            source = FileAccounts(self._accounts)
        guard = ProxyGuard(source, wall_ms, settings.access.signature_window_ms)
        core = self._core = ProxyCore(
            brokers=brokers, topics=self._topics, clients=self._clients, client_requests=client_requests,
            renewals=self._renewals, sends=SendBatches(brokers), acks=AckBatches(brokers), guard=guard, limits=limits,
            tasks=self._tasks, wall_ms=wall_ms, monotonic_s=time.monotonic,
            bodies=BodyInflater(limits.message_bytes_max),
        )  # fmt: skip
        self.server: Final = GrpcServer(
            MessagingService(core, self._metrics), settings.listen.address, settings.tls, limits,
            settings.listen.processes,
        )  # fmt: skip
        self._http: Final = (
            HttpEndpoint(settings.listen.http_address, self.not_ready_reason, self.metrics_text)
            if settings.listen.http_address
            else None
        )
        self._is_draining = False
        self._has_route = False
        """Whether a name server has answered since the start."""

    def __repr__(self) -> str:
        return f"<Proxy {self.server!r} {self._clients!r}>"

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def http_port(self) -> int:
        return 0 if self._http is None else self._http.port

    async def start(self) -> None:
        """Start serving. Raises OSError. Brokers and name servers need not be reachable yet."""
        await self._session.start()
        if self._accounts is not None:
            self._tasks.start(self._accounts.watch(), "accounts")
        if self._own_account is not None:
            self._tasks.repeat(OWN_ACCOUNT_INTERVAL_MS, self._own_account.refresh, "own-account")
        self._tasks.repeat(RENEW_INTERVAL_MS, self._renew, "renewals")
        self._tasks.repeat(REGISTER_INTERVAL_MS, self._orphans.register, "producers")
        self._tasks.repeat(SHOW_INTERVAL_MS, self._registrations.register, "consumers")
        self._tasks.repeat(CONFIRM_INTERVAL_MS, lambda: disconnect_revoked(self._core), "revocations")
        self._tasks.repeat(CLEAN_INTERVAL_MS, self._clean, "clean-up")
        self._tasks.start(self._find_name_server(), "name-server")
        try:
            if self._http is not None:
                await self._http.start()
            await self.server.start()
        except BaseException:
            await self.close()
            raise

    async def drain(self) -> None:
        """Stop serving without a failed call: clients move to other replicas."""
        listen = self.settings.listen
        self._is_draining = True
        log.info("draining", extra={"clients": len(self._clients), "delay_ms": listen.drain_delay_ms})
        await self.server.report_draining()
        await asyncio.sleep(listen.drain_delay_ms / 1000)
        self._tasks.start(self._clients.request_reconnects(), "reconnects")
        await asyncio.sleep(RECONNECT_S)
        stopping = asyncio.ensure_future(self.server.stop(listen.grace_ms / 1000))
        self._clients.close_streams()
        await stopping

    async def close(self) -> None:
        """Leave the brokers and close all connections; running calls fail."""
        await self.server.stop(0)
        if self._http is not None:
            await self._http.close()
        await self._orphans.unregister()
        await self._tasks.close()
        await self._brokers.close()  # brokers remove the consumers whose connections close
        await self._topics.close()
        if self._broker_accounts is not None:
            await self._broker_accounts.close()
        await self._session.close()

    async def metrics_text(self) -> str:
        """Return all metrics in the format of Prometheus."""
        return metrics_text(self.metric_families())

    def metric_families(self) -> list[MetricFamily]:
        """Return the metrics of this process, by name."""
        return metric_families(self._metrics, [*own_gauges(self._metrics), *self._gauges()])

    def _gauges(self) -> list[Gauge]:
        clients, renewals, orphans, port = self._clients, self._renewals, self._orphans, self.server.use
        accounts = self._broker_accounts
        return [
            Gauge("gantry_proxy_ready", "gauge", "Whether clients may be sent to this replica.",
                  lambda: float(not self.not_ready_reason()), is_shared=True),
            Gauge("gantry_proxy_clients", "gauge", "Connected clients.", lambda: len(clients)),
            Gauge("gantry_proxy_client_settings_bytes", "gauge", "The size of the settings of all clients.",
                  lambda: clients.settings_bytes),
            Gauge("gantry_proxy_telemetry_streams", "gauge", "Open Telemetry streams.", lambda: clients.stream_count),
            Gauge("gantry_proxy_connections", "gauge", "Open connections of clients.", lambda: port.connections),
            Gauge("gantry_proxy_held_bytes", "gauge", "Bytes of incomplete requests and unread replies.",
                  lambda: port.held_bytes),
            Gauge("gantry_proxy_port_refusals_total", "counter",
                  "Calls, connections and replies that were refused or ended, since their clients had too much.",
                  lambda: port.refused),
            Gauge("gantry_proxy_messages_in_flight", "gauge", "Messages whose invisible time is renewed.",
                  lambda: renewals.message_count),
            Gauge("gantry_proxy_renewals_total", "counter", "Renewals of invisible times.", lambda: renewals.renewed),
            Gauge("gantry_proxy_renewals_failed_total", "counter", "Renewals that failed.", lambda: renewals.failed),
            Gauge("gantry_proxy_transaction_checks_total", "counter",
                  "Questions about transactions that were passed on to a producer.", lambda: orphans.asked),
            Gauge("gantry_proxy_transaction_checks_dropped_total", "counter",
                  "Questions about transactions without a connected producer.", lambda: orphans.dropped),
            Gauge("gantry_proxy_broker_accounts", "gauge", "Known accounts of those that brokers store.",
                  lambda: 0 if accounts is None else len(accounts), is_shared=True),
            Gauge("gantry_proxy_account_reads_failed_total", "counter",
                  "Reads of accounts that no broker answered, or not as expected.",
                  lambda: 0 if accounts is None else accounts.failed),
        ]  # fmt: skip

    def not_ready_reason(self) -> str:
        """Return why no clients should be sent to this proxy; an empty text if they may be."""
        if self._is_draining:
            return "the proxy is stopping"
        return "" if self._has_route else "no name server has answered yet"

    async def _renew(self) -> None:
        self._renewals.renew_due()

    async def _clean(self) -> None:
        self._topics.forget_unused()
        if self._broker_accounts is not None:
            self._broker_accounts.forget_unused()
        self._clients.remove_silent()
        self._renewals.return_of_unknown(lambda client_id: self._clients.find(client_id) is not None)

    async def _find_name_server(self) -> None:
        """Wait until a name server answers: without one, no client could be served."""
        while True:
            try:
                await self._session.name_servers.cluster()
                break
            except BrokerRefused:  # an answer: the proxy's account may be no administrator
                break
            except ClientError as error:
                log.info("waiting for a name server", extra={"reason": str(error)})
            await asyncio.sleep(1)
        self._has_route = True


def _accounts(settings: ProxySettings) -> AccountFile | None:
    path = settings.access.accounts_file
    if not path:
        return None
    file = AccountFile(path, AccessMode.V1)
    try:
        file.load()
    except AccessFileError as error:
        raise SettingsError(f"access.accountsFile: {error}") from error
    return file


def _broker_accounts(settings: ProxySettings, brokers: BrokerPort) -> BrokerAccounts | None:
    access = settings.access
    if access.accounts_source != BROKERS:
        return None
    return BrokerAccounts(
        brokers, monotonic_ms, cluster=access.accounts_cluster, checks_policies=access.checks_policies
    )


def _own_account(settings: ProxySettings) -> OwnAccount | None:
    path = settings.access.credentials_file
    try:
        return OwnAccount(path) if path else None
    except AccessFileError as error:
        raise SettingsError(f"access.credentialsFile: {error}") from error


def _client_settings(settings: ProxySettings, account: OwnAccount | None) -> ClientSettings:
    authority = settings.tls.broker_authority
    return ClientSettings(
        tls=ClientTlsSettings(
            authority_file=authority,
            is_host_name_checked=settings.tls.checks_broker_host_name,
            names=("tls.brokerAuthority", "", ""),
        )
        if authority
        else None,
        credentials=account,
        signature=SignatureKind(settings.access.signature),
    )
