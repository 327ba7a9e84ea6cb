"""Threads of simulated processes, and the locks, events and pools with which the store uses them.

Each is a greenlet: it has a stack of its own, and runs until it waits or ends. So the code is the real one, and the
moments at which threads alternate are events of the world: where a thread waits, and at each operation of the disk.

    the world  -- switch -->  thread: runs ... sleeps, waits, ends  -- switch -->  the world: the next event
"""

from __future__ import annotations

from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, final
from unittest.mock import patch

from greenlet import greenlet
from group_simulation.simulated_world import ProcessEnded

from gantry_broker.server.core import stopping
from gantry_broker.server.send.flow_control import CoreWait, FlowControl
from gantry_broker.store import checkpoint, commit_log, failure, next_file, worker

if TYPE_CHECKING:
    from group_simulation.simulated_world import SimulatedProcess, World

START_MAX_S: Final = 1e-4
"""The longest delay until a new or a woken thread runs."""


@final
class SimulatedThread:
    """One thread of a process. Its methods, except those for its own code, belong to the world."""

    def __init__(self, process: SimulatedProcess, target: Callable[[], object], name: str) -> None:
        self.process: Final = process
        self.name: Final = name
        self.is_ended = False
        self.inline_s: float | None = None
        """While a loop waits for this thread: how long it may still sleep without a switch."""
        self._target: Final = target
        self._stack: greenlet | None = None
        self._token = 0
        self._wakes_at = 0.0
        self._joining: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<SimulatedThread {self.name} of {self.process.name} {'ended' if self.is_ended else 'alive'}>"

    # -- for the world -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.process.threads.append(self)
        self.wake_after(self.process.chance.uniform(0, START_MAX_S))

    def wake_after(self, delay_s: float) -> None:
        """Let it continue after this delay, unless something else wakes it before."""
        world = self.process.world
        self._wakes_at = world.now + delay_s
        world.at(self._wakes_at, partial(self._continue, self._token))

    def _continue(self, token: int) -> None:
        if token != self._token or self.is_ended or not self.process.is_alive:
            return
        if self.process.is_paused:
            self.process.when_resumed(partial(self._continue, token))
            return
        self._switch()

    def unwind(self) -> None:
        """Let it end, because its process has ended: its present wait raises ``ProcessEnded``."""
        if not self.is_ended and self._stack is not None:
            self._switch()
            assert self.is_ended, f"{self!r} waits although its process has ended"

    def run_inline(self, limit_s: float) -> bool:
        """Run it now, while a loop waits for it. Return whether it has ended within ``limit_s``, without any delay."""
        if self.is_ended:
            return True
        rest_s = self._wakes_at - self.process.world.now
        if rest_s > limit_s:
            return False
        self.inline_s = limit_s - max(0.0, rest_s)
        self._switch()
        self.inline_s = None
        return self.is_ended

    def _switch(self) -> None:
        """Run it until it waits or ends."""
        self._token += 1
        world = self.process.world
        if self._stack is None:
            self._stack = greenlet(self._run, parent=world.stack)
        assert greenlet.getcurrent() is world.stack, "only the world, or a loop that it runs, switches to a thread"
        loop = events._get_running_loop()
        events._set_running_loop(None)
        with world.running(self.process, self):
            self._stack.switch()
        events._set_running_loop(loop)

    # -- for its own code ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._target()
        except ProcessEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the world
            self.process.world.error = error
        self.is_ended = True
        self.process.threads.remove(self)
        for wake in self._joining:
            wake()

    def sleep(self, seconds: float) -> None:
        """Wait for this virtual time."""
        if self.inline_s is not None:
            self.inline_s -= seconds
            if self.inline_s >= 0:
                return
        self.wake_after(seconds)
        self.park()

    def park(self) -> None:
        """Wait until something wakes this thread."""
        if not self.process.is_alive:
            raise ProcessEnded
        assert greenlet.getcurrent() is self._stack, "only a thread that runs can wait"
        self.process.world.stack.switch()
        if not self.process.is_alive:
            raise ProcessEnded

    def waker(self) -> Callable[[], None]:
        """Return a function that ends the next wait of this thread, and no later one."""
        token = self._token

        def wake() -> None:
            if token == self._token:
                self.wake_after(self.process.chance.uniform(0, START_MAX_S))

        return wake

    def join(self, timeout: float | None = None) -> None:
        """Wait until this thread has ended. Called by another thread of the process, or in a turn of its loop."""
        waiting = self.process.world.thread
        if waiting is None:
            assert self.run_inline(float("inf")), f"the loop waits for {self!r}, which waits for something else"
            return
        while not self.is_ended:
            self._joining.append(waiting.waker())
            waiting.park()

    def is_alive(self) -> bool:
        return not self.is_ended


@final
class SimulatedEvent:
    """An event for which threads wait."""

    def __init__(self, world: World) -> None:
        self._world: Final = world
        self._is_set = False
        self._waiting: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        thread = self._world.thread
        assert thread is not None, "an event loop never waits for a thread"
        if self._is_set:
            return True
        self._waiting.append(thread.waker())
        if timeout is not None:
            thread.wake_after(timeout)
        thread.park()
        return self._is_set


@final
class SimulatedLock:
    """A lock between threads of one process. An event loop never waits for it."""

    def __init__(self, world: World) -> None:
        self._world: Final = world
        self._is_held = False
        self._waiting: Final[deque[Callable[[], None]]] = deque()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> bool:
        while self._is_held:
            thread = self._world.thread
            assert thread is not None, "an event loop never waits for a lock"
            self._waiting.append(thread.waker())
            thread.park()
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        if self._waiting:
            self._waiting.popleft()()


@final
class _Future:
    """The result of work that a pool does."""

    def __init__(self) -> None:
        self.thread: SimulatedThread | None = None
        self.value: Any = None
        self.error: Exception | None = None

    def done(self) -> bool:
        return self.thread is not None and self.thread.is_ended

    def _wait(self, timeout: float | None) -> None:
        assert self.thread is not None, "work was submitted"
        if self.done():
            return
        if self.thread.process.world.thread is not None:
            self.thread.join()
        elif not self.thread.run_inline(float("inf") if timeout is None else timeout):
            raise TimeoutError

    def exception(self, timeout: float | None = None) -> Exception | None:
        self._wait(timeout)
        return self.error

    def result(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        if self.error is not None:
            raise self.error
        return self.value


@final
class _Pool:
    """A pool of one thread. Its work is submitted piece by piece, so each piece has a thread of its own."""

    def __init__(self, world: World, name: str) -> None:
        self._world: Final = world
        self._name: Final = name
        self._last: _Future | None = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> _Future:
        assert self._last is None or self._last.done(), "the pool has one thread, which works"
        future, process = _Future(), self._world.process
        assert process is not None, "a process submits work"

        def work() -> None:
            try:
                future.value = function(*arguments)
            except Exception as error:  # noqa: BLE001 - raised by ``result``
                future.error = error

        future.thread = SimulatedThread(process, work, self._name)
        future.thread.start()
        self._last = future
        return future

    def shutdown(self, wait: bool = True) -> None:
        if self._last is not None and wait:
            self._last.exception()


@contextmanager
def simulated_threads(world: World) -> Iterator[None]:
    """Let brokers of this real process use simulated threads, locks and pools instead of real ones."""

    def make_thread(target: Callable[[], object], name: str, daemon: bool) -> SimulatedThread:
        assert world.process is not None, "a process starts its threads"
        return SimulatedThread(world.process, target, name)

    names = SimpleNamespace(Thread=make_thread, Event=lambda: SimulatedEvent(world), Lock=lambda: SimulatedLock(world))
    modules = (worker, stopping, commit_log, checkpoint, failure)
    flow_options = FlowControl.__init__.__kwdefaults__
    assert flow_options is not None

    def measure_no_wait(wait: CoreWait) -> None:
        wait._descriptor = None

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "threading", names))
        stack.enter_context(patch.object(next_file, "ThreadPoolExecutor", lambda _, name: _Pool(world, name)))
        stack.enter_context(patch.object(CoreWait, "__init__", measure_no_wait))
        stack.enter_context(patch.dict(flow_options, {"cpu_time": lambda: world.now}))
        yield
