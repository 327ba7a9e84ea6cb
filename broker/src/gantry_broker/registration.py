"""Keeping this broker known to its name servers.

One task per name server holds one connection open: a name server forgets a broker the moment that connection closes.
The whole topic table goes out at the start, every half minute, and right after a change. A name server that is down
costs a log line when it goes and when it comes back, nothing else. When the broker stops being the master it says
goodbye under its old number before it comes under the new one, on the same connection, so that the two cannot overtake
each other. A slave that becomes the master replaces its old number in one step and stays in the routes.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, final

from gantry_access import OwnAccount, StrictSigner
from gantry_remoting import Channel, FileWatch, RemotingError, read_small_file
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import TopicConfigTable
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import (
    MASTER_ID,
    KeyValueTable,
    RegisterBroker,
    RegisterBrokerBody,
    RegisterBrokerResult,
    UnregisterBroker,
    body_checksum,
)

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS: Final = 3_000
RETRY_S: Final = 1.0
SETTLE_S: Final = 0.02
"""Changes that come within this time go out together."""
MASTER_KEY: Final = "master"
_LINE: Final = re.compile(r"(?P<who>master|[1-9][0-9]{0,8})=(?P<address>[A-Za-z0-9.\-\[\]:]{1,260}:[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """How a name server knows this broker."""

    cluster: str
    name: str
    address: str
    ha_address: str
    broker_id: int = 0
    external_address: str = ""
    """Where clients outside of the network reach it; empty: nowhere."""


def _replaces(new: BrokerIdentity | None, old: BrokerIdentity) -> bool:
    """Whether name servers drop ``old`` by themselves when ``new`` is registered: no goodbye is needed.

    One that differs in the address for outside only is the same broker. A slave that becomes the master keeps its
    address, which has one number at a time, in RocketMQ's name servers, too. If it is the only member that is left, a
    goodbye would take all topics of the shard out of the routes until it is registered again. A master that becomes a
    slave does say goodbye: clients must not find it as the master any more, whatever happens next.
    """
    if new is None:
        return False
    same = replace(new, external_address=old.external_address, ha_address=old.ha_address, broker_id=old.broker_id)
    is_promoted = new.broker_id == MASTER_ID != old.broker_id
    return old == same and (is_promoted or (new.broker_id, new.ha_address) == (old.broker_id, old.ha_address))


@final
class Registration:
    """Registers at every name server. Owned by the event loop."""

    def __init__(
        self,
        identity: BrokerIdentity | None,
        name_servers: list[str],
        topics: Callable[[], TopicConfigTable],
        *,
        period_ms: int,
        on_master: Callable[[str], None] = lambda address: None,
        on_ordered: Callable[[Collection[str]], None] = lambda topics: None,
        account: OwnAccount | None = None,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Without an identity nothing is registered yet. ``on_master`` hears where a slave finds its master.

        ``on_ordered`` hears, of a master, which topics a name server's ORDER_TOPIC_CONFIG has.

        ``account`` signs strictly: our name servers check that, and Java's check nothing. ``tls`` is asked for every
        connection; None is plain text.
        """
        self._identity = identity
        self._on_master = on_master
        self._on_ordered = on_ordered
        self._account = account
        self._farewells: dict[str, list[BrokerIdentity]] = {address: [] for address in name_servers}
        """Under which names each of them still has us."""
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
        self._edition = 0
        self._published: dict[str, int] = {}
        self._progress = asyncio.Event()
        self.registered: set[str] = set()
        """Name servers that have us now."""

    def start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._keep(address)) for address in self._name_servers]

    def become(self, identity: BrokerIdentity | None) -> None:
        """Be known as somebody else from now on, or as nobody."""
        old, self._identity = self._identity, identity
        if old == identity:
            return
        if old is not None and not _replaces(identity, old):
            for address in self.registered:
                self._farewells[address].append(old)
        self.changed()

    def changed(self) -> None:
        """The topic table changed; tell everybody soon."""
        self._edition += 1
        for event in self._changes.values():
            event.set()

    async def published(self, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Wait until every name server that has us has the topics as they are now, so that routes show them.

        One that does not answer in time gets them later; it must not hold up an administrator.
        """
        edition = self._edition
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while any(self._published[address] < edition for address in self.registered):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            log.warning("a name server has not taken the topics in time", extra={"timeout_ms": timeout_ms})

    async def close(self) -> None:
        """Say goodbye, so that clients stop coming at once."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for address, channel in list(self._channels.items()):
            if self._identity is not None:
                self._farewells[address].append(self._identity)
            try:
                await self._say_goodbye(address, channel)
            except RemotingError as error:
                log.info("could not unregister from name server", extra={"address": address, "reason": str(error)})
            await channel.close()

    async def _say_goodbye(self, address: str, channel: Channel) -> None:
        farewells = self._farewells[address]
        while farewells:
            identity = farewells.pop(0)
            fields = UnregisterBroker(
                broker_name=identity.name,
                broker_addr=identity.address,
                cluster_name=identity.cluster,
                broker_id=identity.broker_id,
            )
            await self._ask(address, channel, Command(code=RequestCode.UNREGISTER_BROKER, ext=fields.write()))

    async def _ask(self, address: str, channel: Channel, command: Command) -> Command:
        """Signed as who we are now; where nobody knows that account yet, as who we were before.

        On the connection that there is: name servers would forget us for a moment with another one.
        """
        sign = self._signers.get(address)
        if self._account is None or sign is None:
            return await channel.request(command, REQUEST_TIMEOUT_MS)
        sign.become(self._account.credentials)
        reply = await channel.request(replace(command), REQUEST_TIMEOUT_MS)
        former = self._account.former
        if reply.code == ResponseCode.NO_PERMISSION and former is not None:
            sign.become(former)
            reply = await channel.request(replace(command), REQUEST_TIMEOUT_MS)
        return reply

    async def _keep(self, address: str) -> None:
        is_reachable = True
        while True:
            try:
                await self._stay_registered(address)
            except RemotingError as error:
                if is_reachable or address in self.registered:
                    log.warning("name server is not reachable", extra={"address": address, "reason": str(error)})
                is_reachable = False
            else:
                is_reachable = True
            self.registered.discard(address)
            self._progress.set()
            await asyncio.sleep(RETRY_S)

    async def _stay_registered(self, address: str) -> None:
        """Connect and register again and again; returns when the name server refuses us."""
        sign = None
        if self._account is not None:
            sign = self._signers[address] = StrictSigner(self._account.credentials)
        channel = await Channel.connect(
            address,
            timeout_ms=REQUEST_TIMEOUT_MS,
            tls=self._tls(),
            on_close=lambda _: self._wake(address),
            sign=sign,
        )
        self._channels[address] = channel
        self._farewells[address].clear()  # it has forgotten us with the last connection
        try:
            while True:
                self._changes[address].clear()
                edition = self._edition
                if self._account is not None:
                    await self._account.refresh()
                await self._say_goodbye(address, channel)
                identity = self._identity
                if identity is None:
                    self.registered.discard(address)
                    self._progress.set()
                    await self._changes[address].wait()
                    if not channel.is_open:
                        return
                    continue
                reply = await self._ask(address, channel, self._registration(identity))
                if reply.code != ResponseCode.SUCCESS:
                    if self._refusals.get(address, "") != reply.remark:
                        facts = {"address": address, "reason": reply.remark}
                        log.error("name server refused registration", extra=facts)
                    self._refusals[address] = reply.remark
                    return
                self._refusals.pop(address, None)
                if address not in self.registered:
                    log.info("registered at name server", extra={"address": address})
                self._published[address] = edition
                self.registered.add(address)
                if identity.broker_id:
                    self._on_master(RegisterBrokerResult.read(reply.ext).ha_server_addr or "")
                else:
                    self._hear_ordered(address, reply)
                self._progress.set()
                await self._change_or_period(address)
        finally:
            if not self._is_closing:
                del self._channels[address]
                await channel.close()

    def _hear_ordered(self, address: str, reply: Command) -> None:
        """The body of an answer, if the name server sends one."""
        if not reply.body:
            return
        try:
            ordered = read_document(reply.body, KeyValueTable).table
        except FieldError as error:
            log.warning("a name server's order topics are unreadable", extra={"address": address, "reason": str(error)})
            return
        if ordered:
            self._on_ordered(ordered.keys())

    def _wake(self, address: str) -> None:
        self._changes[address].set()

    async def _change_or_period(self, address: str) -> None:
        try:
            async with asyncio.timeout(self._period_s):
                await self._changes[address].wait()
                await asyncio.sleep(SETTLE_S)
        except TimeoutError:
            pass

    def _registration(self, identity: BrokerIdentity) -> Command:
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


@final
class OutsideAddresses:
    """Where clients outside of the network reach this broker, as a file tells that may change while the broker runs.

        master=203.0.113.7:10911        whichever member is the master
        2=203.0.113.8:10911             the broker with that number, while it is a slave

    Such addresses are given by others (a load balancer, a port of the machine), often after the broker has started.
    What cannot be read changes nothing, and without an address clients outside do not learn of this broker. Owned by
    the event loop.
    """

    def __init__(self, path: str, changed: Callable[[], None] = lambda: None) -> None:
        """Without a path there are none. ``changed`` is called after each change."""
        self._path: Final = path
        self._changed: Final = changed
        self._known: dict[str, str] = {}
        self._watch: Final = FileWatch("outside addresses", self.look)

    def of(self, broker_id: int) -> str:
        """The address of this broker as what it is registered; empty if there is none."""
        return self._known.get(str(broker_id) if broker_id else MASTER_KEY, "")

    async def start(self) -> None:
        """Read it, and look again every few seconds until closed."""
        if self._path:
            await self.look()
            self._watch.start()

    async def close(self) -> None:
        """Look no more."""
        await self._watch.close()

    async def look(self) -> None:
        """Take what the file says now."""
        try:
            text = (await asyncio.to_thread(read_small_file, self._path)).decode("utf-8", "replace")
        except OSError:
            return
        known = parse_addresses(text)
        if known != self._known:
            self._known = known
            log.info("outside addresses have changed", extra={"path": self._path, "addresses": len(known)})
            self._changed()


def parse_addresses(text: str) -> dict[str, str]:
    """Who is where; a line that is none is left out."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {match["who"]: match["address"] for match in found if match is not None}
