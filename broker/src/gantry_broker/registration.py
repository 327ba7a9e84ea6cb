"""Keeps this broker registered at its name servers.

One task per name server keeps one connection open: a name server forgets a broker as soon as that connection closes.
The whole topic table is sent at the start, right after a change, and once in each `registerNameServerPeriod`; by a
slave that learns of no master, again after a few seconds. An unreachable name server costs a log line when it becomes
unreachable and when it returns, nothing else. When the broker stops being the master it unregisters its old broker id
before it registers the new one, on the same connection, so that the two cannot overtake each other. A slave that
becomes the master stays in the routes: at the same address it replaces its old broker id in one step, and at another
one (`brokerMasterIP`) it unregisters the old address after the new one is registered.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, final

import msgspec

from gantry_access import OwnAccount, StrictSigner
from gantry_remoting import Channel, RemotingError
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import TopicConfigTable
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import (
    MASTER_ID,
    ClusterInfo,
    KeyValueTable,
    QueryRoute,
    RegisterBroker,
    RegisterBrokerBody,
    RegisterBrokerResult,
    TopicRoute,
    UnregisterBroker,
    body_checksum,
)

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS: Final = 3_000
"""Timeout of a connection attempt and of each request, in milliseconds."""

RETRY_S: Final = 1.0
"""Pause after a failure, in seconds."""

SETTLE_S: Final = 0.02
"""Changes within this many seconds are sent together."""

SEARCH_PERIOD_S: Final = 3.0
"""Seconds after which a slave registers again for which a name server has no master, to learn its address soon."""


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The identity under which a broker is registered."""

    cluster: str
    name: str
    """The name of the shard."""

    address: str
    """Address by which clients reach it."""

    ha_address: str
    """Address of its replication port."""

    broker_id: int = 0
    external_address: str = ""
    """Address by which clients outside of the network reach it; empty if there is none."""

    is_provisional: bool = False
    """Whether it yields to any other master: it registers only where none is registered.

    A master that compares its log with slaves has not shown yet that it still is the master of its shard.
    """


def _replaces(new: BrokerIdentity | None, old: BrokerIdentity) -> bool:
    """Return whether name servers drop ``old`` when ``new`` is registered, so that unregistering is not needed.

    An identity that differs only in the external address is the same broker. An address has one broker id at a time, in
    RocketMQ's name servers, too, so that a slave replaces its id when it becomes the master at the same address.
    """
    if new is None:
        return False
    same = replace(
        new,
        external_address=old.external_address,
        ha_address=old.ha_address,
        broker_id=old.broker_id,
        is_provisional=old.is_provisional,
    )
    is_promoted = new.broker_id == MASTER_ID != old.broker_id
    return old == same and (is_promoted or (new.broker_id, new.ha_address) == (old.broker_id, old.ha_address))


def _outlasts_registration(old: BrokerIdentity, new: BrokerIdentity | None) -> bool:
    """Return whether ``old`` stays registered until ``new`` is: a slave's identity, when it becomes the master.

    If it is the only member left, unregistering it first would remove all topics of the shard from the routes until it
    is registered again. A master that becomes a slave does unregister first: clients must not find it as the master
    any more, even if the next registration fails.
    """
    if new is None or (new.cluster, new.name) != (old.cluster, old.name):
        return False
    return new.broker_id == MASTER_ID != old.broker_id and new.address != old.address


@final
class Registration:
    """Registers the broker at every name server. Owned by the event loop."""

    def __init__(
        self,
        identity: BrokerIdentity | None,
        name_servers: list[str],
        topics: Callable[[], TopicConfigTable],
        *,
        period_ms: int,
        on_master: Callable[[str], None] = lambda address: None,
        on_order_topics: Callable[[Collection[str]], None] = lambda topics: None,
        account: OwnAccount | None = None,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Without an identity nothing is registered yet.

        ``on_master`` receives, on a slave, the master's replication address, empty without a registered master;
        ``on_order_topics`` receives, on a master, the topics in a name server's ORDER_TOPIC_CONFIG. ``account`` signs
        strictly: our name servers verify that, and Java's verify nothing. ``tls`` returns the context of each
        connection; None is plain text.
        """
        self._identity = identity
        self._on_master = on_master
        self._on_order_topics = on_order_topics
        self._account = account
        self._pending_unregistrations: dict[str, list[BrokerIdentity]] = {address: [] for address in name_servers}
        """Identities that each name server still has registered and should drop."""
        self._tls = tls
        self._name_servers = name_servers
        self._topics = topics
        self._period_s = period_ms / 1000
        self._changes: dict[str, asyncio.Event] = {address: asyncio.Event() for address in name_servers}
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: dict[str, Channel] = {}
        self._signers: dict[str, StrictSigner] = {}
        self._refusals: dict[str, str | None] = {}
        """The last reason of each name server that refuses the registration; logged once, not every second."""
        self._is_closing = False
        self._change_count = 0
        """The number of changes of the topic table or the identity since the start."""
        self._published: dict[str, int] = {}
        """The change count of the table that each name server has."""
        self._progress = asyncio.Event()
        self.registered: set[str] = set()
        """Name servers at which the broker is registered now."""

    def start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._keep_registered(address)) for address in self._name_servers]

    def set_identity(self, identity: BrokerIdentity | None) -> None:
        """Register under another identity from now on, or not at all."""
        old, self._identity = self._identity, identity
        if old == identity:
            return
        if old is not None and not _replaces(identity, old):
            for address in self.registered:
                self._pending_unregistrations[address].append(old)
        self.schedule_update()

    def schedule_update(self) -> None:
        """Send the topic table to all name servers soon, because it has changed."""
        self._change_count += 1
        for event in self._changes.values():
            event.set()

    async def wait_until_published(self, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Wait until every connected name server has the current topics, so that routes show them.

        A name server that does not answer in time gets them later; it must not delay an administrator.
        """
        needed = self._change_count
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while any(self._published[address] < needed for address in self.registered):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            log.warning(
                "name server has not confirmed the topics in time; clients see them later",
                extra={"timeout_ms": timeout_ms},
            )

    async def query_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic from the first name server that answers; None if none does, or none has it."""
        fields = QueryRoute(topic=topic, accept_standard_json_only=True)
        for address, channel in list(self._channels.items()):
            command = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=fields.write())
            try:
                reply = await self._request(address, channel, command)
                if reply.code == ResponseCode.SUCCESS:
                    return read_document(reply.body, TopicRoute)
            except (RemotingError, FieldError) as error:
                log.info("could not query route", extra={"address": address, "topic": topic, "reason": str(error)})
        return None

    async def close(self) -> None:
        """Unregister from all name servers, so that clients stop connecting at once."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for address, channel in list(self._channels.items()):
            if self._identity is not None:
                self._pending_unregistrations[address].append(self._identity)
            try:
                await self._unregister(address, channel)
            except RemotingError as error:
                log.info("could not unregister from name server", extra={"address": address, "reason": str(error)})
            await channel.close()

    async def _unregister(self, address: str, channel: Channel, *, is_registered: bool = True) -> None:
        """Drop former identities; before the new one ``is_registered``, only those that must not outlast that."""
        pending = self._pending_unregistrations[address]
        while droppable := [one for one in pending if is_registered or not _outlasts_registration(one, self._identity)]:
            identity = droppable[0]
            pending.remove(identity)
            fields = UnregisterBroker(
                broker_name=identity.name,
                broker_addr=identity.address,
                cluster_name=identity.cluster,
                broker_id=identity.broker_id,
            )
            await self._request(address, channel, Command(code=RequestCode.UNREGISTER_BROKER, ext=fields.write()))

    async def _request(self, address: str, channel: Channel, command: Command) -> Command:
        """Send a request, signed with the current account, or with the previous one if that is refused.

        A new account may not be known at the name server yet. The existing connection is kept: with another connection,
        name servers would drop the broker for a moment.
        """
        signer = self._signers.get(address)
        if self._account is None or signer is None:
            return await channel.request(command, REQUEST_TIMEOUT_MS)
        signer.switch_account(self._account.credentials)
        reply = await channel.request(msgspec.structs.replace(command), REQUEST_TIMEOUT_MS)
        previous = self._account.previous
        if reply.code == ResponseCode.NO_PERMISSION and previous is not None:
            signer.switch_account(previous)
            reply = await channel.request(msgspec.structs.replace(command), REQUEST_TIMEOUT_MS)
        return reply

    async def _keep_registered(self, address: str) -> None:
        """Keep the broker registered at one name server, and reconnect after failures."""
        is_reachable = True
        while True:
            try:
                await self._register_over_one_connection(address)
            except RemotingError as error:
                if is_reachable or address in self.registered:
                    log.warning(
                        "name server is not reachable; retrying", extra={"address": address, "reason": str(error)}
                    )
                is_reachable = False
            else:
                is_reachable = True
            self.registered.discard(address)
            self._progress.set()
            await asyncio.sleep(RETRY_S)

    async def _register_over_one_connection(self, address: str) -> None:
        """Connect, and register at once, after each change and once in each period.

        Returns when the name server refuses the broker, or has closed the connection of a broker without an identity.
        """
        signer = None
        if self._account is not None:
            signer = self._signers[address] = StrictSigner(self._account.credentials)
        channel = await Channel.connect(
            address,
            timeout_ms=REQUEST_TIMEOUT_MS,
            tls=self._tls(),
            on_close=lambda _: self._wake(address),
            sign=signer,
        )
        self._channels[address] = channel
        # The name server dropped all identities with the last connection.
        self._pending_unregistrations[address].clear()
        try:
            while True:
                self._changes[address].clear()
                change_count = self._change_count
                if self._account is not None:
                    await self._account.refresh()
                await self._unregister(address, channel, is_registered=False)
                identity = self._identity
                if identity is None or await self._must_yield(address, channel, identity):
                    self.registered.discard(address)
                    self._progress.set()
                    await self._wait_for_change_or_period(address, self._period_s if identity else None)
                    if not channel.is_open:
                        return
                    continue
                reply = await self._request(address, channel, self._registration_request(identity))
                if reply.code != ResponseCode.SUCCESS:
                    if self._refusals.get(address, "") != reply.remark:
                        facts = {"address": address, "reason": reply.remark}
                        log.error("name server refused registration", extra=facts)
                    self._refusals[address] = reply.remark
                    return
                self._refusals.pop(address, None)
                if identity == self._identity:  # else it has to be dropped itself, in the next iteration
                    await self._unregister(address, channel)
                if address not in self.registered:
                    log.info("registered at name server", extra={"address": address})
                self._published[address] = change_count
                self.registered.add(address)
                period_s = self._period_s
                if identity.broker_id:
                    master = RegisterBrokerResult.read(reply.ext).ha_server_addr or ""
                    self._on_master(master)
                    period_s = period_s if master else min(period_s, SEARCH_PERIOD_S)
                else:
                    self._read_order_topics(address, reply)
                self._progress.set()
                await self._wait_for_change_or_period(address, period_s)
        finally:
            if not self._is_closing:
                del self._channels[address]
                await channel.close()

    async def _must_yield(self, address: str, channel: Channel, identity: BrokerIdentity) -> bool:
        """Return whether a provisional identity must not be registered: another master is, or may be, registered."""
        if not identity.is_provisional:
            return False
        reply = await self._request(address, channel, Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))
        reason = reply.remark
        if reply.code == ResponseCode.SUCCESS:
            try:
                members = read_document(reply.body, ClusterInfo).broker_addr_table.get(identity.name)
            except FieldError as error:
                reason = str(error)
            else:
                master = members.broker_addrs.get(MASTER_ID) if members is not None else None
                if master in (None, identity.address):
                    return False
                reason = f"{master} is registered as the master"
        if self._refusals.get(address, "") != reason:
            facts = {"address": address, "reason": reason}
            log.warning("not registered before the log is compared; slaves cannot find this broker", extra=facts)
        self._refusals[address] = reason
        return True

    def _read_order_topics(self, address: str, reply: Command) -> None:
        """Read the order topics from an answer, if the name server sends them."""
        if not reply.body:
            return
        try:
            ordered = read_document(reply.body, KeyValueTable).table
        except FieldError as error:
            log.warning(
                "cannot read order topics of name server; ignored", extra={"address": address, "reason": str(error)}
            )
            return
        if ordered:
            self._on_order_topics(ordered.keys())

    def _wake(self, address: str) -> None:
        self._changes[address].set()

    async def _wait_for_change_or_period(self, address: str, period_s: float | None) -> None:
        """Wait for a change, and for those that follow it at once, or until the period is over if there is one."""
        try:
            async with asyncio.timeout(period_s):
                await self._changes[address].wait()
                await asyncio.sleep(SETTLE_S)
        except TimeoutError:
            pass

    def _registration_request(self, identity: BrokerIdentity) -> Command:
        body = write_document(RegisterBrokerBody(topic_config_serialize_wrapper=self._topics()))
        fields = RegisterBroker(
            broker_name=identity.name,
            broker_addr=identity.address,
            cluster_name=identity.cluster,
            ha_server_addr=identity.ha_address,
            broker_id=identity.broker_id,
            external_addr=identity.external_address or None,
            compressed=False,
            body_crc32=body_checksum(body),
        )
        return Command(code=RequestCode.REGISTER_BROKER, ext=fields.write(), body=body)
