"""Reading a broker's queues over the wire, from the first offset to the last, and finding messages by key."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from crash.history import Sent
from crash.log_walk import Queue
from crash.producer import QUEUES, TOPICS

from gantry_remoting import Channel
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import CreateTopic
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PullMessage, PullResult, QueryMessage
from gantry_wire.message import StoredMessage, decode_records

TIMEOUT_MS: Final = 120_000
TIME_MAX_MS: Final = 9_000_000_000_000
"""A time after that of every message, as the end of a query."""


class UnexpectedReply(Exception):
    """A broker has answered a valid request with an unexpected code."""


async def ask(channel: Channel, command: Command) -> Command:
    return await channel.request(command, TIMEOUT_MS)


async def create_topics(channel: Channel) -> None:
    """Create the run's topics; each reply comes when the topic is on disk."""
    for topic in TOPICS:
        fields = CreateTopic(
            topic=topic, default_topic="TBW102", read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6,
            topic_filter_type="SINGLE_TAG", order=False,
        )  # fmt: skip
        reply = await ask(channel, Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields.write()))
        if reply.code != ResponseCode.SUCCESS:
            raise UnexpectedReply(f"creating {topic} got {reply.code}: {reply.remark}")


async def pull_everything(channel: Channel) -> dict[Queue, list[StoredMessage]]:
    """Return every queue of the run's topics as a consumer reads it."""
    queues: dict[Queue, list[StoredMessage]] = {}
    for topic in TOPICS:
        for queue_id in range(QUEUES):
            messages = await _pull_queue(channel, topic, queue_id)
            if messages:
                queues[topic, queue_id] = messages
    return queues


async def _pull_queue(channel: Channel, topic: str, queue_id: int) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    offset = 0
    while True:
        found = await pull(channel, (topic, queue_id), offset)
        if found.next_offset == offset:
            if found.max_offset == offset:
                return messages
            raise UnexpectedReply(f"{topic}/{queue_id} ends at {found.max_offset}, and nothing is found at {offset}")
        messages += found.messages
        offset = found.next_offset


class Pulled(NamedTuple):
    """The answer to one pull."""

    messages: list[StoredMessage]
    next_offset: int
    """The queue offset at which the consumer continues."""

    max_offset: int
    """The end of the queue."""


async def pull(channel: Channel, queue: Queue, offset: int) -> Pulled:
    """Pull messages from `offset` on, as many as one reply holds."""
    topic, queue_id = queue
    fields = PullMessage(
        consumer_group="CrashReaders", topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=1024,
        sys_flag=PULL_SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*",
        expression_type="TAG", max_msg_bytes=4 * 1024 * 1024,
    )  # fmt: skip
    reply = await ask(channel, Command(code=RequestCode.PULL_MESSAGE, ext=fields.write()))
    result = PullResult.read(reply.ext)
    if reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
        return Pulled([], offset, result.max_offset)
    if reply.code != ResponseCode.SUCCESS:
        raise UnexpectedReply(f"pulling {topic}/{queue_id} at {offset} got {reply.code}: {reply.remark}")
    return Pulled(decode_records(reply.body), result.next_begin_offset, result.max_offset)


async def not_found_by_key(channel: Channel, sample: Iterable[Sent]) -> list[str]:
    """Return the acknowledged messages that a query by unique id does not find at their offsets."""
    missing: list[str] = []
    for sent in sample:
        query = QueryMessage(
            topic=sent.topic, key=sent.unique_id, max_num=32, begin_timestamp=0, end_timestamp=TIME_MAX_MS
        )
        ext = query.write() | {"_UNIQUE_KEY_QUERY": "true"}
        reply = await ask(channel, Command(code=RequestCode.QUERY_MESSAGE, ext=ext))
        found = decode_records(reply.body) if reply.code == ResponseCode.SUCCESS else []
        if sent.physical_offset not in [message.physical_offset for message in found]:
            missing.append(f"{sent.unique_id} of {sent.topic} at {sent.physical_offset}: code {reply.code}")
    return missing
