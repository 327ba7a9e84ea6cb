"""Message properties: `name 0x01 value 0x02`, repeated.

The names that the broker itself reads or writes are constants here, in RocketMQ's spelling. Parsing is lenient as
Java's is (a last pair may lack its 0x02, a pair without 0x01 is skipped), except that ``parse_properties`` keeps an
empty value, as its sender wrote it, and Java (4.1 to 5.3) skips its pair; writing is strict.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gantry_wire.errors import LocalProtocolError
from gantry_wire.limits import PROPERTIES_BYTES_MAX

KEY_END: Final = "\x01"
"""Ends the name of a property."""
VALUE_END: Final = "\x02"
PAIR_END: Final = 2
"""``VALUE_END`` as the last byte of encoded properties."""

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT_STORE: Final = "WAIT"
"""Whether the sender waits until the message is as durable as the mode promises."""
DELAY_LEVEL: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""The original topic of a message that was sent back."""
REAL_TOPIC: Final = "REAL_TOPIC"
"""The destination of a message that waits in a system topic."""
REAL_QUEUE_ID: Final = "REAL_QID"
"""The queue of that destination."""
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""How long a producer has to end a transaction before the first check."""
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
"""The queue offset of the first copy of a half message, on its later copies."""
TRANSACTION_OPEN_SINCE: Final = "GANTRY_OPEN_SINCE"
"""The time at which a half message was first stored, on its later copies."""
TRANSACTION_OUTCOME: Final = "GANTRY_OUTCOME"
"""The outcome of a transaction, on its op message."""
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""The id of the first copy of a message that was sent back."""
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
MESSAGE_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQUE_KEY: Final = "UNIQ_KEY"
"""The unique id that the client gave the message."""
CLUSTER: Final = "CLUSTER"
RECORD_CRC: Final = "__CRC32#"
"""The seal of a record (see `seal`)."""
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
"""The priority of a message, from RocketMQ 5.4 on: the number of its queue in a topic that is read by priority."""
SHARDING_KEY: Final = "__SHARDINGKEY"
"""The message group of an SDK of RocketMQ 5: messages of a group are consumed in order."""
TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""The last millisecond of the delay of a stored timer message: the message is due one precision of its writer later."""
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
"""When a delivered timer message was stored as a timer."""
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
"""When a delivered timer message was delivered."""
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
"""How often a timer message was stored again before its log file expired."""
TIMER_DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"
"""On a recall record: the unique id of the recalled message, or topic and unique id."""
TIMER_COPY_OF: Final = "TIMER_COPY_OF"
"""On a timer record that Gantry has stored again: the queue offsets of its first copy and of the copy before it."""
POP_CHECKPOINT: Final = "POP_CK"
"""A property of pop consumption, which only a broker may set."""
FIRST_POP_TIME: Final = "1ST_POP_TIME"
"""When a message that is delivered again was popped for the first time."""
BORN_HOST: Final = "__BORNHOST"
INNER_NUM: Final = "INNER_NUM"
"""The number of messages in a record that is a batch."""
INNER_BASE: Final = "INNER_BASE"
"""The queue offset of the first of them."""
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
"""The id that a reply shares with its request."""

REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
"""The client id of the requester."""

TIME_TO_LIVE: Final = "TTL"
"""The number of milliseconds that the requester waits."""

MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY_TYPE: Final = "reply"
"""The message type by which Java's clients choose the request codes of replies."""

PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
"""The time at which the broker pushed a reply."""

KEY_SEPARATOR: Final = " "

RESERVED: Final = frozenset(
    {
        KEYS, TAGS, WAIT_STORE, DELAY_LEVEL, RETRY_TOPIC, REAL_TOPIC, REAL_QUEUE_ID,
        TRANSACTION_PREPARED, PRODUCER_GROUP, MIN_OFFSET, MAX_OFFSET, "BUYER_ID",
        ORIGIN_MESSAGE_ID, "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", RECONSUME_TIME,
        MESSAGE_REGION, TRACE_ON, UNIQUE_KEY, "EXTEND_UNIQ_INFO", MAX_RECONSUME_TIMES,
        "CONSUME_START_TIME", INNER_NUM, INNER_BASE, "DUP_INFO", CHECK_IMMUNITY_SECONDS,
        TRANSACTION_PREPARED_QUEUE_OFFSET, TRANSACTION_ID, TRANSACTION_CHECK_TIMES, INSTANCE_ID,
        CORRELATION_ID, REPLY_TO_CLIENT, TIME_TO_LIVE, "ARRIVE_TIME", PUSH_REPLY_TIME,
        CLUSTER, MESSAGE_TYPE, POP_CHECKPOINT, "POP_CK_OFFSET", FIRST_POP_TIME, SHARDING_KEY,
        "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "TRACE_CONTEXT",
        TIMER_DELAY_SECONDS, TIMER_DELIVER_MS, TIMER_DELAY_MS, BORN_HOST, "BORN_TIMESTAMP",
        "__RMQ.TRANSIENT.TOPIC_SYS_FLAG", "__RMQ.TRANSIENT.GROUP_SYS_FLAG", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", RECORD_CRC,
        "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", PRIORITY, "__LITE_TOPIC",
    }
)  # fmt: skip
"""RocketMQ's list of reserved properties: those of the system, which applications neither set nor see."""


def split_keys(text: str) -> tuple[str, ...]:
    """Return the keys in the text of ``KEYS``, which RocketMQ separates by spaces only."""
    return tuple(filter(None, text.split(KEY_SEPARATOR)))


def index_keys(unique: str | None, text: str | None) -> tuple[str, ...]:
    """Return the keys under which the key index lists a message: its unique key, then every key of its user.

    The append, the recovery and a reader of the index must agree on them.
    """
    keys = split_keys(text) if text else ()
    return (unique, *keys) if unique else keys


def message_keys(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys under which the key index lists a message with these properties."""
    return index_keys(properties.get(UNIQUE_KEY), properties.get(KEYS))


def parse_properties(text: str) -> dict[str, str]:
    """Return the pairs of a property string, also those with empty values. The last of two equal names wins."""
    pairs: dict[str, str] = {}
    for pair in text.split(VALUE_END):
        name, separator, value = pair.partition(KEY_END)
        if separator and name:
            pairs[name] = value
    return pairs


PropertyMark = tuple[str, str]
"""A property's name, and the text with which a pair of that name begins after the end of another pair."""


def property_marks(names: Iterable[str]) -> tuple[PropertyMark, ...]:
    """Return the search marks of `names` for `select_properties`."""
    return tuple((name, f"{VALUE_END}{name}{KEY_END}") for name in names)


def select_properties(text: str, marks: Iterable[PropertyMark]) -> dict[str, str]:
    """Return those properties of `text` that `marks` name and that are not empty, without parsing the others.

    Java's parser skips pairs without a value, so an earlier pair of the same name counts then.
    """
    text = VALUE_END + text
    found: dict[str, str] = {}
    for name, mark in marks:
        start = text.rfind(mark)
        while start >= 0:
            value_start = start + len(mark)
            value_end = text.find(VALUE_END, value_start)
            value = text[value_start:] if value_end < 0 else text[value_start:value_end]
            if value:
                found[name] = value
                break
            start = text.rfind(mark, 0, start)
    return found


def format_properties(pairs: Mapping[str, str]) -> str:
    """Return the property string of `pairs`. Raises LocalProtocolError for invalid names or values."""
    text = "".join([f"{name}{KEY_END}{value}{VALUE_END}" for name, value in pairs.items()])
    if text.count(KEY_END) != len(pairs) or text.count(VALUE_END) != len(pairs) or "" in pairs:
        for name, value in pairs.items():
            if not name or KEY_END in name or VALUE_END in name or KEY_END in value or VALUE_END in value:
                raise LocalProtocolError(f"property {name[:64]!r} has an empty name or a control separator in it")
    return text


def terminate_properties(data: bytes) -> bytes:
    """Return `data` with the 0x02 that its last pair may lack, if it fits, so that another pair can follow."""
    return data if not data or data.endswith(b"\x02") or len(data) >= PROPERTIES_BYTES_MAX else data + b"\x02"


def format_limited_properties(pairs: Mapping[str, str]) -> str:
    """Return `format_properties`. Raises LocalProtocolError for more than 32767 bytes."""
    text = format_properties(pairs)
    size = len(text) if text.isascii() else len(text.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"properties take {size} bytes, the format allows {PROPERTIES_BYTES_MAX}")
    return text


def encode_properties(pairs: Mapping[str, str]) -> bytes:
    """Return what `format_limited_properties` returns as bytes."""
    return format_limited_properties(pairs).encode()
