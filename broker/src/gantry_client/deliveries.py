"""What became of one message in the consumer groups of its topic, as the brokers know it.

A committed offset shows only that a group has passed a message. What happened is seen from the copies that brokers make
after a failed delivery. They keep the id of the sender, so the brokers' indexes find them:

    SCHEDULE_TOPIC_XXXX                    a retry that waits for its delay
    %RETRY%GROUP, for pops one per topic   a retry that can be delivered
    %DLQ%GROUP                             a dead letter

A group whose filter does not accept the message passes it without a delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from gantry_client.admin import Admin
from gantry_client.documents import ConsumerConnections
from gantry_client.errors import NoRoute
from gantry_client.messages import ReceivedMessage
from gantry_client.resend_plan import accepts_properties
from gantry_wire import names, properties
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.filters import EXPRESSION_TAG, parse_filter
from gantry_wire.message import StoredMessage

COPIES_MAX: Final = 64
"""The most copies that one index is asked for; RocketMQ's default is 16 retries."""

ASKED_MAX: Final = 8
"""The most groups that are asked about at the same time."""


class Outcome(StrEnum):
    """What became of a message in a group. The values are stable."""

    WAITING = "waiting"
    """The group's offset is not beyond the message."""

    CONSUMED = "consumed"
    """The group has passed the message, its filter accepts it, and no failed delivery is known, or not the last one."""

    LEFT_OUT = "left out"
    """The filter of the group's present consumers does not accept the message."""

    RETRYING = "retrying"
    """The last delivery failed, and the message is to be delivered again."""

    DEAD_LETTER = "dead letter"
    """All deliveries failed, and the group does not get the message again."""

    UNKNOWN = "unknown"
    """The group has committed no offset in the queue of the message."""


class Reading(NamedTuple):
    """How the present consumers of a group read a topic."""

    clients: int
    filter: str | None
    """The filter's type and expression, such as `TAG paid`; None without a consumer or a subscription."""

    is_accepted: bool | None
    """Whether the filter accepts the message; None if there is no filter, or an invalid one."""


class Copy(NamedTuple):
    """A copy of the message that a broker made after a failed delivery."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    stored_ms: int
    failures: int
    """The number of failed deliveries until the copy was made."""

    group: str


class GroupDelivery(NamedTuple):
    """What became of the message in one group."""

    group: str
    outcome: Outcome
    consumed: int | None
    """The group's next offset in the message's queue."""

    reading: Reading
    copies: list[Copy]
    """The copies for this group, in the order in which they were stored."""


class Deliveries(NamedTuple):
    """What became of the message in all groups, and where it was stored a second time."""

    groups: list[GroupDelivery]
    sent_again: list[ReceivedMessage]
    """Later messages of the topic with the same id of the sender, as a resend or a retried send makes them."""


def reading_of(found: ConsumerConnections | None, topic: str, message_properties: Mapping[str, str]) -> Reading:
    """Return how consumers that are connected read a topic, and whether they accept a message with these properties."""
    if found is None or not found.connection_set:
        return Reading(0, None, None)
    clients = len(found.connection_set)
    subscription = found.subscription_table.get(topic)
    if subscription is None:
        return Reading(clients, None, None)
    kind = subscription.expression_type or EXPRESSION_TAG
    text = f"{kind} {subscription.sub_string or '*'}"
    try:
        parsed = parse_filter(kind, subscription.sub_string)
    except ValueError:
        return Reading(clients, text, None)
    tag = message_properties.get(properties.TAGS)
    return Reading(clients, text, accepts_properties(parsed, message_properties, tag))


async def deliveries_of(admin: Admin, message: ReceivedMessage) -> Deliveries:
    """Return what became of a message in the groups that have an offset in its topic. Raises ClientError."""
    masters = [(broker.name, broker.address) for broker in await admin.brokers.masters()]
    again = await admin.messages.by_id(message.topic, message.message_id)
    groups = await admin.topics.groups(message.topic)
    copies = await _copies_of(admin, message, groups, masters)
    limit = asyncio.Semaphore(ASKED_MAX)

    async def ask(group: str) -> GroupDelivery:
        async with limit:
            own = [copy for copy in copies if copy.group == group]
            return await _delivery_in(admin, message, group, own, [address for _, address in masters])

    return Deliveries(
        groups=list(await asyncio.gather(*map(ask, groups))),
        sent_again=[one for one in again if one.store_timestamp_ms >= message.store_timestamp_ms
                    and one.offset_message_id != message.offset_message_id],
    )  # fmt: skip


async def _copies_of(
    admin: Admin, message: ReceivedMessage, groups: Iterable[str], masters: list[tuple[str, str]]
) -> list[Copy]:
    """Return all copies of a message that were made for redelivery, in the order in which they were stored."""
    wanted = message.properties.get(properties.ORIGIN_MESSAGE_ID) or message.offset_message_id
    group_of: dict[str, str] = {}
    for group in groups:
        group_of |= dict.fromkeys(_redelivery_topics(group, message.topic), group)
    found: list[Copy] = []
    for broker_name, address in masters:
        for topic in (*group_of, names.SCHEDULE_TOPIC):
            records = await admin.messages.records_at(
                address, topic, message.message_id, messages_max=COPIES_MAX, is_unique_key=True
            )
            for record in records:
                owner = group_of.get(_destination(record))
                if owner is not None and record.properties.get(properties.ORIGIN_MESSAGE_ID) == wanted:
                    found.append(_copy(record, broker_name, owner))
    return sorted(found, key=lambda copy: (copy.stored_ms, copy.failures))


def _redelivery_topics(group: str, topic: str) -> list[str]:
    return [
        names.retry_topic(group), names.pop_retry_topic(topic, group), names.pop_retry_topic(topic, group, is_v2=True),
        names.dead_letter_topic(group),
    ]  # fmt: skip


def _destination(record: StoredMessage) -> str:
    """Return the topic to which a record belongs; a delayed one has it in a property."""
    return record.properties.get(properties.REAL_TOPIC, "") if record.topic == names.SCHEDULE_TOPIC else record.topic


def _copy(record: StoredMessage, broker_name: str, group: str) -> Copy:
    return Copy(
        topic=record.topic, broker_name=broker_name, queue_id=record.queue_id, queue_offset=record.queue_offset,
        stored_ms=record.store_timestamp_ms, failures=record.reconsume_times, group=group,
    )  # fmt: skip


async def _delivery_in(
    admin: Admin, message: ReceivedMessage, group: str, copies: list[Copy], addresses: list[str]
) -> GroupDelivery:
    committed = await admin.groups.committed(group, message.topic)
    consumed = committed.get(message.queue)
    connections = [await admin.brokers.connections(address, group) for address in addresses]
    known = next((one for one in connections if one is not None), None)
    reading = reading_of(known, message.topic, message.properties)
    last = copies[-1] if copies else None
    is_done = last is not None and await _is_passed(admin, group, last)
    return GroupDelivery(group, _outcome(message, consumed, reading, last, is_done=is_done), consumed, reading, copies)


async def _is_passed(admin: Admin, group: str, copy: Copy) -> bool:
    """Return whether the group has passed a copy in one of its retry topics."""
    if copy.topic == names.SCHEDULE_TOPIC or copy.topic == names.dead_letter_topic(group):
        return False
    try:
        offsets = await admin.groups.committed(group, copy.topic)
    except NoRoute:
        return False
    consumed = offsets.get(MessageQueue(topic=copy.topic, broker_name=copy.broker_name, queue_id=copy.queue_id))
    return consumed is not None and consumed > copy.queue_offset


def _outcome(
    message: ReceivedMessage, consumed: int | None, reading: Reading, last: Copy | None, *, is_done: bool
) -> Outcome:
    if last is not None:
        if last.topic == names.dead_letter_topic(last.group):
            return Outcome.DEAD_LETTER
        return Outcome.CONSUMED if is_done else Outcome.RETRYING
    if reading.is_accepted is False:
        return Outcome.LEFT_OUT
    if consumed is None:
        return Outcome.UNKNOWN
    return Outcome.WAITING if consumed <= message.queue_offset else Outcome.CONSUMED
