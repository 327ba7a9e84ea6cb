"""Registers the consumers of this proxy at brokers, so that administrators see and reach them as other consumers.

    consumer group at a broker   [consumer over remoting, consumer of a proxy, ...]
                                                           `- a connection of the proxy, for requests 307 and 309

A broker knows one client of a group by one connection. So the consumers of one group use different connections of the
proxy, its *slots*: the first consumer of each group slot 0, the second slot 1, and so on. Consumers beyond
`SLOTS_MAX` of a group, or beyond `limits.visibleConsumersMax` of the proxy, are served in the same way, and not shown.
A consumer that is not shown, since a broker refuses it or is down, loses nothing else.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from gantry_client.errors import ClientError
from gantry_proxy.brokers import BrokerPort
from gantry_proxy.clients import ClientTable, ProxyClient
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.topics import Topics
from gantry_proxy.translation.subscriptions import heartbeat, remoting_language
from gantry_wire.commands.nameserver import MASTER_ID

log = logging.getLogger(__name__)

SLOTS_MAX: Final = 32
"""How many connections to a broker are used, and so how many consumers of one group are shown. A broker informs each
member of a group about each change, so that a large group would cost it the square of its size."""
HEARTBEAT_ROUNDS: Final = 6
"""After how many calls of ``register`` a heartbeat is repeated: every 30 s. Brokers forget a consumer after 120 s."""
CALLS_MAX: Final = 16
"""How many heartbeats are sent at once: those of a thousand consumers must not delay a send."""
UNKNOWN_TOPICS_MAX: Final = 16
"""After how many topics of a consumer that do not exist no further one is looked up: each costs a query."""


@final
@dataclass(slots=True)
class _Registration:
    """One consumer that is registered, or that will be."""

    group: str
    slot: int
    version: int
    """When its subscriptions were first seen, in milliseconds since 1970: brokers keep the newest."""
    settings: pb.Settings
    """The settings that were examined last."""
    digest: bytes
    """The digest of their subscription."""
    addresses: set[str] = field(default_factory=set)
    """Where it is registered."""
    sent_in_round: int | None = None
    """The round of the last heartbeat; None if one is due."""


@final
class ConsumerRegistrations:
    """The registered consumers. Owned by one event loop; ``register`` is called by one periodic task."""

    def __init__(
        self, brokers: BrokerPort, topics: Topics, clients: ClientTable, wall_ms: Callable[[], int], consumers_max: int
    ) -> None:
        self._brokers: Final = brokers
        self._topics: Final = topics
        self._clients: Final = clients
        self._wall_ms: Final = wall_ms
        self._consumers_max: Final = consumers_max
        self._registered: Final[dict[str, _Registration]] = {}
        """By client id."""
        self._used_slots: Final[dict[str, set[int]]] = {}
        """The slots of each group's registered consumers."""
        self._round = 0
        """How often ``register`` was called."""
        self._refused: Final[set[str]] = set()
        """The addresses that have refused the last heartbeat, so that it is logged once."""

    def __repr__(self) -> str:
        return f"<ConsumerRegistrations consumers={len(self._registered)}>"

    async def register(self) -> None:
        """Register new consumers, send due heartbeats, and unregister consumers that are gone. Called periodically."""
        self._round += 1
        shown = {one.client_id: one for one in self._clients.consumers()[: self._consumers_max]}
        for client_id, known in list(self._registered.items()):
            if client_id not in shown or shown[client_id].group != known.group:
                await self._unregister(client_id)
        limit = asyncio.Semaphore(CALLS_MAX)
        due = [one for one in shown.values() if self._is_due(one)]
        await asyncio.gather(*(self._heartbeat(one, limit) for one in due))

    def _is_due(self, client: ProxyClient) -> bool:
        """Return whether a consumer needs a heartbeat now; a new one gets a slot, if its group has a free one."""
        known = self._registered.get(client.client_id)
        if known is not None:
            self._compare(known, client.settings)
            return known.sent_in_round is None or self._round - known.sent_in_round >= HEARTBEAT_ROUNDS
        used = self._used_slots.setdefault(client.group, set())
        slot = next((slot for slot in range(SLOTS_MAX) if slot not in used), None)
        if slot is None:
            return False
        used.add(slot)
        self._registered[client.client_id] = _Registration(
            client.group, slot, self._wall_ms(), client.settings, _digest(client.settings)
        )
        return True

    def _compare(self, known: _Registration, settings: pb.Settings) -> None:
        """Request a heartbeat if a consumer has sent settings with another subscription than before."""
        if known.settings is settings:
            return
        digest, known.settings = _digest(settings), settings
        if known.digest != digest:
            known.digest, known.version, known.sent_in_round = digest, self._wall_ms(), None

    async def _heartbeat(self, client: ProxyClient, limit: asyncio.Semaphore) -> None:
        async with limit:
            if client.client_id in self._registered:
                await self._send_heartbeat(client)

    async def _send_heartbeat(self, client: ProxyClient) -> None:
        known = self._registered[client.client_id]
        known.sent_in_round = self._round
        beat = heartbeat(client.client_id, client.settings, known.version)
        for address in await self._masters(client):
            try:
                await self._brokers.register_consumer(known.slot, address, beat, remoting_language(client.settings))
            except ClientError as error:
                if address not in self._refused:
                    log.info("cannot show consumers at broker", extra={"broker": address, "reason": str(error)})
                self._refused.add(address)
                continue
            self._refused.discard(address)
            known.addresses.add(address)

    async def _masters(self, client: ProxyClient) -> set[str]:
        """Return the addresses of the masters that have a topic of the consumer."""
        found: set[str] = set()
        unknown = 0
        for entry in client.settings.subscription.subscriptions:
            try:
                brokers = (await self._topics.get(entry.topic.name)).route.brokers
            except ClientError:  # the topic does not exist, or no name server answers now
                unknown += 1
                if unknown == UNKNOWN_TOPICS_MAX:
                    break
                continue
            found |= {brokers[name][MASTER_ID] for name in brokers if MASTER_ID in brokers[name]}
        return found

    async def _unregister(self, client_id: str) -> None:
        known = self._registered.pop(client_id)
        used = self._used_slots[known.group]
        used.discard(known.slot)
        if not used:
            del self._used_slots[known.group]
        for address in known.addresses:
            try:
                await self._brokers.unregister_consumer(known.slot, address, client_id, known.group)
            except ClientError as error:
                log.info("could not unregister from broker", extra={"broker": address, "reason": str(error)})


def _digest(settings: pb.Settings) -> bytes:
    return hashlib.blake2b(settings.subscription.SerializeToString(deterministic=True), digest_size=16).digest()
