"""A name server as one object: its data directory, its ports, and the expiry of silent brokers.

    start: lock the directory -> load settings and key-value table -> read the accounts -> listen -> scan
    close: stop listening -> finish pending writes -> unlock

The directory is locked, so that two name servers never write one key-value file.
"""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from gantry_access import AccessFileError, AccountFile, Guard
from gantry_nameserver.directory import LiveBroker
from gantry_nameserver.external_access import external_dispatch
from gantry_nameserver.handlers import AUDITED, Handlers, reply_to_unexpected_error
from gantry_nameserver.key_value_store import KeyValueStore
from gantry_nameserver.live_settings import LiveSettings
from gantry_nameserver.routes import RouteTable
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting.audit import with_audit_log
from gantry_remoting.deferred_answers import DeferredAnswers
from gantry_remoting.server import Answer, CommandService, Connection, Dispatch, Listener
from gantry_remoting.setting_kinds import SettingsError
from gantry_wire.command import Command

log = logging.getLogger(__name__)

KEY_VALUE_FILE: Final = "kvConfig.json"
SETTINGS_FILE: Final = "namesrv.properties"
LOCK_FILE: Final = "lock"


class DirectoryInUse(Exception):
    """Another name server holds the data directory. An administrator should stop it or choose another directory."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@final
class NameServer:
    """A name server with its internal and, if configured, its external port. Owned by the event loop that starts it."""

    def __init__(
        self, settings: NameServerSettings, directory: Path, *, now_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self.routes = RouteTable(settings.limits)
        self._directory = directory
        self._now_ms = now_ms
        self._settings = LiveSettings(settings, directory / SETTINGS_FILE)
        self._key_values = KeyValueStore(directory / KEY_VALUE_FILE)
        handlers = Handlers(self.routes, self._key_values, self._settings, now_ms)
        self.account_file = _account_file(settings)
        """The accounts of clients; None without access control."""
        self.guard = guard = _guard(settings, self.account_file)

        def audited(dispatch: Dispatch) -> Dispatch:
            return with_audit_log(
                dispatch if guard is None else guarded(dispatch, guard),
                "nameserver",
                AUDITED,
                failure=reply_to_unexpected_error,
                account_of=lambda: None if guard is None else guard.requester,
            )

        internal = settings.listener(settings.listen_port)
        service = CommandService(
            audited(handlers.dispatch), disconnected=self._on_disconnect, answers=DeferredAnswers(internal)
        )
        self._ports = [(Listener(service, internal), service)]
        """The internal port, and then the external port if there is one."""
        if settings.external_listen_port:
            external = settings.listener(settings.external_listen_port)
            # The guard comes first, so that a line of the audit log has the account of its own request.
            dispatch = audited(external_dispatch(handlers.dispatch, self.routes.brokers))
            service = CommandService(dispatch, answers=DeferredAnswers(external))
            self._ports.append((Listener(service, external), service))
        self._scanner: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._lock: int | None = None

    def __repr__(self) -> str:
        return f"<NameServer {self._ports[0][0]!r} {self.routes!r}>"

    @property
    def port(self) -> int:
        """The internal port on which the server listens."""
        return self._ports[0][0].port

    async def start(self) -> None:
        """Start serving. Raises DirectoryInUse, OSError, SettingsError or KeyValueCorrupt."""
        await asyncio.to_thread(self._open_directory)
        try:
            for listener, _ in self._ports:
                await listener.start()
        except BaseException:
            for listener, _ in self._ports:
                await listener.close()
            self._unlock()
            raise
        self._scanner = asyncio.create_task(self._scan(), name="scan for silent brokers")
        if self.account_file is not None:
            self._watcher = asyncio.create_task(self.account_file.watch(), name="watch the accounts")

    async def close(self) -> None:
        """Stop serving, after pending writes have finished."""
        tasks = [task for task in (self._scanner, self._watcher) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener, service in self._ports:
            await listener.close()
            await service.drain()
        self._unlock()

    def expire(self) -> list[LiveBroker]:
        """Unregister silent brokers now and close their connections."""
        expired = self.routes.expire(self._now_ms())
        for live in expired:
            if isinstance(live.connection, Connection):
                live.connection.close("heartbeat timeout of its broker")
        return expired

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self._settings.now.scan_not_active_broker_interval / 1000)
            self.expire()

    def _on_disconnect(self, connection: Connection) -> None:
        self.routes.unregister_connection(connection)

    def _open_directory(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._settings.load()
            self._key_values.load()
            if self.account_file is not None:
                self.account_file.load()
        except AccessFileError as error:
            self._unlock()
            raise SettingsError(f"aclFile: {error}") from error
        except BlockingIOError as error:
            self._unlock()
            raise DirectoryInUse(f"another name server holds {self._directory}") from error
        except BaseException:
            self._unlock()
            raise

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _account_file(settings: NameServerSettings) -> AccountFile | None:
    """Return the file of accounts, which is not read yet; None if access control is off. Raises SettingsError."""
    access = settings.access()
    return AccountFile(access.file, access.mode) if access.is_enabled else None


def _guard(settings: NameServerSettings, file: AccountFile | None) -> Guard | None:
    return None if file is None else Guard(settings.access(), file, now_ms=wall_ms)


def guarded(dispatch: Dispatch, guard: Guard) -> Dispatch:
    """Wrap `dispatch` with the guard: denied requests never reach it."""

    def dispatch_allowed(request: Command, connection: Connection) -> Answer:
        denial = guard.denial(request, connection.peer[0])
        if denial is None or guard.requester is not None:
            connection.is_authenticated = True
        return dispatch(request, connection) if denial is None else request.reply(*denial)

    return dispatch_allowed
