"""Which topics have how many queues on which broker: one table, readable from both ends.

    topic -> broker name -> queue numbers and permission        and back:  broker name -> topics

The way back makes removing a broker cost its own topics only. Both sides change in one place, `put` and `_drop`, so
that they cannot disagree. A topic without brokers does not exist.
"""

from typing import Final, final

from gantry_wire.commands.nameserver import PERMISSION_READ, PERMISSION_WRITE, QueueData, TopicQueueMapping

FLAG_UNIT: Final = 1
FLAG_UNIT_SUBSCRIPTION: Final = 2


@final
class TopicTable:
    """Queues by topic and broker. Owned by the event loop's thread."""

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
        """Queue data by broker name; empty for an unknown topic. Read only."""
        return self._queues.get(topic, {})

    def topics_of(self, broker: str) -> set[str]:
        """The topics of one broker. Read only."""
        return self._topics_of.get(broker, set())

    def mappings(self, topic: str) -> dict[str, TopicQueueMapping] | None:
        """The pieces of a static topic by broker, or None for an ordinary one."""
        return self._mappings.get(topic)

    def put(self, topic: str, data: QueueData) -> None:
        """Set what one broker has of a topic."""
        self._queues.setdefault(topic, {})[data.broker_name] = data
        self._topics_of.setdefault(data.broker_name, set()).add(topic)

    def put_mapping(self, mapping: TopicQueueMapping) -> None:
        self._mappings.setdefault(mapping.topic, {})[mapping.bname] = mapping

    def remove_topic(self, topic: str, brokers: list[str] | None = None) -> bool:
        """Forget a topic on `brokers`, by default on all; True when something went."""
        known = self._queues.get(topic, {})
        doomed = [broker for broker in (list(known) if brokers is None else brokers) if broker in known]
        for broker in doomed:
            self._drop(topic, broker)
        return bool(doomed)

    def remove_broker(self, broker: str) -> None:
        """Forget everything of one broker."""
        for topic in list(self._topics_of.get(broker, ())):
            self._drop(topic, broker)

    def allow_writes(self, broker: str, *, is_allowed: bool) -> int:
        """Let clients read from a broker and send to it, or send no more; how many topics that concerns."""
        topics = self._topics_of.get(broker, set())
        for topic in topics:
            data = self._queues[topic][broker]
            data.perm = PERMISSION_READ | PERMISSION_WRITE if is_allowed else data.perm & ~PERMISSION_WRITE
        return len(topics)

    def with_flags(self, *, has: int, lacks: int = 0) -> list[str]:
        """Topics whose system flag has all of `has` and none of `lacks`, as any one broker says."""
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
