"""Admission control for an HTTP listener: the number of connections, and a deadline for each phase of one.

An HTTP server keeps a connection for as long as its peer leaves a request incomplete, so a few hundred incomplete
requests would displace all other clients, including probes. Here no peer can hold a slot without sending:

    HANDSHAKE -> HEAD -> BODY -> ANSWER -> IDLE -> HEAD ...        each but ANSWER has a deadline and may be evicted
                                 `-> UNREAD (the peer does not read its answer)          CLOSING (unsent bytes are left)

- A phase that exceeds its deadline ends the connection. Single bytes do not extend the deadline.
- At the limit of an address, one of its connections without a pending answer is evicted for the new one: that which has
  been in its phase for the longest time. At the total limit, the same happens to the address with the most connections
  or, if all of these have a pending answer, to the next. So a flood displaces itself, and a client that sends a whole
  request at once is answered.
- If every slot has a pending answer, a few more slots are reserved for probes.

Each listener owns one table in one event loop. Counters may be read from any thread: their keys never change.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 0.5
"""How often deadlines are checked."""
LOG_INTERVAL_S: Final = 60.0
"""The interval between two log lines of one reason, so that a flood of connections is no flood of lines."""
ACCEPTS_PER_TURN_MAX: Final = 16
"""Connections that are accepted in one turn of the loop, before existing ones are read again: a connection needs three
turns until its request is read, in which newer ones of its address must not displace it."""
DEFER_ACCEPT_S: Final = 2
"""How long the kernel keeps a connection without data. A probe is accepted together with its request, and a connection
that sends nothing takes no slot meanwhile."""
ACCEPT_PAUSE_S: Final = 1.0
"""The pause without descriptors or memory for another connection, since the listening socket stays readable."""


class Phase(Enum):
    """The phase of an HTTP connection."""

    HANDSHAKE = "handshake"
    """The TLS handshake is not complete."""

    HEAD = "head"
    """The head of a request is awaited."""

    BODY = "body"
    """The body of a request is awaited."""

    ANSWER = "answer"
    """The request is being answered."""

    UNREAD = "unread"
    """The peer does not read its answer."""

    IDLE = "idle"
    """The next request is awaited."""

    CLOSING = "closing"
    """The connection closes, and unsent bytes are left."""


class Reason(Enum):
    """The reason why a connection was closed or refused: a label of the metric."""

    HANDSHAKE_TIMEOUT = "handshake_timeout"
    HEAD_TIMEOUT = "head_timeout"
    BODY_TIMEOUT = "body_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    READER_TIMEOUT = "reader_timeout"
    ADDRESS_LIMIT = "address_limit"
    """The connection was evicted for a newer one of the same address."""
    TOTAL_LIMIT = "total_limit"
    """The connection was evicted for a newer one of any address."""
    REFUSED = "refused"
    """No connection could be evicted for the new one, or the process had no descriptor or memory for it."""
    BAD_REQUEST = "bad_request"
    """The peer sent bytes that are no request of HTTP."""

    PIPELINED = "pipelined"
    """The peer sent more requests ahead of the answers than are buffered."""


_TIMEOUTS: Final = {
    Phase.HANDSHAKE: Reason.HANDSHAKE_TIMEOUT,
    Phase.HEAD: Reason.HEAD_TIMEOUT,
    Phase.BODY: Reason.BODY_TIMEOUT,
    Phase.UNREAD: Reason.READER_TIMEOUT,
    Phase.IDLE: Reason.IDLE_TIMEOUT,
    Phase.CLOSING: Reason.READER_TIMEOUT,
}
"""The reason that is counted when a phase exceeds its deadline."""
_UNLOGGED: Final = frozenset({Reason.IDLE_TIMEOUT})
"""Reasons that ordinary clients cause all the time."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimitSettings:
    """Limits for the connections of one HTTP listener."""

    connections_max: int = 512
    """All connections: 512. They take half of the usual 1,024 descriptors; files and connections to peers have the
    other half."""

    connections_per_address_max: int = 128
    """Connections of one peer address: 128, enough for a proxy or a port-forward with many users, and a quarter of the
    slots."""

    probe_connections: int = 16
    """Slots beyond `connections_max` that answer only probes, for the case that every other slot has a pending answer:
    16. The kubelet, a supervisor and a person need one each at a time."""

    handshake_timeout_ms: int = 5_000
    """The timeout of a TLS handshake. An ordinary one takes milliseconds, or some hundred on an overloaded core."""

    head_timeout_ms: int = 5_000
    """The timeout of a request's head, from the connection or from the first byte of a further request. A head fits in
    a few packets; the kubelet allows the whole probe 3 s."""

    body_timeout_ms: int = 10_000
    """The timeout of the body of a request; the longest that a sidecar accepts has 64 KiB."""

    idle_timeout_ms: int = 30_000
    """The timeout between two requests. Prometheus and browsers reconnect by themselves."""

    reader_timeout_ms: int = 30_000
    """The timeout of an answer that its peer does not read, and of its rest when the connection closes."""

    def limit_ms(self, phase: Phase) -> int | None:
        """Return the deadline of a phase in milliseconds; a pending answer has none."""
        return {
            Phase.HANDSHAKE: self.handshake_timeout_ms,
            Phase.HEAD: self.head_timeout_ms,
            Phase.BODY: self.body_timeout_ms,
            Phase.UNREAD: self.reader_timeout_ms,
            Phase.IDLE: self.idle_timeout_ms,
            Phase.CLOSING: self.reader_timeout_ms,
        }.get(phase)


@final
class ConnectionSlot:
    """The slot of one admitted connection. Owned by the event loop of its listener."""

    def __init__(self, admission: HttpAdmission, address: str, since_s: float) -> None:
        self.address: Final = address
        self.phase = Phase.HEAD
        self.since_s = since_s
        self._admission: Final = admission
        self._abort: Callable[[], object] | None = None
        self._serial = 0

    def __repr__(self) -> str:
        return f"<ConnectionSlot {self.address} {self.phase.value} since={self.since_s:.1f}>"

    @property
    def is_probe_only(self) -> bool:
        """Return whether only a probe may be answered in this slot now."""
        return self._admission.is_reserve_used

    def bind(self, abort: Callable[[], object]) -> None:
        """Set ``abort``, which closes the connection at once, and begin to await a request.

        The listener binds the slot at the admission, and the protocol binds it again when the handshake is complete.
        """
        self._abort = abort
        self.enter(Phase.HEAD)

    def enter(self, phase: Phase, serial: int = 0) -> None:
        """Set the phase and the request number ``serial``; the deadline restarts when either changes."""
        if (phase, serial) != (self.phase, self._serial):
            self.phase, self._serial, self.since_s = phase, serial, self._admission.now_s()

    def record_close(self, reason: Reason) -> None:
        """Count a closed or refused connection, and log it at most once a minute; an idle one is not logged."""
        self._admission.record_close(reason, self.address)

    def close(self, reason: Reason) -> None:
        """Close the connection and count the reason."""
        self.record_close(reason)
        self.release()
        if self._abort is not None:
            self._abort()

    def release(self) -> None:
        """Free the slot of a closed connection. May be called again."""
        self._admission.forget(self)


@final
class HttpAdmission:
    """The connections of one listener. Owned by one event loop."""

    def __init__(self, name: str, settings: HttpLimitSettings, *, clock: Callable[[], float]) -> None:
        """Create an empty table. ``name`` is the listener in log lines; ``clock`` is monotonic, in seconds."""
        self.settings: Final = settings
        self.counts: Final = dict.fromkeys(Reason, 0)
        self.now_s: Final = clock
        self._name: Final = name
        self._slots: Final[dict[ConnectionSlot, None]] = {}
        self._by_address: Final[dict[str, dict[ConnectionSlot, None]]] = {}
        self._logged: Final[dict[Reason, tuple[float, int]]] = {}
        """When a reason was last logged, and its count then."""

    def __repr__(self) -> str:
        return f"<HttpAdmission {self._name} connections={len(self._slots)} addresses={len(self._by_address)}>"

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def is_reserve_used(self) -> bool:
        """Return whether slots of the reserve for probes are used."""
        return len(self._slots) > self.settings.connections_max

    def admit(self, address: str) -> ConnectionSlot | None:
        """Return a slot for a new connection, or None if it must be closed."""
        settings, of_address = self.settings, self._by_address.get(address, {})
        if len(of_address) >= settings.connections_per_address_max and not self._evict(
            of_address, Reason.ADDRESS_LIMIT
        ):
            self.record_close(Reason.REFUSED, address)
            return None
        if len(self._slots) >= settings.connections_max and not self._evict_from_busiest():
            most = settings.connections_max + settings.probe_connections
            if len(self._slots) >= most:
                self.record_close(Reason.REFUSED, address)
                return None
        slot = ConnectionSlot(self, address, self.now_s())
        self._slots[slot] = None
        self._by_address.setdefault(address, {})[slot] = None
        return slot

    def forget(self, slot: ConnectionSlot) -> None:
        """Remove a closed connection from the table."""
        if slot not in self._slots:
            return
        del self._slots[slot]
        of_address = self._by_address[slot.address]
        del of_address[slot]
        if not of_address:
            del self._by_address[slot.address]

    def sweep(self) -> None:
        """Close the connections that have exceeded their deadline."""
        now_s = self.now_s()
        for slot in list(self._slots):
            limit_ms = self.settings.limit_ms(slot.phase)
            if limit_ms is not None and (now_s - slot.since_s) * 1000 >= limit_ms:
                slot.close(_TIMEOUTS[slot.phase])

    async def run_sweeper(self) -> None:
        """Sweep periodically until the task is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.sweep()

    def record_close(self, reason: Reason, address: str) -> None:
        """Count the reason. Log it the first time and then at most once a minute, except `IDLE_TIMEOUT`."""
        self.counts[reason] += 1
        if reason in _UNLOGGED:
            return
        count, now_s = self.counts[reason], self.now_s()
        logged_at_s, logged_count = self._logged.get(reason, (now_s - LOG_INTERVAL_S, 0))
        if now_s - logged_at_s >= LOG_INTERVAL_S:
            self._logged[reason] = (now_s, count)
            log.warning(
                "closed HTTP connection: listener=%s reason=%s address=%s since_last_line=%d open=%d",
                self._name, reason.value, address, count - logged_count, len(self._slots),
            )  # fmt: skip

    def _evict_from_busiest(self) -> bool:
        addresses = sorted(self._by_address.values(), key=len, reverse=True)
        return any(self._evict(slots, Reason.TOTAL_LIMIT) for slots in addresses)

    @staticmethod
    def _evict(slots: Iterable[ConnectionSlot], reason: Reason) -> bool:
        """Close the connection that has been in its phase for the longest time, except those with a pending answer."""
        waiting = [slot for slot in slots if slot.phase is not Phase.ANSWER]
        if not waiting:
            return False
        min(waiting, key=lambda slot: slot.since_s).close(reason)
        return True


@final
class HttpListener:
    """Accepts the connections of one socket and admits each before its TLS handshake. Owned by one loop."""

    def __init__(
        self,
        bound: socket.socket,
        admission: HttpAdmission,
        make: Callable[[ConnectionSlot], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Create a listener that is not started.

        ``make`` returns the protocol of an admitted connection, which binds and releases its slot.
        """
        self._socket: Final = bound
        self._admission: Final = admission
        self._make: Final = make
        self._tls: Final = tls
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._resume: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<HttpListener {self._admission!r}>"

    def start(self) -> None:
        """Start to accept connections, and to close those that have exceeded their deadline."""
        self._loop = asyncio.get_running_loop()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER_ACCEPT_S)
        self._loop.add_reader(self._socket, self._accept)
        self._tasks.add(self._loop.create_task(self._admission.run_sweeper()))

    async def close(self) -> None:
        """Stop accepting. Existing connections continue; those in their handshake are closed."""
        self._loop.remove_reader(self._socket)
        if self._resume is not None:
            self._resume.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                connection, peer = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._admission.record_close(Reason.REFUSED, "unknown (no file descriptor or memory for it)")
                    self._loop.remove_reader(self._socket)
                    self._resume = self._loop.call_later(
                        ACCEPT_PAUSE_S, self._loop.add_reader, self._socket, self._accept
                    )
                return
            self._admit(connection, str(peer[0]))

    def _admit(self, connection: socket.socket, address: str) -> None:
        slot = self._admission.admit(address)
        if slot is None:
            connection.close()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._connect(connection, slot))
        slot.bind(task.cancel)
        if self._tls is not None:
            slot.enter(Phase.HANDSHAKE)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._connected(done, connection, slot))

    async def _connect(self, connection: socket.socket, slot: ConnectionSlot) -> None:
        await self._loop.connect_accepted_socket(lambda: self._make(slot), connection, ssl=self._tls)

    def _connected(self, task: asyncio.Task[None], connection: socket.socket, slot: ConnectionSlot) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            slot.release()
            connection.close()
        if error is not None and not isinstance(error, OSError | RuntimeError):  # ssl.SSLError is an OSError
            log.error("could not serve HTTP connection: listener=%s", self._admission, exc_info=error)
