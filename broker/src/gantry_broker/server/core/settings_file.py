"""Settings that a file may change while the broker runs: a mounted ConfigMap, or a file that somebody edits.

    liveSettingsPath changes -> the keys of it hold, each that it no longer names is as it was without it

The same keys may stand there that may be changed at run time otherwise (``live_settings``), in the same form as in a
broker.conf. The file is looked at every few seconds, by content. It is used as a whole or not at all: with one key that
may not change, or a value that is none, what held before goes on, and the log says why. A file that is gone changes
nothing: whoever mounts it is replacing it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, final

from gantry_broker.server.core.live_settings import LiveSettings, NotChangeable
from gantry_broker.settings import SettingsError, parse_properties_file
from gantry_remoting import read_small_file

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 3.0


@final
class SettingsFile:
    """One file. Owned by the event loop."""

    def __init__(self, path: str, live: LiveSettings) -> None:
        """Without a path nothing is looked at."""
        self.trouble: str | None = None
        """Why what the file says now is not in use."""

        self._path: Final = path
        self._live: Final = live
        self._used: bytes | None = None
        self._watching: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Take what it says, at the start. Waits for the disk."""
        if self._path:
            self._take(_content(self._path))

    def start(self) -> None:
        """Look again every few seconds until closed."""
        if self._path:
            self._watching = asyncio.create_task(self._watch(), name="the file of settings")

    async def close(self) -> None:
        """Look no more."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])

    async def look(self) -> None:
        """Take what it says now, if that is new."""
        self._take(await asyncio.to_thread(_content, self._path))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.look()

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
