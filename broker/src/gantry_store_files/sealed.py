"""Sealed documents: small files of a store with a line that holds the CRC-32 of the rest, in hex, then JSON.

0a1b2c3d\n{"through": 1048576, ...}
"""

from __future__ import annotations

from contextlib import closing
from typing import Final, TypeVar
from zlib import crc32

import msgspec

from gantry_store_files.disk import StoreDisk

SMALL_BYTES_MAX: Final = 64 << 20
"""The maximum size of a document that is read, so that no file can fill the memory of its reader."""

DocumentT = TypeVar("DocumentT")


def decode_sealed(data: bytes, kind: type[DocumentT]) -> DocumentT:
    """Return the document in ``data``. Raises ``ValueError`` if it is damaged or of another type."""
    crc, _, body = data.partition(b"\n")
    if crc != b"%08x" % crc32(body):
        raise ValueError("its CRC is wrong")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as exc:
        raise ValueError(str(exc)) from exc


def read_sealed_or_fault(disk: StoreDisk, path: str, kind: type[DocumentT]) -> tuple[DocumentT | None, str]:
    """Return (document, fault) of a file: the document, or the reason why it cannot be used.

    Without a file the document is None and the fault is empty.
    """
    data = read_small(disk, path)
    try:
        return None if data is None else decode_sealed(data, kind), ""
    except ValueError as exc:
        return None, str(exc)


def encode_sealed(document: object) -> bytes:
    """Return the bytes of a sealed document."""
    body = msgspec.json.encode(document)
    return b"%08x\n" % crc32(body) + body


def read_small(disk: StoreDisk, path: str) -> bytes | None:
    """Return the content of a small file, or None if there is no such file."""
    try:
        file = disk.open(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    with closing(file):
        return file.pread(min(file.size, SMALL_BYTES_MAX), 0)
