"""The fields of a recovery point that a reader of the log needs: above all the offset up to which a store is durable.

The broker's own reader adds the other fields of the document. Every reader accepts the same recovery points: undamaged
ones (see ``sealed``) of a known format, written by the store in whose directory they are.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_store_files.disk import StoreDisk
from gantry_store_files.sealed import read_sealed_or_fault
from gantry_store_files.store_identity import StoreIdentity

FORMAT: Final = 1
RECOVERY_POINT_FILE: Final = "recovery-point.json"


class RecoveryPointHead(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a recovery point that a reader of the log needs: everything before ``through`` is durable."""

    through: int
    """A physical offset at which a record begins or will begin."""

    deleted: dict[str, int] = {}
    """Topics that were deleted, and the end of the log then: older records of theirs belong to no queue."""

    store: str = ""
    """The uuid of the store; empty from an older version."""

    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"its format is {self.format}, expected {FORMAT}")


def read_recovery_point(disk: StoreDisk, root: str, identity: StoreIdentity | None) -> RecoveryPointHead | None:
    """Return the head of the recovery point; None if it is missing, damaged, or of another store.

    Without an identity the stores cannot be compared, and every undamaged recovery point is accepted.
    """
    point, _ = read_sealed_or_fault(disk, f"{root}/{RECOVERY_POINT_FILE}", RecoveryPointHead)
    return point if point is None or identity is None or identity.accepts_uuid(point.store) else None
