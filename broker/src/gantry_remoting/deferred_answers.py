"""Deferred answers: replies of one port that are computed in tasks, and the limits on their number.

Most requests are answered in the turn of the loop that reads them. The reply to some waits for a disk, a thread or a
table, and takes a task of about 2.5 KiB meanwhile. A peer that pipelines such requests sends 10,000 of them in the time
of one reply, so both a connection and the port have a limit. A request beyond it is neither refused nor dropped: it is
kept, its connection is not read, and it is handled when earlier replies have been sent.

    64 pending: the connection's next deferred request waits --- half of them answered ---> it is handled, and so on
    port full:  every deferred request waits ------------------- one is answered ---------> the first in the queue is

Which request codes are deferred is learned from the first request of each code, since handlers decide it. Only these
wait; requests that a service answers at once (a heartbeat, a send, a pull that it holds) are handled beside any number
of deferred answers, until their connection has sent a request that must wait.

Answers that wait for another client must not be bounded here (`add` with `is_bounded=False`): the client's reply may
arrive on a connection that is not read for this reason, and both would wait until the timeout. Their services have
limits of their own.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from typing import Any, Final, Protocol, final

from gantry_remoting.settings import ListenerSettings


class RequestingConnection(Protocol):
    """A connection whose requests have deferred answers."""

    def pause_for_answers(self) -> None:
        """Stop handling and reading requests until `resume_after_answers`."""

    def resume_after_answers(self) -> None:
        """Continue with the requests that wait. Never raises."""


@final
class DeferredAnswers:
    """The deferred answers of one port. Owned by the event loop."""

    def __init__(self, settings: ListenerSettings | None = None) -> None:
        """Use the limits of ``settings``, or the defaults for None."""
        settings = settings or ListenerSettings()
        self._answers_max: Final = settings.deferred_answers_max
        self._per_connection_max: Final = settings.deferred_answers_per_connection_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._counts: Counter[RequestingConnection] = Counter()
        self._deferred_codes: set[int] = set()
        self._waiting_for_own: set[RequestingConnection] = set()
        self._waiting_for_port: deque[RequestingConnection] = deque()

    def __repr__(self) -> str:
        waiting = len(self._waiting_for_own) + len(self._waiting_for_port)
        return f"<DeferredAnswers pending={len(self._tasks)} waiting={waiting}>"

    @property
    def pending(self) -> int:
        """Return the number of pending answers."""
        return len(self._tasks)

    def pause_if_full(self, code: int, connection: RequestingConnection) -> bool:
        """Pause the connection if its request has to wait for earlier answers; return whether it was paused.

        The connection is resumed when the request need not wait any more.
        """
        if code not in self._deferred_codes:
            return False
        if self._counts[connection] >= self._per_connection_max:
            self._waiting_for_own.add(connection)
        elif self._count >= self._answers_max:
            self._waiting_for_port.append(connection)
        else:
            return False
        connection.pause_for_answers()
        return True

    def add(
        self, code: int, answer: Coroutine[Any, Any, None], connection: RequestingConnection, *, is_bounded: bool = True
    ) -> None:
        """Run ``answer``, which sends the reply to a request of ``code`` when it is ready.

        Without ``is_bounded`` it counts towards no limit.
        """
        task = asyncio.ensure_future(answer)
        self._tasks.add(task)
        if not is_bounded:
            task.add_done_callback(self._tasks.discard)
            return
        self._deferred_codes.add(code)
        self._count += 1
        self._counts[connection] += 1
        task.add_done_callback(lambda done: self._on_answered(done, connection))

    async def drain(self) -> None:
        """Wait until all pending answers are given, including those of requests that waited for them."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_answered(self, task: asyncio.Task[None], connection: RequestingConnection) -> None:
        self._tasks.discard(task)
        self._count -= 1
        self._counts[connection] -= 1
        left = self._counts[connection]
        if not left:
            del self._counts[connection]
        if connection in self._waiting_for_own and left <= self._per_connection_max // 2:
            self._waiting_for_own.remove(connection)
            connection.resume_after_answers()
        while self._waiting_for_port and self._count < self._answers_max:
            self._waiting_for_port.popleft().resume_after_answers()
