"""Small files of a store that are written as a whole: sealed documents (``gantry_store_files.sealed``).

Some files of a store may stay as they are while the disk is full; ``OptionalFile`` writes those.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from gantry_broker.errors import is_disk_full
from gantry_broker.ports.disk import Disk
from gantry_store_files.sealed import DocumentT, decode_sealed, encode_sealed

log = logging.getLogger(__name__)


def read_sealed(disk: Disk, path: str, kind: type[DocumentT]) -> DocumentT | None:
    """Read the document; return None if there is none. Raises ValueError for one that cannot be read."""
    if not disk.exists(path):
        return None
    return decode_sealed(disk.read_file(path), kind)


def write_sealed(disk: Disk, path: str, document: object) -> None:
    """Replace the document, durable when this returns. Raises OSError; then the old one is still valid."""
    disk.write_file(path, encode_sealed(document))


@final
class OptionalFile:
    """A file that may be outdated: then a start reads more of the log, or checks less, and loses no message.

    On a full disk the old file stays, without an error.
    """

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self.is_refused = False
        """Whether the disk was full at the last write. One episode of a full disk is logged once."""

    def write(self, write: Callable[[], None]) -> bool:
        """Call ``write``. Return False if the disk is full. Raises OSError for every other failure of the disk."""
        try:
            write()
        except OSError as exc:
            if not is_disk_full(exc):
                raise
            if not self.is_refused:
                log.warning("disk is full; store file not written", extra={"file": self._name, "reason": str(exc)})
            self.is_refused = True
            return False
        self.is_refused = False
        return True
