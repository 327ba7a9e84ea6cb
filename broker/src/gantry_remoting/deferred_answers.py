"""Deferred answers: requests of one port whose answers are ready later, and how many of them may be under way.

Most requests are answered in the pass that reads them. The answer of some waits for a disk, a thread or a table, and
takes a task of about 2.5 KiB meanwhile. A peer that pipelines such requests sends 10,000 of them in the time of one
answer, so both a connection and the port have a limit. A request beyond it is neither refused nor dropped: it stays
where it is, its connection is not read, and it is handled when answers before it have been given.

    64 under way: its next deferred request waits ------ half of them answered -----> it is handled, and so on
    port full:    every deferred request waits --------- one is answered -----------> the first in the queue is

Which requests are deferred is learned from the first of each code, since handlers decide it: only these wait, and what
a service answers at once (a heartbeat, a send, a pull that it holds) is handled beside any number of deferred answers,
until its connection has sent a request that must wait.

Answers that wait for another client must not be bounded here (`add` with `is_bounded=False`): the client's reply may
arrive on a connection that is not read for this reason, and both would wait until the deadline. Their services have
limits of their own.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from typing import Any, Final, Protocol, final

from gantry_remoting.settings import ListenerSettings


class AskingConnection(Protocol):
    """A connection whose requests have deferred answers."""

    def wait_for_answers(self) -> None:
        """Handle and read no more requests until `answers_given`."""

    def answers_given(self) -> None:
        """Go on with the requests that wait. Never raises."""


@final
class DeferredAnswers:
    """The deferred answers of one port. Owned by the event loop."""

    def __init__(self, settings: ListenerSettings | None = None) -> None:
        """The limits are those of ``settings``; None takes the defaults."""
        settings = settings or ListenerSettings()
        self._answers_max: Final = settings.deferred_answers_max
        self._per_connection_max: Final = settings.deferred_answers_per_connection_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._counts: Counter[AskingConnection] = Counter()
        self._codes: set[int] = set()
        self._at_own_limit: set[AskingConnection] = set()
        self._queue: deque[AskingConnection] = deque()

    def __repr__(self) -> str:
        waiting = len(self._at_own_limit) + len(self._queue)
        return f"<DeferredAnswers pending={len(self._tasks)} waiting={waiting}>"

    @property
    def pending(self) -> int:
        """How many answers are under way."""
        return len(self._tasks)

    def must_wait(self, code: int, connection: AskingConnection) -> bool:
        """Whether a request has to wait for answers before it. If so its connection is paused until it need not."""
        if code not in self._codes:
            return False
        if self._counts[connection] >= self._per_connection_max:
            self._at_own_limit.add(connection)
        elif self._count >= self._answers_max:
            self._queue.append(connection)
        else:
            return False
        connection.wait_for_answers()
        return True

    def add(
        self, code: int, answer: Coroutine[Any, Any, None], connection: AskingConnection, *, is_bounded: bool = True
    ) -> None:
        """Run ``answer``, which sends the reply to a request of ``code`` when it is ready."""
        task = asyncio.ensure_future(answer)
        self._tasks.add(task)
        if not is_bounded:
            task.add_done_callback(self._tasks.discard)
            return
        self._codes.add(code)
        self._count += 1
        self._counts[connection] += 1
        task.add_done_callback(lambda done: self._given(done, connection))

    async def drain(self) -> None:
        """Wait until every answer under way is given, and those of the requests that waited for them."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _given(self, task: asyncio.Task[None], connection: AskingConnection) -> None:
        self._tasks.discard(task)
        self._count -= 1
        self._counts[connection] -= 1
        left = self._counts[connection]
        if not left:
            del self._counts[connection]
        if connection in self._at_own_limit and left <= self._per_connection_max // 2:
            self._at_own_limit.remove(connection)
            connection.answers_given()
        while self._queue and self._count < self._answers_max:
            self._queue.popleft().answers_given()
