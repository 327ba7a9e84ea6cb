"""Virtual time, and the processes that run in it: one event after the other, in an order that a seed determines.

    world.at(when, action)  ->  [heap of events]  ->  run: take the earliest, set ``now``, call it

A process is an event loop of its own and helper threads. Of all loops and threads of all processes exactly one runs at
any moment: a *turn* of a loop is one event, and so is each stretch of a thread between two waits. Nothing here waits in
real time, so an hour without work takes no time.

Every part draws from a random generator of its own, named for the part: an additional draw of one part does not change
those of the others.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from greenlet import getcurrent, greenlet
from group_simulation.simulated_clock import MachineClock

if TYPE_CHECKING:
    from group_simulation.simulated_loop import SimulatedLoop
    from group_simulation.simulated_threads import SimulatedThread

BEGIN_S: Final = 10_000.0
"""The time at which every world begins. A machine has run for a while then."""
TURN_MIN_S: Final = 2e-5
TURN_MAX_S: Final = 2e-4
"""The shortest and the longest duration of one turn of an event loop: time passes also while only loops work."""


CLOSES_MAX: Final = 10
"""How often a coroutine may wait while it is closed."""


class ProcessEnded(SystemExit):
    """Ends the code of a simulated process where it is.

    asyncio lets a ``SystemExit`` out of callbacks and tasks, and brokers catch none.
    """


class TimeIsOver(Exception):
    """The condition for which a world ran was not met in time."""


@final
class World:
    """All events of one history. Belongs to one real thread, except while a simulated thread runs."""

    def __init__(self, seed: int) -> None:
        self.seed: Final = seed
        self.now = BEGIN_S
        """The present virtual time in seconds."""
        self.process: SimulatedProcess | None = None
        """The process whose code runs; None while only the simulation itself does."""
        self.thread: SimulatedThread | None = None
        """The thread whose code runs; None in the turn of a loop."""
        self.stack: Final[greenlet] = getcurrent()
        """The stack on which everything runs that is no simulated thread."""
        self.events_run = 0
        self.error: BaseException | None = None
        """The first error of the simulation itself, which ends the run."""
        self._events: Final[list[tuple[float, int, Callable[[], object]]]] = []
        self._number = 0

    def __repr__(self) -> str:
        return f"<World seed={self.seed} now={self.now:.6f} events={len(self._events)}>"

    def random(self, name: str) -> random.Random:
        """Return the random generator of the part with this name."""
        return random.Random(f"{self.seed}/{name}")

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Call ``action`` at this time, or now if it has passed. Equal times keep the order of the calls."""
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, action))

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Call ``action`` after this delay."""
        self.at(self.now + delay_s, action)

    @contextmanager
    def running(self, process: SimulatedProcess | None, thread: SimulatedThread | None = None) -> Iterator[None]:
        """Record which process and thread run within the context."""
        before = self.process, self.thread
        self.process, self.thread = process, thread
        try:
            yield
        finally:
            self.process, self.thread = before

    def run(self, is_done: Callable[[], bool], limit_s: float) -> None:
        """Run events until the condition is met. Raises ``TimeIsOver`` after ``limit_s`` of virtual time."""
        end = self.now + limit_s
        events = self._events
        while not is_done():
            if not events or events[0][0] > end:
                raise TimeIsOver(f"not done within {limit_s:g} s of virtual time")
            self.now, _, action = heapq.heappop(events)
            self.events_run += 1
            action()
            if self.error is not None:
                raise self.error


@final
class SimulatedProcess:
    """One process: its event loop and its threads."""

    def __init__(self, world: World, name: str, host: str, clock: MachineClock) -> None:
        """``host`` is the address of its machine in the network."""
        from group_simulation.simulated_loop import SimulatedLoop

        self.world: Final = world
        self.name: Final = name
        self.host: Final = host
        self.clock: Final = clock
        self.chance: Final = world.random(f"process {name}")
        """The random numbers of its turns, and of everything that its code draws from the system."""
        self.is_alive = True
        self.is_paused = False
        self.threads: Final[list[SimulatedThread]] = []
        """The threads that have not ended."""
        self.loop: Final[SimulatedLoop] = SimulatedLoop(self)
        self._resumed: list[Callable[[], None]] = []
        self._next_turn: float | None = None
        self._token = 0
        self._busy_until = 0.0

    def __repr__(self) -> str:
        state = "ended" if not self.is_alive else "paused" if self.is_paused else "running"
        return f"<SimulatedProcess {self.name} {state}>"

    def wake(self) -> None:
        """Let its loop have a turn, because something was added to it."""
        self.schedule(self.world.now)

    def schedule(self, when: float) -> None:
        """Let its loop have a turn at this time at the latest, as soon as it is free then."""
        when = max(when, self._busy_until)
        if self._next_turn is None or when < self._next_turn:
            self._next_turn = when
            self._token += 1
            self.world.at(when, partial(self._turn, self._token))

    def _turn(self, token: int) -> None:
        if token != self._token or not self.is_alive:
            return
        self._next_turn = None
        if self.is_paused:
            return  # ``resume`` gives it a turn
        try:
            with self.world.running(self):
                self.loop.run_turn()
        except ProcessEnded:
            return  # it has ended by itself
        self._busy_until = self.world.now + self.chance.uniform(TURN_MIN_S, TURN_MAX_S)
        wake_at = self.loop.next_wake()
        if wake_at is not None:
            self.schedule(self.clock.world_time(wake_at))

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function in a turn of its loop, if it is alive. From outside of the process."""
        if self.is_alive:
            self.loop.call_soon(callback, *arguments)
            self.wake()

    def pause(self) -> None:
        """Suspend it, as SIGSTOP does."""
        self.is_paused = True

    def resume(self) -> None:
        """Let it continue, as SIGCONT does."""
        self.is_paused = False
        resumed, self._resumed = self._resumed, []
        for action in resumed:
            self.world.at(self.world.now, action)
        self.wake()

    def when_resumed(self, action: Callable[[], None]) -> None:
        """Call ``action`` when a suspended process continues."""
        self._resumed.append(action)

    def end(self) -> None:
        """End it at once. Its threads end at their present waits, and no further turn begins."""
        self.is_alive = False
        threads, self._resumed = tuple(self.threads), []

        def unwind() -> None:
            for thread in threads:
                thread.unwind()

        self.world.at(self.world.now, unwind)

    def dispose(self) -> None:
        """End it and everything that is left of it, at the end of a history."""
        self.is_alive = False
        for thread in tuple(self.threads):
            thread.unwind()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        self.loop.close()


def _close(coroutine: Any) -> None:
    """Close a coroutine of an ended process now, not when it is found by the garbage collector."""
    for _ in range(CLOSES_MAX):
        try:
            coroutine.close()
            return
        except (Exception, asyncio.CancelledError, ProcessEnded):  # noqa: BLE001, S110 - it waits again
            pass
