"""Settings that change while the broker runs: which ones, how, and that they are still so after the next start.

    defaults < broker.conf < changed at run time (config/liveSettings.json) < liveSettingsPath < this command line

RocketMQ takes any key but a few and writes them into its broker.conf; that has been a published vulnerability, for one
of the keys was a path. Here the keys that may change are listed, and everything else is refused by name. A request
changes all of its keys or none; values go through the parsers and the contradictions of `broker.conf`; and a change is
on the disk before it holds. What is listed decides about requests to come, and can be turned back: nothing of it is a
promise of an earlier answer, an address, a path, or a permission.

An empty value takes a change back: the key is again what broker.conf says. A key that the file of liveSettingsPath has
(`SettingsFile`) is changed there and nowhere else.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, final

import msgspec

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.setting_keys import broker_settings, effective_settings, parse_properties_file
from gantry_broker.settings import BrokerSettings, SettingsError
from gantry_broker.store.config_file import ConfigFile
from gantry_broker.store.existing import LOG_SIZE_KEY, QUEUE_SIZE_KEY
from gantry_remoting import FileWatch, read_small_file
from gantry_wire.commands.admin import DataVersion
from gantry_wire.commands.clients import Document

log = logging.getLogger(__name__)

FILE: Final = "liveSettings"
KEY_CHARACTERS_SHOWN: Final = 64

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
"""What code 25 may change. The code that reads such a key must ask when it needs the value, or be notified."""

_AT_START: Final = "it is read at the start only: write it into broker.conf and start again"
_UNKNOWN: Final = "this broker has no such setting"
_REASONS: Final = {
    "flushDiskType": "it is part of what producers are promised, and is read at the start only",
    "brokerRole": "roles change by orders: gantry ha",
    "inSyncReplicas": "it is part of what producers are promised, and is read at the start only",
    "deleteUnconsumed": "it deletes what nobody has consumed, so it has to be in broker.conf",
    "configBlackList": "the keys that may change are listed in this broker, and nobody adds to them",
}


class NotChangeable(Exception):
    """Keys that may not change at run time. The caller should answer code 16 with this text."""


class LiveDocument(Document):
    """liveSettings.json."""

    settings: dict[str, str] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


@final
class LiveSettings:
    """The settings that hold now. Owned by the event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        file: ConfigFile,
        now_ms: Callable[[], int],
        *,
        insisted: Collection[str] = (),
    ) -> None:
        """``insisted`` are keys of the command line, which win over what was changed before this start."""
        self.now = settings
        self.version = DataVersion(timestamp=now_ms())
        self._base: Final = settings
        self._file: Final = file
        self._now_ms: Final = now_ms
        self._insisted: Final = set(insisted)
        self._on_change: Callable[[BrokerSettings], None] = lambda settings: None
        self._kept: dict[str, str] = {}
        self._mounted: dict[str, str] = {}
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<LiveSettings changed={sorted(self.changed)}>"

    @property
    def changed(self) -> dict[str, str]:
        """What was changed at run time and holds now."""
        others = self._insisted | self._mounted.keys()
        return {key: value for key, value in sorted(self._kept.items()) if key not in others}

    def subscribe(self, on_change: Callable[[BrokerSettings], None]) -> None:
        """Call ``on_change`` after each change from now on: its owner has copied what it needs."""
        self._on_change = on_change

    def load(self) -> BrokerSettings:
        """The settings with what was changed in earlier runs. Waits for the disk. Raises ``ConfigCorrupt``."""
        data = self._file.load()
        if data is None:
            return self.now
        try:
            document = msgspec.convert(data, LiveDocument, strict=False)
            kept = dict(self._understood(document.settings))
            check_changeable(kept)
            self._kept, self.version = kept, document.data_version
            self.now = self._with(self.changed)
        except (msgspec.ValidationError, SettingsError, NotChangeable) as error:
            path = self._file.path
            raise ConfigCorrupt(f"{path}: {error}; mend it, or remove {path} and remove {path}.bak") from error
        if self.changed:
            log.info("settings were changed at run time", extra=self.changed)
        return self.now

    def mount(self, entries: Mapping[str, str]) -> None:
        """Let a file decide about these keys, and about no others any more.

        Raises ``NotChangeable`` or ``SettingsError``; then the settings stay as they are.
        """
        entries = self._understood(entries)
        check_changeable(entries)
        kept = {key: value for key, value in self._kept.items() if key not in self._insisted}
        mounted = {key: value for key, value in entries.items() if key not in self._insisted}
        settings = self._with({**kept, **mounted})
        before, now = effective_settings(self.now), effective_settings(settings)
        self._mounted, self.now = dict(entries), settings
        moves = {key: f"{before[key]} -> {now[key]}" for key in sorted(now) if before[key] != now[key]}
        if moves:
            log.info("settings are changed by a file", extra=moves)
            self._on_change(settings)

    async def update(self, entries: Mapping[str, str]) -> None:
        """Change settings, durably, all of ``entries`` or none; an empty value takes a change back.

        Raises ``NotChangeable``, ``SettingsError`` that names key and value, or what writing raises.
        """
        check_changeable(entries)
        self._refuse_mounted(entries)
        if not entries:
            return
        async with self._lock:
            kept = {key: value for key, value in {**self._kept, **entries}.items() if value}
            insisted = self._insisted - entries.keys()
            mounted = self._mounted
            settings = self._with({k: v for k, v in {**kept, **mounted}.items() if k not in insisted})
            version = self.version.next(self._now_ms())
            document = LiveDocument(settings=kept, data_version=version)
            await asyncio.to_thread(self._file.save, msgspec.to_builtins(document, str_keys=True))
            if self._mounted is not mounted:  # a file has changed some meanwhile: it wins
                settings = self._with({k: v for k, v in {**kept, **self._mounted}.items() if k not in insisted})
            before, now = effective_settings(self.now), effective_settings(settings)
            self._kept, self.version, self.now = kept, version, settings
            self._insisted.intersection_update(insisted)
            moves = {key: f"{before[key]} -> {now[key]}" for key in sorted(entries) if before[key] != now[key]}
            log.info("settings are changed at run time", extra=moves)
            self._on_change(settings)

    def _understood(self, entries: Mapping[str, str]) -> Mapping[str, str]:
        """Without what only a newer version takes while it runs, where that is tolerated."""
        left_out = sorted(entries.keys() - CHANGEABLE)
        if not self._base.is_tolerant or not left_out:
            return entries
        log.warning("changed settings are left out that this version does not take", extra={"keys": left_out})
        return {key: value for key, value in entries.items() if key in CHANGEABLE}

    def _refuse_mounted(self, entries: Mapping[str, str]) -> None:
        decided = sorted(entries.keys() & self._mounted.keys())
        if decided:
            raise NotChangeable(
                f"liveSettingsPath names a file that decides about {', '.join(decided)}: change it there"
            )

    def _with(self, changes: Mapping[str, str]) -> BrokerSettings:
        """The settings of the start with these changes. Raises SettingsError."""
        base = self._base
        sizes = {
            LOG_SIZE_KEY: str(base.store.mapped_file_size_commit_log),
            QUEUE_SIZE_KEY: str(base.store.mapped_file_size_consume_queue),
        }
        changed = broker_settings({**base.given, **sizes, **changes})
        store = replace(base.store, retention=changed.store.retention)
        return replace(changed, store=store, given=base.given)


def check_changeable(keys: Collection[str]) -> None:
    """Raises ``NotChangeable`` that names each key that may not change, and why."""
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
    """Settings that a file may change while the broker runs: a mounted ConfigMap, or a file that is edited.

        liveSettingsPath changes -> the keys of it hold, each that it no longer names is as it was without it

    The file has the form of a broker.conf, and is read every few seconds and compared by content. It is used as a whole
    or not at all: with one key that may not change, or an invalid value, the settings stay, and the log has the reason.
    A file that vanishes changes nothing: it is probably being replaced. Owned by the event loop.
    """

    def __init__(self, path: str, live: LiveSettings) -> None:
        """Without a path no file is read."""
        self.trouble: str | None = None
        """Why the present content of the file is not in use."""

        self._path: Final = path
        self._live: Final = live
        self._used: bytes | None = None
        self._watch: Final = FileWatch("the file of settings", self.reload)

    def load(self) -> None:
        """Use the content of the file, at the start. Waits for the disk."""
        if self._path:
            self._take(_content(self._path))

    def start(self) -> None:
        """Look again every few seconds until closed."""
        if self._path:
            self._watch.start()

    async def close(self) -> None:
        """Look no more."""
        await self._watch.close()

    async def reload(self) -> None:
        """Read the file, and use its content if that has changed."""
        self._take(await asyncio.to_thread(_content, self._path))

    def _take(self, content: bytes | None) -> None:
        if content is None or content == self._used:
            return
        self._used = content
        try:
            self._live.mount(parse_properties_file(content.decode("utf-8", "replace")))
        except (SettingsError, NotChangeable) as error:
            self.trouble = str(error)
            log.error("the file of settings is not used", extra={"path": self._path, "reason": self.trouble})
        else:
            self.trouble = None


def _content(path: str) -> bytes | None:
    """None while there is no such file."""
    try:
        return read_small_file(path)
    except OSError:
        return None
