"""The common part of all slaves, for both kinds of masters: connect, copy, and connect again.

    open --> connect --> begin (handshake, the store made ready) --> copy ... --> the stream ends --> pause --> open

A subclass opens its own stream, which defines the protocol and the handshake. The runner keeps these rules for both
kinds of masters:

- Pauses grow to two seconds. An attempt costs a master next to nothing, and each second without a stream is a second in
  which this slave acknowledges nothing and falls behind.
- A stream counts once the master has sent something on it after the handshake. Only that resets the pauses and makes
  ``problem`` None: otherwise a master that refuses a slave right after the handshake would get five connections a
  second.
- ``last_heartbeat_at`` is the time at which such a stream last sent something. It is kept when the stream ends:
  elections need the time since the master was last seen, not whether a connection exists.
- Silence is counted from the last byte, and at the earliest from the end of ``begin``: the master need not send
  anything while the slave truncates its log.
- Every exception ends the connection, and no exception ends the runner. An expected exception becomes the reason in the
  status, an unexpected one is also logged with its traceback. The next stream begins where the log ends, so nothing is
  lost.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar, cast

from gantry_broker.errors import StoreError
from gantry_broker.ha.frames import SILENCE_S, StreamBroken, Welcome
from gantry_broker.ha.history import CannotFollow
from gantry_broker.ha.store_log import SlaveStore
from gantry_broker.store.copying import CopyRefused

log = logging.getLogger(__name__)

RETRY_S: Final = (0.2, 0.5, 1.0, 2.0)
"""Pauses between one connection and the next, in seconds; the last one repeats."""
CONNECT_S: Final = 5.0
"""Longest time to connect, in seconds."""

Address = tuple[str, int]
RunExclusively = Callable[[Callable[[], None]], Awaitable[None]]
"""Function that runs a change of the store in a thread while nothing else uses the store."""


class FollowerStream(asyncio.Protocol, ABC):
    """One connection to a master. Owned by the loop."""

    def __init__(self, on_copied: Callable[[], None]) -> None:
        self.last_heartbeat_at: float | None = None
        """When the master last sent something after the handshake, on the loop's clock; None before."""

        self._on_copied: Final = on_copied
        self._loop: Final = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ended: Final[asyncio.Future[None]] = self._loop.create_future()
        self._end_reason: Exception | None = None
        self._read_at = self._loop.time()

    # -- what each kind of stream implements ---------------------------------------------------------------------------

    @property
    @abstractmethod
    def is_streaming(self) -> bool:
        """Whether this log is known to be the master's, and is being copied."""

    @abstractmethod
    async def begin(self) -> None:
        """Do the handshake and prepare the store. Called once, when the connection exists."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Handle received data. Any exception ends the stream."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Send an ack, unless it would repeat the last one."""

    def keep_alive(self) -> None:
        """Send something if nothing was sent for a while. Called about once a second.

        A stream whose acks answer the master's heartbeats needs no implementation.
        """

    # -- what all kinds share ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._ended.done():
            return
        self._read_at = self._loop.time()
        try:
            self.receive(data)
            if self.is_streaming:
                self.last_heartbeat_at = self._read_at
                self._on_copied()
        except Exception as exc:  # noqa: BLE001 - any exception ends the stream, and is reported to its owner
            self.end(exc)

    async def wait_until_ended(self) -> None:
        """Wait until the stream ends. Raises the reason, if it is known."""
        self._read_at = self._loop.time()
        while not self._ended.done():
            await asyncio.wait([self._ended], timeout=1.0)
            if not self._ended.done():
                if self._loop.time() - self._read_at > SILENCE_S:
                    raise StreamBroken(f"no data from the master for {SILENCE_S:.0f} s")
                self.keep_alive()
        if self._end_reason is not None:
            raise self._end_reason

    def raise_if_ended(self) -> None:
        """Raise the reason if the stream has ended."""
        if self._ended.done():
            raise self._end_reason or StreamBroken("the master closed the connection during the handshake")

    def write(self, data: bytes) -> None:
        """Send data, if there is any and the connection is open."""
        if data and self._transport is not None and not self._ended.done():
            self._transport.write(data)

    def end(self, reason: Exception | None) -> None:
        """Close the connection at once. The first reason is kept."""
        if not self._ended.done():
            self._end_reason = reason
            self._ended.set_result(None)
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc)


S = TypeVar("S", bound=FollowerStream)


class FollowerRunner(ABC, Generic[S]):
    """Follows one master until cancelled. Owned by the loop."""

    def __init__(
        self,
        store: SlaveStore,
        address: Address,
        *,
        run_exclusively: RunExclusively = asyncio.to_thread,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """Create a runner. ``tls`` returns the context of each connection, since certificates may be replaced.

        ``run_exclusively`` runs a change of the store while nothing else uses it.
        """
        self.address: Final = address
        self._store: Final = store
        self._run_exclusively: Final = run_exclusively
        self._tls: Final = tls
        self._stream: S | None = None
        self._last_heartbeat_at: float | None = None
        self._problem: str | None = None

    @abstractmethod
    async def _open(self) -> S:
        """Return a stream without a connection. Requests that precede the connection belong here."""

    @property
    def is_streaming(self) -> bool:
        return self._stream is not None and self._stream.is_streaming

    @property
    def last_heartbeat_at(self) -> float | None:
        """When this master last sent something after a handshake, on the loop's clock; None if it never has."""
        heartbeat_at = None if self._stream is None else self._stream.last_heartbeat_at
        return self._last_heartbeat_at if heartbeat_at is None else heartbeat_at

    @property
    def problem(self) -> str | None:
        """Why there is no stream; None while there is one, and before the first attempt has failed."""
        has_stream = self._stream is not None and self._stream.last_heartbeat_at is not None
        return None if has_stream else self._problem

    async def run(self) -> None:
        """Follow the master, and reconnect after every failure, until cancelled."""
        failures = 0
        while True:
            try:
                await self._follow()
                reason = "the master closed the connection"
            except (OSError, StreamBroken, CannotFollow, CopyRefused, StoreError) as exc:
                reason = str(exc) or type(exc).__name__
            except Exception as exc:  # A slave that stops trying would fall behind unnoticed.
                log.exception("unexpected error while following the master")
                reason = f"{type(exc).__name__}: {exc}"
            if reason != self.problem:
                log.warning("not following the master; retrying", extra={"master": self.address[0], "reason": reason})
            if self._stream is not None and self._stream.last_heartbeat_at is not None:
                self._last_heartbeat_at, failures = self._stream.last_heartbeat_at, 0
            self._problem, self._stream = reason, None
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    async def _follow(self) -> None:
        """Follow the master on one connection, until that ends."""
        stream = await self._open()
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: stream, *self.address, ssl=None if self._tls is None else self._tls()
                )
            self._stream = stream
            await stream.begin()
            log.info("following the master", extra={"master": self.address[0], "offset": self._store.history.end})
            await stream.wait_until_ended()
        finally:
            stream.end(None)

    async def prepare_store(self, welcome: Welcome) -> None:
        """Remove bytes that the master never had, adopt its history, and get ready to copy."""
        wrote = self._store.store.log.wrote  # The history of a log with a hole is empty, its files are not.
        if welcome.cut_to is not None or (welcome.is_restart and wrote > 0):
            extra = {"cut_to": welcome.cut_to, "start": welcome.start, "end": wrote}
            log.warning("truncating the log to follow the master", extra=extra)
        if not self._store.is_prepared(welcome):
            await self._run_exclusively(lambda: self._store.prepare(welcome))

    def report_progress(self) -> None:
        """Send an ack to the master, because the store's threads have made progress."""
        if self._stream is not None:
            self._stream.acknowledge()
