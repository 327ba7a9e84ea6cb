"""Which topic a stored message belongs to, for whoever must know before it is shown or moved.

A message that waits for its delay, or for the end of its transaction, lies in a topic of the broker's own and says in
its properties where it is meant to go: that is its topic.

Bodies and properties are their senders', and so whole records can be made up inside of them; a checksum is no secret.
So what lies at an offset is believed only where its own queue has a message, at just that offset. A record that no
queue shows yet is no message to anybody but for a half message, which its producer may end before that; how it is
ended is judged by the queue (`transactions.service`).
"""

from typing import Final

from gantry_access.guard import TopicAt
from gantry_broker.store.message_store import MessageStore
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_record

WAITING_TOPICS: Final = frozenset({names.SCHEDULE_TOPIC, names.HALF_TOPIC, names.OP_HALF_TOPIC})


def topics_of(store: MessageStore) -> TopicAt:
    """A look-up in a store that is open and belongs to the caller's thread."""

    def topic_at(offset: int) -> str | None:
        record = store.message_at(offset) if offset >= 0 else None
        if record is None:
            return None
        try:
            message = decode_record(record)
        except RemoteProtocolError:
            return None
        if not is_in_its_queue(store, message, offset):
            return None
        return message.properties.get(keys.REAL_TOPIC) if message.topic in WAITING_TOPICS else message.topic

    return topic_at


def is_in_its_queue(store: MessageStore, message: StoredMessage, offset: int) -> bool:
    """Whether the queue that a record names has it where it was found."""
    if offset >= store.dispatched:
        return message.topic == names.HALF_TOPIC
    queue = store.find_queue(message.topic, message.queue_id)
    unit = None if queue is None else queue.unit(message.queue_offset)
    return unit is not None and unit[0] == offset
