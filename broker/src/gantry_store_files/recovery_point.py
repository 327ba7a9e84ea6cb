"""The head of a recovery point: up to where a store is durable. The broker's own reader adds the rest of the document.

Every reader believes the same points: whole ones (`sealed`), of a known format, and of the store that they lie in.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_store_files.disk import StoreDisk
from gantry_store_files.sealed import sealed_or_fault
from gantry_store_files.store_identity import StoreIdentity

FORMAT: Final = 1
RECOVERY_POINT_FILE: Final = "recovery-point.json"


class RecoveryPointHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader of the log needs of a recovery point: everything before ``through`` is durable."""

    through: int
    """A physical offset at which a record begins or will begin."""

    deleted: dict[str, int] = {}
    """Topics that were deleted, and the end of the log then: older records of theirs belong to no queue."""

    store: str = ""
    """The uuid of the store; empty from an older version."""

    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"its format is {self.format}")


def read_recovery_point(disk: StoreDisk, root: str, identity: StoreIdentity | None) -> RecoveryPointHead | None:
    """Return the head of the recovery point; None if there is none, or none to believe.

    Without an identity no store can be compared, and a whole point is believed.
    """
    point, _ = sealed_or_fault(disk, f"{root}/{RECOVERY_POINT_FILE}", RecoveryPointHead)
    return point if point is None or identity is None or identity.is_of(point.store) else None
