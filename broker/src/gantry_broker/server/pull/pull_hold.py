"""Pulls that found nothing yet: held until a message comes that they want, or until their deadline.

Waking is batched: an append only marks queues; once per turn of the loop every held pull of a marked queue is tried
again, from the first message it has not seen. A pull that finds only messages it does not want stays held, at a later
offset, and continues in a later turn where more are left than it may read in one. Once ``is_spent`` is true this turn
has done enough, and the others wait for the next. Each held pull is known by its queue, by its connection and by its
time, so that none of the three ever searches all of them. Owned by the event loop.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar, final

from gantry_remoting import Connection, join_address
from gantry_remoting.closings import CloseReason, LimitedLog
from gantry_wire import Command
from gantry_wire.commands.pull import PullMessage
from gantry_wire.sql92 import SqlFilter

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 0.1

TURN_WORDS_MAX: Final = 50_000
"""Words of filters in one turn of the loop: about five milliseconds."""

RECORD_WORDS: Final = 40
UNITS_MIN: Final = 8
UNITS_MAX: Final = 800
"""As many as RocketMQ's pulls look at."""

QueueKey = tuple[str, int]
K = TypeVar("K")


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits."""

    command: Command
    connection: Connection
    pull: PullMessage
    next_offset: int
    """Where to continue; messages before it are known to be unwanted."""
    deadline: float
    """Loop time at which it is answered in any case."""

    @property
    def key(self) -> QueueKey:
        return self.pull.topic, self.pull.queue_id

    @property
    def tick(self) -> int:
        """The sweep that answers it."""
        return int(self.deadline / SWEEP_INTERVAL_S) + 1

    def skip_to(self, offset: int) -> None:
        """Continue at ``offset``: messages before it are unwanted."""
        self.next_offset = offset


Retry = Callable[[HeldPull, bool], Command | None]
"""Tries a held pull; with True as second argument it must answer. A bug that raises costs its own connection only."""


@final
class PullHold:
    """All held pulls of a broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        retry: Retry,
        *,
        held_max: int,
        held_per_connection_max: int,
        is_spent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._retry = retry
        self._is_spent = is_spent
        self._failures: Final = LimitedLog(log)
        self.limit(held_max=held_max, held_per_connection_max=held_per_connection_max)
        self._by_queue: dict[QueueKey, dict[HeldPull, None]] = {}
        self._by_connection: dict[Connection, dict[HeldPull, None]] = {}
        self._by_tick: dict[int, dict[HeldPull, None]] = {}
        self.count = 0
        self._marked: set[QueueKey] = set()
        self._waking: OrderedDict[HeldPull, None] = OrderedDict()
        """Those that are tried again in this turn, or in the next ones."""
        self._is_wake_scheduled = False
        self._swept_tick = 0
        self._timer: asyncio.TimerHandle | None = None
        self.is_stopped = False

    def __repr__(self) -> str:
        return f"<PullHold held={self.count} queues={len(self._by_queue)}>"

    def limit(self, *, held_max: int, held_per_connection_max: int) -> None:
        """Set how many pulls may be held from now on; those that are held stay."""
        self._held_max = held_max
        self._held_per_connection_max = held_per_connection_max

    def start(self) -> None:
        self._swept_tick = int(self._loop.time() / SWEEP_INTERVAL_S)
        self._sweep()

    def stop(self) -> None:
        """Answer every held pull, so that no client waits for a broker that is gone. Nothing is held from now on."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for waiting in list(self._by_queue.values()):
            self._retry_all(list(waiting), must_answer=True)

    def has_room(self, connection: Connection) -> bool:
        """Whether one more pull of this connection may wait."""
        of_connection = len(self._by_connection.get(connection, ()))
        return self.count < self._held_max and of_connection < self._held_per_connection_max

    def hold(self, held: HeldPull) -> None:
        assert not self.is_stopped, "callers answer at once when the broker stops"
        assert held.tick > self._swept_tick, "no sweep would answer it"
        self._by_queue.setdefault(held.key, {})[held] = None
        self._by_connection.setdefault(held.connection, {})[held] = None
        self._by_tick.setdefault(held.tick, {})[held] = None
        self.count += 1

    def mark(self, queues: Iterable[QueueKey]) -> None:
        """These queues have new messages."""
        if not self._by_queue:
            return
        self._marked.update(key for key in queues if key in self._by_queue)
        if self._marked:
            self._wake_soon()

    def wake_all(self) -> None:
        """Try every held pull again: what was held back may be visible now."""
        self.mark(tuple(self._by_queue))

    def continue_later(self, held: HeldPull) -> None:
        """Try this pull again in the next turn: it has not seen all messages."""
        self._waking[held] = None
        self._wake_soon()

    def forget(self, connection: Connection) -> None:
        """A client is gone, and its pulls with it."""
        for held in list(self._by_connection.get(connection, ())):
            self._drop(held)

    def _wake_soon(self) -> None:
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Try at least one pull, so that none waits for ever behind those that cost much."""
        self._is_wake_scheduled = False
        for key in self._marked:
            self._waking.update(self._by_queue.get(key, {}))
        self._marked.clear()
        for _ in range(len(self._waking)):
            held, _ = self._waking.popitem(last=False)
            self._retry_all([held], must_answer=False)
            if self._waking and self._is_spent():
                break
        if self._waking:
            self._wake_soon()

    def _sweep(self) -> None:
        now_tick = int(self._loop.time() / SWEEP_INTERVAL_S)
        self._timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        while self._swept_tick < now_tick:
            self._swept_tick += 1
            self._retry_all(list(self._by_tick.get(self._swept_tick, ())), must_answer=True)

    def _retry_all(self, waiting: list[HeldPull], *, must_answer: bool) -> None:
        for held in waiting:
            if not held.connection.is_open:
                self._drop(held)
                continue
            try:
                answer = self._retry(held, must_answer)
            except Exception as error:  # noqa: BLE001 - one pull that cannot be answered must not keep the others waiting
                self._drop(held)
                self._failures.callback_failed(join_address(*held.connection.peer), "held pull", error)
                held.connection.close("a held pull failed", CloseReason.CALLBACK)
                continue
            if answer is not None:
                self._drop(held)
                held.connection.send(answer.encode())

    def _drop(self, held: HeldPull) -> None:
        self.count -= 1
        self._waking.pop(held, None)
        _discard(self._by_queue, held.key, held)
        _discard(self._by_connection, held.connection, held)
        _discard(self._by_tick, held.tick, held)


def _discard(table: dict[K, dict[HeldPull, None]], key: K, held: HeldPull) -> None:
    waiting = table[key]
    del waiting[held]
    if not waiting:
        del table[key]


@final
class FilterBudget:
    """How much filtering by properties one turn of the loop may still do. Owned by the event loop.

    A filter costs a look into every record and an evaluation, some microseconds for each message. What a turn may spend
    is counted in words of expressions; a message costs those of the filter, and as much as forty more for its record.
    A pull gets what is left of its turn, and some messages even when nothing is: the client pulls on from where it came
    to, and a held pull continues in the next turn. So a filter that matches nothing delays no other request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = TURN_WORDS_MAX

    def __repr__(self) -> str:
        return f"<FilterBudget left={self._left}>"

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def units(self, wanted: SqlFilter) -> int:
        """How many messages the next read may look at."""
        return max(UNITS_MIN, min(UNITS_MAX, self._left // _cost(wanted)))

    def spend(self, wanted: SqlFilter, units: int) -> None:
        """So many messages were looked at."""
        if self._left == TURN_WORDS_MAX and units:
            self._loop.call_soon(self._begin_turn)
        self._left -= units * _cost(wanted)

    def _begin_turn(self) -> None:
        self._left = TURN_WORDS_MAX


def _cost(wanted: SqlFilter) -> int:
    return RECORD_WORDS + wanted.weight
