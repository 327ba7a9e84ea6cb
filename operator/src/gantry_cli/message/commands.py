"""The commands `gantry message describe` and `resend`: one stored message, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import click
from rich.console import RenderableType

from gantry_cli.account import client_settings
from gantry_cli.completers import complete_topic
from gantry_cli.errors import NotFoundError, for_same_cluster
from gantry_cli.examples import examples
from gantry_cli.message.documents import CopyDocument, GroupDeliveryDocument, MessageDescriptionDocument
from gantry_cli.message.resend import resend
from gantry_cli.messages.formatting import body_text, message_document
from gantry_cli.messages.places import Place, parse_place, place_of
from gantry_cli.options import name_server_option, run
from gantry_cli.output import OutputFormat, output_option, show, table
from gantry_cli.round_trip import READER_GROUP
from gantry_cli.text import count_text, plural, time_text
from gantry_client import Admin, BrokerRefused, ClientError, InvalidMessage, PullConsumer, ReceivedMessage
from gantry_client.deliveries import Copy, GroupDelivery, Outcome, deliveries_of
from gantry_wire.names import SCHEDULE_TOPIC, is_retry_or_dead_letter
from gantry_wire.properties import ORIGIN_MESSAGE_ID, RESERVED, RETRY_TOPIC

BODY_CHARACTERS_MAX: Final = 2_000
"""The length at which a body is cut on the screen; other formats have the whole body."""


@click.group(
    epilog=examples(
        ("gantry message describe orders/broker-a/3@1200", "show a message and what became of it in each group"),
        ("gantry message resend orders/broker-a/3@1200", "send it to its topic again"),
    )
)
def message() -> None:
    """Show what became of a stored message, or send it again."""


message.add_command(resend)


@message.command(
    epilog=examples(
        ("gantry message describe orders/broker-a/3@1200", "describe the message at a place that a search printed"),
        ("gantry message describe 7F000001… --topic orders", "describe the message with this id"),
    )
)
@click.argument("which", metavar="PLACE|ID")
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topic, help="Topic of an ID.")
@name_server_option
@output_option
def describe(which: str, topic: str | None, name_server: str, form: OutputFormat) -> None:
    """Show a stored message, and what became of it in each consumer group.

    PLACE is TOPIC/BROKER/QUEUE@OFFSET, as `gantry search -v` prints it. For a retry or a dead letter, its original is
    described. ID is the id of the producer or the broker, and needs --topic.

    For each group that has an offset in the topic, the last column has the reason why it has consumed the message or
    not: messages before it, no connected consumer, a filter that leaves it out, failed deliveries, a dead letter. The
    brokers' indexes know the failed deliveries. Offsets are neither used nor committed.
    """
    if topic is None and "/" not in which:
        raise click.UsageError("an ID needs --topic; a place is TOPIC/BROKER/QUEUE@OFFSET")
    if topic is not None and "/" in which:
        raise click.UsageError("--topic is for an ID; a place has its topic")

    async def query() -> _Described:
        async with Admin(name_server, client_settings=client_settings()) as admin:
            if topic is None:
                found = await _original_of(admin, await _message_at(name_server, parse_place(which)))
            else:
                found = await _message_with_id(admin, topic, which)
            deliveries = await deliveries_of(admin, found)
            return _Described(found, deliveries.groups, deliveries.sent_again)

    described = run(query(), name_server, waiting_for="reading the message")
    show(form, _document(described), lambda: _screen(described))


class _Described(NamedTuple):
    """A message, and what became of it."""

    message: ReceivedMessage
    groups: list[GroupDelivery]
    sent_again: list[ReceivedMessage]


async def _message_at(name_server: str, place: Place) -> ReceivedMessage:
    async with PullConsumer(name_server, READER_GROUP, client_settings=client_settings()) as consumer:
        if place.queue not in await consumer.queues(place.topic):
            raise NotFoundError(
                f"topic {place.topic} has no queue {place.queue_id} on a broker {place.broker_name}",
                for_same_cluster(f"list its queues: gantry topic describe {place.topic}"),
            )
        begin, end = await consumer.min_offset(place.queue), await consumer.max_offset(place.queue)
        if begin <= place.offset < end:
            fetched = await consumer.fetch(place.queue, place.offset, messages_max=1)
            for one in fetched.messages:
                if one.queue_offset == place.offset:
                    return one
        raise NotFoundError(f"no message at {place}", f"the queue has the offsets {begin} to {end - 1}" if end > begin
                            else "the queue is empty")  # fmt: skip


async def _original_of(admin: Admin, found: ReceivedMessage) -> ReceivedMessage:
    """Return the message of which a retry or a dead letter is a copy, if it is still stored."""
    origin = found.properties.get(ORIGIN_MESSAGE_ID)
    if origin is None or not is_retry_or_dead_letter(found.queue.topic):
        return found
    try:
        return await admin.messages.view(origin, found.properties.get(RETRY_TOPIC))
    except ClientError:
        return found


async def _message_with_id(admin: Admin, topic: str, message_id: str) -> ReceivedMessage:
    found = await admin.messages.by_id(topic, message_id)
    if not found:
        try:
            found = [await admin.messages.view(message_id, topic)]
        except (InvalidMessage, BrokerRefused) as error:
            raise _unknown_id(topic, message_id) from error
        except ClientError as error:  # the broker that the id names is not there
            raise _unknown_id(topic, f"{message_id}: {error}") from error
    return found[0]


def _unknown_id(topic: str, message_id: str) -> NotFoundError:
    return NotFoundError(
        f"topic {topic} has no message with the id {message_id[:300]}",
        f"search by other conditions: gantry search {topic} --help",
    )


def _document(described: _Described) -> MessageDescriptionDocument:
    return MessageDescriptionDocument(
        message=message_document(described.message),
        groups=[
            GroupDeliveryDocument(
                group=one.group, outcome=one.outcome.value, why=_why(described.message, one), consumed=one.consumed,
                members=one.reading.clients, filter=one.reading.filter, is_accepted=one.reading.is_accepted,
                copies=[
                    CopyDocument(
                        topic=copy.topic, broker=copy.broker_name, queue_id=copy.queue_id,
                        queue_offset=copy.queue_offset, stored_ms=copy.stored_ms, failures=copy.failures,
                    )
                    for copy in one.copies
                ],
            )
            for one in described.groups
        ],
        sent_again=[str(place_of(one)) for one in described.sent_again],
    )  # fmt: skip


def _screen(described: _Described) -> Iterator[RenderableType]:
    one = described.message
    place = place_of(one)
    yield f"message {place}"
    yield f"  id           {one.message_id}"
    yield f"  broker's id  {one.offset_message_id}"
    yield f"  sent         {time_text(one.born_timestamp_ms)} by {one.born_host}"
    yield f"  stored       {time_text(one.store_timestamp_ms)}"
    yield f"  tag, keys    {one.tags or 'none'}, {', '.join(one.keys) or 'none'}"
    for name, value in sorted(one.properties.items()):
        if name not in RESERVED:
            yield f"  property     {name} = {value}"
    text = body_text(one)
    cut = f" … ({count_text(len(text))} characters)" if len(text) > BODY_CHARACTERS_MAX else ""
    yield f"  body         {text[:BODY_CHARACTERS_MAX]}{cut}"
    if described.groups:
        rows = ((group.group, str(group.reading.clients), group.outcome.value, _why(one, group)) for group in
                described.groups)  # fmt: skip
        yield table(None, ("group", "members", "outcome", "why"), rows, right=("members",))
    else:
        yield "no group has an offset in this topic: no consumer has read it yet"
    for again in described.sent_again:
        yield f"sent again {time_text(again.store_timestamp_ms)}: {place_of(again)}"
    yield for_same_cluster(f"To send it to its topic again: gantry message resend {place}")


def _why(one: ReceivedMessage, group: GroupDelivery) -> str:
    """Return why a group has consumed a message, or not."""
    reading = group.reading
    absence = "; no consumer is connected" if reading.clients == 0 else ""
    match group.outcome:
        case Outcome.DEAD_LETTER:
            last = group.copies[-1]
            return f"{_failures(last)}, the last before {time_text(last.stored_ms)}; it is {_place(last)}"
        case Outcome.RETRYING:
            last = group.copies[-1]
            where = "waits for its delay" if last.topic == SCHEDULE_TOPIC else f"can be delivered from {_place(last)}"
            return f"{_failures(last)}, the last before {time_text(last.stored_ms)}; it {where}{absence}"
        case Outcome.WAITING:
            before = one.queue_offset - (group.consumed or 0)
            place = "it is next" if before == 0 else f"{plural(before, 'message')} before it"
            return f"{place}{absence}"
        case Outcome.LEFT_OUT:
            return f"the filter of the group does not accept it: {reading.filter}"
        case Outcome.UNKNOWN:
            return f"the group has no offset in this queue{absence}"
        case Outcome.CONSUMED:
            if group.copies:
                return f"{_failures(group.copies[-1])}, and then none"
            return f"the group's offset is {count_text(group.consumed or 0)}, and no failed delivery is known"


def _failures(copy: Copy) -> str:
    return f"{count_text(copy.failures)} failed {'delivery' if copy.failures == 1 else 'deliveries'}"


def _place(copy: Copy) -> str:
    return str(Place(copy.topic, copy.broker_name, copy.queue_id, copy.queue_offset))
