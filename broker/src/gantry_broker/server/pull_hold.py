"""Pulls that found nothing yet: held until a message comes that they want, or their time is up.

Waking is batched: an append only marks queues; once per turn of the loop every held pull of a marked queue looks
again, from where it had already looked. A pull that finds only messages it does not want stays, further on.
Owned by the event loop.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, final

from gantry_remoting import Connection
from gantry_wire import Command
from gantry_wire.commands.pull import PullMessage

SWEEP_INTERVAL_S: Final = 0.1

QueueKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits."""

    command: Command
    connection: Connection
    pull: PullMessage
    next_offset: int
    """Where to look on; messages before it are known to be unwanted."""
    deadline: float
    """Loop time at which it is answered in any case."""


Retry = Callable[[HeldPull, bool], Command | None]
"""Look again; with True as second argument an answer must come."""


@final
class PullHold:
    """The waiting room."""

    def __init__(self, loop: asyncio.AbstractEventLoop, retry: Retry, *, held_max: int) -> None:
        self._loop = loop
        self._retry = retry
        self._held_max = held_max
        self._held: dict[QueueKey, list[HeldPull]] = {}
        self._count = 0
        self._marked: set[QueueKey] = set()
        self._is_wake_scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<PullHold held={self._count} queues={len(self._held)}>"

    @property
    def count(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._held_max

    def start(self) -> None:
        self._sweep()

    def stop(self) -> None:
        """Answer everybody, so that no client waits for a broker that is gone."""
        if self._timer is not None:
            self._timer.cancel()
        for key in list(self._held):
            self._look_again(key, lambda held: True)

    def hold(self, held: HeldPull) -> None:
        self._held.setdefault((held.pull.topic, held.pull.queue_id), []).append(held)
        self._count += 1

    def mark(self, queues: Iterable[QueueKey]) -> None:
        """These queues have new messages."""
        if not self._held:
            return
        self._marked.update(key for key in queues if key in self._held)
        if self._marked and not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._loop.call_soon(self._wake)

    def forget(self, connection: Connection) -> None:
        """A client is gone, and its pulls with it."""
        for key in list(self._held):
            self._keep(key, [held for held in self._held[key] if held.connection is not connection])

    def _wake(self) -> None:
        self._is_wake_scheduled = False
        marked, self._marked = self._marked, set()
        for key in marked:
            self._look_again(key, lambda held: False)

    def _sweep(self) -> None:
        now = self._loop.time()
        for key in [key for key, waiting in self._held.items() if any(held.deadline <= now for held in waiting)]:
            self._look_again(key, lambda held: held.deadline <= now)
        self._timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _look_again(self, key: QueueKey, must_answer: Callable[[HeldPull], bool]) -> None:
        remaining: list[HeldPull] = []
        for held in self._held.get(key, []):
            if not held.connection.is_open:
                continue
            answer = self._retry(held, must_answer(held))
            if answer is None:
                remaining.append(held)
            else:
                held.connection.send(answer.encode())
        self._keep(key, remaining)

    def _keep(self, key: QueueKey, remaining: list[HeldPull]) -> None:
        self._count += len(remaining) - len(self._held.get(key, []))
        if remaining:
            self._held[key] = remaining
        else:
            self._held.pop(key, None)
