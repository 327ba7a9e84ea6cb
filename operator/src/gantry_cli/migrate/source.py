"""The broker of RocketMQ's that a migration begins with, and the name servers around it: what they say and are told.

Everything goes over RocketMQ's own administration requests, so nothing has to be installed there. What stops its sends
is `brokerRole=SLAVE`: it is looked at before every single append, so connected clients, retries, delayed messages
and commits of transactions are all refused. `brokerPermission=4` alone would not do: RocketMQ looks at it for ordered
topics only, and everybody whose routes are older goes on sending; it is set, too, so that name servers say
the same. `slaveReadEnable=true` lets consumers read on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from gantry_access import signer
from gantry_cli.account import credentials, signature
from gantry_cli.tls_options import tls_context
from gantry_remoting import Channel, RemotingError
from gantry_wire import Command, RequestCode, fastjson
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import ClusterInfo
from gantry_wire.properties_text import entries_of
from gantry_wire.runtime_table import log_range

NO_SAMPLES: Final = "NoSuchElementException"
YOUNG_TRIES: Final = 20
YOUNG_RETRY_S: Final = 0.5
TIMEOUT_MS: Final = 10_000
GET_TIMER_METRICS: Final = 61
STOPPED: Final = {"brokerRole": "SLAVE", "slaveReadEnable": "true", "brokerPermission": "4"}
"""What a broker is told that shall take no more messages."""
CLOSED: Final = {"brokerPermission": "0"}
"""What it is told in the end: were our broker away, name servers would lead to it again, and its log ends too early."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_GROUP: Final = "CID_RMQ_SYS_TRANS"

Offsets = dict[tuple[str, str, int], int]
"""(group, topic, queue) -> the next offset to consume."""


class CannotMigrate(Exception):
    """A migration cannot go on. Says why, and what to do."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason: Final = reason
        self.remedy: Final = remedy


@dataclass(frozen=True, slots=True)
class SourceLog:
    """Where its log lies."""

    begin: int
    end: int
    is_still: bool = True
    """Whether nothing waits in a write buffer or under the append lock, beyond ``end``."""


class OldBroker(Protocol):
    """What the procedure asks of it; tests have their own."""

    @property
    def address(self) -> str: ...

    async def config(self) -> dict[str, str]: ...

    async def log(self) -> SourceLog: ...

    async def set(self, values: Mapping[str, str]) -> None: ...

    async def offsets(self) -> Offsets: ...


@final
class RemotingPeer:
    """One broker or name server, asked over one connection that is made again when it has broken."""

    def __init__(self, address: str) -> None:
        self.address: Final = address
        self._channel: Channel | None = None

    def __repr__(self) -> str:
        return f"<RemotingPeer {self.address}>"

    async def ask(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Its answer, whatever the code. Raises ``CannotMigrate``."""
        try:
            if self._channel is None or not self._channel.is_open:
                self._channel = await Channel.connect(
                    self.address, tls=tls_context(), sign=signer(credentials(), signature())
                )
            return await self._channel.request(Command(code=code, ext=dict(ext or {}), body=body), TIMEOUT_MS)
        except (RemotingError, OSError) as error:
            raise CannotMigrate(
                f"{self.address}: {error}", "see whether it runs, then run the command again"
            ) from error

    async def demand(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Its answer with code 0."""
        reply = await self.ask(code, ext, body)
        if reply.code != 0:
            raise CannotMigrate(
                f"{self.address} answers request {code} with {reply.code}: {(reply.remark or '')[:300]}"
            )
        return reply

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


@final
class ApacheBroker:
    """A RocketMQ master, 4.9 or 5."""

    def __init__(self, address: str) -> None:
        self._peer: Final = RemotingPeer(address)

    @property
    def address(self) -> str:
        return self._peer.address

    async def close(self) -> None:
        await self._peer.close()

    async def config(self) -> dict[str, str]:
        """Its settings in force."""
        reply = await self._peer.demand(RequestCode.GET_BROKER_CONFIG)
        return entries_of(reply.body.decode("utf-8", "replace"))

    async def runtime(self) -> dict[str, str]:
        """What it says of itself. One that has just started has no samples yet, and cannot for a moment."""
        for _ in range(YOUNG_TRIES):
            reply = await self._peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            if reply.code == 0 or NO_SAMPLES not in (reply.remark or ""):
                break
            await asyncio.sleep(YOUNG_RETRY_S)
        reply = await self._peer.demand(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = _document(reply, self.address).get("table")
        return {str(name): str(value) for name, value in table.items()} if isinstance(table, dict) else {}

    async def log(self) -> SourceLog:
        """Where its log lies. With a write buffer, ``end`` is what has left it."""
        return read_log(await self.runtime(), self.address)

    async def set(self, values: Mapping[str, str]) -> None:
        """Change settings, and see that they are changed: RocketMQ ignores in silence what it does not know."""
        body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
        await self._peer.demand(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        now = await self.config()
        wrong = {name: now.get(name) for name, value in values.items() if now.get(name) != value}
        if wrong:
            raise CannotMigrate(f"{self.address} has not taken its settings: it says {wrong} after {dict(values)}")

    async def offsets(self) -> Offsets:
        """How far each group is."""
        return await offsets_of(self._peer)

    async def transactions(self) -> tuple[int, int]:
        """How many halves its log has had, and how many of them nobody has settled, as far as it says."""
        reply = await self._peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": HALF_TOPIC, "queueId": "0"})
        halves = int(reply.ext.get("offset", "0")) if reply.code == 0 else 0
        settled = (await self.offsets()).get((HALF_GROUP, HALF_TOPIC, 0), 0)
        return halves, max(0, halves - settled)

    async def timers(self) -> int:
        """How many messages its timer wheel holds; RocketMQ 4 has none."""
        reply = await self._peer.ask(GET_TIMER_METRICS)
        if reply.code != 0:
            return 0
        rows = _document(reply, self.address).get("timingCount")
        counts = (row.get("count") for row in rows.values()) if isinstance(rows, dict) else ()
        return sum(count for count in counts if isinstance(count, int))

    async def popping(self) -> list[str]:
        """Groups that consume by pop; RocketMQ 4 has none."""
        reply = await self._peer.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        topics = _document(reply, self.address).get("messageRequestModeMap") if reply.code == 0 else None
        rows = [row for row in topics.values() if isinstance(row, dict)] if isinstance(topics, dict) else []
        entries = [(group, entry) for row in rows for group, entry in row.items() if isinstance(entry, dict)]
        return sorted({str(group) for group, entry in entries if entry.get("mode") == "POP"})


def read_log(table: Mapping[str, str], address: str) -> SourceLog:
    """Where a log lies, in what its broker says of itself. Raises ``CannotMigrate``."""
    try:
        begin, end = log_range(table)
        waiting = table.get("remainHowManyDataToCommit", "0").split()[0]
        locked = table.get("pageCacheLockTimeMills", "0")
        return SourceLog(begin, end, float(waiting) == 0 and int(locked) == 0)
    except (KeyError, ValueError, IndexError) as error:
        raise CannotMigrate(f"{address} does not say where its log begins and ends") from error


async def offsets_of(peer: RemotingPeer) -> Offsets:
    """How far each group is, as a broker says."""
    reply = await peer.demand(RequestCode.GET_ALL_CONSUMER_OFFSET)
    table = _document(reply, peer.address).get("offsetTable")
    offsets: Offsets = {}
    for key, queues in (table if isinstance(table, dict) else {}).items():
        topic, separator, group = str(key).partition("@")
        if separator and isinstance(queues, dict):
            offsets |= {(group, topic, int(queue)): int(offset) for queue, offset in queues.items()}
    return offsets


def _document(reply: Command, address: str) -> dict[str, Any]:
    try:
        document = fastjson.loads(reply.body) if reply.body else {}
    except ValueError as error:
        raise CannotMigrate(f"{address} answers with something that cannot be read: {error}") from error
    return document if isinstance(document, dict) else {}


@dataclass(frozen=True, slots=True)
class Listing:
    """One name server and the brokers of one name that it knows."""

    address: str
    version: int
    cluster: str
    brokers: Mapping[int, str]


@final
class Names:
    """All name servers: they do not speak to each other, so each is asked."""

    def __init__(self, addresses: str) -> None:
        self._peers: Final = [RemotingPeer(address) for address in addresses.split(";")]

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()

    async def names(self) -> list[str]:
        """Of all brokers."""
        infos = [info for _, info in await self._infos()]
        return sorted({name for info in infos for name in info.broker_addr_table})

    async def listings(self, name: str) -> list[Listing]:
        """What each says of one name."""
        found: list[Listing] = []
        for reply, info in await self._infos():
            data = info.broker_addr_table.get(name)
            brokers = dict(data.broker_addrs) if data is not None else {}
            address = self._peers[len(found)].address
            found.append(Listing(address, reply.version, data.cluster if data is not None else "", brokers))
        return found

    async def _infos(self) -> list[tuple[Command, ClusterInfo]]:
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        replies = await asyncio.gather(*(peer.demand(code) for peer in self._peers))
        try:
            return [(reply, read_document(reply.body, ClusterInfo)) for reply in replies]
        except FieldError as error:
            raise CannotMigrate(f"a name server's answer cannot be read: {error}") from error
