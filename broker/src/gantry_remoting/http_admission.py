"""Admission control for an HTTP listener: how many connections there are, and how long each phase of one may take.

A server of HTTP keeps a connection for as long as its peer leaves a request unfinished, so a few hundred half requests
would take the place of everybody else, probes included. Here no peer can hold a place by doing nothing:

    HANDSHAKE -> HEAD -> BODY -> ANSWER -> IDLE -> HEAD ...        each but ANSWER has a deadline and may be evicted
                                 `-> UNREAD (the peer does not take its answer)          CLOSING (unsent bytes are left)

- A phase that exceeds its deadline ends the connection. A byte now and then does not move the deadline.
- At the limit of an address its oldest connection without an answer under way makes room for the new one. At the total
  limit that of the address with the most connections does. So a flood displaces itself, and whoever sends a whole
  request at once is answered.
- Where every place has an answer under way, a few more are kept for probes.

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
LOG_INTERVAL_S: Final = 60.0
"""Between two log lines of one reason: a flood of connections is no flood of lines."""
ACCEPTS_PER_TURN_MAX: Final = 16
"""Connections that are accepted in one turn of the loop, before those that exist are read again: a connection needs
three turns until its request is read, in which younger ones of its address must not displace it."""
DEFER_ACCEPT_S: Final = 2
"""So long the kernel keeps a connection on which nothing came. A probe is accepted with its request in hand, and a
connection that says nothing takes no place from it meanwhile."""
ACCEPT_PAUSE_S: Final = 1.0
"""Without descriptors or memory for another connection: the listening socket would be readable in every turn."""


class Phase(Enum):
    """What a connection is doing."""

    HANDSHAKE = "handshake"
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    UNREAD = "unread"
    IDLE = "idle"
    CLOSING = "closing"


class Reason(Enum):
    """Why a connection was closed or refused: a label of the metric."""

    HANDSHAKE_TIMEOUT = "handshake_timeout"
    HEAD_TIMEOUT = "head_timeout"
    BODY_TIMEOUT = "body_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    READER_TIMEOUT = "reader_timeout"
    ADDRESS_LIMIT = "address_limit"
    """Made room for a younger connection of the same address."""
    TOTAL_LIMIT = "total_limit"
    """Made room for a younger connection of any address."""
    REFUSED = "refused"
    """No connection could make room for it."""
    BAD_REQUEST = "bad_request"
    PIPELINED = "pipelined"
    """Sent more requests ahead of the answers than is buffered."""


_TIMEOUTS: Final = {
    Phase.HANDSHAKE: Reason.HANDSHAKE_TIMEOUT,
    Phase.HEAD: Reason.HEAD_TIMEOUT,
    Phase.BODY: Reason.BODY_TIMEOUT,
    Phase.UNREAD: Reason.READER_TIMEOUT,
    Phase.IDLE: Reason.IDLE_TIMEOUT,
    Phase.CLOSING: Reason.READER_TIMEOUT,
}
_UNLOGGED: Final = frozenset({Reason.IDLE_TIMEOUT})
"""What honest clients cause every day."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimitSettings:
    """What the connections of one HTTP listener may cost."""

    connections_max: int = 512
    """All connections. With half of the usual 1,024 descriptors for them, files and peers have the other half."""

    connections_per_address_max: int = 128
    """Connections of one peer address; enough for a proxy or a port-forward in front of many people, and a quarter
    of the places."""

    probe_connections: int = 16
    """Places beyond `connections_max` that answer probes only, for when every other place has an answer under way;
    kubelet, a supervisor and a person need one each at a time."""

    handshake_timeout_ms: int = 5_000
    """For a TLS handshake. An honest one takes milliseconds, and some hundred on a starved core."""

    head_timeout_ms: int = 5_000
    """From the connection, or from the first byte of a further request, to the end of its head. A head fits in a few
    packets; kubelet gives the whole probe 3 s."""

    body_timeout_ms: int = 10_000
    """For the body of a request; the longest that a sidecar takes has 64 KiB."""

    idle_timeout_ms: int = 30_000
    """Between two requests. Prometheus and browsers connect again by themselves."""

    reader_timeout_ms: int = 30_000
    """For an answer that its peer does not take, and for the rest of one when the connection closes."""

    def limit_ms(self, phase: Phase) -> int | None:
        """The deadline of a phase; an answer under way has none."""
        return {
            Phase.HANDSHAKE: self.handshake_timeout_ms,
            Phase.HEAD: self.head_timeout_ms,
            Phase.BODY: self.body_timeout_ms,
            Phase.UNREAD: self.reader_timeout_ms,
            Phase.IDLE: self.idle_timeout_ms,
            Phase.CLOSING: self.reader_timeout_ms,
        }.get(phase)


@final
class Place:
    """One admitted connection. Owned by the event loop of its listener."""

    def __init__(self, admission: HttpAdmission, address: str, since_s: float) -> None:
        self.address: Final = address
        self.phase = Phase.HEAD
        self.since_s = since_s
        self._admission: Final = admission
        self._abort: Callable[[], object] | None = None
        self._serial = 0

    def __repr__(self) -> str:
        return f"<Place {self.address} {self.phase.value} since={self.since_s:.1f}>"

    @property
    def is_probe_only(self) -> bool:
        """Whether only a probe may be answered here now."""
        return self._admission.is_reserve_used

    def bind(self, abort: Callable[[], object]) -> None:
        """The connection is made, its handshake done: ``abort`` ends it at once from now on."""
        self._abort = abort
        self.enter(Phase.HEAD)

    def enter(self, phase: Phase, serial: int = 0) -> None:
        """The connection is in this phase of its request number ``serial``; the deadline starts when either changes."""
        if (phase, serial) != (self.phase, self._serial):
            self.phase, self._serial, self.since_s = phase, serial, self._admission.now_s()

    def note(self, reason: Reason) -> None:
        """Count something of this connection, and log it at most once a minute."""
        self._admission.note(reason, self.address)

    def close(self, reason: Reason) -> None:
        """End the connection for this reason."""
        self.note(reason)
        self.release()
        if self._abort is not None:
            self._abort()

    def release(self) -> None:
        """The connection is gone. May be called again."""
        self._admission.forget(self)


@final
class HttpAdmission:
    """The connections of one listener. Owned by one event loop."""

    def __init__(self, name: str, settings: HttpLimitSettings, *, clock: Callable[[], float]) -> None:
        """``name`` says in log lines which listener it is; ``clock`` is monotonic, in seconds."""
        self.settings: Final = settings
        self.counts: Final = dict.fromkeys(Reason, 0)
        self.now_s: Final = clock
        self._name: Final = name
        self._places: Final[dict[Place, None]] = {}
        self._by_address: Final[dict[str, dict[Place, None]]] = {}
        self._logged: Final[dict[Reason, tuple[float, int]]] = {}
        """When a reason was logged last, and its count then."""

    def __repr__(self) -> str:
        return f"<HttpAdmission {self._name} connections={len(self._places)} addresses={len(self._by_address)}>"

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_reserve_used(self) -> bool:
        """Whether connections exist beyond those that serve everything."""
        return len(self._places) > self.settings.connections_max

    def admit(self, address: str) -> Place | None:
        """A place for a new connection, or None when it must be closed. Raises nothing."""
        settings, own = self.settings, self._by_address.get(address, {})
        if len(own) >= settings.connections_per_address_max and not self._evict(own, Reason.ADDRESS_LIMIT):
            self.note(Reason.REFUSED, address)
            return None
        if len(self._places) >= settings.connections_max and not self._evict_from_busiest():
            most = settings.connections_max + settings.probe_connections
            if len(self._places) >= most:
                self.note(Reason.REFUSED, address)
                return None
        place = Place(self, address, self.now_s())
        self._places[place] = None
        self._by_address.setdefault(address, {})[place] = None
        return place

    def forget(self, place: Place) -> None:
        """A connection is gone."""
        if place not in self._places:
            return
        del self._places[place]
        own = self._by_address[place.address]
        del own[place]
        if not own:
            del self._by_address[place.address]

    def sweep(self) -> None:
        """Close what is over its deadline."""
        now_s = self.now_s()
        for place in list(self._places):
            limit_ms = self.settings.limit_ms(place.phase)
            if limit_ms is not None and (now_s - place.since_s) * 1000 >= limit_ms:
                place.close(_TIMEOUTS[place.phase])

    async def keep_swept(self) -> None:
        """Sweep for as long as the listener runs."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.sweep()

    def note(self, reason: Reason, address: str) -> None:
        """Count it, and log the first and then one line a minute."""
        self.counts[reason] += 1
        if reason in _UNLOGGED:
            return
        count, now_s = self.counts[reason], self.now_s()
        logged_s, before = self._logged.get(reason, (now_s - LOG_INTERVAL_S, 0))
        if now_s - logged_s >= LOG_INTERVAL_S:
            self._logged[reason] = (now_s, count)
            log.warning(
                "closed HTTP connection: listener=%s reason=%s address=%s since_last_line=%d open=%d",
                self._name, reason.value, address, count - before, len(self._places),
            )  # fmt: skip

    def _evict_from_busiest(self) -> bool:
        addresses = sorted(self._by_address.values(), key=len, reverse=True)
        return any(self._evict(places, Reason.TOTAL_LIMIT) for places in addresses)

    @staticmethod
    def _evict(places: Iterable[Place], reason: Reason) -> bool:
        """Close the one that has waited longest, unless all have an answer under way."""
        waiting = [place for place in places if place.phase is not Phase.ANSWER]
        if not waiting:
            return False
        min(waiting, key=lambda place: place.since_s).close(reason)
        return True


@final
class HttpListener:
    """Accepts the connections of one listening socket and admits each before its TLS handshake. Owned by one loop."""

    def __init__(
        self,
        bound: socket.socket,
        admission: HttpAdmission,
        make: Callable[[Place], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        """``make`` returns the protocol of an admitted connection; it binds and releases its place."""
        self._socket: Final = bound
        self._admission: Final = admission
        self._make: Final = make
        self._tls: Final = tls
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._resume: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<HttpListener {self._admission!r}>"

    def start(self) -> None:
        """Begin to accept, and to close what is over its deadline."""
        self._loop = asyncio.get_running_loop()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER_ACCEPT_S)
        self._loop.add_reader(self._socket, self._accept)
        self._tasks.add(self._loop.create_task(self._admission.keep_swept()))

    async def close(self) -> None:
        """Stop accepting. Connections that are made go on; those in their handshake end."""
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
                    self._admission.note(Reason.REFUSED, "any: no descriptors or memory for it")
                    self._loop.remove_reader(self._socket)
                    self._resume = self._loop.call_later(
                        ACCEPT_PAUSE_S, self._loop.add_reader, self._socket, self._accept
                    )
                return
            self._welcome(connection, str(peer[0]))

    def _welcome(self, connection: socket.socket, address: str) -> None:
        place = self._admission.admit(address)
        if place is None:
            connection.close()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._connect(connection, place))
        place.bind(task.cancel)
        if self._tls is not None:
            place.enter(Phase.HANDSHAKE)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._connected(done, connection, place))

    async def _connect(self, connection: socket.socket, place: Place) -> None:
        await self._loop.connect_accepted_socket(lambda: self._make(place), connection, ssl=self._tls)

    def _connected(self, task: asyncio.Task[None], connection: socket.socket, place: Place) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            place.release()
            connection.close()
        if error is not None and not isinstance(error, OSError | RuntimeError):  # an ssl.SSLError is an OSError
            log.error("could not serve HTTP connection: listener=%s", self._admission, exc_info=error)
