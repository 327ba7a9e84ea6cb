"""A received message as one to send: the same id, keys, tags, body and properties of its sender's.

What clients, brokers and retries have written beside them is about the old journey and is left behind: most of it
would merely be wrong, some of it would send the new message somewhere else (a delay, a half of a transaction).
"""

from typing import Final

from gantry_client.messages import SHARDING_KEY, Message, ReceivedMessage
from gantry_wire import properties as names

_ARGUMENTS: Final = frozenset({names.KEYS, names.TAGS, names.WAIT_STORE, names.DELAY_LEVEL, names.UNIQUE_KEY})
"""What is an argument of the new message, or its id."""

_OF_THE_JOURNEY: Final = frozenset(
    {
        names.RETRY_TOPIC,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.ORIGIN_MESSAGE_ID,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.MESSAGE_REGION,
        names.TRACE_ON,
        names.CLUSTER,
        names.RECORD_CRC,
        names.POP_CHECKPOINT,
        names.TRANSACTION_PREPARED,
        names.PRODUCER_GROUP,
        names.TIMER_DELAY_SECONDS,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.BORN_HOST,
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "CONSUME_START_TIME",
        "1ST_POP_TIME",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
    }
)


def message_again(received: ReceivedMessage, topic: str) -> Message:
    """What `received` was when it was sent. Raises UnreadableBody."""
    left_out = _ARGUMENTS | _OF_THE_JOURNEY | {SHARDING_KEY}
    return Message(
        topic,
        received.body,
        tags=received.tags,
        keys=received.keys,
        properties={name: value for name, value in received.properties.items() if name not in left_out},
        sharding_key=received.properties.get(SHARDING_KEY),
        flag=received.flag,
    )
