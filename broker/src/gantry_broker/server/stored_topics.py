"""Which topic a stored message belongs to, for whoever must know before it is shown or moved.

A message that waits for its delay, or for the end of its transaction, lies in a topic of the broker's own and says in
its properties where it is meant to go: that is its topic.
"""

from typing import Final

from gantry_access.guard import TopicAt
from gantry_broker.store.message_store import MessageStore
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import decode_record

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
        return message.properties.get(keys.REAL_TOPIC) if message.topic in WAITING_TOPICS else message.topic

    return topic_at
