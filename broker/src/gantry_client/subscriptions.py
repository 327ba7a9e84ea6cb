"""The subscriptions of a group: its topics, each with a filter by tags or by message properties (SQL92).

An SQL92 filter is parsed here as a broker parses it, so that an invalid one fails in the program that contains it. The
grammar ignores text after a complete expression; such text is a mistake and is refused here, although brokers accept
it. Only the broker knows whether it supports SQL92 filters, so a consumer of a group validates the filter with it
first.
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


FilterExpression = str | Sql
"""A tag expression (`"new || paid"`, `"*"`), or a filter over properties."""

TopicFilters = Mapping[str, FilterExpression] | str
"""The filter of each topic, or one topic without a filter."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The subscription of a group to one topic."""

    topic: str
    filter: MessageFilter
    version: int
    """The creation time in milliseconds; brokers keep the newest version."""

    def data(self) -> SubscriptionData:
        """Return the subscription in the form of a heartbeat."""
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


def expression_type(message_filter: MessageFilter) -> str:
    """Return the expression type of a filter in requests."""
    return EXPRESSION_TAG if isinstance(message_filter, TagFilter) else EXPRESSION_SQL92


def make_filter(expression: FilterExpression) -> MessageFilter:
    """Parse a filter expression. Raises InvalidMessage if it is invalid."""
    try:
        if isinstance(expression, str):
            return parse_tag_filter(expression)
        sql = parse_sql_filter(expression.expression)
    except ValueError as error:
        raise InvalidMessage(str(error)) from error
    if sql.ignored:
        raise InvalidMessage(f"the filter ends before {sql.ignored[:64]!r}, which would be ignored")
    return sql


def make_subscription(topic: str, expression: FilterExpression) -> Subscription:
    """Create a subscription with the present time as its version. Raises InvalidMessage."""
    fault = topic_fault(topic)
    if fault is not None:
        raise InvalidMessage(f"topic {topic[:64]!r}: {fault.value}")
    return Subscription(topic=topic, filter=make_filter(expression), version=wall_ms())


def make_subscriptions(topics: TopicFilters) -> dict[str, Subscription]:
    """Create subscriptions from `{"topic": "TagA || TagB"}`, or from one topic without a filter."""
    each: Mapping[str, FilterExpression] = {topics: "*"} if isinstance(topics, str) else topics
    return {topic: make_subscription(topic, expression) for topic, expression in each.items()}
