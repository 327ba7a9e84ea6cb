"""The connected clients: their settings, their Telemetry streams, and when a client counts as gone.

    Telemetry stream with settings   -> the client is known, and its receives that came earlier begin
    receive of a simple consumer     -> the client is known, also without settings: a receive has all that it needs
    heartbeats, receives             -> it stays known, for `SILENT_MS` after the last sign
    its stream ends                  -> it must show another sign within `DISCONNECTED_MS`
    NotifyClientTermination          -> it is gone at once, and ends its stream itself within `LEAVING_MS`

When a client is gone, its messages in flight return to the group, and brokers do not ask it about transactions.

The caller chooses the id of a client, so an id belongs to the account that has registered it. Calls of other accounts
with it are no sign of life, and `handlers/sessions.py` decides which of them may act for the client.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from gantry_proxy.context import CallContext
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError

log = logging.getLogger(__name__)

SILENT_MS: Final = 120_000
"""How long a client without any sign of life stays known; RocketMQ's proxy has the same. SDKs send a heartbeat every
10 s."""
DISCONNECTED_MS: Final = 30_000
"""The same for a client whose stream has ended: enough to connect again."""
LEAVING_MS: Final = 10_000
"""How long a client that has announced its end may keep its stream open; SDKs end it at once."""
WRITE_TIMEOUT_S: Final = 180.0
"""How long a client may take to read one command before its stream is closed. A client that handles one question after
the other, 100 ms each, needs 80 s for half of a window of 2 MiB, after which HTTP/2 opens the window again:
the SDK for Rust does so, and opens no second stream. A client that is dead is found by pings of its connection."""
WAITING_BYTES_MAX: Final = 8 * 1024 * 1024
"""How many bytes of commands may wait for one client to read; a further command is dropped. A broker asks about all
open transactions at once, and repeats what was dropped: thousands of small messages may wait, or one of the largest."""


SETTINGS_BYTES_PER_CLIENT: Final = 2 * 1024
"""How many bytes the settings of a client may have on average; those of most clients have less than 1 KiB. They take
several times as much memory, which is in the 40 KiB that are planned for a client."""
SETTINGS_BYTES_MIN: Final = 1024 * 1024
"""How many bytes of settings a proxy for a few clients keeps."""


class CommandStream(Protocol):
    """The writing side of one Telemetry stream."""

    async def write(self, command: pb.TelemetryCommand) -> None:
        """Send a command; returns when the transport has accepted it."""

    def close(self) -> None:
        """End the stream, so that the SDK opens another one."""


@final
@dataclass(slots=True, eq=False)
class ProxyClient:
    """One client with its settings and its Telemetry stream."""

    client_id: str
    settings: pb.Settings
    """The settings that the client has sent last, without those of the server."""

    last_seen_ms: int
    settings_bytes: int = 0
    """The size of the settings."""
    stream: CommandStream | None = None
    waiting_bytes: int = 0
    """The size of the commands that the client has not read."""

    context: CallContext | None = None
    """The call that has registered it, with the account; None in tests without one."""

    pops: int = 0
    """How many of its receives are waiting at brokers."""

    write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __repr__(self) -> str:
        return f"<ProxyClient {self.client_id} {'connected' if self.stream is not None else 'disconnected'}>"

    @property
    def account_key(self) -> str:
        """The access key of its account; empty without access control."""
        return "" if self.context is None else self.context.account_key

    @property
    def is_producer(self) -> bool:
        return self.settings.HasField("publishing")

    @property
    def topics(self) -> list[str]:
        """The topics to which a producer sends."""
        return [topic.name for topic in self.settings.publishing.topics]

    @property
    def group(self) -> str:
        """The group of a consumer; empty for a producer."""
        return self.settings.subscription.group.name

    async def send(self, command: pb.TelemetryCommand) -> bool:
        """Send a command to the client, and return whether its stream accepted it.

        Only the command that is being written has a time limit, so that a client that reads slowly keeps its stream
        also if many commands wait.
        """
        stream = self.stream
        if stream is None:
            return False
        size = command.ByteSize()
        if self.waiting_bytes and self.waiting_bytes + size > WAITING_BYTES_MAX:
            return False
        self.waiting_bytes += size
        try:
            async with self.write_lock:
                if self.stream is not stream:
                    return False  # it ended while the command waited
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await stream.write(command)
            return True
        except TimeoutError:
            log.warning("closing client stream", extra={"client": self.client_id, "reason": "the client does not read"})
            stream.close()
        except Exception as error:  # noqa: BLE001  the transport's errors have no common class but this
            log.info("failed to write to client stream", extra={"client": self.client_id, "reason": str(error)})
        finally:
            self.waiting_bytes -= size
        return False


@final
class ClientTable:
    """All clients of this replica. Owned by one event loop."""

    def __init__(self, now_ms: Callable[[], int], clients_max: int, clients_per_account_max: int = 0) -> None:
        """``now_ms`` is a monotonic clock. A limit of 0 for each account means that there is none."""
        self._now_ms: Final = now_ms
        self._clients_max: Final = clients_max
        self._per_account_max: Final = clients_per_account_max
        self._settings_bytes_max: Final = max(SETTINGS_BYTES_MIN, clients_max * SETTINGS_BYTES_PER_CLIENT)
        self.settings_bytes = 0
        """The size of the settings of all clients."""
        self._clients: Final[dict[str, ProxyClient]] = {}
        self._producers: Final[dict[str, dict[str, ProxyClient]]] = {}
        """The producers of each topic, by client id."""
        self._of_accounts: Final[Counter[str]] = Counter()
        """The number of clients of each account."""
        self._waiting: Final[dict[str, set[asyncio.Future[None]]]] = {}
        """The receives of unknown clients, by client id."""
        self._leaving: Final[dict[CommandStream, int]] = {}
        """The streams of clients that have left, and when: the client ends its stream itself."""
        self._turn: Final = itertools.count()

    def __repr__(self) -> str:
        return f"<ClientTable clients={len(self._clients)}>"

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def stream_count(self) -> int:
        return sum(client.stream is not None for client in self._clients.values())

    def register(
        self, client_id: str, settings: pb.Settings, stream: CommandStream, context: CallContext | None = None
    ) -> ProxyClient:
        """Add a client, or replace its settings and stream.

        Raises ProxyError when there are too many clients, or when their settings are too large together.
        """
        size, known = settings.ByteSize(), self._clients.get(client_id)
        total = self.settings_bytes + size - (0 if known is None else known.settings_bytes)
        if total > self._settings_bytes_max:
            raise ProxyError(
                pb.TOO_MANY_REQUESTS,
                f"the settings of all clients would have {total} bytes, at most {self._settings_bytes_max} are kept: "
                "name fewer topics, or connect to another proxy",
            )
        client = known or self._add(client_id, settings, context)
        self.settings_bytes, client.settings_bytes = total, size
        self._leave_topics(client)
        self._count(client, -1)
        client.settings, client.context, client.last_seen_ms = settings, context, self._now_ms()
        self._count(client, 1)
        for topic in client.topics:
            self._producers.setdefault(topic, {})[client_id] = client
        if client.stream is not stream:
            if client.stream is not None:
                client.stream.close()  # the client has opened another one, since it lost this one
            client.stream = stream
        self._leaving.pop(stream, None)
        for future in self._waiting.get(client_id, ()):
            if not future.done():
                future.set_result(None)
        return client

    async def wait_for(self, client_id: str, timeout_s: float) -> ProxyClient | None:
        """Return a client that has sent its settings, or sends them within this time; None otherwise."""
        if client_id in self._clients or timeout_s <= 0:
            return self._clients.get(client_id)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(client_id, set())
        waiting.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(client_id, None)
        return self._clients.get(client_id)

    def restore_consumer(self, client_id: str, group: str, context: CallContext | None = None) -> ProxyClient:
        """Add a simple consumer that receives without having sent settings. Raises ProxyError for too many clients.

        It sent them to a proxy that was restarted, or to another replica. The SDK for Rust sends them only once.
        """
        subscription = pb.Subscription(group=pb.Resource(name=group))
        return self._add(client_id, pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription), context)

    def _add(self, client_id: str, settings: pb.Settings, context: CallContext | None) -> ProxyClient:
        if len(self._clients) >= self._clients_max:
            raise ProxyError(pb.TOO_MANY_REQUESTS, f"the proxy has {self._clients_max} clients: connect to another one")
        client = ProxyClient(client_id, settings, self._now_ms(), context=context)
        if client.account_key and 0 < self._per_account_max <= self._of_accounts[client.account_key]:
            raise ProxyError(
                pb.TOO_MANY_REQUESTS, f"the account has {self._per_account_max} clients: connect to another proxy"
            )
        self._clients[client_id] = client
        self._count(client, 1)
        return client

    def _count(self, client: ProxyClient, change: int) -> None:
        self._of_accounts[client.account_key] += change
        if not self._of_accounts[client.account_key]:
            del self._of_accounts[client.account_key]

    def find(self, client_id: str) -> ProxyClient | None:
        """Return a client that is known; None otherwise."""
        return self._clients.get(client_id)

    def touch(self, context: CallContext) -> None:
        """Record a sign of life of the client that calls, unless the call is of another account."""
        client = self._clients.get(context.client_id)
        if client is not None and client.account_key == context.account_key:
            client.last_seen_ms = self._now_ms()

    def record_life(self, client: ProxyClient) -> None:
        """Record a sign of life of a client."""
        client.last_seen_ms = self._now_ms()

    def disconnect(self, client_id: str, stream: CommandStream) -> None:
        """Record that a stream has ended."""
        self._leaving.pop(stream, None)
        client = self._clients.get(client_id)
        if client is not None and client.stream is stream:
            client.stream, client.last_seen_ms = None, self._now_ms()

    def leave(self, client_id: str) -> ProxyClient | None:
        """Forget a client that has announced its end. None if it is unknown.

        The client ends its stream itself. If the proxy ended it now, an SDK could take that for a lost connection: that
        for Node.js has no listener any more at this moment, and would end the process of the application.
        """
        client = self._forget(client_id)
        if client is not None and client.stream is not None:
            self._leaving[client.stream] = self._now_ms()
        return client

    def remove(self, client_id: str) -> None:
        """Forget a client, and end its stream."""
        client = self._forget(client_id)
        if client is not None and client.stream is not None:
            client.stream.close()

    def _forget(self, client_id: str) -> ProxyClient | None:
        client = self._clients.pop(client_id, None)
        if client is not None:
            self.settings_bytes -= client.settings_bytes
            self._leave_topics(client)
            self._count(client, -1)
        return client

    def producer_of(self, topic: str) -> ProxyClient | None:
        """Return a connected producer of a topic, another one each time; None if there is none."""
        connected = [one for one in self._producers.get(topic, {}).values() if one.stream is not None]
        return connected[next(self._turn) % len(connected)] if connected else None

    def consumers(self) -> list[ProxyClient]:
        """Return the known consumers, in the order in which they came."""
        return [one for one in self._clients.values() if not one.is_producer]

    def connected(self) -> list[ProxyClient]:
        """Return the clients with an open stream."""
        return [one for one in self._clients.values() if one.stream is not None]

    def produced_topics(self) -> list[str]:
        """Return the topics that have a connected producer."""
        return [topic for topic in self._producers if self.producer_of(topic) is not None]

    def remove_silent(self) -> list[ProxyClient]:
        """Remove and return the clients that are gone, and close streams that clients left open. Called regularly."""
        now_ms = self._now_ms()
        for stream in [one for one, since_ms in self._leaving.items() if now_ms - since_ms > LEAVING_MS]:
            stream.close()
        gone = [
            client
            for client in self._clients.values()
            if now_ms - client.last_seen_ms > (SILENT_MS if client.stream is not None else DISCONNECTED_MS)
            and not client.pops  # a long poll may be longer than that, and its messages are for a known client
        ]
        for client in gone:
            log.info("client is gone", extra={"client": client.client_id, "group": client.group})
            self.remove(client.client_id)
        return gone

    async def request_reconnects(self) -> None:
        """Ask all clients to open another connection; a load balancer directs it to another replica.

        The SDKs for Java (from 5.1.0) and Go (from 5.1.3) do so; others ignore it, and move when their stream ends.
        """
        command = pb.ReconnectEndpointsCommand(nonce="drain")
        await asyncio.gather(
            *(client.send(pb.TelemetryCommand(reconnect_endpoints_command=command)) for client in self.connected())
        )

    def close_streams(self) -> None:
        """End all streams: the SDKs connect to another replica."""
        for client in self._clients.values():
            if client.stream is not None:
                client.stream.close()
        for stream in self._leaving:
            stream.close()

    def _leave_topics(self, client: ProxyClient) -> None:
        for topic in client.topics:
            producers = self._producers.get(topic, {})
            producers.pop(client.client_id, None)
            if not producers:
                self._producers.pop(topic, None)
