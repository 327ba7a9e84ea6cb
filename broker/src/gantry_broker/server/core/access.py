"""Access control of this broker: the guard from its settings, and the account that it has itself.

Both read files when the broker starts; what cannot be read refuses the start, since a broker that serves everybody, or
nobody, instead is what nobody asked for.
"""

from collections.abc import Callable

from gantry_access import AccessFileError, AccessSettings, AccountFile, Guard, OwnAccount
from gantry_broker.errors import AccessFilesUnusable
from gantry_broker.ports import Clock
from gantry_broker.server.core.stored_topics import topics_of
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection


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


def told_by(guard: Guard) -> Callable[[Connection, str], bool]:
    """Who may be shown what is not published yet: anybody may call itself a producer of any group."""
    return lambda connection, topic: guard.may_be_told(connection.account, connection.peer[0], topic)


def own_account(settings: AccessSettings) -> OwnAccount | None:
    """The account that this broker signs its own requests with. Raises AccessFilesUnusable."""
    if not settings.credentials:
        return None
    try:
        return OwnAccount(settings.credentials)
    except AccessFileError as error:
        raise AccessFilesUnusable(f"aclCredentialsPath: {error}") from error
