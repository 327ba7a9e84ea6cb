"""Holds pulls that found no message, until a matching message arrives or their deadline passes.

Waking is batched: an append only marks queues; once per turn of the loop every held pull of a marked queue is retried
from the first message that it has not checked. A pull that finds only messages that do not match stays held at a later
offset, and continues in a later turn if more are left than it may read in one. Filters by properties have a budget for
each turn of the loop (`FilterBudget`), and all retries a limit of time; after that, the other pulls wait for the next
turn. Held pulls are indexed by queue, by connection and by time, so that no operation searches all of them.

Requests that compete for the same messages, such as the pops of one group, are retried one after another, and only
until one of them finds that no message is left:

    queue marked -> pop 1 (answered, more is left) -> pop 2 (answered, nothing is left)        pops 3 to 500 stay held

Owned by the event loop.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, final

from gantry_remoting import Connection, join_address
from gantry_remoting.close_log import CloseReason, LimitedLog
from gantry_wire import Command
from gantry_wire.commands.pull import PullMessage
from gantry_wire.sql92 import SqlFilter

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 0.1
"""How often pulls are answered whose deadline has passed."""

TURN_S: Final = 0.005
"""For how long held requests are retried in one turn of the loop: other requests wait meanwhile."""

TURN_TOKENS_MAX: Final = 50_000
"""The budget of filters in one turn of the loop, in tokens of their expressions: about five milliseconds."""

RECORD_TOKENS: Final = 40
"""What reading one record costs in the budget, in tokens."""
UNITS_MIN: Final = 8
"""How many messages a pull may check even if no budget is left."""
UNITS_MAX: Final = 800
"""The limit of messages that one pull checks, as in RocketMQ."""

QueueKey = tuple[str, int]
"""A queue, by topic and queue id."""

ANY_QUEUE: Final = -1
"""The queue id of a request that waits for messages of any queue of its topic."""

K = TypeVar("K")


class HeldRequest(Protocol):
    """A request that waits for messages and is no pull, such as a pop."""

    command: Command
    connection: Connection
    keys: tuple[QueueKey, ...]
    """The queues whose messages it waits for, or ``ANY_QUEUE`` of a topic."""

    deadline: float
    """The loop time at which the request is answered in any case."""

    is_done: bool
    """Whether it is answered, or its answer is on its way."""

    is_more_left: bool
    """Whether the last retry has left messages for others of the contest."""

    @property
    def contest(self) -> Hashable:
        """Equal for requests that compete for the same messages: if one finds none, the others would find none, too."""

    def retry(self, must_answer: bool) -> Command | None:
        """Try again to answer; return the answer, or None if it stays held, or if ``is_done`` is set."""


def sweep_number(deadline: float) -> int:
    """Return the number of the sweep, the check of deadlines every ``SWEEP_INTERVAL_S``, that answers the request."""
    return int(deadline / SWEEP_INTERVAL_S) + 1


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits for a message."""

    command: Command
    connection: Connection
    pull: PullMessage
    next_offset: int
    """The offset to continue at; messages before it do not match."""
    deadline: float
    """The loop time at which the pull is answered in any case."""
    is_limited: bool = False
    """Whether it waits until its deadline, because its group has read too much cold data."""

    @property
    def keys(self) -> tuple[QueueKey, ...]:
        return ((self.pull.topic, self.pull.queue_id),)

    @property
    def contest(self) -> None:
        """Nothing: a pull competes with no other one, since it takes no messages from them."""

    def skip_to(self, offset: int) -> None:
        """Continue at ``offset``, since the messages before it do not match."""
        self.next_offset = offset


Retry = Callable[[HeldPull, bool], Command | None]
"""Retries a held pull; with True as second argument it must answer. An exception closes only the pull's connection."""


Held = HeldPull | HeldRequest

Contests = dict[Hashable, dict[Held, None]]
"""The requests that wait for messages of one queue, by contest; pulls have the contest None."""


@final
class PullHold:
    """The held pulls of a broker, and its other requests that wait for messages. Owned by the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        retry: Retry,
        *,
        held_max: int,
        held_per_connection_max: int,
        is_spent: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_spent`` returns whether the budget for filters of this turn of the loop is used up."""
        self._loop = loop
        self._retry = retry
        self._is_spent = is_spent
        self._failures: Final = LimitedLog(log)
        self.set_limits(held_max=held_max, held_per_connection_max=held_per_connection_max)
        self._by_queue: dict[QueueKey, Contests] = {}
        self._by_connection: dict[Connection, dict[Held, None]] = {}
        self._by_sweep: dict[int, dict[Held, None]] = {}
        self.count = 0
        """The number of held pulls of all connections."""
        self._marked: set[QueueKey] = set()
        self._waking: OrderedDict[Held, None] = OrderedDict()
        """The pulls that are retried in this turn, or in the next ones."""
        self._contests: OrderedDict[tuple[QueueKey, Hashable], Iterator[Held]] = OrderedDict()
        """The requests of contests that are retried in this turn, or in the next ones, until no message is left."""
        self._is_wake_scheduled = False
        self._last_sweep = 0
        self._timer: asyncio.TimerHandle | None = None
        self.is_stopped = False

    def __repr__(self) -> str:
        return f"<PullHold held={self.count} queues={len(self._by_queue)}>"

    def set_limits(self, *, held_max: int, held_per_connection_max: int) -> None:
        """Set how many pulls may be held; those that are held already stay."""
        self._held_max = held_max
        self._held_per_connection_max = held_per_connection_max

    def start(self) -> None:
        self._last_sweep = int(self._loop.time() / SWEEP_INTERVAL_S)
        self._sweep()

    def stop(self) -> None:
        """Answer every held pull, so that no client waits for a stopped broker. No pull is held afterwards."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for contests in list(self._by_queue.values()):
            for held_pulls in list(contests.values()):
                self._retry_all(list(held_pulls), must_answer=True)

    def has_room(self, connection: Connection) -> bool:
        """Whether another pull of this connection may be held."""
        of_connection = len(self._by_connection.get(connection, ()))
        return self.count < self._held_max and of_connection < self._held_per_connection_max

    def held_for(self, key: QueueKey) -> tuple[Held, ...]:
        """Return the requests that wait for messages of a queue."""
        return tuple(held for contest in self._by_queue.get(key, {}).values() for held in contest)

    def hold(self, held: Held) -> None:
        assert not self.is_stopped, "callers answer at once when the broker stops"
        number = sweep_number(held.deadline)
        assert number > self._last_sweep, "no sweep would answer it"
        for key in held.keys:
            self._by_queue.setdefault(key, {}).setdefault(held.contest, {})[held] = None
        self._by_connection.setdefault(held.connection, {})[held] = None
        self._by_sweep.setdefault(number, {})[held] = None
        self.count += 1

    def mark_queues(self, queues: Iterable[QueueKey]) -> None:
        """Mark queues that have new messages, and schedule the retry of their held pulls."""
        if not self._by_queue:
            return
        held = self._by_queue
        for topic, queue_id in queues:
            self._marked.update(key for key in ((topic, queue_id), (topic, ANY_QUEUE)) if key in held)
        if self._marked:
            self._wake_soon()

    def wake_all(self) -> None:
        """Retry every held pull, since more messages may be visible now."""
        self.mark_queues(tuple(self._by_queue))

    def continue_later(self, held: Held) -> None:
        """Retry this pull in the next turn, since it has not checked all messages."""
        self._waking[held] = None
        self._wake_soon()

    def drop_connection(self, connection: Connection) -> None:
        """Drop the held pulls of a closed connection."""
        for held in list(self._by_connection.get(connection, ())):
            self._drop(held)

    def _wake_soon(self) -> None:
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Retry held pulls of marked queues: at least one, so that none waits for ever behind expensive ones."""
        self._is_wake_scheduled = False
        for key in self._marked:
            for contest, held_requests in self._by_queue.get(key, {}).items():
                if contest is None:
                    self._waking.update(held_requests)
                else:
                    self._contests[key, contest] = iter(tuple(held_requests))
        self._marked.clear()
        end = self._loop.time() + TURN_S
        for _ in range(len(self._waking)):
            held, _ = self._waking.popitem(last=False)
            self._retry_all([held], must_answer=False)
            if self._waking and (self._is_spent() or self._loop.time() >= end):
                break
        while self._contests:
            self._retry_next()
            if self._loop.time() >= end:
                break
        if self._waking or self._contests:
            self._wake_soon()

    def _retry_next(self) -> None:
        """Retry the next request of a contest, and let the others follow if it has left messages."""
        name, others = self._contests.popitem(last=False)
        key, contest = name
        for held in others:
            if isinstance(held, HeldPull) or held not in self._by_queue.get(key, {}).get(contest, ()):
                continue  # it was dropped since
            held.is_more_left = True
            self._retry_all([held], must_answer=False)
            if held.is_more_left:
                self._contests[name] = others
            return

    def _sweep(self) -> None:
        sweep_now = int(self._loop.time() / SWEEP_INTERVAL_S)
        self._timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        while self._last_sweep < sweep_now:
            self._last_sweep += 1
            self._retry_all(list(self._by_sweep.get(self._last_sweep, ())), must_answer=True)

    def _retry_all(self, held_pulls: list[Held], *, must_answer: bool) -> None:
        for held in held_pulls:
            if not held.connection.is_open:
                self._drop(held)
                continue
            try:
                if isinstance(held, HeldPull):
                    answer = self._retry(held, must_answer)
                else:
                    answer = held.retry(must_answer)
            except Exception as error:  # noqa: BLE001 - one pull that cannot be answered must not delay the others
                self._drop(held)
                self._failures.log_callback_failure(join_address(*held.connection.peer), "held pull", error)
                held.connection.close("a held pull failed", CloseReason.CALLBACK)
                continue
            if answer is not None:
                self._drop(held)
                held.connection.send(answer.encode())
            elif not isinstance(held, HeldPull) and held.is_done:
                self._drop(held)

    def _drop(self, held: Held) -> None:
        self.count -= 1
        self._waking.pop(held, None)
        for key in held.keys:
            contests = self._by_queue[key]
            _discard(contests, held.contest, held)
            if not contests:
                del self._by_queue[key]
        _discard(self._by_connection, held.connection, held)
        _discard(self._by_sweep, sweep_number(held.deadline), held)


def _discard(table: dict[K, dict[Held, None]], key: K, held: Held) -> None:
    held_pulls = table[key]
    del held_pulls[held]
    if not held_pulls:
        del table[key]


@final
class FilterBudget:
    """The budget for filtering by properties in one turn of the loop. Owned by the event loop.

    A filter reads every record and evaluates an expression, some microseconds for each message. The budget is counted
    in tokens of expressions; a message costs the tokens of the filter, and forty more for its record. A pull gets the
    rest of the budget, and some messages even if none is left: the client continues at the offset that it has reached,
    and a held pull continues in the next turn. So a filter that matches nothing delays other requests by little more
    than one budget.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = TURN_TOKENS_MAX

    def __repr__(self) -> str:
        return f"<FilterBudget left={self._left}>"

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def count_units(self, message_filter: SqlFilter) -> int:
        """Return how many messages the next read may check."""
        return max(UNITS_MIN, min(UNITS_MAX, self._left // _cost(message_filter)))

    def spend(self, message_filter: SqlFilter, units: int) -> None:
        """Subtract the cost of the messages that were checked."""
        if self._left == TURN_TOKENS_MAX and units:
            self._loop.call_soon(self._begin_turn)
        self._left -= units * _cost(message_filter)

    def _begin_turn(self) -> None:
        self._left = TURN_TOKENS_MAX


def _cost(message_filter: SqlFilter) -> int:
    return RECORD_TOKENS + message_filter.weight
