"""The slave's end of a replication stream: connect, prepare, copy, and do so again whenever it breaks.

What comes is appended in the turn of the loop in which it comes, and acknowledged in the same turn, all of it with one
ack. When the flush thread has moved, another ack says so. Whatever goes wrong with the stream or the store's taking of
it ends the connection: the next one begins where the log ends, so nothing is lost by that but a moment.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, cast, final

from gantry_broker.errors import StoreError
from gantry_broker.ha.frames import StreamBroken, Table, Welcome
from gantry_broker.ha.healing import RangeQuestion
from gantry_broker.ha.slave_session import Phase, SlaveFacts, SlaveSession
from gantry_broker.ha.slave_store import SlaveStore
from gantry_broker.store.copying import CopyRefused

log = logging.getLogger(__name__)

RETRY_S: Final = (0.2, 0.5, 1.0, 2.0)
"""Between one connection and the next; the last one for ever."""
CONNECT_S: Final = 5.0
SILENCE_S: Final = 20.0
WRITE_BUFFER_BYTES: Final = 1 << 20

Address = tuple[str, int]


class Refused(Exception):
    """The master does not want us, and says why."""


@final
class Follower:
    """Follows one master until cancelled. Owned by the loop."""

    def __init__(
        self,
        store: SlaveStore,
        facts: Callable[[], SlaveFacts],
        address: Address,
        *,
        on_table: Callable[[Table], None] = lambda table: None,
        on_copied: Callable[[], None] = lambda: None,
        on_grant: Callable[[], None] = lambda: None,
        on_welcome: Callable[[Welcome], Awaitable[None]] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        standstill: Callable[[Callable[[], None]], Awaitable[None]] = asyncio.to_thread,
    ) -> None:
        """``on_copied`` is called when data or what is confirmed has moved, ``on_grant`` before a grant is sent.

        ``on_welcome`` is awaited before anything of that master is copied or acknowledged.

        ``tls`` is asked for every connection: what it gives may have been replaced since.

        ``standstill`` runs what waits for the disk, while nobody else uses the store.
        """
        self.address: Final = address
        self.trouble: str | None = None
        """Why there is no stream, if there is none."""

        self._store: Final = store
        self._facts: Final = facts
        self._on_table: Final = on_table
        self._on_copied: Final = on_copied
        self._on_grant: Final = on_grant
        self._on_welcome: Final = on_welcome
        self._tls: Final = tls
        self._standstill: Final = standstill
        self._stream: SlaveStream | None = None
        self._heard_at: float | None = None

    @property
    def heard_at(self) -> float | None:
        """When this master said something last, on the loop's clock; None if it never has."""
        heard_at = None if self._stream is None else self._stream.heard_at
        return self._heard_at if heard_at is None else heard_at

    @property
    def has_caught_up(self) -> bool:
        """Whether everything is here that the master had when this stream began."""
        bar = -1 if self._stream is None else self._stream.session.master_wrote_first
        return self.is_streaming and 0 <= bar <= self._store.history.end

    @property
    def is_streaming(self) -> bool:
        return self._stream is not None and self._stream.session.phase is Phase.STREAMING

    def has_range(self, end: int) -> bool:
        """Whether the master may be asked for what lies before ``end``."""
        welcome = None if self._stream is None else self._stream.session.welcome
        return welcome is not None and welcome.gives_ranges and self.is_streaming and end <= self._store.history.end

    async def fetch(self, start: int, end: int) -> bytes:
        """Whole records of ``[start, end)`` from the master. Raises ``OSError``."""
        if self._stream is None or not self.is_streaming:
            raise ConnectionError("no master is followed")
        return await self._stream.fetch(start, end)

    @property
    def confirmed(self) -> int:
        """How far consumers may see, as this master says; -1 before it has said so."""
        return self._stream.session.confirmed if self._stream is not None else -1

    async def run(self) -> None:
        """Follow."""
        failures = 0
        while True:
            try:
                await self._follow()
                reason = "the master has closed the stream"
            except (OSError, TimeoutError, StreamBroken, CopyRefused, StoreError, Refused) as exc:
                reason = str(exc) or type(exc).__name__
            except Exception as exc:  # worse than one that tries again is a slave that follows nobody in silence
                log.exception("following fails unexpectedly")
                reason = f"{type(exc).__name__}: {exc}"
            if self._stream is not None and self._stream.was_streaming:
                failures = 0
            self._heard_at, self._stream = self.heard_at, None
            if reason != self.trouble:
                log.warning("the master is not followed", extra={"master": self.address[0], "reason": reason})
            self.trouble = reason
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    async def _follow(self) -> None:
        """One connection, to its end."""
        loop = asyncio.get_running_loop()
        session = SlaveSession(self._facts(), self._store, self._on_table)
        async with asyncio.timeout(CONNECT_S):
            _, stream = await loop.create_connection(
                lambda: SlaveStream(session, self._copied, self._on_grant),
                *self.address,
                ssl=None if self._tls is None else self._tls(),
            )
        self._stream = stream
        try:
            await stream.prepared(self._prepare)
            self.trouble = None
            log.info("a master is followed", extra={"master": self.address[0], "offset": self._store.history.end})
            await stream.ended()
        finally:
            stream.abort()

    async def _prepare(self, welcome: Welcome) -> None:
        if welcome.cut_to is not None or (welcome.is_restart and self._store.history.end > 0):
            facts = {"cut_to": welcome.cut_to, "start": welcome.start, "end": self._store.history.end}
            log.warning("the log is changed to follow the master", extra=facts)
        if not self._store.is_prepared(welcome):
            await self._standstill(lambda: self._store.prepare(welcome))
        if self._on_welcome is not None:
            await self._on_welcome(welcome)

    def _copied(self) -> None:
        self._on_copied()

    def progressed(self) -> None:
        """The store's threads have moved: the master wants to know."""
        if self._stream is not None:
            self._stream.acknowledge()


@final
class SlaveStream(asyncio.Protocol):
    """One connection to a master."""

    def __init__(self, session: SlaveSession, copied: Callable[[], None], granted: Callable[[], None]) -> None:
        self.session: Final = session
        self.was_streaming = False
        self._copied: Final = copied
        self._granted: Final = granted
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._welcomed: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.heard_at: float | None = None
        """When it said something last that only a master says that is followed."""

        self._read_at = self._loop.time()
        self._range: Final = RangeQuestion()
        session.on_range = self._range.answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A transport of uvloop is no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._transport.write(self.session.begin())
        except Exception as exc:  # noqa: BLE001 - see data_received
            self._fail(exc)

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except Exception as exc:  # noqa: BLE001 - any exception ends the stream, and is reported to its owner
            self._fail(exc)

    def _take(self, data: bytes) -> None:
        transport, session = self._transport, self.session
        if transport is None or self._ended.done():
            return
        self._read_at = self._loop.time()
        answer = session.receive(data)
        answer += self._ack()
        if answer:
            transport.write(answer)
        if session.refusal is not None:
            self._fail(Refused(f"{session.refusal.reason}: {session.refusal.text}"))
        elif session.phase is Phase.PREPARING and not self._welcomed.done():
            self._welcomed.set_result(None)
        elif session.phase is Phase.STREAMING:
            self.heard_at = self._read_at
            self._copied()

    async def prepared(self, prepare: Callable[[Welcome], Awaitable[None]]) -> None:
        """The handshake, to its end."""
        async with asyncio.timeout(SILENCE_S):
            await asyncio.wait([self._welcomed, self._ended], return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            self._ended.result()
            raise StreamBroken("the master has closed the connection")
        welcome = self.session.welcome
        assert welcome is not None and self._transport is not None
        await prepare(welcome)
        self._transport.write(self.session.ready())
        if self.session.is_granting:
            self._granted()
        self.was_streaming = True

    async def ended(self) -> None:
        """Until the stream is over. Raises why, if anybody knows."""
        while not self._ended.done():
            await asyncio.wait([self._ended], timeout=1.0)
            if not self._ended.done() and self._loop.time() - self._read_at > SILENCE_S:
                raise StreamBroken(f"the master has said nothing for {SILENCE_S:.0f} s")
        self._ended.result()

    async def fetch(self, start: int, end: int) -> bytes:
        """Whole records of ``[start, end)`` from the master. Raises ``OSError``."""
        if self._transport is None or self._ended.done():
            raise ConnectionError("the replication stream ended")
        return await self._range.fetch(self._transport.write, start, end)

    def acknowledge(self) -> None:
        """Say how far the log is, if that has moved."""
        if self._transport is not None and not self._ended.done():
            ack = self._ack()
            if ack:
                self._transport.write(ack)

    def _ack(self) -> bytes:
        ack = self.session.ack()
        if ack and self.session.is_granting:
            self._granted()
        return ack

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, reason: Exception) -> None:
        self._range.close()
        if not self._ended.done():
            self._ended.set_exception(reason)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._range.close()
        if not self._ended.done():
            if exc is not None:
                self._ended.set_exception(exc)
            else:
                self._ended.set_result(None)
