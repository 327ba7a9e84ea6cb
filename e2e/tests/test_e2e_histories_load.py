"""The load of histories: what is in flight while a fault begins."""

from __future__ import annotations

import asyncio
from typing import Any

from gantry_histories.events import Journal, Queue
from gantry_histories.producer import BATCH_MAX, WINDOW, Producer

from gantry_remoting import RemotingError
from gantry_testing.slowness import patience
from gantry_wire import Command, ResponseCode


class RefusingConnections:
    """Routes, connector and connections in one: each connection refuses one send and holds the others."""

    def __init__(self) -> None:
        self.connector = self
        self.address = "held:1"
        self.is_open = True
        self.is_failed = asyncio.Event()
        self.is_exceeded = asyncio.Event()
        """Whether more sends are held than one window can have messages."""
        self._requests = 0
        self._held = 0

    async def master(self) -> str:
        return self.address

    async def connect(self, _address: str, *, timeout_ms: int) -> RefusingConnections:
        self._requests = 0
        return self

    async def request(self, _command: Command, _timeout_ms: int) -> Command:
        self._requests += 1
        if self._requests == WINDOW:
            return Command(code=ResponseCode.SYSTEM_BUSY)
        self._held += 1
        if self._held > WINDOW * BATCH_MAX:
            self.is_exceeded.set()
        await self.is_failed.wait()
        raise RemotingError("the connection was lost")

    async def close(self) -> None:
        pass


async def test_sends_of_earlier_connections_are_in_flight() -> None:
    """A producer leaves a window of pending sends on each connection, and all of them are counted until they end."""
    connections: Any = RefusingConnections()
    journal, stop = Journal(), asyncio.Event()
    producer = Producer("p0", journal, connections, [Queue("T", 0)], 1, keeps_broker=True)
    running = asyncio.ensure_future(producer.run(stop))
    history = journal.history

    async with asyncio.timeout(patience(60)):
        await connections.is_exceeded.wait()
        assert producer.in_flight > WINDOW * BATCH_MAX
        assert producer.in_flight == len(history.sent) - len(history.answered)
        stop.set()
        connections.is_failed.set()
        await running

    assert producer.in_flight == 0
    assert len(history.sent) > len(history.answered), "expected failed sends without an answer"
