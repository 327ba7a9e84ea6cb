"""What every client is made of: connections, name servers, routes, heartbeats, and the tasks that keep them going.

A producer or consumer opens one session and enters its groups in it. Brokers hear of them every 30 s, and at once
when a connection is made, because a broker forgets a client whose connection breaks. What brokers ask of us on those
connections goes to whoever registered for its code.
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
"""Takes a broker's request and its address; what it needs time for it gives later."""

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address reserved for documentation: looking up the way to it sends nothing."""


@final
class Session:
    """One client as brokers see it. Belongs to the event loop that starts it."""

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
        self.pool = ConnectionPool(self.settings, answer=self._answer, connected=self._connected)
        self.calls = Calls(self.pool, self.settings.request_timeout_ms)
        self.name_servers = NameServers(addresses, self.calls)
        self.routes = RouteTable(self.name_servers, default_topic_queues=default_topic_queues)
        self.tasks = BackgroundTasks("client")
        self._producer_groups: set[str] = set()
        self._consumer_groups: dict[str, Callable[[], ConsumerData]] = {}
        self._requests: dict[int, BrokerRequest] = {}
        self._heartbeat_due: set[str] = set()
        self._greeted: set[str] = set()
        """Where a heartbeat was taken on the connection that is open now."""
        self._heartbeat_wanted = asyncio.Event()
        self._is_open = False

    def __repr__(self) -> str:
        return f"<Session {self.client_id} {'open' if self._is_open else 'closed'}>"

    def require_open(self) -> None:
        """Raise ClientClosed outside `start` and `close`."""
        if not self._is_open:
            raise ClientClosed("not started, or closed: use it inside `async with`")

    async def start(self) -> None:
        """Begin to keep routes and heartbeats fresh. Needs no server to be there yet."""
        if self._is_open:
            raise RuntimeError("started twice")
        self._is_open = True
        self.tasks.repeat(self.settings.route_poll_interval_ms, self.routes.refresh_all, "routes")
        self.tasks.repeat(self.settings.heartbeat_interval_ms, self.heartbeat_all, "heartbeats")
        self.tasks.start(self._heartbeat_new_connections(), "first-heartbeats")

    async def close(self) -> None:
        """Say goodbye to the brokers and close every connection."""
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
        """Be a member of `group`; `describe` is asked for every heartbeat, since subscriptions change."""
        self._consumer_groups[group] = describe

    def on_request(self, code: RequestCode, handle: BrokerRequest) -> None:
        """Have `handle` answer what brokers ask with `code`."""
        self._requests[code] = handle

    # ------- heartbeats

    async def heartbeat_all(self) -> None:
        """Tell every broker of our topics that we live, side by side; one that is down must not delay the others."""
        addresses = self.routes.addresses(masters_only=not self._consumer_groups)
        await asyncio.gather(*(self._heartbeat(address) for address in addresses))

    async def greet(self, addresses: set[str]) -> None:
        """Make sure that the brokers at `addresses` know this client; asks only those that do not."""
        strangers = addresses - (self._greeted & self.pool.open_addresses())
        if strangers:
            await asyncio.gather(*(self._heartbeat(address) for address in strangers))

    async def _heartbeat(self, address: str) -> None:
        self._heartbeat_due.discard(address)
        if not self._producer_groups and not self._consumer_groups:
            return
        body = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in sorted(self._producer_groups)],
            consumer_data_set=[describe() for describe in self._consumer_groups.values()],
        )
        try:
            await self.calls.demand(address, RequestCode.HEART_BEAT, body=body)
            self._greeted.add(address)
        except ClientError as error:
            log.warning("a broker does not take heartbeats", extra={"broker": address, "reason": str(error)})

    async def _heartbeat_new_connections(self) -> None:
        while True:
            await self._heartbeat_wanted.wait()
            self._heartbeat_wanted.clear()
            brokers = self.routes.addresses(masters_only=False)
            await asyncio.gather(*(self._heartbeat(address) for address in self._heartbeat_due & brokers))
            self._heartbeat_due.clear()

    def _connected(self, address: str) -> None:
        self._greeted.discard(address)
        if self._is_open:
            self._heartbeat_due.add(address)
            self._heartbeat_wanted.set()

    async def _unregister(self) -> None:
        groups = [UnregisterClient(client_id=self.client_id, producer_group=name) for name in self._producer_groups]
        groups += [UnregisterClient(client_id=self.client_id, consumer_group=name) for name in self._consumer_groups]
        addresses = self.routes.addresses(masters_only=False) & self.pool.open_addresses()
        results = await asyncio.gather(
            *(
                self.calls.demand(address, RequestCode.UNREGISTER_CLIENT, group, timeout_ms=1000)
                for address in addresses
                for group in groups
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, ClientError):
                log.info("a broker did not hear our goodbye", extra={"reason": str(result)})
            elif isinstance(result, BaseException):
                raise result

    def _answer(self, command: Command, address: str) -> Command | Awaitable[Command | None] | None:
        handle = self._requests.get(command.code)
        if handle is None:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
        return handle(command, address)


def local_address(towards: str) -> str:
    """Our own address on the way to `towards` (`host:port`), found without sending a byte or asking a resolver."""
    host, port = split_address(towards)
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        (host, port), version = _ELSEWHERE, 4
    try:
        with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def client_id(address: str, instance: str | None) -> str:
    """`address@instance`. The default instance is the process and a random part: two containers that share an address
    may well share a process number, too."""
    return f"{address}@{instance or f'{os.getpid()}#{secrets.token_hex(4)}'}"
