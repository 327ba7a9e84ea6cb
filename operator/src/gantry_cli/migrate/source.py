"""Access to the source of a migration: a RocketMQ broker and its name servers.

Only administration requests of RocketMQ are used, so nothing has to be installed there. Sends are stopped by
`brokerRole=SLAVE`: the broker checks it before every append, so sends, retries, delayed messages and commits of
transactions are refused. `brokerPermission=4` alone is not sufficient: RocketMQ checks it for ordered topics only, and
clients with older routes continue to send. It is set in addition, so that new routes have no write permission.
`slaveReadEnable=true` lets consumers continue to read.
"""

from __future__ import annotations

import asyncio
import ssl
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
from gantry_wire.names import HALF_TOPIC, TRANSACTION_GROUP
from gantry_wire.properties_text import read_valid_entries
from gantry_wire.runtime_table import log_range

NO_SAMPLES_ERROR: Final = "NoSuchElementException"
"""The error of a broker that has just started, and has no samples of its rates yet."""
RUNTIME_TRIES: Final = 20
"""How often the runtime info is requested from such a broker."""
RUNTIME_RETRY_S: Final = 0.5
TIMEOUT_MS: Final = 10_000
STOP_WRITES_SETTINGS: Final = {"brokerRole": "SLAVE", "slaveReadEnable": "true", "brokerPermission": "4"}
"""The settings with which a broker accepts no more messages."""
CLOSE_SETTINGS: Final = {"brokerPermission": "0"}
"""The settings that also stop reads, after the switch: while the new broker is down, name servers route clients to the
old one, whose log is outdated."""

Offsets = dict[tuple[str, str, int], int]
"""(group, topic, queue) -> the next offset to consume."""


class MigrationError(Exception):
    """A migration cannot continue; with the reason and a remedy."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason: Final = reason
        self.remedy: Final = remedy


@dataclass(frozen=True, slots=True)
class SourceLog:
    """The range of a broker's log: `[begin, end)`."""

    begin: int
    end: int
    is_stable: bool = True
    """Whether ``end`` is final until the next send: the write buffer is empty, and no append is in progress."""


class SourceBroker(Protocol):
    """The operations on the source broker that the procedure uses; tests have their own implementation."""

    @property
    def address(self) -> str: ...

    async def config(self) -> dict[str, str]: ...

    async def log(self) -> SourceLog: ...

    async def update_config(self, values: Mapping[str, str]) -> None: ...

    async def offsets(self) -> Offsets: ...


@final
class RemotingPeer:
    """A connection to one broker or name server, which is reopened after it has broken."""

    def __init__(self, address: str) -> None:
        self.address: Final = address
        self._channel: Channel | None = None

    def __repr__(self) -> str:
        return f"<RemotingPeer {self.address}>"

    async def request(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Send a request and return the response with any code. Raises ``MigrationError``."""
        try:
            if self._channel is None or not self._channel.is_open:
                tls = _tls_context()
                self._channel = await Channel.connect(self.address, tls=tls, sign=signer(credentials(), signature()))
            return await self._channel.request(Command(code=code, ext=dict(ext or {}), body=body), TIMEOUT_MS)
        except (RemotingError, OSError) as error:
            raise MigrationError(
                f"{self.address}: {error}", "check that it is running, then run the command again"
            ) from error

    async def request_success(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Send a request and return the response. Raises ``MigrationError`` if its code is not 0."""
        reply = await self.request(code, ext, body)
        if reply.code != 0:
            raise MigrationError(
                f"{self.address} responded to request {code} with code {reply.code}: {(reply.remark or '')[:300]}"
            )
        return reply

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


def _tls_context() -> ssl.SSLContext | None:
    """Return the TLS context of the command's options. Raises ``MigrationError`` if they cannot be used."""
    try:
        return tls_context()
    except (ValueError, OSError) as error:
        raise MigrationError(str(error), "check the --tls options") from error


@final
class ApacheBroker:
    """A RocketMQ master, version 4.9 or 5."""

    def __init__(self, address: str) -> None:
        self._peer: Final = RemotingPeer(address)

    @property
    def address(self) -> str:
        return self._peer.address

    async def close(self) -> None:
        await self._peer.close()

    async def config(self) -> dict[str, str]:
        """Return the settings in effect."""
        reply = await self._peer.request_success(RequestCode.GET_BROKER_CONFIG)
        return read_valid_entries(reply.body.decode("utf-8", "replace"))

    async def runtime(self) -> dict[str, str]:
        """Return the runtime info. A broker that has just started has no samples yet, so the request is repeated."""
        for _ in range(RUNTIME_TRIES):
            reply = await self._peer.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            if reply.code == 0 or NO_SAMPLES_ERROR not in (reply.remark or ""):
                break
            await asyncio.sleep(RUNTIME_RETRY_S)
        reply = await self._peer.request_success(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = _document(reply, self.address).get("table")
        return {str(name): str(value) for name, value in table.items()} if isinstance(table, dict) else {}

    async def log(self) -> SourceLog:
        """Return the range of the log. If the broker has a write buffer, ``end`` excludes the data in it."""
        return parse_source_log(await self.runtime(), self.address)

    async def update_config(self, values: Mapping[str, str]) -> None:
        """Change settings and verify the result, since RocketMQ silently ignores unknown settings."""
        body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
        await self._peer.request_success(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        now = await self.config()
        wrong = {name: now.get(name) for name, value in values.items() if now.get(name) != value}
        if wrong:
            raise MigrationError(f"{self.address} did not apply settings: it reports {wrong} after {dict(values)}")

    async def offsets(self) -> Offsets:
        """Return the committed offsets of all groups."""
        return await offsets_of(self._peer)

    async def open_half_messages_max(self) -> int:
        """Return how many half messages may be neither committed nor rolled back.

        They are those in the queue from the offset that the broker's check has committed. Those before it are ended,
        and one that was checked is stored again at the end. Those after it may have been ended since the check. Without
        a committed offset, the check begins at the first half message that has not expired.
        """
        end = await self._half_queue_end(RequestCode.GET_MAX_OFFSET)
        begin = await self._half_queue_end(RequestCode.GET_MIN_OFFSET)
        checked = (await self.offsets()).get((TRANSACTION_GROUP, HALF_TOPIC, 0), 0)
        return max(0, end - max(begin, checked))

    async def _half_queue_end(self, code: RequestCode) -> int:
        """Return the smallest or the next offset of half messages; 0 if the broker has none."""
        reply = await self._peer.request(code, {"topic": HALF_TOPIC, "queueId": "0"})
        return int(reply.ext.get("offset", "0")) if reply.code == 0 else 0

    async def timer_messages(self) -> int:
        """Return the number of messages in the timer wheel; RocketMQ 4 has none."""
        reply = await self._peer.request(RequestCode.GET_TIMER_METRICS)
        if reply.code != 0:
            return 0
        rows = _document(reply, self.address).get("timingCount")
        counts = (row.get("count") for row in rows.values()) if isinstance(rows, dict) else ()
        return sum(count for count in counts if isinstance(count, int))

    async def pop_groups(self) -> list[str]:
        """Return the groups that consume by pop; RocketMQ 4 has none."""
        reply = await self._peer.request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        topics = _document(reply, self.address).get("messageRequestModeMap") if reply.code == 0 else None
        rows = [row for row in topics.values() if isinstance(row, dict)] if isinstance(topics, dict) else []
        entries = [(group, entry) for row in rows for group, entry in row.items() if isinstance(entry, dict)]
        return sorted({str(group) for group, entry in entries if entry.get("mode") == "POP"})

    async def batch_topics(self) -> list[str]:
        """Return the topics whose batches are stored as one record each; RocketMQ 4 has none.

        None without an account that the broker requires: another check reports that.
        """
        reply = await self._peer.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        topics = _document(reply, self.address).get("topicConfigTable") if reply.code == 0 else None
        rows = topics.items() if isinstance(topics, dict) else ()
        attributes = {name: row.get("attributes") for name, row in rows if isinstance(row, dict)}
        return sorted(
            name for name, one in attributes.items() if isinstance(one, dict) and one.get("queue.type") == "BatchCQ"
        )


def parse_source_log(table: Mapping[str, str], address: str) -> SourceLog:
    """Return the range of the log from the runtime info of its broker. Raises ``MigrationError``."""
    try:
        begin, end = log_range(table)
        waiting = table.get("remainHowManyDataToCommit", "0").split()[0]
        locked = table.get("pageCacheLockTimeMills", "0")
        return SourceLog(begin, end, float(waiting) == 0 and int(locked) == 0)
    except (KeyError, ValueError, IndexError) as error:
        raise MigrationError(f"{address} does not report where its log begins and ends") from error


async def offsets_of(peer: RemotingPeer) -> Offsets:
    """Return the committed offsets of all groups of a broker."""
    reply = await peer.request_success(RequestCode.GET_ALL_CONSUMER_OFFSET)
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
        raise MigrationError(f"{address} sent an unreadable response: {error}") from error
    return document if isinstance(document, dict) else {}


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """The brokers of one name that are registered at one name server."""

    address: str
    """The address of the name server."""
    version: int
    """The number of the name server's RocketMQ version, as in the header of its responses."""
    cluster: str
    brokers: Mapping[int, str]
    """The address of each registered broker, by brokerId; 0 is the master."""


@final
class RemotingNameServers:
    """All name servers of a list. Each one is queried, since name servers do not synchronize with each other."""

    def __init__(self, addresses: str) -> None:
        self._peers: Final = [RemotingPeer(address) for address in addresses.split(";")]

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()

    async def broker_names(self) -> list[str]:
        """Return the names of all registered brokers."""
        infos = [info for _, info in await self._cluster_infos()]
        return sorted({name for info in infos for name in info.broker_addr_table})

    async def registrations(self, name: str) -> list[BrokerRegistration]:
        """Return the registrations of one broker name at each name server."""
        found: list[BrokerRegistration] = []
        for reply, info in await self._cluster_infos():
            data = info.broker_addr_table.get(name)
            brokers = dict(data.broker_addrs) if data is not None else {}
            address = self._peers[len(found)].address
            found.append(BrokerRegistration(address, reply.version, data.cluster if data is not None else "", brokers))
        return found

    async def _cluster_infos(self) -> list[tuple[Command, ClusterInfo]]:
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        replies = await asyncio.gather(*(peer.request_success(code) for peer in self._peers))
        try:
            return [(reply, read_document(reply.body, ClusterInfo)) for reply in replies]
        except FieldError as error:
            raise MigrationError(f"a name server sent an unreadable response: {error}") from error
