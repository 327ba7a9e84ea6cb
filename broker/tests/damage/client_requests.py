"""Requests of clients to a broker in a trial, in the wire protocol, and the decoding of the answers.

Of a message only the properties that clients set are kept. The judge decides whether the answers are right.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from damage.expectations import Message, PendingMessage
from damage.observed_run import Sent

from gantry_remoting import RemotingError
from gantry_testing.local import Dialogue, properties_text
from gantry_wire import Command, RequestCode
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_record, decode_records, parse_offset_message_id

PRODUCERS: Final = "producers"
CLIENT_PROPERTIES: Final = ("UNIQ_KEY", "KEYS", "TAGS", "own")
"""Properties that clients set."""
PULL_BATCH: Final = 16
"""How many messages a pull asks for."""
PULLS_MAX: Final = 2_000
"""After so many pulls a queue counts as one without an end."""
NOTHING_YET: Final = "nothing yet"
"""The problem of a queue that is being rebuilt, or waits for a replica."""
SUCCESS, NOT_FOUND_CODE = 0, 22
TRANSACTION: Final = "4"
"""The system flag of a half message."""
COMMIT, ROLL_BACK = "8", "12"
"""The values of `commitOrRollback` that end a transaction."""
TIMEOUT_MS: Final = 10_000


class Answer(NamedTuple):
    """The reply to a send."""

    code: int
    remark: str
    queue_offset: int = -1
    """The offset in the queue; -1 if the reply has none, like the next."""
    physical_offset: int = -1


class Served(NamedTuple):
    """The messages of a queue in order, and the first answer that was neither a message nor the queue's end."""

    messages: list[Message]
    problem: str = ""
    damaged_records: Sequence[str] = ()
    """Faults of records that were served with code 0."""

    next_offset: int = 0
    """Queue offset at which a consumer would continue."""


def message_of(message: StoredMessage) -> Message:
    """Return a stored message with the properties that clients set."""
    properties = {name: value for name, value in message.properties.items() if name in CLIENT_PROPERTIES}
    return Message(
        message.topic, message.queue_id, message.queue_offset, message.physical_offset, message.size, message.body,
        properties,
    )  # fmt: skip


async def send(
    peer: Dialogue, topic: str, queue_id: int, body: bytes, *, sys_flag: str = "0", **properties: str
) -> Answer:
    """Send one message with its properties."""
    reply = await peer.send(
        body, topic=topic, queueId=str(queue_id), properties=properties_text(WAIT="true", **properties),
        sysFlag=sys_flag, bornTimestamp=str(time.time_ns() // 1_000_000), code=RequestCode.SEND_MESSAGE_V2,
    )  # fmt: skip
    if "queueOffset" not in reply.ext:
        return Answer(reply.code, reply.remark or "")
    physical_offset = parse_offset_message_id(reply.ext["msgId"])[2]
    return Answer(reply.code, reply.remark or "", int(reply.ext["queueOffset"]), physical_offset)


async def send_to_every_queue(peer: Dialogue, queues_of: Mapping[str, int], mark: str) -> list[Sent]:
    """Send one message to each queue of each topic and return the answers.

    ``queues_of`` has the number of queues of each topic, ``mark`` is the prefix of the unique keys.
    """
    sends: list[Sent] = []
    for topic, queues in queues_of.items():
        for queue_id in range(queues):
            unique = f"{mark}{topic[:4].encode().hex()}{queue_id:012X}"
            body = f"{unique} sent after".encode() * 4
            sent = Sent(topic, queue_id, unique, body, -1, "no answer")
            with suppress(RemotingError):
                answer = await send(peer, topic, queue_id, body, UNIQ_KEY=unique)
                sent = Sent(
                    topic,
                    queue_id,
                    unique,
                    body,
                    answer.code,
                    answer.remark,
                    answer.queue_offset,
                    answer.physical_offset,
                )
            sends.append(sent)
    return sends


async def send_half_message(peer: Dialogue, topic: str, queue_id: int, body: bytes, unique: str) -> PendingMessage:
    """Send a half message, which must be accepted."""
    answer = await send(
        peer, topic, queue_id, body, sys_flag=TRANSACTION, UNIQ_KEY=unique, TRAN_MSG="true", PGROUP=PRODUCERS
    )
    assert answer.code == SUCCESS, answer
    return PendingMessage(topic, queue_id, unique, body, answer.queue_offset, answer.physical_offset)


async def end_transaction(peer: Dialogue, half: PendingMessage, how: str) -> Command:
    """Commit or roll back a transaction."""
    fields = {
        "producerGroup": PRODUCERS, "tranStateTableOffset": str(half.half_offset),
        "commitLogOffset": str(half.physical_offset), "commitOrRollback": how,
        "fromTransactionCheck": "false", "msgId": half.unique,
    }  # fmt: skip
    return await peer.ask(RequestCode.END_TRANSACTION, fields, timeout_ms=TIMEOUT_MS)


def checked_transactions(peer: Dialogue) -> list[str]:
    """Return the unique keys of transactions that the broker has checked with this client."""
    found = []
    for command in peer.pushed:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            with suppress(RemoteProtocolError):
                found += [message.properties.get("UNIQ_KEY", "") for message in decode_records(command.body)]
    return found


async def read_queue(
    peer: Dialogue, topic: str, queue_id: int, *, tag: str = "*", group: str = "Judges", offset: int = 0
) -> Served:
    """Read everything from ``offset`` to the queue's end, as a consumer does."""
    messages: list[Message] = []
    damaged_records: list[str] = []
    for _ in range(PULLS_MAX):
        try:
            reply = await peer.pull(
                offset, topic=topic, queueId=str(queue_id), subscription=tag, maxMsgNums=str(PULL_BATCH),
                consumerGroup=group, code=RequestCode.PULL_MESSAGE, wait_ms=0,
            )  # fmt: skip
        except RemotingError as error:
            return Served(messages, f"at {offset}: {error!r}", damaged_records, offset)
        if reply.code == SUCCESS:
            good, bad = split_records(reply.body)
            messages += good
            damaged_records += [f"pulled at {offset}: {text}" for text in bad]
        following = int(reply.ext.get("nextBeginOffset", offset))
        if reply.code in (19, 20, 21) or reply.code == SUCCESS:  # Not found, retry at once, and moved.
            if following == offset:
                is_end = offset >= int(reply.ext.get("maxOffset", offset))
                return Served(messages, "" if is_end else f"at {offset}: {NOTHING_YET}", damaged_records, offset)
            if following < offset:
                return Served(messages, f"at {offset}: sent back to {following}", damaged_records, offset)
            offset = following
            continue
        return Served(messages, f"at {offset}: code {reply.code}: {reply.remark}", damaged_records, offset)
    return Served(messages, f"at {offset}: no end after {PULLS_MAX} pulls", damaged_records, offset)


def split_records(data: bytes) -> tuple[list[Message], list[str]]:
    """Return the good records of an answer, and the faults of the others."""
    good: list[Message] = []
    bad: list[str] = []
    position = 0
    while position < len(data):
        try:
            message = decode_record(data, position)
        except (RemoteProtocolError, ValueError) as error:
            bad.append(str(error))
            size = int.from_bytes(data[position : position + 4], "big")
            if not 0 < size <= len(data) - position:
                break
            position += size
            continue
        good.append(message_of(message))
        position += message.size
    return good, bad


async def query_by_key(peer: Dialogue, topic: str, key: str, *, is_unique: bool = False) -> list[Message]:
    """Return the messages that are found by a key."""
    fields = {"topic": topic, "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    if is_unique:
        fields["_UNIQUE_KEY_QUERY"] = "true"
    reply = await peer.ask(RequestCode.QUERY_MESSAGE, fields, timeout_ms=TIMEOUT_MS)
    return split_records(reply.body)[0] if reply.code == SUCCESS else []


async def view_by_id(peer: Dialogue, physical_offset: int) -> Message | None:
    """Return the message at an offset of the log, by its message id; None if the request is refused.

    A message whose record is damaged has no topic, and the fault as its body.
    """
    reply = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)}, timeout_ms=TIMEOUT_MS)
    if reply.code != SUCCESS:
        return None
    good, bad = split_records(reply.body)
    assert len(good) + len(bad) == 1, reply
    return good[0] if good else Message("", -1, -1, physical_offset, 0, bad[0].encode(), {})


async def commit_offset(peer: Dialogue, group: str, topic: str, queue_id: int, offset: int) -> None:
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset),
    }  # fmt: skip
    reply = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert reply.code == SUCCESS, reply


async def committed_offset(peer: Dialogue, group: str, topic: str, queue_id: int) -> int | None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
    reply = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields, timeout_ms=TIMEOUT_MS)
    return int(reply.ext["offset"]) if reply.code == SUCCESS else None


async def make_topic(peer: Dialogue, topic: str, queues: int) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    reply = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert reply.code == SUCCESS, reply


async def topics_of(peer: Dialogue) -> dict[str, tuple[int, int]]:
    """Return read and write queues of each topic."""
    document = await peer.ask_json(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = document["topicConfigTable"]
    return {name: (int(one["readQueueNums"]), int(one["writeQueueNums"])) for name, one in table.items()}


async def groups_of(peer: Dialogue) -> dict[str, int]:
    """Return the maximum of retries of each group."""
    document = await peer.ask_json(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return {name: int(one["retryMaxTimes"]) for name, one in document["subscriptionGroupTable"].items()}


async def setting_of(peer: Dialogue, key: str) -> str:
    reply = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in reply.body.decode().splitlines() if "=" in line)
    return lines.get(key, "")
