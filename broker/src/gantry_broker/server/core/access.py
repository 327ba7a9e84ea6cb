"""Access control of this broker: its guard, its own account, and the topic of a message at an offset.

Guard and account read files when the broker starts. The broker does not start if a file cannot be read: serving every
client instead, or none, is not what the settings ask for.

A request that names a message by its offset in the log needs a permission for the topic of that message. A message that
waits for its delay, or for the end of its transaction, is stored in a system topic and has its destination in its
properties: that is its topic. Senders choose bodies and properties, and can forge whole records inside of them; a
checksum is no secret. So a record at an offset is accepted only if its own queue has a message at exactly that offset.
A record that no queue has yet does not count as a message, except for a half message: its producer may end it before
its queue has it. A request to end it is checked against the queue (`transactions.endings`).
"""

from collections.abc import Callable
from typing import Final

from gantry_access import AccessFileError, AccessSettings, AccountFile, AccountStore, Guard, OwnAccount
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
"""System topics whose messages have another destination, in their properties."""


AccountsOfBroker = AccountFile | AccountStore
"""Where the accounts of a broker are: in a file that it only reads, or in its store."""


def load_accounts(settings: AccessSettings) -> AccountsOfBroker | None:
    """Return the loaded file of accounts, or the store's users, which are loaded with the other tables.

    None if access control is off. Raises AccessFilesUnusable.
    """
    if settings.is_stored:
        return AccountStore(is_authorizing=settings.is_authorizing, initial_user=settings.initial_user)
    if not settings.is_enabled:
        return None
    file = AccountFile(settings.file, settings.mode)
    try:
        file.load()
    except AccessFileError as error:
        raise AccessFilesUnusable(f"aclFile: {error}") from error
    return file


def make_guard(
    settings: AccessSettings, accounts: AccountsOfBroker | None, store: MessageStore, clock: Clock, *, cluster: str
) -> Guard | None:
    """Return the guard of these accounts; None if access control is off."""
    if accounts is None:
        return None
    topic_at = message_topic_lookup(store)
    return Guard(settings, accounts, now_ms=clock.wall_ms, topic_at=topic_at, cluster=cluster)


def make_half_message_check(guard: Guard) -> Callable[[Connection, str], bool]:
    """Return the check whether a peer may see a half message for a topic.

    It is needed because any client may call itself a producer of any group, and producers get half messages to check.
    """
    return lambda connection, topic: guard.may_receive_half_messages(connection.account, connection.peer[0], topic)


def load_own_account(settings: AccessSettings) -> OwnAccount | None:
    """Return the account with which this broker signs its own requests. Raises AccessFilesUnusable."""
    if not settings.credentials:
        return None
    try:
        return OwnAccount(settings.credentials)
    except AccessFileError as error:
        raise AccessFilesUnusable(f"aclCredentialsPath: {error}") from error


def message_topic_lookup(store: MessageStore) -> TopicAt:
    """Return the function that finds the topic of a message by its offset.

    The store must be open and belong to the thread that calls it.
    """

    def topic_at(offset: int) -> str | None:
        message = find_queued_message(store, offset)
        if message is None:
            return None
        return message.properties.get(keys.REAL_TOPIC) if message.topic in WAITING_TOPICS else message.topic

    return topic_at


def find_queued_message(store: MessageStore, offset: int) -> StoredMessage | None:
    """Return the message at an offset that a client names; None if no queue has a message at exactly that offset.

    A half message is found before its queue has it.
    """
    record = store.guard.message_at(offset) if offset >= 0 else None
    try:
        message = None if record is None else decode_record(record)
    except RemoteProtocolError:
        return None
    return message if message is not None and is_in_its_queue(store, message, offset) else None


def is_in_its_queue(store: MessageStore, message: StoredMessage, offset: int) -> bool:
    """Whether the queue that a record names has the record at this offset; True for a half message not yet in it."""
    if offset >= store.dispatcher.dispatched:
        return message.topic == names.HALF_TOPIC
    queue = store.queues.get(message.topic, message.queue_id)
    unit = None if queue is None else queue.unit(message.queue_offset)
    return unit is not None and unit[0] == offset
