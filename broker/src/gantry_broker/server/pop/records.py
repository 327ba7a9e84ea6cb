"""The records of pop consumption in the log, and the messages that are delivered again.

    ck         a checkpoint: which messages of a queue a pop has returned, when, and for how long they are invisible
    ack, bAck  one message, or several, of a checkpoint are done
    pos        the next offset of a group in a queue; with ``v`` its checkpoints before are void
    state      the next offsets of all groups, old open checkpoints, and from where the other records have to be read

They are in the topic ``rmq_sys_REVIVE_LOG_<cluster>``. Queues 0 to 7 are RocketMQ's revive queues: all records about
one queue of a group are in the same revive queue, so that their order is that of the log. Queue 8 has the records of
kind ``state``, of which the last one counts. RocketMQ reads checkpoints and acks with these JSON fields, and ignores
the other two kinds. It takes the time up to which it has read from a property, as if each record were a timer message;
here that is the time of the append.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec
from msgspec.structs import replace

from gantry_broker.server.core.broker_properties import BROKER_PROPERTIES
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.draft import Draft
from gantry_wire import properties as keys
from gantry_wire.commands.fields import Int32, Int64
from gantry_wire.errors import LocalProtocolError
from gantry_wire.hashing import tags_code
from gantry_wire.message import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    TRANSACTION_MASK,
    StoredMessage,
    encode_record,
)

REVIVE_QUEUES: Final = 8
"""The number of revive queues, as in RocketMQ."""
STATE_QUEUE: Final = REVIVE_QUEUES
"""The queue of the records of kind ``state``."""

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
POSITION_TAG: Final = "pos"
STATE_TAG: Final = "state"

STATE_BYTES_MAX: Final = 64 << 20
"""The limit of a state after its decompression, far above that of 100,000 queues."""

_CODES: Final = {tag: tags_code(tag) for tag in (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG, POSITION_TAG, STATE_TAG)}
_PROPERTIES: Final = {tag: keys.encode_properties({keys.TAGS: tag, keys.TIMER_DELIVER_MS: "%d"}) for tag in _CODES}
"""The properties of each kind of record, to be formatted with the time."""

_NOT_COPIED: Final = BROKER_PROPERTIES | {
    keys.DELAY_LEVEL, keys.REAL_TOPIC, keys.REAL_QUEUE_ID, keys.TIMER_DELAY_SECONDS, keys.TIMER_DELAY_MS,
    keys.TIMER_DELIVER_MS,
}  # fmt: skip
"""Properties that a message has not any more when it is delivered again: it is neither delayed nor popped then."""

RECONSUME_TIMES_MAX: Final = (1 << 31) - 1
"""The limit of the field in a record."""


class CheckpointRecord(msgspec.Struct, gc=False, omit_defaults=True):
    """The body of a checkpoint, with RocketMQ's names for its fields."""

    start_offset: Int64 = msgspec.field(name="so")
    pop_time: Int64 = msgspec.field(name="pt")
    invisible_time: Int64 = msgspec.field(name="it")
    queue_id: Int32 = msgspec.field(name="q")
    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="c")
    count: int = msgspec.field(name="n", default=0)
    """The number of messages."""

    bit_map: int = msgspec.field(name="bm", default=0)
    """The messages that were acked before the checkpoint was stored, which only RocketMQ does."""

    distances: list[int] | None = msgspec.field(name="d", default=None)
    """The distance of each message from the start; None if they follow each other from the start on."""

    broker_name: str | None = msgspec.field(name="bn", default=None)
    is_suspended: bool = msgspec.field(name="sp", default=False)
    """Whether the delivery did not fail, so that the next one is not counted; since RocketMQ 5.5."""

    @property
    def offsets(self) -> range | tuple[int, ...]:
        """The queue offsets of the messages."""
        if not self.distances:
            return range(self.start_offset, self.start_offset + self.count)
        return tuple(self.start_offset + distance for distance in self.distances)


class AckRecord(msgspec.Struct, gc=False, omit_defaults=True):
    """The body of an ack of one message or of several, with RocketMQ's names for its fields."""

    start_offset: Int64 = msgspec.field(name="so")
    pop_time: Int64 = msgspec.field(name="pt")
    queue_id: Int32 = msgspec.field(name="q")
    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="c")
    ack_offset: Int64 = msgspec.field(name="ao", default=-1)
    several: list[Int64] | None = msgspec.field(name="aol", default=None)
    broker_name: str | None = msgspec.field(name="bn", default=None)
    old_ack_offset: Int64 = msgspec.field(name="ackOffset", default=-1)
    """The same as ``ack_offset`` by its older name, which RocketMQ reads, too; it is not written."""

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of the acked messages."""
        if self.several is not None:
            return self.several
        return [self.ack_offset if self.ack_offset >= 0 else self.old_ack_offset]


class PositionRecord(msgspec.Struct, gc=False):
    """The next offset of a group in a queue, if it follows from no checkpoint."""

    offset: Int64 = msgspec.field(name="so")
    """The next offset; -1 if the group has none any more."""

    queue_id: Int32 = msgspec.field(name="q")
    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="c")
    is_void: bool = msgspec.field(name="v", default=False)
    """Whether the checkpoints before this record are void: their messages are not delivered again."""


class OldCheckpoint(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """An open checkpoint in a state, with its acks so far: a start need not read its records."""

    record_offset: Int64
    start_offset: Int64
    pop_time: Int64
    invisible_time: Int64
    count: int
    acked: int = 0
    distances: list[int] | None = None
    broker_name: str | None = None
    is_suspended: bool = False
    foreign_queue: int = -1
    """The revive queue of a checkpoint that a RocketMQ broker has stored."""

    def record(self, topic: str, group: str, queue_id: int) -> CheckpointRecord:
        """Return the record of this checkpoint, with its acks."""
        return CheckpointRecord(
            start_offset=self.start_offset, pop_time=self.pop_time, invisible_time=self.invisible_time,
            queue_id=queue_id, topic=topic, group=group, count=self.count, bit_map=self.acked,
            distances=self.distances, broker_name=self.broker_name, is_suspended=self.is_suspended,
        )  # fmt: skip


class StateRecord(msgspec.Struct, gc=False):
    """A summary of the records before it, from which reading starts."""

    starts: list[Int64] = msgspec.field(name="r")
    """For each revive queue, the offset of the record of the oldest open checkpoint. A reader that does not know
    ``old`` starts here: an earlier version, or RocketMQ, by its committed offset."""

    ends: list[Int64] = msgspec.field(name="e")
    """For each revive queue, the offset before which the positions of this state have all records."""

    positions: dict[str, dict[int, int]] = msgspec.field(name="p", default_factory=dict)
    """The next offset of each queue, by topic@group and queue id."""

    recent_starts: list[Int64] | None = msgspec.field(name="s", default=None)
    """For each revive queue, the offset of the first record that has to be read, given ``old``; None without it."""

    old: dict[str, dict[int, list[OldCheckpoint]]] = msgspec.field(name="o", default_factory=dict)
    """The open checkpoints whose records are before ``recent_starts``, by topic@group and queue id."""


PopRecord = CheckpointRecord | AckRecord | PositionRecord
"""A record of a revive queue."""

_KINDS: Final[dict[str, type[CheckpointRecord | AckRecord | PositionRecord]]] = {
    CHECKPOINT_TAG: CheckpointRecord,
    ACK_TAG: AckRecord,
    BATCH_ACK_TAG: AckRecord,
    POSITION_TAG: PositionRecord,
}


def revive_queue_of(topic: str, group: str, queue_id: int) -> int:
    """Return the revive queue for the records about a queue of a group. It must never change: its order counts."""
    return zlib.crc32(f"{topic}@{group}@{queue_id}".encode()) % REVIVE_QUEUES


def parse_record(message: StoredMessage) -> PopRecord | None:
    """Return the record of a message in a revive queue; None for another kind. Raises ValueError if it is damaged."""
    kind = _KINDS.get(message.properties.get(keys.TAGS, ""))
    return None if kind is None else msgspec.json.decode(message.body, type=kind)


def encode_state(state: StateRecord) -> bytes:
    """Return the compressed body of a state."""
    return zlib.compress(msgspec.json.encode(state), 1)


def parse_state(message: StoredMessage) -> StateRecord:
    """Return the state of a message. Raises ValueError if it is damaged."""
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(message.body, STATE_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(f"the body is not compressed: {error}") from error
    if not inflater.eof:
        raise ValueError("the compressed body is torn or too large")
    state = msgspec.json.decode(data, type=StateRecord)
    recent = state.starts if state.recent_starts is None else state.recent_starts
    if not len(state.starts) == len(state.ends) == len(recent) == REVIVE_QUEUES:
        raise ValueError(f"a state of {len(state.starts)} revive queues, expected {REVIVE_QUEUES}")
    return state


def record_draft(queue: ConsumeQueue, tag: str, body: bytes, *, host: bytes, now_ms: int) -> Draft:
    """Return the draft of a record. It is found by its queue alone, so the key index does not list it."""
    return Draft(
        queue=queue, body=body, properties=_PROPERTIES[tag] % now_ms,
        sys_flag=FLAG_BORN_HOST_V6 if len(host) == 20 else 0, flag=0, born_timestamp_ms=now_ms, born_host=host,
        reconsume_times=0, prepared_offset=0, tags_code=_CODES[tag], delay_ms=0, keys=(),
    )  # fmt: skip


# ------- messages that are delivered again


def retry_draft(message: StoredMessage, queue: ConsumeQueue, extra: dict[str, str], failures: int = 1) -> Draft:
    """Return a message as it is delivered again, with ``extra`` for properties that it does not have yet.

    It has as many ``failures`` more in ``reconsume_times``. Without space for the extra properties it has none of them.
    """
    kept = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    properties = {**extra, **kept}
    try:
        encoded = keys.encode_properties(properties)
    except LocalProtocolError:
        encoded = keys.encode_properties(kept)
    return Draft(
        queue=queue, body=message.body, properties=encoded,
        sys_flag=message.sys_flag & ~(TRANSACTION_MASK | FLAG_STORE_HOST_V6), flag=message.flag,
        born_timestamp_ms=message.born_timestamp_ms, born_host=message.born_host,
        reconsume_times=min(message.reconsume_times + failures, RECONSUME_TIMES_MAX), prepared_offset=0,
        tags_code=tags_code(properties.get(keys.TAGS)), delay_ms=0, keys=keys.message_keys(properties),
    )  # fmt: skip


def with_receipt(message: StoredMessage, topic: str, receipt: str) -> bytes | None:
    """Return the record of a redelivered message as a consumer gets it: with its own topic, and with its receipt.

    None if its properties have no space for the receipt. Then the consumer gets it with the retry topic, from which
    clients make the same receipt.
    """
    properties = {name: value for name, value in message.properties.items() if name != keys.RECORD_CRC}
    try:
        encoded = keys.encode_properties({**properties, keys.POP_CHECKPOINT: receipt})
    except LocalProtocolError:
        return None
    return encode_record(replace(message, topic=topic, properties_bytes=encoded))


def given_up_properties(message: StoredMessage, topic: str) -> dict[str, str]:
    """Return the properties of a message that goes to the dead letters, besides its own: where it came from."""
    return {keys.RETRY_TOPIC: topic, keys.ORIGIN_MESSAGE_ID: message.offset_message_id}
