"""Which queue a message goes to.

Without a wish of the caller queues are taken in turn. A broker that failed in this very send is not tried again while
another one has a queue, and one whose connection failed lately is tried after the others. With a sharding key the
queue follows from the key alone, so that equal keys stay in order; then no other broker can stand in.
"""

from collections.abc import Collection
from itertools import count
from random import randrange
from typing import final

from gantry_client.routes import Route
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.hashing import java_string_hash


@final
class QueueSelector:
    """Takes the queues of each topic in turn. Belongs to one producer."""

    def __init__(self, avoid_failed_broker_ms: int) -> None:
        self._avoid_failed_broker_ms = avoid_failed_broker_ms
        self._turns: dict[str, count[int]] = {}
        self._avoid_until: dict[str, float] = {}

    def failed(self, broker_name: str, now_s: float) -> None:
        """`broker_name` could not be reached at `now_s` (on the loop's clock)."""
        self._avoid_until[broker_name] = now_s + self._avoid_failed_broker_ms / 1000

    def succeeded(self, broker_name: str) -> None:
        self._avoid_until.pop(broker_name, None)

    def next(self, route: Route, tried: Collection[str], now_s: float) -> MessageQueue:
        """The next queue of `route`, if possible not on a broker that was `tried` or failed lately."""
        queues = route.write_queues
        turn = next(self._turns.setdefault(route.topic, count(randrange(len(queues)))))
        if not tried and not self._avoid_until:
            return queues[turn % len(queues)]
        untried = [queue for queue in queues if queue.broker_name not in tried] or queues
        good = [queue for queue in untried if self._avoid_until.get(queue.broker_name, 0.0) <= now_s] or untried
        return good[turn % len(good)]


def queue_for_key(route: Route, sharding_key: str) -> MessageQueue:
    """The queue of `route` that all messages with `sharding_key` go to; Java's choice, too."""
    return route.write_queues[abs(java_string_hash(sharding_key)) % len(route.write_queues)]
