"""The requests of one connection that wait for replies, matched by request id; for either side of a connection.

Requests with the same timeout share a timer: their order is that of their deadlines, so the timer waits for the oldest
one. A timer of its own for each request would cost more than all the rest of waiting.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, final

from gantry_remoting.errors import ConnectionClosed, RemotingError, RemotingTimeout
from gantry_wire.command import Command

IDLE_QUEUES_MAX: Final = 16
"""How many timeouts may keep a timer while no request has them: most requests have one of a few timeouts."""

Outcome = Command | RemotingError
"""The reply to a request, or why there is none: ConnectionClosed or RemotingTimeout."""
OnOutcome = Callable[[Outcome], None]


@final
class PendingRequests:
    """The pending requests of one connection. Owned by the event loop."""

    __slots__ = ("_idle_queues", "_queues", "_waiting")

    def __init__(self) -> None:
        self._waiting: Final[dict[int, _Queue]] = {}
        """The queue in which a request waits, by request id."""
        self._queues: Final[dict[int, _Queue]] = {}
        """By timeout."""
        self._idle_queues = 0
        """How many of them are empty."""

    def __len__(self) -> int:
        return len(self._waiting)

    async def send(self, command: Command, write: Callable[[Command], None], peer: str, timeout_ms: int) -> Command:
        """Write a request to ``peer`` and wait for its reply. Raises ConnectionClosed or RemotingTimeout."""
        waiter: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self.begin(command, write, peer, timeout_ms, partial(_settle, waiter))
        try:
            return await waiter
        finally:
            self._take(command.opaque)

    def begin(
        self, command: Command, write: Callable[[Command], None], peer: str, timeout_ms: int, on_outcome: OnOutcome
    ) -> None:
        """Write a request to ``peer``. Later, ``on_outcome`` is called once; it must not raise."""
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._queues[timeout_ms] = _Queue(self, timeout_ms)
            self._idle_queues += 1
        if not queue.entries:
            self._idle_queues -= 1
        opaque = command.opaque
        assert opaque not in self._waiting, f"request id {opaque} is used twice at once"
        queue.add(opaque, (queue.loop.time() + queue.timeout_s, on_outcome, peer, command.code))
        self._waiting[opaque] = queue
        try:
            write(command)
        except BaseException:
            self._take(opaque)
            raise

    def resolve(self, reply: Command) -> None:
        """Pass a reply to the request that waits for it. A reply without a pending request is dropped."""
        on_outcome = self._take(reply.opaque)
        if on_outcome is not None:
            on_outcome(reply)

    def fail(self, reason: str) -> None:
        """Pass ConnectionClosed to every pending request, because the connection was closed."""
        for opaque in list(self._waiting):
            on_outcome = self._take(opaque)
            if on_outcome is not None:
                on_outcome(ConnectionClosed(reason))
        for queue in self._queues.values():
            queue.stop()
        self._queues.clear()
        self._idle_queues = 0

    def expire(self, opaque: int, error: RemotingTimeout) -> None:
        """Pass the error to a request whose deadline has passed."""
        on_outcome = self._take(opaque)
        if on_outcome is not None:
            on_outcome(error)

    def remove(self, queue: "_Queue") -> None:
        """Forget a queue that is empty."""
        if self._queues.get(queue.timeout_ms) is queue:
            del self._queues[queue.timeout_ms]
            self._idle_queues -= 1

    def _take(self, opaque: int) -> OnOutcome | None:
        """Remove a request, and return whom to pass its outcome to; None if it is not pending."""
        queue = self._waiting.pop(opaque, None)
        if queue is None:
            return None
        entry = queue.entries.pop(opaque)
        if not queue.entries:
            self._idle_queues += 1
            if self._idle_queues > IDLE_QUEUES_MAX:
                queue.stop()
                self.remove(queue)
        return entry[1]


_Entry = tuple[float, OnOutcome, str, int]
"""The deadline, whom to pass the outcome to, the peer, and the request code."""


@final
class _Queue:
    """The pending requests with one timeout, oldest first, and the timer of the oldest one."""

    __slots__ = ("_owner", "_timer", "entries", "loop", "timeout_ms", "timeout_s")

    def __init__(self, owner: PendingRequests, timeout_ms: int) -> None:
        self._owner: Final = owner
        self.timeout_ms: Final = timeout_ms
        self.timeout_s: Final = timeout_ms / 1000
        self.loop: Final = asyncio.get_running_loop()
        self.entries: Final[dict[int, _Entry]] = {}
        """By request id."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, opaque: int, entry: _Entry) -> None:
        """Add a request, which has the latest deadline of all here."""
        self.entries[opaque] = entry
        if self._timer is None:
            self._timer = self.loop.call_at(entry[0], self._expire_due)

    def stop(self) -> None:
        """Cancel the timer of a queue whose requests are all over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire_due(self) -> None:
        """End the requests whose deadlines have passed, and wait for the oldest of the others."""
        self._timer = None
        now = self.loop.time()
        due = []
        for opaque, (deadline, _, peer, code) in self.entries.items():
            if deadline > now:
                break
            due.append((opaque, f"no reply from {peer} to code {code} within {self.timeout_ms} ms"))
        for opaque, text in due:
            self._owner.expire(opaque, RemotingTimeout(text))
        self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        """Set the timer, unless an outcome has begun another request, which did it."""
        oldest = next(iter(self.entries.values()), None)
        if oldest is None:
            self._owner.remove(self)
        elif self._timer is None:
            self._timer = self.loop.call_at(oldest[0], self._expire_due)


def _settle(waiter: "asyncio.Future[Command]", outcome: Outcome) -> None:
    if waiter.done():
        return
    if isinstance(outcome, Command):
        waiter.set_result(outcome)
    else:
        waiter.set_exception(outcome)
