"""Selection of this store's own small files, when the files name different stores.

    store.json     its copy     recovery-point.json     log-heads.json  --its checksums fit-->  the log

One of them may have come from another store. A wrong identity would reuse epochs and take our records for those of
another store, so it is replaced by its copy, or the start is refused. The other files are ignored, so the start reads
more of the log, or cannot notice log files of another store. Pure but for ``select_own_files``, which reads both copies
of the identity and logs.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.store.file_heads import HEADS_FILE, ComparedHeads, LogHeads
from gantry_broker.store.identity import IdentityFile, StoreIdentity
from gantry_broker.store.recovery_point import RecoveryPoint

log = logging.getLogger(__name__)


class ForeignIdentity(Enum):
    """The copies of the identity that belong to another store."""

    IDENTITY = "store.json; its copy is this store's"
    BOTH_COPIES = "store.json and its copy"
    ONE_COPY = "store.json or its copy; it is unknown which"


class OwnFiles(NamedTuple):
    """The small files that belong to this store, which a start may use."""

    identity: StoreIdentity | None
    """None if there is neither ``store.json`` nor its copy."""

    point: RecoveryPoint | None
    """The recovery point; None if there is none or it is another store's."""

    heads: LogHeads | None
    """The checksums of the first records of log files (``file_heads``); None as for the point."""

    @property
    def store(self) -> str:
        """The uuid of the store according to the files beside ``store.json``; empty if they have none."""
        if self.heads is not None:
            return self.heads.store
        return self.point.store if self.point is not None else ""


def find_foreign_identity(
    identity: StoreIdentity, backup: StoreIdentity | None, point: RecoveryPoint | None, heads: LogHeads | None,
    compared: ComparedHeads,
) -> ForeignIdentity | None:  # fmt: skip
    """Return which copy of the identity belongs to another store; None if nothing contradicts it.

    The log decides where it can: it belongs to the store whose recorded heads fit its files. Otherwise two equal
    uuids out of three decide.
    """
    if heads is not None and compared.same:
        if identity.accepts_uuid(heads.store):
            return None
        return (
            ForeignIdentity.IDENTITY
            if backup is not None and backup.accepts_uuid(heads.store)
            else ForeignIdentity.BOTH_COPIES
        )
    if backup is None or backup.uuid == identity.uuid:
        return None
    names = [one.store for one in (point, heads) if one is not None and one.store]
    if any(identity.accepts_uuid(name) for name in names):
        return None
    return ForeignIdentity.IDENTITY if any(backup.accepts_uuid(name) for name in names) else ForeignIdentity.ONE_COPY


def select_own_files(
    file: IdentityFile, point: RecoveryPoint | None, heads: LogHeads | None, compared: ComparedHeads
) -> OwnFiles:
    """Return the small files that belong to this store. Raises ``ConfigCorrupt`` if its identity is unknown."""
    identity, backup = file.read(), file.read_backup()
    if identity is None:
        return OwnFiles(None, point, heads)
    match find_foreign_identity(identity, backup, point, heads, compared):
        case ForeignIdentity.ONE_COPY:
            raise ConfigCorrupt(
                f"{file.path} and {file.backup_path} belong to different stores, and no other file shows which one is "
                f"right: remove the one that another store wrote"
            )
        case ForeignIdentity.BOTH_COPIES:
            raise ConfigCorrupt(
                f"{file.path} and its .bak were written by another store ({identity.uuid}): the log is of "
                f"{heads.store if heads is not None else '?'}. Put this store's own store.json back; or, in a group, "
                f"move the store away and start empty: the broker copies everything from its master. If you have "
                f"no copy of it, remove both: then no record that is in the log needs a seal"
            )
        case ForeignIdentity.IDENTITY:
            assert backup is not None, "its copy is this store's"
            extra = {"path": file.path, "store": identity.uuid, "expected": backup.uuid}
            log.error("store.json was written by another store; its copy is used", extra=extra)
            identity = backup
        case None:
            pass
    if point is not None and not identity.accepts_uuid(point.store):
        extra = {"path": "recovery-point.json", "store": point.store, "expected": identity.uuid}
        log.error("recovery point was written by another store and is not used; the whole log is read", extra=extra)
        point = None
    if heads is not None and not identity.accepts_uuid(heads.store):
        extra = {"path": HEADS_FILE, "store": heads.store, "expected": identity.uuid}
        log.error("log-heads.json was written by another store and is not used", extra=extra)
        heads = None
    return OwnFiles(identity, point, heads)
