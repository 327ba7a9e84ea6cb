"""Sealed documents on the broker's disk: see ``gantry_store_files.sealed`` for their form."""

from __future__ import annotations

from gantry_broker.ports.disk import Disk
from gantry_store_files.sealed import DocumentT, decode_sealed, encode_sealed


def read_sealed(disk: Disk, path: str, kind: type[DocumentT]) -> DocumentT | None:
    """The document; None if there is none. Raises ValueError for one that cannot be read."""
    if not disk.exists(path):
        return None
    return decode_sealed(disk.read_file(path), kind)


def write_sealed(disk: Disk, path: str, document: object) -> None:
    """Durable when this returns. Raises OSError; then the old one is still there."""
    disk.write_file(path, encode_sealed(document))
