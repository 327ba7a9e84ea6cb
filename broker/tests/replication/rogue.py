"""A peer on the replication port that follows the protocol, acknowledges everything, and keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, final

from replication.open_connection import connected

from gantry_broker.ha.frames import StreamBroken
from gantry_broker.ha.history import History
from gantry_broker.ha.slave_session import Phase, SlaveFacts, SlaveSession
from gantry_broker.store.identity import Epoch

RETRY_S: Final = 0.1
READ_BYTES: Final = 1 << 20


class DiscardingLog:
    """A log that accepts and acknowledges everything, and keeps nothing."""

    def __init__(self) -> None:
        self.received = 0
        self.epochs: Sequence[Epoch] = ()

    @property
    def history(self) -> History:
        return History(self.epochs, 0, self.received)

    @property
    def flushed(self) -> int:
        return self.received

    def read(self, offset: int, bytes_max: int) -> bytes:
        return b""

    def read_verified(self, offset: int, bytes_max: int) -> bytes:
        return b""

    def read_verified_through(self, start: int, end: int) -> bytes:
        return b""

    def read_verified_range(self, start: int, end: int) -> bytes:
        return b""

    def append(self, data: bytes, offset: int) -> None:
        self.received = offset + len(data)


@final
class Rogue:
    """Connects again and again while its context is open, perhaps with the identity of another member."""

    def __init__(self, host: str, port: int, *, identity: str, number: int, promised_epoch: int = 0) -> None:
        self.acknowledged = 0
        """The offset up to which it has acknowledged the master's log."""

        self.refusals: list[str] = []
        """The master's reasons for refusing it, one for each connection."""

        self._address: Final = host, port
        self._facts: Final = SlaveFacts(
            cluster="HistoryCluster", broker_name="group", broker_id=number, store_uuid=identity, file_bytes=1 << 20,
            promised_epoch=promised_epoch, is_crash_safe=True, address="",
        )  # fmt: skip
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Rogue:
        self._task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            with suppress(OSError, StreamBroken, asyncio.IncompleteReadError):
                await self._stream()
            await asyncio.sleep(RETRY_S)

    async def _stream(self) -> None:
        reader, writer = await connected(*self._address)
        log = DiscardingLog()
        session = SlaveSession(self._facts, log, lambda table: None)
        try:
            writer.write(session.begin())
            while data := await reader.read(READ_BYTES):
                writer.write(session.receive(data))
                if session.refusal is not None:
                    self.refusals.append(session.refusal.reason)
                    return
                if session.phase is Phase.PREPARING:
                    writer.write(session.start_stream())
                writer.write(session.ack())
                self.acknowledged = log.received
        finally:
            writer.close()
