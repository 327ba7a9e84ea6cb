"""The Lease of one shard as a file: replaced whole, durably, and only by whoever has seen what it replaces.

    read       version 7  -->  decide  -->  write(expected 7)   version 8
                                            write(expected 7)   refused: somebody was faster

One supervisor at a time holds the lock of the folder, and it is the only writer; the comparison is for its own late
decisions, as in a cluster. A renewal writes nothing: whoever starts after a crash takes it that the master was renewed
until the moment at which the file was first read, and waits for as long as that may count.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import msgspec

from gantry_cli.local.whole_file import read_whole, write_whole
from gantry_spec.lease import LeaseRecord
from gantry_spec.observed import ObservedLease

REMEDY: Final = "restore it, or remove it: the shard then elects a master from what its stores have recorded"


@final
class LeaseFile:
    """Owned by one supervisor."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """Reads it. Raises CliError when it is damaged."""
        self.path: Final = path
        self._now_ms: Final = now_ms
        self._seen: ObservedLease = ObservedLease(record=read_whole(path, LeaseRecord, REMEDY), seen_ms=now_ms())

    def __repr__(self) -> str:
        return f"<LeaseFile {self.path.name} {self._seen.record}>"

    @property
    def observed(self) -> ObservedLease:
        """As it is."""
        return self._seen

    def write(self, expected: str | None, record: LeaseRecord) -> bool:
        """Replace the version that was seen; False if it is another one by now. Raises OSError."""
        current = self._seen.record
        if expected != (None if current is None else current.version):
            return False
        version = str(int("0" if current is None else current.version) + 1)
        new = msgspec.structs.replace(record, version=version)
        # A loss that a person has accepted is a size as manifests write it; here it is its number.
        write_whole(self.path, msgspec.json.format(msgspec.json.encode(new, enc_hook=int)))
        self._seen = ObservedLease(record=new, seen_ms=self._now_ms())
        return True
