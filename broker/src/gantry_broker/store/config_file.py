"""The JSON files beside the log: topics, consumer offsets, groups, delay offsets, queue locks, changed settings.

    <root>/config/<name>.json        the current one
    <root>/config/<name>.json.bak    its copy, written right after it

Their content cannot be rebuilt from the log, so a crash must never leave less than one readable copy: each file is
replaced as a whole, and the copy only when the current file is durable. If the current file cannot be read, is older
than the copy, or was written by another store, the copy is used, and that is logged. If neither can be read, ``load``
raises, and the start is refused: starting without them would make all consumers start again at offset 0. Only queue
locks are not needed: without them clients can lock no queue in the first minute after the start.
Tables that RocketMQ has keep its shapes, including its bare integer keys on reading; files are written as standard
JSON, which RocketMQ reads.

``gantry_store_files.table_copies`` decides whether a file is complete, and which of two complete files is used.
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

NEEDED_FILES: Final = frozenset(
    {
        "topics", "subscriptionGroup", "consumerOffset", "delayOffset", "liveSettings", "messageRequestMode",
        "consumerOrderInfo",
    }
)  # fmt: skip
"""The files of which one copy must be readable for a start, if they exist. A broker starts without ``queueLocks``, and
does not read the files of RocketMQ that are missing here."""


@final
class ConfigFile:
    """One config file and its copy. The owner calls ``save`` from one thread at a time; it waits for the disk."""

    def __init__(self, disk: Disk, root: str, name: str) -> None:
        self._disk: Final = disk
        self._root: Final = root
        self._directory: Final = f"{root}/config"
        self.path: Final = f"{root}/config/{name}.json"
        self.backup_path: Final = f"{self.path}.bak"
        self._number = 0
        """The number in the edition of the last write."""

        self._saved: bytes | None = None
        """The encoded document that the file and its copy are both known to hold; None if unknown."""

    def exists(self) -> bool:
        """Return whether the file or its copy exists."""
        return self._disk.exists(self.path) or self._disk.exists(self.backup_path)

    def load(self, check: Check = lambda document: None) -> dict[str, Any] | None:
        """Return the stored document, or None if there has never been one. Raises ``ConfigCorrupt``.

        ``check`` raises ValueError for a document of an unexpected shape.
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
            log.warning("config file is unusable; using its .bak copy", extra={"path": self.path, "reason": reason})
        else:
            if is_of_another_store(current, store):
                log.warning(
                    "config file was written by another store; check that the right volume is mounted",
                    extra={"path": self.path},
                )
            if backup.fault:
                extra = {"path": self.backup_path, "reason": backup.fault}
                log.warning(".bak copy of config file is unusable; it will be rewritten", extra=extra)
        self._number = max(edition.number if edition else 0 for edition in (current.edition, backup.edition))
        is_same = current.document == backup.document and current.edition == backup.edition
        self._saved = fastjson.dumps(chosen.document) if is_same and current.edition is not None else None
        return chosen.document

    def _read(self, path: str, check: Check) -> TableCopy:
        return parse_table(self._disk.read_file(path), check) if self._disk.exists(path) else TableCopy()

    def save(self, document: dict[str, Any]) -> None:
        """Write ``document`` to the file and then to its copy, durably."""
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
    """Return the name of this store in editions of a table; empty where ``store.json`` cannot be read."""
    path = f"{root}/{IDENTITY_FILE}"
    try:
        identity = decode_sealed(disk.read_file(path), StoreIdentity) if disk.exists(path) else None
    except ValueError:
        identity = None
    return edition_store(identity)
