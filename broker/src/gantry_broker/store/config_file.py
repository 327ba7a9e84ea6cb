"""The JSON files beside the log: topics, consumer offsets, subscription groups, delay offsets.

    <root>/config/<name>.json        the current one
    <root>/config/<name>.json.bak    its copy, written right after it

They hold facts that no log can give back, so a crash must never leave less than one good copy: each is replaced whole,
the copy only when the current one is durable. If the current one cannot be read the copy is used, and that is logged;
if neither can, the start is refused, since consumers at offset zero would be worse. Shapes are RocketMQ's, and so are
its bare integer keys when reading; writing is standard JSON, which it reads.

How a file proves itself whole, and which of two good files counts, is ``gantry_store_files.table_copies``.
"""

from __future__ import annotations

import logging
from typing import Any, Final, final

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.disk import Disk
from gantry_broker.store.file_queue import make_durable_directory
from gantry_store_files.sealed import decode_sealed
from gantry_store_files.store_identity import IDENTITY_FILE, StoreIdentity
from gantry_store_files.table_copies import (
    Check,
    Edition,
    TableCopy,
    edition_store,
    encode_table,
    is_of_another_store,
    parse_table,
    reason_for_backup,
)
from gantry_wire import fastjson

log = logging.getLogger(__name__)


@final
class ConfigFile:
    """One such file. Whoever owns the facts calls ``save`` from one thread at a time; it waits for the disk."""

    def __init__(self, disk: Disk, root: str, name: str) -> None:
        self._disk: Final = disk
        self._root: Final = root
        self._directory: Final = f"{root}/config"
        self.path: Final = f"{root}/config/{name}.json"
        self.backup_path: Final = f"{self.path}.bak"
        self._number = 0
        self._saved: bytes | None = None
        """The document that the file and its copy are both known to hold."""

    def exists(self) -> bool:
        """Whether there is such a file, or its copy."""
        return self._disk.exists(self.path) or self._disk.exists(self.backup_path)

    def load(self, check: Check = lambda document: None) -> dict[str, Any] | None:
        """What the file says, or None if there has never been one. Raises ``ConfigCorrupt``.

        ``check`` raises ValueError for a document that is not of the wanted shape.
        """
        current, backup = self._read(self.path, check), self._read(self.backup_path, check)
        if current.document is None and backup.document is None:
            if not current.fault and not backup.fault:
                return None
            raise ConfigCorrupt(
                f"{self.path}: {current.fault or 'missing'}; its .bak: {backup.fault or 'missing'}. "
                f"Put a copy of the file back from a backup"
            )
        store = _store_of(self._disk, self._root)
        reason = reason_for_backup(current, backup, store)
        chosen = backup if reason else current
        if reason:
            log.warning("a settings file is not usable, its copy is used", extra={"path": self.path, "reason": reason})
        else:
            if is_of_another_store(current, store):
                log.warning("a settings file was written by another store", extra={"path": self.path})
            if backup.fault:
                extra = {"path": self.backup_path, "reason": backup.fault}
                log.warning("the copy of a settings file is not usable and will be written again", extra=extra)
        self._number = max(edition.number if edition else 0 for edition in (current.edition, backup.edition))
        is_same = current.document == backup.document and current.edition == backup.edition
        self._saved = fastjson.dumps(chosen.document) if is_same and current.edition is not None else None
        return chosen.document

    def _read(self, path: str, check: Check) -> TableCopy:
        return parse_table(self._disk.read_file(path), check) if self._disk.exists(path) else TableCopy()

    def save(self, document: dict[str, Any]) -> None:
        """Make ``document`` the current one and its copy, durably, one after the other."""
        plain = fastjson.dumps(document)
        if plain == self._saved and self._disk.exists(self.path):
            return
        self._saved = None
        self._number += 1
        data = encode_table(document, Edition(_store_of(self._disk, self._root), self._number))
        make_durable_directory(self._disk, self._directory)
        self._disk.write_file(self.path, data)
        self._disk.write_file(self.backup_path, data)
        self._saved = plain


def _store_of(disk: Disk, root: str) -> str:
    """How editions name this store; empty where ``store.json`` cannot be read."""
    path = f"{root}/{IDENTITY_FILE}"
    try:
        identity = decode_sealed(disk.read_file(path), StoreIdentity) if disk.exists(path) else None
    except ValueError:
        identity = None
    return edition_store(identity)
