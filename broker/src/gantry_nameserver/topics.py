"""The queues of each topic on each broker, in one table that can be read by topic and by broker.

    topic -> broker name -> queue numbers and permission        and the reverse:  broker name -> topics

The reverse table makes the cost of removing a broker proportional to its own topics. Both tables change only in `put`
and `_drop`, so that they cannot disagree. A topic without brokers does not exist.
"""

from typing import Final, final

from gantry_wire.commands.nameserver import PERMISSION_READ, PERMISSION_WRITE, QueueData, TopicQueueMapping

FLAG_UNIT: Final = 1
"""RocketMQ's flag of a topic that belongs to a unit of a deployment in several data centres."""
FLAG_UNIT_SUBSCRIPTION: Final = 2
"""RocketMQ's flag of a topic to which groups of units subscribe."""


@final
class TopicTable:
    """The queue data by topic and broker. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMapping]] = {}

    def __repr__(self) -> str:
        return f"<TopicTable topics={len(self._queues)} brokers={len(self._topics_of)}>"

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, topic: str) -> bool:
        return topic in self._queues

    def names(self) -> list[str]:
        return sorted(self._queues)

    def queues(self, topic: str) -> dict[str, QueueData]:
        """Return the queue data by broker name; empty for an unknown topic. Read only."""
        return self._queues.get(topic, {})

    def topics_of(self, broker: str) -> set[str]:
        """Return the topics of one broker. Read only."""
        return self._topics_of.get(broker, set())

    def mappings(self, topic: str) -> dict[str, TopicQueueMapping] | None:
        """Return the queue mappings of a static topic by broker, or None for an ordinary topic."""
        return self._mappings.get(topic)

    def put(self, topic: str, data: QueueData) -> None:
        """Set the queue data of a topic on one broker."""
        self._queues.setdefault(topic, {})[data.broker_name] = data
        self._topics_of.setdefault(data.broker_name, set()).add(topic)

    def put_mapping(self, mapping: TopicQueueMapping) -> None:
        self._mappings.setdefault(mapping.topic, {})[mapping.bname] = mapping

    def remove_topic(self, topic: str, brokers: list[str] | None = None) -> bool:
        """Remove a topic on `brokers`, by default on all; return whether something was removed."""
        known = self._queues.get(topic, {})
        removed = [broker for broker in (list(known) if brokers is None else brokers) if broker in known]
        for broker in removed:
            self._drop(topic, broker)
        return bool(removed)

    def remove_broker(self, broker: str) -> None:
        """Remove all topics of one broker."""
        for topic in list(self._topics_of.get(broker, ())):
            self._drop(topic, broker)

    def allow_writes(self, broker: str, *, is_allowed: bool) -> int:
        """Give a broker's topics read and write permission, or remove the write permission; return their number."""
        topics = self._topics_of.get(broker, set())
        for topic in topics:
            data = self._queues[topic][broker]
            data.perm = PERMISSION_READ | PERMISSION_WRITE if is_allowed else data.perm & ~PERMISSION_WRITE
        return len(topics)

    def with_flags(self, *, has: int, lacks: int = 0) -> list[str]:
        """Return the topics whose system flag has all of `has` and none of `lacks`.

        As in RocketMQ only the flag of the first of its brokers counts.
        """
        found: list[str] = []
        for topic, queues in sorted(self._queues.items()):
            flag = next(iter(queues.values())).topic_sys_flag
            if flag & has == has and not flag & lacks:
                found.append(topic)
        return found

    def _drop(self, topic: str, broker: str) -> None:
        for table in (self._queues, self._mappings):
            by_broker = table.get(topic)
            if by_broker is not None:
                by_broker.pop(broker, None)
                if not by_broker:
                    del table[topic]
        topics = self._topics_of[broker]
        topics.discard(topic)
        if not topics:
            del self._topics_of[broker]
