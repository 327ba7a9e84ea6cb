"""The JSON tables beside the log and their copies: which of the two counts.

    <root>/config/<name>.json        the current one
    <root>/config/<name>.json.bak    its copy, written right after it

The last field of what the broker writes is a CRC-32 of the rest, since a flipped bit in a number leaves JSON that is
JSON. The field before it is the file's edition: the beginning of the store's uuid and a number that rises with each
write, since a file that was rolled back, or that is another store's, has a right checksum. Of two good files the
store's own and newer one counts. RocketMQ ignores both fields, and omits them when it writes; a file without them is
believed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

from gantry_store_files.store_identity import StoreIdentity
from gantry_wire import fastjson

CRC_FIELD: Final = "gantryCrc32"
EDITION_FIELD: Final = "gantryEdition"
STORE_DIGITS: Final = 8
"""Of a store's uuid in an edition."""

_EDITION: Final = re.compile(r"([0-9a-f]*)-([0-9]{1,18})")

Check = Callable[[dict[str, Any]], object]
"""Raises ValueError for a document that is not of the wanted shape."""


class Edition(NamedTuple):
    """The store that wrote a file, and the number of the write."""

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


class TableCopy(NamedTuple):
    """One of the two files, as far as it can be used; without a fault and a document there is no such file."""

    document: dict[str, Any] | None = None
    edition: Edition | None = None
    fault: str = ""
    """Why the file cannot be used."""


def parse_table(data: bytes, check: Check = lambda document: None) -> TableCopy:
    """The table in the bytes of one file."""
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
        return TableCopy(fault=str(error) or "it has another form")
    return TableCopy(document, edition)


def encode_table(document: dict[str, Any], edition: Edition) -> bytes:
    """The bytes of a file that ``parse_table`` reads."""
    sealed = {**document, EDITION_FIELD: str(edition)}
    return fastjson.dumps({**sealed, CRC_FIELD: _crc_of(sealed)})


def reason_for_backup(current: TableCopy, backup: TableCopy, store: str) -> str:
    """Why the copy counts and not the file itself; empty if the file counts, or neither can be used.

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
    """Whether the file names a store that is not ``store``; one without a name belongs to any."""
    return copy.edition is not None and bool(store) and copy.edition.store not in ("", store)


def edition_store(identity: StoreIdentity | None) -> str:
    """How editions name a store: by the beginning of its uuid; empty where no ``store.json`` gives one."""
    return "" if identity is None else identity.uuid[:STORE_DIGITS]


def _is_sealed(data: bytes, crc: object) -> bool:
    """Whether these are the very bytes that were written: then the document need not be written again to know it."""
    seal = f',"{CRC_FIELD}":"{crc}"}}'.encode()
    return data.endswith(seal) and f"{crc32(b'}', crc32(memoryview(data)[: -len(seal)])):08x}" == crc


def _crc_of(document: dict[str, Any]) -> str:
    return f"{crc32(fastjson.dumps(document)):08x}"
