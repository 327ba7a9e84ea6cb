"""The event loop of a simulated process: asyncio's own, without a selector and with the time of its machine.

``run_turn`` runs what is ready once and returns. Sockets are those of the simulated network, and work for other threads
goes to simulated threads.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from group_simulation.simulated_threads import SimulatedThread

if TYPE_CHECKING:
    from group_simulation.simulated_network import SimulatedNetwork, SimulatedServer
    from group_simulation.simulated_world import SimulatedProcess


class _NoSelector:
    """Finds no ready socket, because there are none."""

    def select(self, timeout: float | None) -> list[object]:
        return []


class SimulatedLoop(base_events.BaseEventLoop):
    """The loop of one process. Its owner gives it turns."""

    network: SimulatedNetwork
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, process: SimulatedProcess) -> None:
        self.process: Final = process
        self._selector = _NoSelector()
        self.failures: list[dict[str, Any]] = []
        """The contexts of exceptions that no code has handled."""
        super().__init__()

    def run_turn(self) -> None:
        """Run the callbacks that are ready now, once each."""
        events._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(None)

    def next_wake(self) -> float | None:
        """Return the loop's time at which a callback is due; None if there is none."""
        if self._ready:
            return self.time()
        return min((handle.when() for handle in self._scheduled if not handle.cancelled()), default=None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.process.is_alive:
            self.failures.append(context)

    # -- what asyncio's own loops implement ----------------------------------------------------------------------------

    def time(self) -> float:
        return self.process.clock.monotonic_s()

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        self.process.wake()

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()

        def settle(error: BaseException | None, result: object) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            error, result = None, None
            try:
                result = func(*args)
            except Exception as raised:  # noqa: BLE001 - set on the future
                error = raised
            self.call_soon_threadsafe(settle, error, result)

        SimulatedThread(self.process, work, "worker").start()
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> SimulatedServer:
        return self.network.listen(self.process, protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert options.get("ssl") is None, "the simulated network has no TLS"
        return await self.network.connect(self.process, protocol_factory, host, port)
