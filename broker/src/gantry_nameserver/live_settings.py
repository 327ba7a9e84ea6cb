"""Settings that an administrator changes while the name server runs (`mqadmin updateNamesrvConfig`).

Only the keys of an allow list can be changed; RocketMQ had a published vulnerability because this request could set
paths. A change is written to the data directory before it takes effect, and read back at the next start.
"""

import asyncio
from pathlib import Path
from typing import final

from gantry_nameserver.settings import UPDATABLE, NameServerSettings, entries_of, with_entries
from gantry_remoting.durable_files import read_candidates, replace_file
from gantry_remoting.setting_kinds import SettingsError
from gantry_wire.properties_text import read_properties, write_properties


class NotPermitted(Exception):
    """The key must not be changed at run time. The caller should answer code 16 with this text."""


@final
class LiveSettings:
    """The settings that are in effect. Owned by the event loop's thread."""

    def __init__(self, settings: NameServerSettings, path: Path | None = None) -> None:
        self._settings = settings
        self._path = path  # None in tests: changes are not written to disk
        self._overrides: dict[str, str] = {}
        self._lock = asyncio.Lock()

    @property
    def now(self) -> NameServerSettings:
        return self._settings

    def load(self) -> None:
        """Apply the stored changes. Blocking. Raises SettingsError if they cannot be read."""
        for path, data in [] if self._path is None else read_candidates(self._path):
            try:
                overrides = {key: text for key, text in read_properties(data.decode()).items() if key in UPDATABLE}
                self._settings = with_entries(self._settings, overrides)
            except ValueError as error:
                raise SettingsError(f"{path}: {error}; repair or remove it") from error
            self._overrides = overrides
            return

    async def update(self, entries: dict[str, str]) -> None:
        """Change all settings in `entries` durably, or none. Raises NotPermitted or SettingsError."""
        forbidden = sorted(key for key in entries if key not in UPDATABLE)
        if forbidden:
            raise NotPermitted(f"Can not update config in black list: {', '.join(forbidden)}")
        async with self._lock:
            changed = with_entries(self._settings, entries)
            shown = entries_of(changed)
            overrides = self._overrides | {key: shown[key] for key in entries}
            if self._path is not None:
                data = write_properties(overrides).encode()
                try:
                    await asyncio.to_thread(replace_file, self._path, data, keeps_predecessor=True)
                except OSError as error:
                    raise SettingsError(f"the settings cannot be written: {error.strerror or error}") from error
            self._settings, self._overrides = changed, overrides
