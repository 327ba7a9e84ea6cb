"""Selects the queue of a message.

Without a sharding key, queues are selected round-robin. A broker that failed during the same send is not tried again
while another broker has a queue, and a broker whose connection failed recently is tried after the others. With a
sharding key, the key and the queues of the route determine the queue, and no failed attempt changes it. So equal keys
stay in order as long as the queues for sending are the same; a broker without a master has none, unless the topic has
an order configuration.
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
    """Selects the queues of each topic round-robin. Belongs to one producer."""

    def __init__(self, avoid_failed_broker_ms: int) -> None:
        self._avoid_failed_broker_ms = avoid_failed_broker_ms
        self._counters: dict[str, count[int]] = {}
        self._avoid_until: dict[str, float] = {}

    def record_failure(self, broker_name: str, now_s: float) -> None:
        """Record that the connection to `broker_name` failed at `now_s` (on the loop's clock)."""
        self._avoid_until[broker_name] = now_s + self._avoid_failed_broker_ms / 1000

    def record_success(self, broker_name: str) -> None:
        self._avoid_until.pop(broker_name, None)

    def next(self, route: Route, tried: Collection[str], now_s: float) -> MessageQueue:
        """Return the next queue of `route`, preferably not on a broker that was `tried` or failed recently."""
        queues = route.write_queues
        counter = self._counters.get(route.topic)
        if counter is None:
            counter = self._counters[route.topic] = count(randrange(len(queues)))
        position = next(counter)
        if not tried and not self._avoid_until:
            return queues[position % len(queues)]
        untried = [queue for queue in queues if queue.broker_name not in tried] or queues
        preferred = [queue for queue in untried if self._avoid_until.get(queue.broker_name, 0.0) <= now_s] or untried
        return preferred[position % len(preferred)]


def queue_for_key(route: Route, sharding_key: str) -> MessageQueue:
    """Return the queue of all messages with `sharding_key`; Java's clients select the same."""
    return route.write_queues[abs(java_string_hash(sharding_key)) % len(route.write_queues)]
