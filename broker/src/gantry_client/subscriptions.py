"""What a group wants: topics, and of each the tags, or the properties that messages must have.

A filter in SQL92 is parsed here as a broker parses it, so that a wrong one fails where it was written. The grammar
ignores what follows a whole expression; nobody means that, so it is refused here, though brokers take it. Whether a
broker filters by properties at all only it can say: a group's member asks it first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from gantry_client.clock import wall_ms
from gantry_client.errors import InvalidMessage
from gantry_wire.commands.clients import SubscriptionData
from gantry_wire.filters import EXPRESSION_SQL92, EXPRESSION_TAG, MessageFilter, TagFilter, parse_tag_filter
from gantry_wire.names import topic_fault
from gantry_wire.sql92 import parse_sql_filter


@final
@dataclass(frozen=True, slots=True)
class Sql:
    """A filter over message properties: `Sql("price > 100 AND region = 'eu'")`, in the place of a tag expression."""

    expression: str


Wanted = str | Sql
"""Tags (`"new || paid"`, `"*"`), or a filter over properties."""

Topics = Mapping[str, Wanted] | str
"""What is wanted of each topic, or one topic of which everything is."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One topic as a group wants it."""

    topic: str
    filter: MessageFilter
    version: int
    """When it was made, in milliseconds; brokers keep the newest."""

    def data(self) -> SubscriptionData:
        """The subscription as a heartbeat carries it."""
        if not isinstance(self.filter, TagFilter):
            return SubscriptionData(
                topic=self.topic,
                sub_string=self.filter.expression,
                sub_version=self.version,
                expression_type=EXPRESSION_SQL92,
            )
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.filter.expression,
            tags_set=sorted(self.filter.tags),
            code_set=sorted(self.filter.codes),
            sub_version=self.version,
        )


def expression_type(wanted: MessageFilter) -> str:
    """How requests name the kind of a filter."""
    return EXPRESSION_TAG if isinstance(wanted, TagFilter) else EXPRESSION_SQL92


def make_filter(wanted: Wanted) -> MessageFilter:
    """The filter that says so. Raises InvalidMessage."""
    try:
        if isinstance(wanted, str):
            return parse_tag_filter(wanted)
        sql = parse_sql_filter(wanted.expression)
    except ValueError as error:
        raise InvalidMessage(str(error)) from error
    if sql.ignored:
        raise InvalidMessage(f"the filter ends before {sql.ignored[:64]!r}, which would be ignored")
    return sql


def make_subscription(topic: str, wanted: Wanted) -> Subscription:
    """A subscription made now. Raises InvalidMessage."""
    fault = topic_fault(topic)
    if fault is not None:
        raise InvalidMessage(f"topic {topic[:64]!r}: {fault.value}")
    return Subscription(topic=topic, filter=make_filter(wanted), version=wall_ms())


def make_subscriptions(topics: Topics) -> dict[str, Subscription]:
    """Subscriptions of `{"topic": "TagA || TagB"}`, or of one topic with all its tags."""
    each: Mapping[str, Wanted] = {topics: "*"} if isinstance(topics, str) else topics
    return {topic: make_subscription(topic, wanted) for topic, wanted in each.items()}
