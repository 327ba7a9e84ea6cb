"""The JSON files beside the log: topics, consumer offsets, subscription groups, delay offsets.

    <root>/config/<name>.json        the current one
    <root>/config/<name>.json.bak    its copy, written right after it

They hold facts that no log can give back, so a crash must never leave less than one good copy: each is replaced whole,
the copy only when the current one is durable. If the current one cannot be read the copy is used, and that is logged;
if neither can, the start is refused, since consumers at offset zero would be worse. Shapes are RocketMQ's, and so are
its bare integer keys when reading; writing is standard JSON, which it reads.

A flipped bit in a number leaves JSON that is JSON, and would have consumers skip messages: so the last field of what we
write is a CRC-32 of the rest. A file that was rolled back, or that is another store's, has a right checksum: so the
field before it is its edition, the store's id and a number that rises with each write. Of two good files the store's
own and newer one is used. RocketMQ passes over both fields, and leaves them out when it writes; a file without them is
believed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self, final
from zlib import crc32

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.disk import Disk
from gantry_broker.store.file_queue import make_durable_directory
from gantry_broker.store.identity import StoreIdentity
from gantry_store_files.sealed import decode_sealed
from gantry_wire import fastjson

log = logging.getLogger(__name__)

CRC_FIELD: Final = "gantryCrc32"
EDITION_FIELD: Final = "gantryEdition"

Check = Callable[[dict[str, Any]], object]


def crc_of(document: dict[str, Any]) -> str:
    """The checksum of a document as it is written."""
    return f"{crc32(fastjson.dumps(document)):08x}"


def take_crc(document: dict[str, Any]) -> str | None:
    """Take the checksum out of a document that was read; why the document cannot be believed, if so."""
    crc = document.pop(CRC_FIELD, None)
    if crc is None or crc == crc_of(document):
        return None
    return f"its checksum is wrong; if it was edited on purpose, remove the field {CRC_FIELD}"


class Edition(NamedTuple):
    """Which store wrote a file, and as the how manyth."""

    store: str
    """The beginning of the store's uuid; empty where it had none yet."""
    number: int

    def __str__(self) -> str:
        return f"{self.store}-{self.number}"

    @classmethod
    def parse(cls, text: object) -> Self | None:
        """The edition that a file names; None if it names none."""
        match = _EDITION.fullmatch(text) if isinstance(text, str) else None
        return None if match is None else cls(match[1], int(match[2]))


_EDITION: Final = re.compile(r"([0-9a-f]*)-([0-9]{1,18})")
STORE_DIGITS: Final = 8
"""Of a store's uuid in an edition."""


class _Read(NamedTuple):
    """What was found under one name."""

    document: dict[str, Any] | None = None
    edition: Edition | None = None
    fault: str | None = None
    """Why the file cannot be used."""


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
            if current.fault is None and backup.fault is None:
                return None
            raise ConfigCorrupt(
                f"{self.path}: {current.fault or 'missing'}; its .bak: {backup.fault or 'missing'}. "
                f"Put a copy of the file back from a backup"
            )
        reason = current.fault or "there is no such file"
        if current.document is not None:
            reason = self._why_copy(current, backup)
        chosen = backup if reason else current
        if reason:
            log.warning("a settings file is not usable, its copy is used", extra={"path": self.path, "reason": reason})
        elif backup.fault:
            extra = {"path": self.backup_path, "reason": backup.fault}
            log.warning("the copy of a settings file is not usable and will be written again", extra=extra)
        self._number = max(edition.number if edition else 0 for edition in (current.edition, backup.edition))
        is_same = current.document == backup.document and current.edition == backup.edition
        self._saved = fastjson.dumps(chosen.document) if is_same and current.edition is not None else None
        return chosen.document

    def _why_copy(self, current: _Read, backup: _Read) -> str:
        """Why the copy is to be used although the file is whole; empty if it is not."""
        if current.edition is None:
            return ""
        store = _store_of(self._disk, self._root)
        if store and current.edition.store not in ("", store):
            if backup.edition is not None and backup.edition.store == store:
                return "it was written by another store"
            log.warning("a settings file was written by another store", extra={"path": self.path})
            return ""
        is_older = backup.edition is not None and backup.edition.number > current.edition.number
        if not is_older or (store and backup.edition is not None and backup.edition.store not in ("", store)):
            return ""
        return "it is older than its copy; to use it, remove the copy"

    def _read(self, path: str, check: Check) -> _Read:
        """The document and its edition, or why it cannot be used, or nothing if there is no file."""
        if not self._disk.exists(path):
            return _Read()
        try:
            document = fastjson.loads(self._disk.read_file(path))
        except ValueError as exc:
            return _Read(fault=f"it is not JSON: {exc}")
        if not isinstance(document, dict):
            return _Read(fault="it is not a JSON object")
        fault = take_crc(document)
        if fault is not None:
            return _Read(fault=fault)
        edition = Edition.parse(document.pop(EDITION_FIELD, None))
        try:
            check(document)
        except ValueError as exc:
            return _Read(fault=str(exc))
        return _Read(document, edition)

    def save(self, document: dict[str, Any]) -> None:
        """Make ``document`` the current one and its copy, durably, one after the other."""
        plain = fastjson.dumps(document)
        if plain == self._saved and self._disk.exists(self.path):
            return
        self._saved = None
        self._number += 1
        edition = str(Edition(_store_of(self._disk, self._root), self._number))
        sealed = {**document, EDITION_FIELD: edition}
        data = fastjson.dumps({**sealed, CRC_FIELD: crc_of(sealed)})
        make_durable_directory(self._disk, self._directory)
        self._disk.write_file(self.path, data)
        self._disk.write_file(self.backup_path, data)
        self._saved = plain


def _store_of(disk: Disk, root: str) -> str:
    """The beginning of the store's uuid; empty where ``store.json`` does not say."""
    path = f"{root}/store.json"
    try:
        return decode_sealed(disk.read_file(path), StoreIdentity).uuid[:STORE_DIGITS] if disk.exists(path) else ""
    except ValueError:
        return ""
