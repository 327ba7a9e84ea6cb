"""Settings that can change while the broker runs, and survive a restart.

    defaults < broker.conf < changed at run time (config/liveSettings.json) < liveSettingsPath < this command line

RocketMQ accepts any key but a few and writes them into its broker.conf; that was a published vulnerability, since one
of the keys was a path. Here the changeable keys are listed, and every other key is refused by name. A request changes
all of its keys or none; values pass the same parsers and consistency checks as those in `broker.conf`; and a change is
on the disk before it takes effect. A change of a listed key can be reverted. The keys of retention decide when stored
messages expire; no key affects the durability of acknowledged messages before that. No key is an address, a path, or a
permission.

A change that is requested in this run overrides the command line too, until the next start with that command line. An
empty value reverts a change, also one of an earlier run: the key has again the value of the command line or of
broker.conf, or else its default. A key in the file of liveSettingsPath (`SettingsFile`) can be changed only there.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, final

import msgspec

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.setting_keys import broker_settings, effective_settings, parse_properties_file
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.config_file import ConfigFile
from gantry_broker.store.existing_sizes import LOG_SIZE_KEY, QUEUE_SIZE_KEY
from gantry_remoting import FileWatch, read_small_file
from gantry_remoting.setting_kinds import SettingsError
from gantry_wire.commands.admin import DataVersion
from gantry_wire.commands.clients import Document

log = logging.getLogger(__name__)

FILE: Final = "liveSettings"
"""The name of the table file of changes at run time."""
KEY_CHARACTERS_SHOWN: Final = 64
"""How much of an unknown key is repeated in an error."""

CHANGEABLE: Final = frozenset(
    {
        "autoCreateTopicEnable", "autoCreateSubscriptionGroup", "maxMessageSize", "maxBatchMessages",
        "sendThreadPoolQueueCapacity", "waitTimeMillsInSendQueue", "osPageCacheBusyTimeOutMills",
        "pullThreadPoolQueueCapacity", "maxHeldPullsPerConnection", "maxPullBatchSize",
        "maxTransferBytesOnMessageInMemory", "maxTransferBytesOnRequest", "flushConsumerOffsetInterval",
        "fileReservedTime", "deleteWhen", "diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio", "cleanResourceInterval", "slaveReadEnable", "accessMessageInMemoryMaxRatio",
        "shutdownTimeout", "transactionTimeOut", "transactionCheckMax", "transactionCheckInterval",
        "enablePropertyFilter", "useServerSideResetOffset",
    }
)  # fmt: skip
"""The keys that code 25 may change. Code that uses such a key must read it at each use, or subscribe to changes."""

_AT_START: Final = "read only at the start: set it in broker.conf and restart the broker"
_UNKNOWN: Final = "unknown setting"
_REASONS: Final = {
    "flushDiskType": "part of the durability promised to producers, and read only at the start",
    "brokerRole": "roles are changed by orders: gantry ha",
    "inSyncReplicas": "part of the durability promised to producers, and read only at the start",
    "deleteUnconsumed": "deletes unconsumed messages, so it must be set in broker.conf",
    "configBlackList": "the broker has a fixed list of changeable keys",
}
"""Why keys cannot change that an administrator may try; others have a general reason."""


class NotChangeable(Exception):
    """Some keys cannot change at run time. The caller should answer with code 16 and this text."""


class LiveDocument(Document):
    """The content of liveSettings.json: the changed keys, and the version of the table."""

    settings: dict[str, str] = msgspec.field(default_factory=dict)
    """The text of each changed key."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


@final
class LiveSettings:
    """The present settings and the changes at run time. Owned by the event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        file: ConfigFile,
        now_ms: Callable[[], int],
        *,
        command_line_keys: Collection[str] = (),
    ) -> None:
        """``command_line_keys`` are set on the command line, and override changes of earlier runs."""
        self.current = settings
        """The present settings, changes included."""
        self.version = DataVersion(timestamp=now_ms())
        """The version of the changes, as RocketMQ's tools show it."""
        self._base: Final = settings
        self._file: Final = file
        self._now_ms: Final = now_ms
        self._command_line_keys: Final = set(command_line_keys)
        self._on_change: Callable[[BrokerSettings], None] = lambda settings: None
        self._saved: dict[str, str] = {}
        self._settings_file_entries: dict[str, str] = {}
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<LiveSettings changed={sorted(self.changed)}>"

    @property
    def changed(self) -> dict[str, str]:
        """The changes at run time that are in effect."""
        others = self._command_line_keys | self._settings_file_entries.keys()
        return {key: value for key, value in sorted(self._saved.items()) if key not in others}

    def subscribe(self, on_change: Callable[[BrokerSettings], None]) -> None:
        """Call ``on_change`` after each change, for code that keeps copies of settings. A new call replaces it."""
        self._on_change = on_change

    def load(self) -> BrokerSettings:
        """Return the settings with the changes of earlier runs. Waits for the disk. Raises ``ConfigCorrupt``."""
        data = self._file.load()
        if data is None:
            return self.current
        try:
            document = msgspec.convert(data, LiveDocument, strict=False)
            saved = dict(self._drop_unknown(document.settings))
            check_changeable(saved)
            self._saved, self.version = saved, document.data_version
            self.current = self._apply_changes(self.changed)
        except (msgspec.ValidationError, SettingsError, NotChangeable) as error:
            path = self._file.path
            raise ConfigCorrupt(f"{path}: {error}; correct the file, or delete {path} and {path}.bak") from error
        if self.changed:
            log.info("loaded settings changed at run time", extra=self.changed)
        return self.current

    def apply_settings_file(self, entries: Mapping[str, str]) -> None:
        """Apply the content of the settings file, instead of its earlier content.

        Raises ``NotChangeable`` or ``SettingsError``; then the settings do not change.
        """
        entries = self._drop_unknown(entries)
        check_changeable(entries)
        saved = {key: value for key, value in self._saved.items() if key not in self._command_line_keys}
        from_file = {key: value for key, value in entries.items() if key not in self._command_line_keys}
        settings = self._apply_changes({**saved, **from_file})
        before, now = effective_settings(self.current), effective_settings(settings)
        self._settings_file_entries, self.current = dict(entries), settings
        changes = {key: f"{before[key]} -> {now[key]}" for key in sorted(now) if before[key] != now[key]}
        if changes:
            log.info("settings changed by settings file", extra=changes)
            self._on_change(settings)

    async def update(self, entries: Mapping[str, str]) -> None:
        """Change settings durably, all of ``entries`` or none; an empty value reverts a change.

        Raises ``NotChangeable``, ``SettingsError`` that names key and value, or the error of the write.
        """
        check_changeable(entries)
        self._refuse_settings_file_keys(entries)
        if not entries:
            return
        async with self._lock:
            saved = {key: value for key, value in {**self._saved, **entries}.items() if value}
            command_line_keys = self._command_line_keys - entries.keys()
            from_file = self._settings_file_entries
            settings = self._apply_changes(
                {k: v for k, v in {**saved, **from_file}.items() if k not in command_line_keys}
            )
            version = self.version.next(self._now_ms())
            await self._save(saved, version)
            if self._settings_file_entries is not from_file:  # the settings file has changed meanwhile: it wins
                from_file = self._settings_file_entries
                try:
                    settings = self._apply_changes(
                        {k: v for k, v in {**saved, **from_file}.items() if k not in command_line_keys}
                    )
                except SettingsError:
                    await self._save(self._saved, self.version)
                    raise
            before, now = effective_settings(self.current), effective_settings(settings)
            self._saved, self.version, self.current = saved, version, settings
            self._command_line_keys.intersection_update(command_line_keys)
            changes = {key: f"{before[key]} -> {now[key]}" for key in sorted(entries) if before[key] != now[key]}
            log.info("settings changed at run time", extra=changes)
            self._on_change(settings)

    async def _save(self, settings: dict[str, str], version: DataVersion) -> None:
        document = LiveDocument(settings=settings, data_version=version)
        await asyncio.to_thread(self._file.save, msgspec.to_builtins(document, str_keys=True))

    def _drop_unknown(self, entries: Mapping[str, str]) -> Mapping[str, str]:
        """Return the entries without the keys that this version cannot change, if unknown settings are ignored."""
        left_out = sorted(entries.keys() - CHANGEABLE)
        if not self._base.ignores_unknown_settings or not left_out:
            return entries
        log.warning("ignored changed settings that this version does not support", extra={"keys": left_out})
        return {key: value for key, value in entries.items() if key in CHANGEABLE}

    def _refuse_settings_file_keys(self, entries: Mapping[str, str]) -> None:
        refused = sorted(entries.keys() & self._settings_file_entries.keys())
        if refused:
            raise NotChangeable(f"{', '.join(refused)}: set in the file of liveSettingsPath; change it there")

    def _apply_changes(self, changes: Mapping[str, str]) -> BrokerSettings:
        """Return the settings of the start with these changes. Raises SettingsError."""
        base = self._base
        sizes = {
            LOG_SIZE_KEY: str(base.store.mapped_file_size_commit_log),
            QUEUE_SIZE_KEY: str(base.store.mapped_file_size_consume_queue),
        }
        changed = broker_settings({**base.given, **sizes, **changes})
        store = replace(base.store, retention=changed.store.retention)
        return replace(changed, store=store, given=base.given)


def check_changeable(keys: Collection[str]) -> None:
    """Raise ``NotChangeable`` if there are keys that cannot change; it names the first eight, each with the reason."""
    known = effective_settings(BrokerSettings()).keys()
    refused = [
        f"{key[:KEY_CHARACTERS_SHOWN]} ({_REASONS.get(key) or (_AT_START if key in known else _UNKNOWN)})"
        for key in sorted(keys)
        if key not in CHANGEABLE
    ]
    if refused:
        raise NotChangeable(f"Can not update config in black list: {'; '.join(refused[:8])}")


@final
class SettingsFile:
    """A file that changes settings while the broker runs: a mounted ConfigMap, or a file that is edited.

        liveSettingsPath changes -> its keys take effect; keys that it no longer names are reverted

    The file has the format of broker.conf. It is read every few seconds and compared by content. It is used as a whole
    or not at all: with one key that cannot change, or an invalid value, the settings do not change, and the reason is
    logged. With ignoreUnknownSettings=true, keys that cannot change are left out instead. A missing file changes
    nothing: it is probably being replaced. Owned by the event loop.
    """

    def __init__(self, path: str, live: LiveSettings) -> None:
        """With an empty path no file is read."""
        self.problem: str | None = None
        """Why the present content of the file is not used; None if it is used."""

        self._path: Final = path
        self._live: Final = live
        self._used: bytes | None = None
        self._watch: Final = FileWatch("the settings file", self.reload)

    def load(self) -> None:
        """Use the content of the file at the start. Waits for the disk."""
        if self._path:
            self._use_content(_read_content(self._path))

    def start(self) -> None:
        """Read the file every few seconds until closed."""
        if self._path:
            self._watch.start()

    async def close(self) -> None:
        """Stop reading the file periodically."""
        await self._watch.close()

    async def reload(self) -> None:
        """Read the file, and use its content if it has changed."""
        self._use_content(await asyncio.to_thread(_read_content, self._path))

    def _use_content(self, content: bytes | None) -> None:
        if content is None or content == self._used:
            return
        self._used = content
        try:
            self._live.apply_settings_file(parse_properties_file(content.decode("utf-8", "replace")))
        except (SettingsError, NotChangeable) as error:
            self.problem = str(error)
            log.error(
                "ignored invalid settings file; settings unchanged", extra={"path": self._path, "reason": self.problem}
            )
        else:
            self.problem = None


def _read_content(path: str) -> bytes | None:
    """Return the content of the file; None if it cannot be read."""
    try:
        return read_small_file(path)
    except OSError:
        return None
