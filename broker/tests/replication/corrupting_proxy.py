"""A proxy between a master and a slave that cuts the stream, flips a bit, repeats, swaps or inserts a piece.

In every case a slave's log must stay a prefix of its master's, so that a stream without the proxy completes it.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from enum import Enum, auto
from types import TracebackType
from typing import Final, final

from replication.open_connection import connected

READ_BYTES: Final = 16 << 10
CLEAN_BYTES_MAX: Final = 60_000
"""The most bytes of one connection that pass before the corrupted piece."""


class Corruption(Enum):
    """How one piece of the master's stream is changed."""

    CUT = auto()
    FLIP = auto()
    TWICE = auto()
    SWAP = auto()
    INJECT = auto()


@final
class CorruptingProxy:
    """Listens at ``address`` while its context is open. Owned by one loop."""

    def __init__(self, host: str, target: tuple[str, int], chance: random.Random) -> None:
        self.applied: Final[list[Corruption]] = []
        """The corruptions so far, one for each connection that has carried enough bytes."""

        self.address = ""
        self._host: Final = host
        self._target: Final = target
        self._chance: Final = chance
        self._plan: Final = chance.sample(list(Corruption), len(Corruption))
        self._server: asyncio.Server | None = None
        self._streams: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> CorruptingProxy:
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
        """Forward in both directions until either side ends, and end both."""
        from_master, to_master = await connected(*self._target)
        ways = {
            asyncio.ensure_future(self._carry(reader, to_master)),
            asyncio.ensure_future(self._corrupt_stream(from_master, writer)),
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

    async def _corrupt_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward from the master to the slave, until this connection's corruption has ended it."""
        left = self._chance.randint(1, CLEAN_BYTES_MAX)
        while data := await reader.read(READ_BYTES):
            if len(data) < left:
                left -= len(data)
                writer.write(data)
                continue
            corruption = self._plan[len(self.applied) % len(self._plan)]
            self.applied.append(corruption)
            writer.write(self._corrupt_piece(corruption, data, left))
            if corruption is Corruption.CUT:
                await writer.drain()
                return
            left = 1 << 62

    def _corrupt_piece(self, corruption: Corruption, data: bytes, at: int) -> bytes:
        at = min(at, len(data) - 1)
        match corruption:
            case Corruption.CUT:
                return data[:at]
            case Corruption.FLIP:
                return data[:at] + bytes([data[at] ^ 1 << self._chance.randrange(8)]) + data[at + 1 :]
            case Corruption.TWICE:
                return data[: at + 1] + data[: at + 1] + data[at + 1 :]
            case Corruption.SWAP:
                return data[at:] + data[:at]
            case Corruption.INJECT:
                return data[:at] + self._chance.randbytes(40) + data[at:]
