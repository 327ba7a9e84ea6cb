"""The administrators' key-value table: strings by namespace and key, on disk as RocketMQ's `kvConfig.json`.

An update is answered only when it is on disk, and memory is changed after the disk, so a value that was read is
durable. Updates run one after the other; the event loop never waits for the disk.
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
"""The maximum size of the encoded table, which every update rewrites."""

Tables = dict[str, dict[str, str]]
"""The values by namespace and key."""


class KeyValueError(Exception):
    """An update could not be stored and has no effect. The caller should answer code 1 with this text.

    If the folder cannot be synced (`replace_file`), a power loss before the next update may bring it back.
    """


class KeyValueCorrupt(Exception):
    """Neither the file nor its predecessor can be read. An administrator should repair or remove them."""


@final
class KeyValueStore:
    """The tables in memory and their file. Owned by the event loop's thread; the lock serializes file writes."""

    def __init__(self, path: Path, *, write: Callable[..., None] = replace_file) -> None:
        self._path = path
        self._write = write  # replaced in tests, to fail
        self._tables: Tables = {}
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<KeyValueStore {self._path} namespaces={len(self._tables)}>"

    def load(self) -> None:
        """Read the file, or its predecessor if it is damaged. Blocking: call it before the server accepts requests."""
        candidates = read_candidates(self._path)
        for path, data in candidates:
            try:
                self._tables = read_document(data, KeyValueConfig).config_table
            except FieldError as error:
                log.error(
                    "key-value file is damaged; trying its predecessor", extra={"path": str(path), "reason": str(error)}
                )
                continue
            return
        if candidates:
            raise KeyValueCorrupt(f"{self._path} and its predecessor are damaged; repair or remove them")

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str] | None:
        """Return the table of one namespace, or None if it does not exist. Read only."""
        return self._tables.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value durably. Raises KeyValueError if it cannot be stored."""
        async with self._lock:
            table = {**self._tables.get(namespace, {}), key: value}
            await self._store({**self._tables, namespace: table})

    async def delete(self, namespace: str, key: str) -> bool:
        """Remove a value durably; return False if there was none. Raises KeyValueError."""
        async with self._lock:
            table = dict(self._tables.get(namespace, {}))
            if table.pop(key, None) is None:
                return False
            await self._store({**self._tables, namespace: table})
            return True

    async def _store(self, tables: Tables) -> None:
        data = write_document(KeyValueConfig(config_table=tables))
        if len(data) > TABLE_BYTES_MAX:
            raise KeyValueError(f"the key-value table would exceed {TABLE_BYTES_MAX} bytes")
        try:
            await asyncio.to_thread(self._write, self._path, data, keeps_predecessor=True)
        except OSError as error:
            log.error(
                "failed to write key-value file; update refused", extra={"path": str(self._path), "reason": str(error)}
            )
            raise KeyValueError(f"the key-value table cannot be written: {error.strerror or error}") from error
        self._tables = tables
