"""Small documents of a store that say themselves whether they are whole.

a line with the CRC-32 of the rest, in hex, then JSON
"""

from __future__ import annotations

from typing import Final, TypeVar
from zlib import crc32

import msgspec

from gantry_broker.ports.disk import Disk

CRC_DIGITS: Final = 8

DocumentT = TypeVar("DocumentT")


def read_sealed(disk: Disk, path: str, kind: type[DocumentT]) -> DocumentT | None:
    """The document; None if there is none. Raises ValueError for one that cannot be read."""
    if not disk.exists(path):
        return None
    return decode_sealed(disk.read_file(path), kind)


def decode_sealed(data: bytes, kind: type[DocumentT]) -> DocumentT:
    """The document that ``data`` is. Raises ValueError for what cannot be read."""
    crc, _, body = data.partition(b"\n")
    if len(crc) != CRC_DIGITS:
        raise ValueError("it has no CRC")
    if crc != b"%08x" % crc32(body):
        raise ValueError("its CRC is wrong")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as exc:
        raise ValueError(str(exc)) from exc


def encode_sealed(document: object) -> bytes:
    """The bytes of a document."""
    body = msgspec.json.encode(document)
    return b"%08x\n" % crc32(body) + body


def write_sealed(disk: Disk, path: str, document: object) -> None:
    """Durable when this returns. Raises OSError; then the old one is still there."""
    disk.write_file(path, encode_sealed(document))
