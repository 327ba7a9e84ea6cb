"""Access control of this broker: the guard from its settings, the account that it has itself, and topics of messages.

Guard and account read files when the broker starts. A file that cannot be read refuses the start: a broker that serves
every client, or none, instead is not what the settings ask for.

A request that names a message by its place in the log needs a permission for the topic of that message. A message that
waits for its delay, or for the end of its transaction, lies in a topic of the broker's own and has its destination in
its properties: that is its topic. Bodies and properties are their senders', and so whole records can be made up inside
of them; a checksum is no secret. So a record at an offset is believed only where its own queue has a message at just
that offset. A record that no queue shows yet is no message but for a half message, which its producer may end before
that; how it is ended is judged by the queue (`transactions.service`).
"""

from collections.abc import Callable
from typing import Final

from gantry_access import AccessFileError, AccessSettings, AccountFile, Guard, OwnAccount
from gantry_access.guard import TopicAt
from gantry_broker.errors import AccessFilesUnusable
from gantry_broker.ports import Clock
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_record

WAITING_TOPICS: Final = frozenset({names.SCHEDULE_TOPIC, names.HALF_TOPIC, names.OP_HALF_TOPIC})


def broker_guard(settings: AccessSettings, store: MessageStore, clock: Clock) -> Guard | None:
    """The guard with its accounts read; None when access control is off. Raises AccessFilesUnusable."""
    if not settings.is_enabled:
        return None
    file = AccountFile(settings.file, settings.mode)
    try:
        file.load()
    except AccessFileError as error:
        raise AccessFilesUnusable(f"aclFile: {error}") from error
    return Guard(settings, file, now_ms=clock.wall_ms, topic_at=topics_of(store))


def may_be_shown(guard: Guard) -> Callable[[Connection, str], bool]:
    """Whether a peer may see an unpublished message of a topic: any client may call itself a producer of any group."""
    return lambda connection, topic: guard.may_be_told(connection.account, connection.peer[0], topic)


def own_account(settings: AccessSettings) -> OwnAccount | None:
    """The account that this broker signs its own requests with. Raises AccessFilesUnusable."""
    if not settings.credentials:
        return None
    try:
        return OwnAccount(settings.credentials)
    except AccessFileError as error:
        raise AccessFilesUnusable(f"aclCredentialsPath: {error}") from error


def topics_of(store: MessageStore) -> TopicAt:
    """A look-up in a store that is open and belongs to the caller's thread."""

    def topic_at(offset: int) -> str | None:
        message = message_of_queue(store, offset)
        if message is None:
            return None
        return message.properties.get(keys.REAL_TOPIC) if message.topic in WAITING_TOPICS else message.topic

    return topic_at


def message_of_queue(store: MessageStore, offset: int) -> StoredMessage | None:
    """The message at an offset that a client names; None where no queue has one at just that offset."""
    record = store.guard.message_at(offset) if offset >= 0 else None
    try:
        message = None if record is None else decode_record(record)
    except RemoteProtocolError:
        return None
    return message if message is not None and is_in_its_queue(store, message, offset) else None


def is_in_its_queue(store: MessageStore, message: StoredMessage, offset: int) -> bool:
    """Whether the queue that a record names has it where it was found."""
    if offset >= store.dispatcher.dispatched:
        return message.topic == names.HALF_TOPIC
    queue = store.queues.get(message.topic, message.queue_id)
    unit = None if queue is None else queue.unit(message.queue_offset)
    return unit is not None and unit[0] == offset
