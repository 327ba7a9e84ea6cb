"""Which queues a query reads: topics by name, by pattern, or single queues. What exists is asked again and again."""

import re
from dataclasses import dataclass
from typing import final

from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import QueueId


@final
@dataclass(frozen=True, slots=True)
class Subscription:
    """Exactly one of these is given."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    """A regular expression that matches a whole name; RocketMQ's own topics never do."""
    queues: tuple[QueueId, ...] = ()

    def __post_init__(self) -> None:
        given = [bool(self.topics), bool(self.pattern), bool(self.queues)]
        if sum(given) != 1:
            raise InvalidOption(
                "say what to read by one of the options subscribe (topics, with commas), subscribePattern (a regular"
                ' expression) and assign (JSON like {"orders": {"broker-a": [0, 1]}})'
            )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise InvalidOption(f"option subscribePattern is no regular expression: {error}") from None

    def wants(self, queue: QueueId) -> bool:
        """Whether it is one of those that are read, if it exists."""
        if self.queues:
            return queue in self.queues
        if self.pattern:
            return re.fullmatch(self.pattern, queue.topic) is not None
        return queue.topic in self.topics

    def existing(self, catalog: CatalogPort) -> list[QueueId]:
        """Those that are there now, sorted. Raises InvalidOption for a topic or queue that is named and is not
        there."""
        if self.pattern:
            topics = [name for name in catalog.topics() if re.fullmatch(self.pattern, name)]
            return sorted(catalog.queues(topics)) if topics else []
        if self.topics:
            return sorted(catalog.queues(self.topics))
        there = catalog.queues(sorted({queue.topic for queue in self.queues}))
        missing = sorted(set(self.queues) - set(there))
        if missing:
            raise InvalidOption(f"option assign names {', '.join(map(str, missing))}: no broker has such a queue now")
        return sorted(self.queues)
