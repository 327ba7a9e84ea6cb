"""The operator's key-value table: strings by namespace and key, on disk as RocketMQ's `kvConfig.json`.

The one thing a name server must not forget. An update is answered only when it is on disk, and memory changes after the
disk does, so what is read has always been kept. Updates run one after the other; the loop never waits for the disk.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from gantry_remoting.durable_files import read_candidates, replace_file
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import KeyValueConfig

log = logging.getLogger(__name__)

TABLE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The whole table, written down; every update rewrites it."""

Tables = dict[str, dict[str, str]]


class KeyValueError(Exception):
    """An update was not kept and has no effect. The caller should answer code 1 with this text."""


class KeyValueCorrupt(Exception):
    """Neither the file nor its predecessor can be read. The operator should repair or remove them."""


@final
class KeyValueStore:
    """The tables in memory and their file. Owned by the event loop's thread; the file by whoever holds the lock."""

    def __init__(self, path: Path, *, write: Callable[..., None] = replace_file) -> None:
        self._path = path
        self._write = write  # replaced in tests, to fail
        self._tables: Tables = {}
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<KeyValueStore {self._path} namespaces={len(self._tables)}>"

    def load(self) -> None:
        """Read the file, or its predecessor if it is damaged. Blocking: call it before the loop is busy."""
        candidates = read_candidates(self._path)
        for path, data in candidates:
            try:
                self._tables = read_document(data, KeyValueConfig).config_table
            except FieldError as error:
                log.error("key-value file is damaged", extra={"path": str(path), "reason": str(error)})
                continue
            return
        if candidates:
            raise KeyValueCorrupt(f"{self._path} and its predecessor are damaged; repair or remove them")

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str] | None:
        """All of one namespace, or None when there never was one. Read only."""
        return self._tables.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value, durably. Raises KeyValueError."""
        async with self._lock:
            table = {**self._tables.get(namespace, {}), key: value}
            await self._keep({**self._tables, namespace: table})

    async def delete(self, namespace: str, key: str) -> bool:
        """Remove a value, durably; False when there was none. Raises KeyValueError."""
        async with self._lock:
            table = dict(self._tables.get(namespace, {}))
            if table.pop(key, None) is None:
                return False
            await self._keep({**self._tables, namespace: table})
            return True

    async def _keep(self, tables: Tables) -> None:
        data = write_document(KeyValueConfig(config_table=tables))
        if len(data) > TABLE_BYTES_MAX:
            raise KeyValueError(f"the key-value table would pass {TABLE_BYTES_MAX} bytes")
        try:
            await asyncio.to_thread(self._write, self._path, data, keeps_predecessor=True)
        except OSError as error:
            log.error("key-value file cannot be written", extra={"path": str(self._path), "reason": str(error)})
            raise KeyValueError(f"the key-value table cannot be written: {error.strerror or error}") from error
        self._tables = tables
