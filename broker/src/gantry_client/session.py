"""The common base of every client: connections, name servers, routes, heartbeats, and their periodic tasks.

A producer or consumer opens one session and adds its groups to it. Brokers receive a heartbeat every 30 s, and at once
after a connection is opened, because a broker removes a client whose connection breaks. Requests of brokers on these
connections go to the handler that is registered for their code.
"""

import asyncio
import ipaddress
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_client.background import BackgroundTasks
from gantry_client.calls import Calls
from gantry_client.connections import ConnectionPool
from gantry_client.errors import ClientClosed, ClientError
from gantry_client.name_servers import NameServers
from gantry_client.routes import RouteTable
from gantry_client.settings import ClientSettings, NameServerAddresses, parse_name_servers
from gantry_remoting.addresses import split_address
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import ConsumerData, HeartbeatData, ProducerData, UnregisterClient
from gantry_wire.unique_id import UniqueIds

log = logging.getLogger(__name__)

BrokerRequest = Callable[[Command, str], Command | Awaitable[Command | None] | None]
"""Answers a request of a broker, given the request and the address of the broker, at once or asynchronously."""

_PROBE_ADDRESS: Final = ("192.0.2.1", 9)
"""An address reserved for documentation; determining the route to it sends no packet."""


@final
class Session:
    """One client from the view of the brokers. Belongs to the event loop that starts it."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        settings: ClientSettings | None = None,
        *,
        default_topic_queues: int = 4,
    ) -> None:
        self.settings = settings or ClientSettings()
        addresses = parse_name_servers(name_servers)
        address = local_address(addresses[0])
        self.client_id = client_id(address, self.settings.instance)
        self.unique_ids = UniqueIds(ipaddress.ip_address(address).packed, salt=secrets.randbits(32))
        self.pool = ConnectionPool(self.settings, answer=self._answer, on_connected=self._on_connected)
        self.calls = Calls(self.pool, self.settings.request_timeout_ms)
        self.name_servers = NameServers(addresses, self.calls)
        self.routes = RouteTable(self.name_servers, default_topic_queues=default_topic_queues)
        self.tasks = BackgroundTasks("client")
        self._producer_groups: set[str] = set()
        self._consumer_groups: dict[str, Callable[[], ConsumerData]] = {}
        self._request_handlers: dict[int, BrokerRequest] = {}
        self._heartbeats_due: set[str] = set()
        self._announced: set[str] = set()
        """The addresses that have accepted a heartbeat on their present connection."""
        self._heartbeat_wanted = asyncio.Event()
        self._is_open = False

    def __repr__(self) -> str:
        return f"<Session {self.client_id} {'open' if self._is_open else 'closed'}>"

    def require_open(self) -> None:
        """Raise ClientClosed unless the session is started and not closed."""
        if not self._is_open:
            raise ClientClosed("the client is not started or already closed; use it inside `async with`")

    async def start(self) -> None:
        """Start the periodic route refresh and heartbeats. No server needs to be reachable yet."""
        if self._is_open:
            raise RuntimeError("the client is already started")
        self._is_open = True
        self.tasks.repeat(self.settings.route_poll_interval_ms, self.routes.refresh_all, "routes")
        self.tasks.repeat(self.settings.heartbeat_interval_ms, self.heartbeat_all, "heartbeats")
        self.tasks.start(self._heartbeat_new_connections(), "first-heartbeats")

    async def close(self) -> None:
        """Unregister from the brokers and close every connection."""
        if not self._is_open:
            return
        self._is_open = False
        await self.tasks.close()
        await self._unregister()
        await self.routes.close()
        await self.pool.close()

    # ------- groups

    def enter_producer_group(self, group: str) -> None:
        self._producer_groups.add(group)

    def enter_consumer_group(self, group: str, describe: Callable[[], ConsumerData]) -> None:
        """Add the membership in `group`; `describe` is called for every heartbeat, because subscriptions change."""
        self._consumer_groups[group] = describe

    def on_request(self, code: RequestCode, handle: BrokerRequest) -> None:
        """Register `handle` for requests of brokers with `code`."""
        self._request_handlers[code] = handle

    # ------- heartbeats

    async def heartbeat_all(self) -> None:
        """Send heartbeats to all brokers of our topics concurrently, so that one that is down delays no other.

        Slaves get them only from consumers.
        """
        addresses = self.routes.addresses(masters_only=not self._consumer_groups)
        await asyncio.gather(*(self._heartbeat(address) for address in addresses))

    async def announce(self, addresses: set[str]) -> None:
        """Send a heartbeat to those of `addresses` that have not accepted one on their present connection."""
        unannounced = addresses - (self._announced & self.pool.open_addresses())
        if unannounced:
            await asyncio.gather(*(self._heartbeat(address) for address in unannounced))

    async def _heartbeat(self, address: str) -> None:
        self._heartbeats_due.discard(address)
        if not self._producer_groups and not self._consumer_groups:
            return
        body = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in sorted(self._producer_groups)],
            consumer_data_set=[describe() for describe in self._consumer_groups.values()],
        )
        try:
            await self.calls.request_success(address, RequestCode.HEART_BEAT, body=body)
            self._announced.add(address)
        except ClientError as error:
            log.warning("failed to send heartbeat", extra={"broker": address, "reason": str(error)})

    async def _heartbeat_new_connections(self) -> None:
        while True:
            await self._heartbeat_wanted.wait()
            self._heartbeat_wanted.clear()
            # Connections that are opened during the heartbeats below belong to the next round.
            due, self._heartbeats_due = self._heartbeats_due, set()
            brokers = self.routes.addresses(masters_only=False)
            await asyncio.gather(*(self._heartbeat(address) for address in due & brokers))

    def _on_connected(self, address: str) -> None:
        self._announced.discard(address)
        if self._is_open:
            self._heartbeats_due.add(address)
            self._heartbeat_wanted.set()

    async def _unregister(self) -> None:
        groups = [UnregisterClient(client_id=self.client_id, producer_group=name) for name in self._producer_groups]
        groups += [UnregisterClient(client_id=self.client_id, consumer_group=name) for name in self._consumer_groups]
        addresses = self.routes.addresses(masters_only=False) & self.pool.open_addresses()
        results = await asyncio.gather(
            *(
                self.calls.request_success(address, RequestCode.UNREGISTER_CLIENT, group, timeout_ms=1000)
                for address in addresses
                for group in groups
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, ClientError):
                log.info("could not unregister from broker", extra={"reason": str(result)})
            elif isinstance(result, BaseException):
                raise result

    def _answer(self, command: Command, address: str) -> Command | Awaitable[Command | None] | None:
        handle = self._request_handlers.get(command.code)
        if handle is None:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
        return handle(command, address)


def local_address(towards: str) -> str:
    """Return the local address on the route to `towards` (`host:port`), without sending a packet or a DNS query."""
    host, port = split_address(towards)
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        (host, port), version = _PROBE_ADDRESS, 4
    try:
        with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def client_id(address: str, instance: str | None) -> str:
    """Return `address@instance`. The default instance is the process id and a random part, because two containers that
    share an address may share a process id, too."""
    return f"{address}@{instance or f'{os.getpid()}#{secrets.token_hex(4)}'}"
