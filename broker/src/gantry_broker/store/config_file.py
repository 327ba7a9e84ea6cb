"""The JSON files beside the log: topics, consumer offsets, subscription groups, delay offsets.

    <root>/config/<name>.json        the current one
    <root>/config/<name>.json.bak    its predecessor, which was good

They hold facts that no log can give back, so a crash must never leave less than one good copy. The predecessor is only
ever replaced by a copy that was just read and understood; the current one is replaced whole. If the current one cannot
be read the predecessor is used, and said; if neither can, starting is refused, since consumers at offset zero would be
worse. Shapes are RocketMQ's, and so are its bare integer keys when reading; writing is standard JSON, which it reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, final

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.disk import Disk
from gantry_broker.store.file_queue import make_durable_directory
from gantry_wire import fastjson

log = logging.getLogger(__name__)

Check = Callable[[dict[str, Any]], object]


@final
class ConfigFile:
    """One such file. Whoever owns the facts calls ``save`` from one thread at a time; it waits for the disk."""

    def __init__(self, disk: Disk, root: str, name: str) -> None:
        self._disk: Final = disk
        self._directory: Final = f"{root}/config"
        self.path: Final = f"{root}/config/{name}.json"
        self.backup_path: Final = f"{self.path}.bak"
        self._good: bytes | None = None

    def load(self, check: Check = lambda document: None) -> dict[str, Any] | None:
        """What the file says, or None if there has never been one. Raises ``ConfigCorrupt``.

        ``check`` raises ValueError for a document that is not of the wanted shape.
        """
        current, current_fault = self._read(self.path, check)
        if current is not None:
            return current
        backup, backup_fault = self._read(self.backup_path, check)
        if backup is not None:
            log.warning(
                "a settings file is not usable, its predecessor is used",
                extra={"path": self.path, "reason": current_fault or "there is no such file"},
            )
            return backup
        if current_fault is None and backup_fault is None:
            return None
        raise ConfigCorrupt(f"{self.path}: {current_fault or 'missing'}; its .bak: {backup_fault or 'missing'}")

    def _read(self, path: str, check: Check) -> tuple[dict[str, Any] | None, str | None]:
        """(the document, None), or (None, why it cannot be used), or (None, None) if there is no file."""
        if not self._disk.exists(path):
            return None, None
        data = self._disk.read_file(path)
        try:
            document = fastjson.loads(data)
        except ValueError as exc:
            return None, f"it is not JSON: {exc}"
        if not isinstance(document, dict):
            return None, "it is not a JSON object"
        try:
            check(document)
        except ValueError as exc:
            return None, str(exc)
        self._good = data
        return document, None

    def save(self, document: dict[str, Any]) -> None:
        """Make ``document`` the current one, durably. What was current and good becomes the predecessor first."""
        data = fastjson.dumps(document)
        if data == self._good and self._disk.exists(self.path):
            return
        make_durable_directory(self._disk, self._directory)
        if self._good is not None:
            self._disk.write_file(self.backup_path, self._good)
        self._disk.write_file(self.path, data)
        self._good = data
