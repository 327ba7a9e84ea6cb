"""Producers and consumers of one group that run concurrently until they are stopped.

    async with Load(name_server, queues, journal, seed) as load:
        ... faults ...
    committed = await load.finish(master)        consumers read to the end

Every second producer and consumer keeps its broker, like a client with an old route (``keeps_broker``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, final

from gantry_histories.connector import ClientConnector
from gantry_histories.consumer import PAUSE_S, Consumer
from gantry_histories.events import Journal, Queue
from gantry_histories.producer import BODY_BYTES, SENDS_PER_S, Producer
from gantry_histories.routes import Routes

POLL_S: Final = 0.02


@final
class Load:
    """Runs the clients of one group. Owned by one loop."""

    def __init__(
        self, name_server: str, queues: Sequence[Queue], journal: Journal, seed: int,
        *, producers: int = 4, consumers: int = 2, body_bytes: Sequence[int] = BODY_BYTES, broker_name: str = "",
        connector: ClientConnector | None = None, sends_per_s: float = SENDS_PER_S, consumer_pause_s: float = PAUSE_S,
    ) -> None:  # fmt: skip
        self.journal: Final = journal
        """Records every event; its history is the input of the checker."""

        routes = self._routes = Routes(name_server, queues[0].topic, broker_name, connector)
        self._stop: Final = asyncio.Event()
        self.producers: Final = [
            Producer(
                f"p{number}",
                journal,
                routes,
                queues,
                seed,
                keeps_broker=number % 2 == 1,
                body_bytes=body_bytes,
                sends_per_s=sends_per_s,
            )
            for number in range(producers)
        ]
        self.consumers: Final = [
            Consumer(
                f"c{number}", journal, routes, queues, seed, keeps_broker=number % 2 == 1, pause_s=consumer_pause_s
            )
            for number in range(consumers)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Load {self.journal.history!r}>"

    async def __aenter__(self) -> Load:
        runs = [producer.run for producer in self.producers] + [consumer.run for consumer in self.consumers]
        self._tasks = [asyncio.ensure_future(run(self._stop)) for run in runs]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.stop()

    async def stop(self) -> None:
        """Send nothing more and wait for the pending answers. Raises the error of a failed client."""
        self._stop.set()
        tasks, self._tasks = self._tasks, []
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await self._routes.close()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    @property
    def in_flight(self) -> int:
        """The number of messages that are sent and may still be answered.

        The window of a producer bounds only the sends of one connection, and earlier connections may have more.
        """
        return sum(producer.in_flight for producer in self.producers)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged messages so far."""
        return sum(producer.acknowledged for producer in self.producers)

    async def master(self) -> str | None:
        """Return the address of the master in the name server's route."""
        return await self._routes.master()

    async def wait_acknowledged(self, more: int, timeout_s: float) -> None:
        """Wait until ``more`` further messages are acknowledged. Raises TimeoutError."""
        goal = self.acknowledged + more
        await self.wait_until(lambda: self.acknowledged >= goal, timeout_s)

    async def wait_until(self, is_met: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the condition is met or a client has failed. Raises TimeoutError, and the error of the client."""
        async with asyncio.timeout(timeout_s):
            while not is_met():
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(POLL_S)

    async def finish(self, address: str) -> dict[tuple[str, Queue], int]:
        """Let every consumer read to the end at this broker. Return their stored offsets from before."""
        return {
            (consumer.name, queue): offset
            for consumer in self.consumers
            for queue, offset in (await consumer.finish(address)).items()
        }
