"""The messages of transactions: half, op, committed, stored again, abandoned, and the check request.

    half       RMQ_SYS_TRANS_HALF_TOPIC, its destination in REAL_TOPIC and REAL_QID, and no transaction bits
    op         RMQ_SYS_TRANS_OP_HALF_TOPIC, tag "d", its body the queue offsets of half messages, each with a comma
    committed  the half message in its own topic, with the commit bits and the offset of the half message

This is RocketMQ's format, so that either broker can open the other's store. It lacks the reason for the end of a half
message: our op messages have it in a property of their own, and are found by the offset of the half message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from gantry_broker.server.transactions.halves import Half
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.draft import Draft
from gantry_wire import Command, RequestCode, names, oneway
from gantry_wire import properties as keys
from gantry_wire.commands.transactions import CheckTransactionState
from gantry_wire.hashing import tags_code
from gantry_wire.message import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    StoredMessage,
    encode_record,
)

OP_TAG: Final = "d"
"""RocketMQ's tag of an op message."""

IMMUNITY_SECONDS_MAX: Final = 10 * 365 * 86_400
"""Limit of the time that a message may set before its first check."""

IDENTITY_BYTES: Final = 16
"""The size of the digest that tells half messages apart: no producer can construct two with the same one."""


class Outcome(StrEnum):
    """The reason why a half message is not open any more."""

    COMMITTED = "committed"
    """The producer has committed it, and consumers get the message."""

    ROLLED_BACK = "rolled-back"
    """The producer has rolled it back."""

    GIVEN_UP = "given-up"
    """It was abandoned: checked too often, or too old."""

    STORED_AGAIN = "stored-again"
    """It continues as a later copy, because its producer is asked."""


ENDINGS: Final = {outcome.value: outcome for outcome in Outcome if outcome is not Outcome.STORED_AGAIN}
"""The outcomes that end a transaction, by the text in an op message."""


def immunity_ms(properties: dict[str, str]) -> int | None:
    """Return how long the producer wants to have before the first check; None if the message does not set it."""
    text = properties.get(keys.CHECK_IMMUNITY_SECONDS, "")
    return min(int(text), IMMUNITY_SECONDS_MAX) * 1000 if text.isascii() and text.isdigit() else None


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def parse_half(message: StoredMessage, timeout_ms: int, check_interval_ms: int, *, is_restored: bool) -> Half:
    """Return the transaction of a half message, which is checked after ``timeout_ms`` unless it has its own wait.

    A later copy of the message waits at least one ``check_interval_ms``.
    """
    properties = message.properties
    own_ms, checks = immunity_ms(properties), _count(properties.get(keys.TRANSACTION_CHECK_TIMES, ""))
    open_since_ms = _open_since_ms(message, checks)
    first_ms = open_since_ms + (timeout_ms if own_ms is None else own_ms)
    return Half(
        queue_offset=message.queue_offset,
        physical=message.physical_offset,
        group=properties.get(keys.PRODUCER_GROUP, ""),
        open_since_ms=open_since_ms,
        first_check_ms=max(first_ms, message.store_timestamp_ms + check_interval_ms) if checks else first_ms,
        immunity_ms=own_ms,
        checks=checks,
        origin=origin_of(message),
        identity=_identity_of(message),
        is_restored=is_restored,
    )


def _open_since_ms(message: StoredMessage, checks: int) -> int:
    """Return the time of the first copy, by a broker's clock if possible: a producer's may be days off."""
    if not checks:
        return message.store_timestamp_ms
    own = _count(message.properties.get(keys.TRANSACTION_OPEN_SINCE, ""))
    return own or min(message.born_timestamp_ms, message.store_timestamp_ms)


def origin_of(message: StoredMessage) -> int:
    """Return the queue offset of the first copy of a half message."""
    text = message.properties.get(keys.TRANSACTION_PREPARED_QUEUE_OFFSET, "")
    return min(_count(text), message.queue_offset) if text else message.queue_offset


def _identity_of(message: StoredMessage) -> bytes:
    """Return a digest of what every copy of a half message keeps, also in RocketMQ: its sender, time and content."""
    properties = message.properties
    texts = (properties.get(name, "") for name in (keys.REAL_TOPIC, keys.UNIQUE_KEY, keys.PRODUCER_GROUP))
    head = keys.VALUE_END.join((message.born_host.hex(), str(message.born_timestamp_ms), *texts, ""))
    digest = hashlib.blake2b(head.encode(), digest_size=IDENTITY_BYTES)
    digest.update(message.body)
    return digest.digest()


def parse_ended_offsets(message: StoredMessage) -> list[int]:
    """Return the offsets of the half messages that an op message ends. Raises ValueError if it is unreadable."""
    if message.properties.get(keys.TAGS) != OP_TAG:
        return []
    return [int(part) for part in message.body.decode("ascii").split(",") if part]


def op_draft(queue: ConsumeQueue, half: Half, ended: list[int], outcome: Outcome, *, host: bytes, now_ms: int) -> Draft:
    """Return the op message that ends these copies of a half message. It is indexed by them and by the first copy."""
    found_by = tuple(str(offset) for offset in sorted({half.origin, *ended}))
    found_text = keys.KEY_SEPARATOR.join(found_by)
    properties = {keys.TAGS: OP_TAG, keys.KEYS: found_text, keys.TRANSACTION_OUTCOME: outcome.value}
    return Draft(
        queue=queue, body="".join(f"{offset}," for offset in ended).encode(),
        properties=keys.encode_properties(properties), sys_flag=FLAG_BORN_HOST_V6 if len(host) == 20 else 0, flag=0,
        born_timestamp_ms=now_ms, born_host=host, reconsume_times=0, prepared_offset=0, tags_code=tags_code(OP_TAG),
        delay_ms=0, keys=found_by,
    )  # fmt: skip


def parse_outcome(message: StoredMessage) -> Outcome | None:
    """Return the outcome of a transaction from its op message; None if it has none."""
    return ENDINGS.get(message.properties.get(keys.TRANSACTION_OUTCOME, ""))


def is_op_for(message: StoredMessage, half_offset: int) -> bool:
    """Whether this is an op message of this broker about the half message or a later copy of it."""
    found_by = message.properties.get(keys.KEYS, "").split(keys.KEY_SEPARATOR)
    return message.topic == names.OP_HALF_TOPIC and str(half_offset) in found_by


def copy_draft(
    message: StoredMessage, queue: ConsumeQueue, properties: dict[str, str], *, bits: int = 0, prepared_offset: int = 0
) -> Draft:
    """Return a draft of the same message for another queue.

    Its transaction bits are replaced by ``bits``; ``prepared_offset`` is the physical offset of its half message.
    """
    properties = {name: value for name, value in properties.items() if name != keys.RECORD_CRC}
    return Draft(
        queue=queue, body=message.body, properties=keys.encode_properties(properties),
        sys_flag=message.sys_flag & ~(TRANSACTION_MASK | FLAG_STORE_HOST_V6) | bits, flag=message.flag,
        born_timestamp_ms=message.born_timestamp_ms, born_host=message.born_host,
        reconsume_times=message.reconsume_times, prepared_offset=prepared_offset,
        tags_code=tags_code(properties.get(keys.TAGS)), delay_ms=0, keys=keys.message_keys(properties),
    )  # fmt: skip


def committed_draft(message: StoredMessage, queue: ConsumeQueue, timer: Mapping[str, str] | None = None) -> Draft:
    """Return the committed message of a half message. It keeps all properties, as in RocketMQ, except one of ours.

    ``timer`` has the properties of a timer message, whose delay begins with the commit, for the timer queue.
    """
    properties = {
        name: value for name, value in (timer or message.properties).items() if name != keys.TRANSACTION_OPEN_SINCE
    }
    return copy_draft(message, queue, properties, bits=TRANSACTION_COMMIT, prepared_offset=message.physical_offset)


def renewed_draft(message: StoredMessage, queue: ConsumeQueue, half: Half) -> Draft:
    """Return the next copy of a half message, with its check count increased by one."""
    properties = {
        **message.properties,
        keys.TRANSACTION_CHECK_TIMES: str(half.checks + 1),
        keys.TRANSACTION_PREPARED_QUEUE_OFFSET: str(half.origin),
        keys.TRANSACTION_OPEN_SINCE: str(half.open_since_ms),
    }
    return copy_draft(message, queue, properties)


def resumed_draft(message: StoredMessage, queue: ConsumeQueue) -> Draft:
    """Return the new half message of an abandoned transaction, with a check count of 0."""
    dropped = (keys.TRANSACTION_PREPARED_QUEUE_OFFSET, keys.TRANSACTION_OPEN_SINCE)
    properties = {name: value for name, value in message.properties.items() if name not in dropped}
    return copy_draft(message, queue, {**properties, keys.TRANSACTION_CHECK_TIMES: "0"})


def find_destination(message: StoredMessage) -> tuple[str, int] | None:
    """Return the destination topic and queue of a half message; None if they are missing or invalid."""
    properties = message.properties
    topic, queue_text = properties.get(keys.REAL_TOPIC, ""), properties.get(keys.REAL_QUEUE_ID, "")
    if names.topic_fault(topic) is not None or not (queue_text.isascii() and queue_text.isdigit()):
        return None
    return topic, int(queue_text)


def check_request(message: StoredMessage, topic: str, queue_id: int, broker_name: str) -> Command:
    """Return the check request for the producer, with the message as it would be in its own topic."""
    unique = message.properties.get(keys.UNIQUE_KEY, message.offset_message_id)
    ext = CheckTransactionState(
        tran_state_table_offset=message.queue_offset,
        commit_log_offset=message.physical_offset,
        topic=topic,
        msg_id=unique,
        transaction_id=unique,
        offset_msg_id=message.offset_message_id,
        bname=broker_name,
    ).write()
    body = encode_record(replace(message, topic=topic, queue_id=queue_id))
    return oneway(RequestCode.CHECK_TRANSACTION_STATE, ext, body)
