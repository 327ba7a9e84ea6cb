"""Settings that an operator changes while the name server runs (`mqadmin updateNamesrvConfig`).

Only the keys of an allow list change; RocketMQ had a published vulnerability in letting this request set paths. A
change is kept in the data directory before it holds, and read back at the next start.
"""

import asyncio
from pathlib import Path
from typing import final

from gantry_nameserver.settings import UPDATABLE, NameServerSettings, SettingsError, entries_of, with_entries
from gantry_remoting.durable_files import read_candidates, replace_file
from gantry_wire.properties_text import read_properties, write_properties


class NotPermitted(Exception):
    """A key that may not change at run time. The caller should answer code 16 with this text."""


@final
class LiveSettings:
    """The settings that hold now. Owned by the event loop's thread."""

    def __init__(self, settings: NameServerSettings, path: Path | None = None) -> None:
        self._settings = settings
        self._path = path  # None for tests: changes are not kept
        self._kept: dict[str, str] = {}
        self._lock = asyncio.Lock()

    @property
    def now(self) -> NameServerSettings:
        return self._settings

    def load(self) -> None:
        """Apply the changes that were kept. Blocking. Raises SettingsError when they cannot be read."""
        for path, data in [] if self._path is None else read_candidates(self._path):
            try:
                kept = {key: text for key, text in read_properties(data.decode()).items() if key in UPDATABLE}
                self._settings = with_entries(self._settings, kept)
            except (ValueError, SettingsError) as error:
                raise SettingsError(f"{path}: {error}; repair or remove it") from error
            self._kept = kept
            return

    async def update(self, entries: dict[str, str]) -> None:
        """Change settings, durably, all of `entries` or none. Raises NotPermitted or SettingsError."""
        forbidden = sorted(key for key in entries if key not in UPDATABLE)
        if forbidden:
            raise NotPermitted(f"Can not update config in black list: {', '.join(forbidden)}")
        async with self._lock:
            changed = with_entries(self._settings, entries)
            shown = entries_of(changed)
            kept = self._kept | {key: shown[key] for key in entries}
            if self._path is not None:
                data = write_properties(kept).encode()
                try:
                    await asyncio.to_thread(replace_file, self._path, data, keeps_predecessor=True)
                except OSError as error:
                    raise SettingsError(f"the settings cannot be written: {error.strerror or error}") from error
            self._settings, self._kept = changed, kept
