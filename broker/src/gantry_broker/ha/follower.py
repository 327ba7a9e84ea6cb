"""The slave's end of a replication stream between Gantry brokers.

Received data is appended and acknowledged in the same turn of the loop, all of it with one ack. Progress of the flush
thread is reported by another ack.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_broker.ha.follower_runner import Address, FollowerRunner, FollowerStream, RunExclusively
from gantry_broker.ha.frames import SILENCE_S, Table, Welcome
from gantry_broker.ha.healing import RangeRequester
from gantry_broker.ha.history import CannotFollow
from gantry_broker.ha.slave_session import Phase, SlaveFacts, SlaveSession
from gantry_broker.ha.store_log import SlaveStore


@final
class SlaveStream(FollowerStream):
    """One connection to a Gantry master."""

    def __init__(
        self,
        session: SlaveSession,
        ranges: RangeRequester,
        prepare: Callable[[Welcome], Awaitable[None]],
        on_copied: Callable[[], None],
        on_grant: Callable[[], None],
    ) -> None:
        """Create a stream. ``ranges`` is the object to which ``session`` passes the replies to range requests."""
        super().__init__(on_copied)
        self.session: Final = session
        self._ranges: Final = ranges
        self._prepare: Final = prepare
        self._on_grant: Final = on_grant
        self._has_welcome: Final[asyncio.Future[None]] = self._loop.create_future()

    @property
    def is_streaming(self) -> bool:
        return self.session.phase is Phase.STREAMING

    async def begin(self) -> None:
        self.write(self.session.begin())
        async with asyncio.timeout(SILENCE_S):
            await asyncio.wait([self._has_welcome, self._ended], return_when=asyncio.FIRST_COMPLETED)
        self.raise_if_ended()
        welcome = self.session.welcome
        assert welcome is not None, "the session is PREPARING"
        await self._prepare(welcome)
        self.raise_if_ended()
        self.write(self.session.start_stream())
        if self.session.is_granting:
            self._on_grant()

    def receive(self, data: bytes) -> None:
        session = self.session
        self.write(session.receive(data) + self._ack())
        if session.refusal is not None:
            self.end(CannotFollow(f"{session.refusal.reason}: {session.refusal.text}"))
        elif session.phase is Phase.PREPARING and not self._has_welcome.done():
            self._has_welcome.set_result(None)

    def acknowledge(self) -> None:
        if not self._ended.done():
            self.write(self._ack())

    def _ack(self) -> bytes:
        ack = self.session.ack()
        if ack and self.session.is_granting:
            self._on_grant()
        return ack

    def lacks(self, start: int) -> bool:
        """Return False: a master that lacks a range may get it from another slave."""
        return False

    def waits_at(self, start: int) -> bool:
        """Return False: a master needs nothing from this slave."""
        return False

    async def fetch(self, start: int, end: int) -> bytes:
        """Return records of ``[start, end)`` from the master, unverified and perhaps not all. Raises ``OSError``."""
        if self._ended.done():
            raise ConnectionError("the replication stream ended")
        return await self._ranges.fetch(self.write, start, end)

    def end(self, reason: Exception | None) -> None:
        self._ranges.close()
        super().end(reason)


@final
class Follower(FollowerRunner[SlaveStream]):
    """Follows a Gantry master until cancelled."""

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
        ack_limit: Callable[[], int | None] = lambda: None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        run_exclusively: RunExclusively = asyncio.to_thread,
    ) -> None:
        """Create a follower.

        ``on_copied`` is called after each read of a stream: data may have been copied, or the confirmed position moved.
        ``on_grant`` is called with each grant that is sent. ``on_welcome`` is awaited before anything of that master is
        copied or acknowledged. ``ack_limit`` is that of `SlaveSession`.
        """
        super().__init__(store, address, run_exclusively=run_exclusively, tls=tls)
        self._facts: Final = facts
        self._on_table: Final = on_table
        self._on_copied: Final = on_copied
        self._on_grant: Final = on_grant
        self._on_welcome: Final = on_welcome
        self._ack_limit: Final = ack_limit

    async def _open(self) -> SlaveStream:
        ranges = RangeRequester()
        session = SlaveSession(
            self._facts(), self._store, self._on_table, on_range=ranges.deliver_range, ack_limit=self._ack_limit
        )
        return SlaveStream(session, ranges, self._prepare, self._on_copied, self._on_grant)

    async def _prepare(self, welcome: Welcome) -> None:
        await self.prepare_store(welcome)
        if self._on_welcome is not None:
            await self._on_welcome(welcome)

    @property
    def has_caught_up(self) -> bool:
        """Whether this log has everything that the master had when this stream began."""
        master_end = -1 if self._stream is None else self._stream.session.master_wrote_first
        return self.is_streaming and 0 <= master_end <= self._store.history.end

    @property
    def confirmed(self) -> int:
        """Position up to which consumers may read, as reported on this stream; -1 before that, or without a stream."""
        return self._stream.session.confirmed if self._stream is not None else -1

    def has_range(self, end: int) -> bool:
        """Return whether the master can be asked for records before ``end``."""
        welcome = None if self._stream is None else self._stream.session.welcome
        return welcome is not None and welcome.gives_ranges and self.is_streaming and end <= self._store.history.end

    def lacks(self, start: int) -> bool:
        """Return False: a master that lacks a range may get it from another slave."""
        return False

    def waits_at(self, start: int) -> bool:
        """Return False: a master needs nothing from this slave."""
        return False

    async def fetch(self, start: int, end: int) -> bytes:
        """Return records of ``[start, end)`` from the master, unverified and perhaps not all. Raises ``OSError``."""
        if self._stream is None or not self.is_streaming:
            raise ConnectionError("no replication stream to the master")
        return await self._stream.fetch(start, end)
