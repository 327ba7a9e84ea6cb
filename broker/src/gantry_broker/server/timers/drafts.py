"""Drafts of what the timers append: delivered messages, recall records, and copies of records that would expire.

A delivered message has RocketMQ's properties: REAL_TOPIC and REAL_QID are removed, and the times at which it was stored
and delivered are added. The other timer properties stay: TIMER_OUT_MS shows that it is no new timer. As in
`delay.drafts`, properties are not parsed, unless the record has a seal in the middle.
"""

from __future__ import annotations

from typing import Final

from gantry_broker.server.delay.drafts import copy_draft, encode_key, find_value, record_properties, store_timestamp
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.draft import Draft
from gantry_wire import properties as keys
from gantry_wire.hashing import tags_code
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.message import FLAG_BORN_HOST_V6, RECORD_HEAD

RECALL_TAG: Final = "_RECALL_TAG_"
"""RocketMQ's tag of recall records."""
RECALL_BODY: Final = b"0"
"""RocketMQ's body of recall records."""

_PAIR_END: Final = keys.VALUE_END.encode()
_REAL_TOPIC: Final = encode_key(keys.REAL_TOPIC)
_REAL_QUEUE: Final = encode_key(keys.REAL_QUEUE_ID)
_OUT: Final = encode_key(keys.TIMER_OUT_MS)
_ROLL_TIMES: Final = encode_key(keys.TIMER_ROLL_TIMES)
_COPY_OF: Final = encode_key(keys.TIMER_COPY_OF)


def delivered_draft(record: bytes, pairs: bytes, queue: ConsumeQueue, now_ms: int) -> Draft:
    """Return the message of a timer record with these properties for its own queue."""
    for name in (_REAL_TOPIC, _REAL_QUEUE, _COPY_OF):
        pairs = _without(pairs, name)
    stored_ms = store_timestamp(record, 0)
    times = (
        f"{keys.TIMER_ENQUEUE_MS}{keys.KEY_END}{stored_ms}{keys.VALUE_END}{keys.TIMER_DEQUEUE_MS}{keys.KEY_END}{now_ms}"
    )
    data = _joined(pairs[1:], times)
    return copy_draft(record, 0, queue, data)


def copied_draft(record: bytes, queue: ConsumeQueue, origin: int) -> Draft:
    """Return the next copy of a timer record, for the end of the timer queue: the same, with a reference to the first.

    Without room for that the copy has no reference, and the message may be delivered twice.
    """
    queue_offset = RECORD_HEAD.unpack_from(record, 0)[5]
    pairs = record_properties(record, 0, len(record))
    text = find_value(pairs, _ROLL_TIMES)
    times = int(text) + 1 if text.isdigit() and len(text) < 10 else 1
    for name in (_ROLL_TIMES, _COPY_OF):
        pairs = _without(pairs, name)
    added = (
        f"{keys.TIMER_ROLL_TIMES}{keys.KEY_END}{times}{keys.VALUE_END}"
        f"{keys.TIMER_COPY_OF}{keys.KEY_END}{origin},{queue_offset}"
    )
    return copy_draft(record, 0, queue, _joined(pairs[1:], added))


def recall_draft(record: bytes, queue: ConsumeQueue, *, unique: str, group: str, host: bytes, now_ms: int) -> Draft:
    """Return the recall record for a timer record, due at the same time, as RocketMQ 5.5 stores it.

    Its key is the unique id alone; that of RocketMQ 5.3, or with `appendTopicForTimerDeleteKey`, has the topic, too.
    """
    pairs = record_properties(record, 0, len(record))
    topic, out_ms = find_value(pairs, _REAL_TOPIC).decode(), int(find_value(pairs, _OUT))
    properties = {
        keys.TAGS: RECALL_TAG,
        keys.TIMER_DELETE_KEY: unique,
        keys.UNIQUE_KEY: unique,
        keys.TIMER_DELIVER_MS: str(out_ms + 1),
        keys.PRODUCER_GROUP: group,
        keys.TIMER_OUT_MS: str(out_ms),
        keys.REAL_TOPIC: topic,
        keys.REAL_QUEUE_ID: "0",
    }
    return Draft(
        queue=queue, body=RECALL_BODY, properties=keys.encode_properties(properties),
        sys_flag=FLAG_BORN_HOST_V6 if len(host) == 20 else 0, flag=0, born_timestamp_ms=now_ms, born_host=host,
        reconsume_times=0, prepared_offset=0, tags_code=tags_code(RECALL_TAG), delay_ms=0, keys=(unique,),
    )  # fmt: skip


def _without(pairs: bytes, mark: bytes) -> bytes:
    """Return the properties without every pair of this name."""
    start = pairs.find(mark)
    while start >= 0:
        end = pairs.find(_PAIR_END, start + len(mark))
        pairs = pairs[:start] + (b"" if end < 0 else pairs[end:])
        start = pairs.find(mark)
    return pairs


def _joined(properties: bytes, added: str) -> bytes:
    """Return the properties with further ones, or unchanged if they have no room."""
    start = properties if not properties or properties.endswith(_PAIR_END) else properties + _PAIR_END
    data = start + added.encode() + _PAIR_END
    return data if len(data) <= PROPERTIES_BYTES_MAX else properties
