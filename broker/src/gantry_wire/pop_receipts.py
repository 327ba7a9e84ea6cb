"""Receipts of popped messages, and the texts in the reply to a pop from which a consumer makes them.

    receipt        startOffset popTime invisibleTime reviveQid retryFlag brokerName queueId msgOffset
    start offsets  retryFlag queueId startOffset ; ...
    offsets        retryFlag queueId msgOffset,msgOffset,... ; ...
    order counts   retryFlag queueId count ; ...   or   retryFlag qo<queueId>%<msgOffset> count ; ...

The texts name a queue by its retry flag and its id. A receipt is not signed: a broker compares what it says with its
own records of what was popped, and trusts none of it. Retry flags: 0 for the topic itself, 1 and 2 for the two kinds
of names of retry topics.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gantry_wire import names

RETRY_FLAG_NONE: Final = "0"
RETRY_FLAG_V1: Final = "1"
RETRY_FLAG_V2: Final = "2"

ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue in receipts of messages that are consumed in order, which have no checkpoint."""

RECEIPT_CHARACTERS_MAX: Final = 1024
"""The limit of a receipt: six numbers and a broker's name take far less."""

_PARTS_MIN: Final = 6
"""Old clients leave out the queue and the offset of the message, which an ack has in its own fields, too."""

_OFFSET_MAX: Final = (1 << 63) - 1
_QUEUE_MAX: Final = (1 << 31) - 1

QueueKey = tuple[str, int]
"""A queue in these texts: its retry flag and its id."""


class ReceiptError(ValueError):
    """A receipt, or a text in the reply to a pop, is malformed."""


class Receipt(NamedTuple):
    """The receipt of one popped message."""

    start_offset: int
    """The offset of the checkpoint: the queue offset at which the pop began to read."""

    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    retry_flag: str
    broker_name: str
    queue_id: int = -1
    queue_offset: int = -1

    @property
    def text(self) -> str:
        """The receipt as clients keep it in the property ``POP_CK``."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue} {self.retry_flag} "
            f"{self.broker_name} {self.queue_id} {self.queue_offset}"
        )

    @property
    def is_ordered(self) -> bool:
        """Whether the message is consumed in order, without a checkpoint."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def queue_topic(self, topic: str, group: str) -> str:
        """Return the topic of the message's queue: ``topic``, or a retry topic of ``group`` for it."""
        return queue_topic(topic, group, self.retry_flag)


_WHOLE: Final = re.compile(
    r"(\d{1,19}) (\d{1,19}) (\d{1,19}) (\d{1,19}) ([012]) ([^ ]*) (\d{1,19}) (\d{1,19})(?: .*)?", re.ASCII | re.DOTALL
)
"""A receipt with all parts, and any further ones."""


def parse_receipt(text: str) -> Receipt:
    """Return the receipt. Raises ReceiptError for any other text."""
    whole = _WHOLE.fullmatch(text) if len(text) <= RECEIPT_CHARACTERS_MAX else None
    if whole is not None:  # as almost all receipts are
        start_text, pop_text, invisible_text, revive_text, flag, broker, queue_text, offset_text = whole.groups()
        start, pop_ms, invisible_ms, offset = int(start_text), int(pop_text), int(invisible_text), int(offset_text)
        revive, queue = int(revive_text), int(queue_text)
        if max(start, pop_ms, invisible_ms, offset) <= _OFFSET_MAX and max(revive, queue) <= _QUEUE_MAX:
            return Receipt(start, pop_ms, invisible_ms, revive, flag, broker, queue, offset)
    return _parse_parts(text)


def _parse_parts(text: str) -> Receipt:
    parts = text.split(" ") if len(text) <= RECEIPT_CHARACTERS_MAX else []
    if len(parts) < _PARTS_MIN:
        raise ReceiptError(
            f"{text[:128]!r} is not a receipt: it has {len(parts)} parts, but a receipt at least {_PARTS_MIN}"
        )
    start, pop_time, invisible = (_number(part, _OFFSET_MAX, text) for part in parts[:3])
    revive_queue, retry_flag, broker_name = _number(parts[3], _QUEUE_MAX, text), parts[4], parts[5]
    if retry_flag not in (RETRY_FLAG_NONE, RETRY_FLAG_V1, RETRY_FLAG_V2):
        raise ReceiptError(f"{text[:128]!r} is not a receipt: its retry flag is {retry_flag[:16]!r}, not 0, 1 or 2")
    queue_id = _number(parts[6], _QUEUE_MAX, text) if len(parts) > 6 else -1
    queue_offset = _number(parts[7], _OFFSET_MAX, text) if len(parts) > 7 else -1
    return Receipt(start, pop_time, invisible, revive_queue, retry_flag, broker_name, queue_id, queue_offset)


def retry_flag_of(topic: str) -> str:
    """Return the retry flag of a queue's topic."""
    if not topic.startswith(names.RETRY_PREFIX):
        return RETRY_FLAG_NONE
    return RETRY_FLAG_V2 if names.POP_RETRY_SEPARATOR_V2 in topic else RETRY_FLAG_V1


def queue_topic(topic: str, group: str, retry_flag: str) -> str:
    """Return the topic of a queue with this retry flag, of a message that was sent to ``topic``."""
    if retry_flag == RETRY_FLAG_NONE:
        return topic
    return names.pop_retry_topic(topic, group, is_v2=retry_flag == RETRY_FLAG_V2)


# ------- the texts in a reply


def format_start_offsets(starts: Iterable[tuple[str, int, int]]) -> str:
    """Return the text of (retry flag, queue id, start offset) of each queue."""
    return ";".join(f"{flag} {queue_id} {start}" for flag, queue_id, start in starts)


def format_offsets(queues: Iterable[tuple[str, int, Sequence[int]]]) -> str:
    """Return the text of (retry flag, queue id, offsets of the messages) of each queue."""
    return ";".join(f"{flag} {queue_id} {','.join(map(str, offsets))}" for flag, queue_id, offsets in queues)


def format_order_counts(flag: str, queue_id: int, count: int, delivered: Mapping[int, int]) -> str:
    """Return the text of how often ``count`` messages of a queue were delivered before: ``delivered``, by offset.

    The entry of the queue is the least of them, for old clients, which read no other.
    """
    entries = [f"{flag} qo{queue_id}%{offset} {times}" for offset, times in delivered.items()]
    least = min(delivered.values(), default=0) if len(delivered) == count else 0
    return ";".join([*entries, f"{flag} {queue_id} {least}"])


def parse_start_offsets(text: str | None) -> dict[QueueKey, int]:
    """Return the start offset of each queue. Raises ReceiptError."""
    return {key: _number(value, _OFFSET_MAX, value) for key, value in _entries(text)}


def parse_offsets(text: str | None) -> dict[QueueKey, list[int]]:
    """Return the offsets of the messages of each queue. Raises ReceiptError."""
    return {key: [_number(one, _OFFSET_MAX, value) for one in value.split(",")] for key, value in _entries(text)}


def parse_order_counts(text: str | None) -> dict[tuple[str, str], int]:
    """Return the delivery counts by (retry flag, queue id or ``qo<queueId>%<offset>``). Raises ReceiptError."""
    counts: dict[tuple[str, str], int] = {}
    for entry in filter(None, (text or "").split(";")):
        flag, key, count = _split(entry)
        counts[flag, key] = _number(count, _QUEUE_MAX, entry)
    return counts


def _entries(text: str | None) -> Iterable[tuple[QueueKey, str]]:
    for entry in filter(None, (text or "").split(";")):
        flag, queue, value = _split(entry)
        yield (flag, _number(queue, _QUEUE_MAX, entry)), value


def _split(entry: str) -> list[str]:
    parts = entry.split(" ")
    if len(parts) != 3:
        raise ReceiptError(f"{entry[:128]!r} is not an entry of three parts")
    return parts


def _number(text: str, value_max: int, whole: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > value_max:
        raise ReceiptError(f"{whole[:128]!r}: {text[:32]!r} is not a number from 0 to {value_max}")
    return int(text)
