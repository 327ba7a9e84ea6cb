"""Small documents of a store that prove themselves whole: a line with the CRC-32 of the rest, in hex, then JSON.

0a1b2c3d\n{"through": 1048576, ...}
"""

from __future__ import annotations

from contextlib import closing
from typing import Final, TypeVar
from zlib import crc32

import msgspec

from gantry_store_files.disk import StoreDisk

SMALL_BYTES_MAX: Final = 64 << 20
"""No document of a store is larger, so none can fill the memory of its reader."""

DocumentT = TypeVar("DocumentT")


def decode_sealed(data: bytes, kind: type[DocumentT]) -> DocumentT:
    """The document in ``data``. Raises ``ValueError`` for one that is not whole, or of another kind."""
    crc, _, body = data.partition(b"\n")
    if crc != b"%08x" % crc32(body):
        raise ValueError("its CRC is wrong")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as exc:
        raise ValueError(str(exc)) from exc


def sealed_or_fault(disk: StoreDisk, path: str, kind: type[DocumentT]) -> tuple[DocumentT | None, str]:
    """The document in a file, or why it cannot be read; neither if there is no file."""
    data = read_small(disk, path)
    try:
        return None if data is None else decode_sealed(data, kind), ""
    except ValueError as exc:
        return None, str(exc)


def encode_sealed(document: object) -> bytes:
    """The bytes of a document."""
    body = msgspec.json.encode(document)
    return b"%08x\n" % crc32(body) + body


def read_small(disk: StoreDisk, path: str) -> bytes | None:
    """A file that is small by nature, whole; None where there is none."""
    try:
        file = disk.open(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    with closing(file):
        return file.pread(min(file.size, SMALL_BYTES_MAX), 0)
