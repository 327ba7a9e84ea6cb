"""The slave's end of RocketMQ's replication stream: ask, connect, prepare, copy, and do so again whenever it breaks.

    where does your log lie? --> connect --> the store made ready --> offset --> bytes, reports, bytes, ...

It has the face of ``ha.follower.Follower``. The master is a Java broker that knows nothing of it but an address and an
offset. Its tables are fetched beside the stream, by ``ClassicTables``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, cast, final

from gantry_access import Credentials
from gantry_broker.errors import StoreError
from gantry_broker.ha.classic.chunks import REPORT_INTERVAL_S, SILENCE_S
from gantry_broker.ha.classic.questions import BadAnswer, Questions
from gantry_broker.ha.classic.slave_session import ClassicSlaveSession
from gantry_broker.ha.classic.start import CannotFollow, MasterRange, Start, plan_start
from gantry_broker.ha.classic.tables import ClassicTables
from gantry_broker.ha.follower import Address
from gantry_broker.ha.frames import StreamBroken, Table, Welcome
from gantry_broker.ha.slave_store import SlaveStore
from gantry_broker.store.copying import CopyRefused
from gantry_remoting import RemotingError

log = logging.getLogger(__name__)

RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between one connection and the next; the last one for ever."""
CONNECT_S: Final = 5.0
FINISH_S: Final = 5.0
"""How long a promotion waits for the last tables of a master that may have gone this very moment."""


class ClassicMaster(NamedTuple):
    """Where the master is."""

    address: Address
    """Of its replication port."""

    broker_address: str
    """Of its main port, where it answers questions."""

    credentials: Credentials | None = None
    """Whose questions it answers, if it has access control: an administrator's."""


@final
class ClassicFollower:
    """Follows one Java master until cancelled. Owned by the loop."""

    def __init__(
        self,
        store: SlaveStore,
        master: ClassicMaster,
        *,
        file_bytes: int,
        is_flushed_wanted: bool = False,
        on_table: Callable[[Table], None] = lambda table: None,
        on_copied: Callable[[], None] = lambda: None,
        standstill: Callable[[Callable[[], None]], Awaitable[None]] = asyncio.to_thread,
    ) -> None:
        """``on_copied`` is called when data or what is confirmed has moved.

        ``standstill`` runs what waits for the disk, while nobody else uses the store. Consumers may see what is
        received, or only what is flushed if that is wanted: the master says nothing of it.
        """
        self.address: Final = master.address
        self.tables: Final = ClassicTables(
            master.broker_address, on_table, self._ranged, lambda: self.is_streaming, credentials=master.credentials
        )
        self.trouble: str | None = None
        """Why there is no stream, if there is none."""

        self._store: Final = store
        self._master: Final = master
        self._file_bytes: Final = file_bytes
        self._is_flushed_wanted: Final = is_flushed_wanted
        self._on_copied: Final = on_copied
        self._standstill: Final = standstill
        self._stream: ClassicSlaveStream | None = None
        self._wrote_before = -1

    @property
    def is_streaming(self) -> bool:
        return self._stream is not None and self._stream.is_streaming

    @property
    def heard_at(self) -> float | None:
        """When this master said something last, on the loop's clock; None while there is no stream."""
        return None if self._stream is None else self._stream.heard_at

    @property
    def confirmed(self) -> int:
        """How far consumers may see; -1 while it is not known that this log is the master's."""
        if not self.is_streaming:
            return -1
        return min(self._store.received, self._store.flushed) if self._is_flushed_wanted else self._store.received

    @property
    def master_wrote(self) -> int:
        """Where the master's log ends, as it said when it was last asked; -1 before."""
        return self.tables.master_end

    async def finish(self) -> None:
        """Take the tables over as they are now, if the master is there: this broker is going to be the master itself.

        They are asked for every few seconds only, and consumers commit all the time.
        """
        if self.is_streaming:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINISH_S):
                    await self.tables.fetch(is_last=True)

    async def run(self) -> None:
        """Follow."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.tables.run())
            tasks.create_task(self._run())

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._follow()
                reason = "the master has closed the stream"
            except (OSError, TimeoutError, StreamBroken, CannotFollow, CopyRefused, StoreError) as exc:
                reason = str(exc) or type(exc).__name__
            except (RemotingError, BadAnswer) as exc:
                reason = f"{self._master.broker_address}: {exc}"
            except Exception as exc:  # worse than one that tries again is a slave that follows nobody in silence
                log.exception("following fails unexpectedly")
                reason = f"{type(exc).__name__}: {exc}"
            if self._stream is not None and self._stream.was_streaming:
                failures = 0
            self._stream = None
            if reason != self.trouble:
                log.warning("the master is not followed", extra={"master": self.address[0], "reason": reason})
            self.trouble = reason
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    async def _follow(self) -> None:
        """One connection, to its end."""
        loop = asyncio.get_running_loop()
        async with Questions.open(self._master.broker_address, self._master.credentials) as questions:
            master = await questions.range()
        start = plan_start(self._store.history, master, self._file_bytes)
        async with asyncio.timeout(CONNECT_S):
            _, stream = await loop.create_connection(lambda: ClassicSlaveStream(self._copied), *self.address)
        try:
            await self._prepare(start)
            self._stream = stream
            stream.begin(ClassicSlaveSession(self._store, start, self._file_bytes))
            facts = {"master": self.address[0], "offset": start.end, "compared_from": start.request}
            log.info("a master of RocketMQ's is followed", extra=facts)
            await stream.ended()
        finally:
            stream.abort()

    async def _prepare(self, start: Start) -> None:
        if start.is_restart:
            facts = {"start": start.end, "end": self._store.history.end}
            log.warning("the log begins anew, to follow the master", extra=facts)
        welcome = Welcome(
            epoch=start.epochs[-1].epoch, epochs=start.epochs, begin=start.end, start=start.end,
            is_restart=start.is_restart,
        )  # fmt: skip
        if not self._store.is_prepared(welcome):
            await self._standstill(lambda: self._store.prepare(welcome))

    def _ranged(self, master: MasterRange) -> None:
        """A master whose log has lost what comes next sends nothing any more, and says that it lives."""
        wrote = self._store.history.end
        before, self._wrote_before = self._wrote_before, wrote
        if self._stream is not None and wrote < master.begin and wrote == before:
            text = f"what lies at {wrote} has expired: the master's log begins at {master.begin}"
            self._stream.end(StreamBroken(text))

    def _copied(self) -> None:
        self.trouble = None
        self._on_copied()

    def progressed(self) -> None:
        """The store's threads have moved: the master wants to know, and consumers may see more."""
        if self._stream is not None and self._stream.is_streaming:
            self._stream.acknowledge()
            self._on_copied()


@final
class ClassicSlaveStream(asyncio.Protocol):
    """One connection to a Java master."""

    def __init__(self, copied: Callable[[], None]) -> None:
        self.was_streaming = False
        """Whether the master has sent anything that went on from where this log was."""

        self._copied: Final = copied
        self._loop = asyncio.get_running_loop()
        self._session: ClassicSlaveSession | None = None
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.heard_at = self._said_at = self._loop.time()

    @property
    def is_streaming(self) -> bool:
        return self._session is not None and self._session.is_streaming

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A transport of uvloop is no subclass of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)

    def begin(self, session: ClassicSlaveSession) -> None:
        """The store is ready."""
        self._session = session
        self.heard_at = self._loop.time()
        self._write(session.begin())
        if session.is_streaming:
            self._copied()

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except Exception as exc:  # noqa: BLE001 - any exception ends the stream, and is reported to its owner
            self.end(exc)

    def _take(self, data: bytes) -> None:
        if self._ended.done():
            return
        if self._session is None:
            self.end(StreamBroken("it sends before it was asked"))
            return
        self.heard_at = self._loop.time()
        self._write(self._session.receive(data))
        if self._session.is_streaming:
            self.was_streaming = True
            self._copied()

    async def ended(self) -> None:
        """Until the stream is over, with a report now and then. Raises why, if anybody knows."""
        while not self._ended.done():
            await asyncio.wait([self._ended], timeout=1.0)
            now = self._loop.time()
            if not self._ended.done() and now - self.heard_at > SILENCE_S:
                raise StreamBroken(f"the master has said nothing for {SILENCE_S:.0f} s")
            if self._session is not None and now - self._said_at >= REPORT_INTERVAL_S:
                self._write(self._session.report())
        self._ended.result()

    def acknowledge(self) -> None:
        """Say how far the log is, if that has moved."""
        if self._session is not None:
            self._write(self._session.ack())

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._ended.done():
            self._said_at = self._loop.time()
            self._transport.write(data)

    def abort(self) -> None:
        """Nobody asks any more why it is over."""
        if self._transport is not None:
            self._transport.abort()
        if self._ended.done():
            self._ended.exception()

    def end(self, reason: Exception) -> None:
        """It leads nowhere any more."""
        if not self._ended.done():
            self._ended.set_exception(reason)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            if exc is not None:
                self._ended.set_exception(exc)
            else:
                self._ended.set_result(None)
