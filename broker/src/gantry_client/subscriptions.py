"""What a group wants: topics, and of each the tags."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from gantry_client.clock import wall_ms
from gantry_client.errors import InvalidMessage
from gantry_wire.commands.clients import SubscriptionData
from gantry_wire.filters import TagFilter, parse_tag_filter
from gantry_wire.names import topic_fault


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One topic as a group wants it."""

    topic: str
    filter: TagFilter
    version: int
    """When it was made, in milliseconds; brokers keep the newest."""

    def data(self) -> SubscriptionData:
        """The subscription as a heartbeat carries it."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.filter.expression,
            tags_set=sorted(self.filter.tags),
            code_set=sorted(self.filter.codes),
            sub_version=self.version,
        )


def make_filter(tags: str) -> TagFilter:
    """The filter of a tag expression. Raises InvalidMessage."""
    try:
        return parse_tag_filter(tags)
    except ValueError as error:
        raise InvalidMessage(str(error)) from error


def make_subscription(topic: str, tags: str) -> Subscription:
    """A subscription made now. Raises InvalidMessage."""
    fault = topic_fault(topic)
    if fault is not None:
        raise InvalidMessage(f"topic {topic[:64]!r}: {fault.value}")
    return Subscription(topic=topic, filter=make_filter(tags), version=wall_ms())


def make_subscriptions(topics: Mapping[str, str] | str) -> dict[str, Subscription]:
    """Subscriptions of `{"topic": "TagA || TagB"}`, or of one topic with all its tags."""
    wanted = {topics: "*"} if isinstance(topics, str) else topics
    return {topic: make_subscription(topic, tags) for topic, tags in wanted.items()}
