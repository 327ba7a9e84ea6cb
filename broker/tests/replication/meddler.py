"""Somebody between a master and a slave: cuts the stream, changes a bit, says a piece twice, or in another order.

Whatever it does, a slave's log must stay a prefix of its master's, so that a stream without it makes it whole again.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from enum import Enum, auto
from types import TracebackType
from typing import Final, final

from replication.connecting import connected

READ_BYTES: Final = 16 << 10
BYTES_BETWEEN: Final = 60_000


class Mischief(Enum):
    """What is done to one piece of what the master says."""

    CUT = auto()
    FLIP = auto()
    TWICE = auto()
    SWAP = auto()
    INJECT = auto()


@final
class Meddler:
    """Listens at ``address`` while it is in a ``with``. Owned by one loop."""

    def __init__(self, host: str, target: tuple[str, int], chance: random.Random) -> None:
        self.done: Final[list[Mischief]] = []
        self.address = ""
        self._host: Final = host
        self._target: Final = target
        self._chance: Final = chance
        self._plan: Final = chance.sample(list(Mischief), len(Mischief))
        self._server: asyncio.Server | None = None
        self._streams: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Meddler:
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        self.address = f"{self._host}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._join(reader, writer)
        finally:
            self._streams.discard(task)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry both ways until either ends; then both do."""
        from_master, to_master = await connected(*self._target)
        ways = {
            asyncio.ensure_future(self._carry(reader, to_master)),
            asyncio.ensure_future(self._meddle(from_master, writer)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_master.transport.abort()  # before anything is awaited, which may be cancelled
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            writer.write(data)

    async def _meddle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the master to the slave, until the mischief of this connection is done and has ended it."""
        left = self._chance.randint(1, BYTES_BETWEEN)
        while data := await reader.read(READ_BYTES):
            if len(data) < left:
                left -= len(data)
                writer.write(data)
                continue
            mischief = self._plan[len(self.done) % len(self._plan)]
            self.done.append(mischief)
            writer.write(self._spoil(mischief, data, left))
            if mischief is Mischief.CUT:
                await writer.drain()
                return
            left = 1 << 62

    def _spoil(self, mischief: Mischief, data: bytes, at: int) -> bytes:
        at = min(at, len(data) - 1)
        match mischief:
            case Mischief.CUT:
                return data[:at]
            case Mischief.FLIP:
                return data[:at] + bytes([data[at] ^ 1 << self._chance.randrange(8)]) + data[at + 1 :]
            case Mischief.TWICE:
                return data[: at + 1] + data[: at + 1] + data[at + 1 :]
            case Mischief.SWAP:
                return data[at:] + data[:at]
            case Mischief.INJECT:
                return data[:at] + self._chance.randbytes(40) + data[at:]
