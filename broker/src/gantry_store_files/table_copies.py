"""The JSON tables beside the log, and the choice between a table and its copy.

    <root>/config/<name>.json        the current file
    <root>/config/<name>.json.bak    its copy, written right after it

The last field that the broker writes is a CRC-32 of the rest, since JSON with a flipped bit in a number is still JSON.
The field before it is the file's edition: the beginning of the store's uuid and a number that increases with each
write, since a file that was rolled back, or belongs to another store, has a correct checksum. Of two readable files the
newer one of this store is used. RocketMQ ignores both fields and omits them when it writes; a file without them is
accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

from gantry_store_files.store_identity import StoreIdentity
from gantry_wire import fastjson

CRC_FIELD: Final = "gantryCrc32"
"""The field with the CRC-32 of the rest of the file."""
EDITION_FIELD: Final = "gantryEdition"
"""The field with the edition: store, and number of the write."""
STORE_DIGITS: Final = 8
"""The number of digits of a store's uuid in an edition."""

_EDITION: Final = re.compile(r"([0-9a-f]*)-([0-9]{1,18})")

Check = Callable[[dict[str, Any]], object]
"""A check of a document's shape. Raises ValueError for an unexpected shape."""


class Edition(NamedTuple):
    """The store that wrote a file, and the number of the write."""

    store: str
    """The beginning of the store's uuid; empty if the store had none yet."""
    number: int
    """The number of the write, which increases each time."""

    def __str__(self) -> str:
        return f"{self.store}-{self.number}"

    @classmethod
    def parse(cls, text: object) -> Self | None:
        """Return the edition in a file's field, or None if there is none."""
        match = _EDITION.fullmatch(text) if isinstance(text, str) else None
        return None if match is None else cls(match[1], int(match[2]))


class TableCopy(NamedTuple):
    """One of the two files, as far as it can be used. Without a document and a fault there is no such file."""

    document: dict[str, Any] | None = None
    """The content without Gantry's two fields; None if it cannot be used."""

    edition: Edition | None = None
    fault: str = ""
    """The reason why the file cannot be used."""


def parse_table(data: bytes, check: Check = lambda document: None) -> TableCopy:
    """Return the table in the bytes of one file."""
    try:
        document = fastjson.loads(data)
    except ValueError as error:
        return TableCopy(fault=f"it is not JSON: {error}")
    if not isinstance(document, dict):
        return TableCopy(fault="it is not a JSON object")
    crc = document.pop(CRC_FIELD, None)
    if crc is not None and not _is_sealed(data, crc) and crc != _crc_of(document):
        return TableCopy(fault=f"its checksum is wrong; if it was edited on purpose, remove the field {CRC_FIELD}")
    edition = Edition.parse(document.pop(EDITION_FIELD, None))
    try:
        check(document)
    except ValueError as error:
        return TableCopy(fault=str(error) or "its content has an unexpected form")
    return TableCopy(document, edition)


def encode_table(document: dict[str, Any], edition: Edition) -> bytes:
    """Return the bytes of a file, as ``parse_table`` reads them."""
    sealed = {**document, EDITION_FIELD: str(edition)}
    return fastjson.dumps({**sealed, CRC_FIELD: _crc_of(sealed)})


def reason_for_backup(current: TableCopy, backup: TableCopy, store: str) -> str:
    """Return why the copy is used and not the file itself; empty if the file is used, or neither can be.

    ``store`` is the beginning of the store's uuid, or empty.
    """
    if backup.document is None:
        return ""
    if current.document is None:
        return current.fault or "there is no such file"
    if current.edition is None or backup.edition is None:
        return ""
    if is_of_another_store(current, store):
        return "it was written by another store" if backup.edition.store == store else ""
    if backup.edition.number <= current.edition.number or is_of_another_store(backup, store):
        return ""
    return "it is older than its copy; to use it, remove the copy"


def is_of_another_store(copy: TableCopy, store: str) -> bool:
    """Return whether the file names another store than ``store``. A file without a store belongs to any."""
    return copy.edition is not None and bool(store) and copy.edition.store not in ("", store)


def edition_store(identity: StoreIdentity | None) -> str:
    """Return the name of a store in editions, the beginning of its uuid; empty without ``store.json``."""
    return "" if identity is None else identity.uuid[:STORE_DIGITS]


def _is_sealed(data: bytes, crc: object) -> bool:
    """Return whether the bytes are exactly as written, so that the document need not be encoded again to check it."""
    seal = f',"{CRC_FIELD}":"{crc}"}}'.encode()
    return data.endswith(seal) and f"{crc32(b'}', crc32(memoryview(data)[: -len(seal)])):08x}" == crc


def _crc_of(document: dict[str, Any]) -> str:
    return f"{crc32(fastjson.dumps(document)):08x}"
